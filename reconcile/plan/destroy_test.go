package plan

import (
	"slices"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
)

// TestMayHideEtcd: where no etcd is seen, a VM that may be a control plane's may hold one.
func TestMayHideEtcd(t *testing.T) {
	for _, c := range []struct {
		what  string
		lines []string
		want  bool
	}{
		{"nothing is there", nil, false},
		{"the VM of a control plane is in no pool", []string{"vm cp-1 foreign"}, true},
		{"that of a worker is", []string{"vm wk-1 foreign"}, false},
		{"it is shown that it is another VM", []string{"vm cp-1 foreign disproven"}, false},
		{"another VM is not seen", []string{"vm cp-1 foreign", "vm cp-2 unknown"}, false},
		{"etcd is seen", []string{"vm cp-1 foreign", "member cp-2 10.10.0.12"}, false},
	} {
		w := newWorld(2, 1)
		edits(c.lines...)(t, w)
		if got := leftover.MayHideEtcd(w.d, w.o); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// TestWhatIsLeft: a VM that is not seen, whatever was known of it, may be left of a cluster;
// one that is absent, or of others, is not.
func TestWhatIsLeft(t *testing.T) {
	for _, c := range []struct {
		vm   cluster.VM
		left bool
	}{
		{cluster.VM{Presence: cluster.Absent}, false},
		{cluster.VM{Presence: cluster.Present, Owner: cluster.Foreign}, false},
		{cluster.VM{Owner: cluster.Foreign}, true},
		{cluster.VM{}, true},
	} {
		w := newWorld(1, 1)
		w.run(t, "facts destroying bootstrap=cp-1")
		m := newPlanner(w.d, w.o, w.p)
		for _, n := range w.d.Spec.Nodes[1:] {
			if left := m.planRemoval(n.Name, n, c.vm); left != c.left {
				t.Errorf("%+v: left: %v", c.vm, left)
			}
		}
	}
	unseen := cluster.VM{Owner: cluster.Foreign}
	if n := newWorld(1, 0).d.Spec.Nodes[0]; leftover.MayHoldEtcd(n, unseen) {
		t.Error("a VM that is not seen is taken for one that was taken out of the pool")
	}
}

// TestDeletable: a command to destroy is for the VMs of all nodes and for those that are no
// second machine of one.
func TestDeletable(t *testing.T) {
	for _, c := range []struct {
		what  string
		lines []string
		want  []int
	}{
		{"nothing is there", nil, []int{411, 521}},
		{"VMs of nodes that are removed", []string{"orphans-are ghost=598 spook=599"}, []int{411, 521, 598, 599}},
		{"two VMs of one", []string{"orphans-are ghost=598 ghost=599"}, []int{411, 521}},
		{"a second machine", []string{"vm wk-1 stopped", "orphans-are wk-1=599"}, []int{411, 521}},
		{"a second machine, and the first is in another pool", []string{"vm wk-1 moved=other", "orphans-are wk-1=599"}, []int{411, 521}},
		{"one whose first may be there", []string{"vm wk-1 unknown", "orphans-are wk-1=599"}, []int{411, 521}},
		{"one whose first is another VM", []string{"vm wk-1 foreign", "orphans-are wk-1=599"}, []int{411, 521, 599}},
		{"one whose first is not there", []string{"orphans-are wk-1=599"}, []int{411, 521, 599}},
	} {
		w := newWorld(1, 1)
		edits(c.lines...)(t, w)
		if got := leftover.Deletable(w.d, w.o); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}
