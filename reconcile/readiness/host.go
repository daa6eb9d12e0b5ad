package readiness

import (
	"cmp"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// maintainedWithin is how long a host may be in maintenance: somebody works on it.
const maintainedWithin = 24 * time.Hour

// AwaitHost is the wait for a host on which nothing can be made or changed now, or is to be; no Reason: it is ready for that. within is how
// long what should be seen may not be.
func AwaitHost(subject, name string, h cluster.Host, within time.Duration) cluster.Wait {
	switch {
	case !h.Known:
		return cluster.Wait{Subject: subject, Reason: cluster.HostUnknown, About: name, Message: fmt.Sprintf("cannot see host %s: %s", name, cmp.Or(h.Why, "it has not answered yet")), Within: within}
	case h.Quorate.Known && !h.Quorate.Value:
		return cluster.Wait{Subject: subject, Reason: cluster.HostNoQuorum, About: name, Message: fmt.Sprintf("the Proxmox VE cluster of %s has no quorum, so nothing can be changed", name), Within: within,
			Hint: "bring the other hosts back; `pvecm status` shows who is missing"}
	case h.Maintained:
		return cluster.Wait{Subject: subject, Reason: cluster.HostMaintained, About: name, Message: fmt.Sprintf("host %s is in maintenance mode", name), Within: maintainedWithin,
			Hint: "`ha-manager crm-command node-maintenance disable " + name + "` ends it"}
	}
	return cluster.Wait{}
}
