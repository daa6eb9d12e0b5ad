package action

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// claimDisks claims the storage of a new VM. A disk that is empty may be written in full while it is allocated, so that
// one with data disks, or one that installs itself, has the storage for itself.
func claimDisks(host string, n cluster.Node, image cluster.Image) cluster.Claim {
	if len(n.Disks) > 0 || image.ISO {
		return cluster.ClaimStorage(host, n.Datastore)
	}
	return cluster.ClaimCopy(host, n.Datastore)
}

// AwaitClaim is the wait of an action for what another one claims, under way or planned. One that is about the same
// waits for no turn on itself.
func AwaitClaim(i Info, c cluster.Claim, by []cluster.ActionID, drift []cluster.FieldDifference) cluster.Wait {
	what := c.Resource()
	w := cluster.Wait{Subject: i.Subject, Reason: cluster.WaitingForTurn, About: string(what), Message: fmt.Sprintf("waits for its turn on %s until %s of %s", what, by[0].Kind, by[0].Subject), Drift: drift}
	switch {
	case by[0].Subject == i.Subject:
		w.Message = fmt.Sprintf("waits until %s", by[0].Kind)
	case c.IsCopy() && len(by) > 1:
		w.Message += " or another"
	}
	w.Message += " has ended"
	return w
}
