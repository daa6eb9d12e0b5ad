package lost

import (
	"cmp"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Learners is what is known of the members of etcd that are learners, from what was known
// before. While the members are not seen, none ends.
func Learners(d cluster.Desired, o cluster.Observed, before map[uint64]cluster.Learner) map[uint64]cluster.Learner {
	if !o.Members.Known {
		return before
	}
	out := map[uint64]cluster.Learner{}
	for _, mem := range o.Members.Value {
		if !mem.Learner {
			continue
		}
		mach := o.Machines[learnerOf(d, mem)]
		l, known := before[mem.ID]
		if !known || mach.Services["etcd"].State != "Running" {
			l.Since = o.Now
		}
		l.Boot = cmp.Or(l.Boot, mach.BootID)
		out[mem.ID] = l
	}
	return out
}

// learnerOf is the control plane of the inventory that a learner is, "" when none.
func learnerOf(d cluster.Desired, mem cluster.Member) string {
	planes := d.Spec.ControlPlanes()
	if i := slices.IndexFunc(planes, func(n cluster.Node) bool { return mem.IsOf(n) }); i >= 0 {
		return planes[i].Name
	}
	return ""
}
