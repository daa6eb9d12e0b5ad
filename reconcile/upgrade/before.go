package upgrade

import "github.com/talos-agent/talos-agent/internal/cluster"

// AddBefore adds why others wait for a node before they are upgraded to such waits, unless there are two of that reason: they are
// looked for once and not for every node that waits, and one of two is another node than that. Of those in their turn all are kept.
func AddBefore(all []cluster.Wait, w cluster.Wait) []cluster.Wait {
	same := 0
	for _, other := range all {
		if other.Reason == w.Reason {
			same++
		}
	}
	if same < 2 || w.Reason == cluster.WaitingForTurn {
		all = append(all, w)
	}
	return all
}

// IsBefore reports whether a node waits for another one, by why others wait for that, before it is taken down for another Talos. One
// that goes back waits for none that is not Ready, or whose VM is busy; any other waits for its own VM as well. One that has its Talos installed waits for none that has it installed as well, or
// lacks it still: each would wait for the other. fails and inTurn are whether the installation on the other one failed, and whether that
// is out of service for its own turn: as many are as may be at once.
func IsBefore(w cluster.Wait, node string, back, installed, fails, inTurn bool) bool {
	switch {
	case w.About == node && w.Reason != cluster.VMLocked, back && w.Reason != cluster.WaitingForTurn:
		return false
	case installed:
		return fails || w.Reason == cluster.WaitingForHop && !inTurn || w.Reason == cluster.VMLocked
	}
	return true
}
