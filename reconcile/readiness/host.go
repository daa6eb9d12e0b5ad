package readiness

import (
	"cmp"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// How long a host may be out of sight, and in maintenance, which it is for as long as somebody works on it.
const (
	seeHostWithin    = 2 * time.Minute
	maintainedWithin = 24 * time.Hour
)

// AwaitHost is the wait for a host on which nothing can be made or changed now, or is to be; no Reason: it is ready for that.
func AwaitHost(subject, name string, h cluster.Host) cluster.Wait {
	w := cluster.Wait{Subject: subject, About: name, Within: seeHostWithin}
	switch {
	case !h.Known:
		w.Reason, w.Message = cluster.HostUnknown, fmt.Sprintf("cannot see host %s: %s", name, cmp.Or(h.Why, "it has not answered yet"))
	case h.Quorate.Known && !h.Quorate.Value:
		w.Reason, w.Message = cluster.HostNoQuorum, fmt.Sprintf("the Proxmox VE cluster of %s has no quorum, so nothing can be changed", name)
		w.Hint = "bring the other hosts back; `pvecm status` shows who is missing"
	case h.Maintained:
		w.Reason, w.Message, w.Within = cluster.HostMaintained, fmt.Sprintf("host %s is in maintenance mode", name), maintainedWithin
		w.Hint = "`ha-manager crm-command node-maintenance disable " + name + "` ends it"
	}
	return w
}
