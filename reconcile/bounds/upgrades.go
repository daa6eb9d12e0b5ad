package bounds

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Upgrade is when nodes of a cluster may get other versions, and by which rule that is
// otherwise than the cluster asks for; "" when it is not. The stricter of cluster and host holds.
// Where only a window allows it and there is none, it is off: no time was named for it.
func Upgrade(s cluster.Spec, p cluster.Policy) (mode cluster.UpgradeMode, rule string) {
	mode = max(s.Upgrade, p.Upgrade)
	if mode > s.Upgrade {
		rule = fmt.Sprintf("the cluster asks for %s, and the host allows %s (host policy, %s: upgrade)", s.Upgrade, mode, p.Line("upgrade"))
	}
	if message, _ := MissingWindow(s, p); message != "" {
		if rule != "" {
			rule += "; "
		}
		return cluster.UpgradeOff, rule + message
	}
	return mode, rule
}

// MissingWindow is why nothing of a cluster is ever upgraded although that is not off: it is
// allowed only in a window, and neither the cluster nor the host has one. message is "" where
// that is not so.
func MissingWindow(s cluster.Spec, p cluster.Policy) (message, hint string) {
	if max(s.Upgrade, p.Upgrade) != cluster.UpgradeInWindow || s.Window.Zone != nil || p.Window.Zone != nil {
		return "", ""
	}
	return "upgrade is window, and neither cluster.yaml nor the host's policy has a window", "add a `window` to cluster.yaml"
}

// HintOff is what has a cluster upgraded that is not by its switches: a window where that is all that lacks. The file that the
// switch is in follows it.
func HintOff(s cluster.Spec, p cluster.Policy) string {
	const set = "set `upgrade: auto`"
	if _, add := MissingWindow(s, p); add != "" {
		return add + ", or " + set
	}
	return set
}

// UpgradeInOpenWindow is when nodes of a cluster may get other versions, as the cluster asks for it and as the host
// allows it, while the window that there is is open: at any time then where a window alone keeps it.
func UpgradeInOpenWindow(s cluster.Spec, p cluster.Policy) (asked, allowed cluster.UpgradeMode) {
	if mode, _ := Upgrade(s, p); mode == cluster.UpgradeInWindow {
		return cluster.UpgradeAuto, cluster.UpgradeAuto
	}
	return s.Upgrade, p.Upgrade
}
