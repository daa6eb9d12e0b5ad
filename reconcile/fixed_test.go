package reconcile

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/dualstack"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/reconcile/journal/journaltest"
)

// changePods has the repository ask for another pod network.
func changePods(cidr string) func(*cluster.Spec) {
	return func(s *cluster.Spec) { s.Network.PodCIDR = netip.MustParsePrefix(cidr) }
}

// TestFixedChangeThatWasApplied: where an agent that did not refuse it has noted a revision as
// applied that changes what the cluster keeps, there is no better one to go back to. It is in force
// as before, a VM that is stopped is started, and the planner refuses the change; the revision that
// takes it back is not taken for a change.
func TestFixedChangeThatWasApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 1), journaltest.NewFiles()
		f.set(func() { changePods("10.244.0.0/16")(&f.spec) })
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		a.stop()
		f.change(rev(2), rev(1), changePods("10.32.0.0/16"))
		j, err := journal.Open(files, "dev", f.spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Update(func(f *cluster.Facts) { f.Applied = rev(2) }); err != nil {
			t.Fatal(err)
		}
		a = start(t, f, files)
		defer a.stop()
		f.stop("wk-1")
		time.Sleep(10 * time.Minute)
		if s := a.Status(); s.Reason != cluster.FixedConfigChanged || s.Problems.HasErrors() || s.Applied != rev(2) || f.power("wk-1") != cluster.PowerRunning {
			t.Errorf("wk-1 is %v: %+v", f.power("wk-1"), s)
		}
		f.change(rev(3), rev(2), changePods("10.244.0.0/16"))
		a.Look()
		if s := until(t, a, cluster.Ready); s.Applied != rev(3) {
			t.Errorf("wk-1 is %v: %+v", f.power("wk-1"), s)
		}
	})
}

// TestFixedChangeWhileNothingIsRecalled: while the revision that was applied cannot be read, one
// that changes what the cluster keeps is not noted as applied, so that the other is in force as
// soon as it can be read.
func TestFixedChangeWhileNothingIsRecalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 1), journaltest.NewFiles()
		f.set(func() { changePods("10.244.0.0/16")(&f.spec) })
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		a.stop()
		f.change(rev(2), rev(1), changePods("10.32.0.0/16"))
		f.set(func() { f.forgot = true })
		a = start(t, f, files)
		defer a.stop()
		f.stop("wk-1")
		time.Sleep(10 * time.Minute)
		if s := a.Status(); s.Applied != rev(1) || f.power("wk-1") != cluster.PowerRunning {
			t.Errorf("wk-1 is %v: %+v", f.power("wk-1"), s)
		}
		f.set(func() { f.forgot = false })
		f.stop("wk-1")
		time.Sleep(10 * time.Minute)
		if s := a.Status(); s.Reason != cluster.FixedConfigChanged || s.Condition != cluster.Stalled || !s.Problems.HasErrors() || s.Applied != rev(1) || f.power("wk-1") != cluster.PowerRunning {
			t.Errorf("wk-1 is %v: %+v", f.power("wk-1"), s)
		}
	})
}

// TestFixedChangeOfADestroyedCluster: what was destroyed keeps nothing.
func TestFixedChangeOfADestroyedCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 1), journaltest.NewFiles()
		f.set(func() { changePods("10.244.0.0/16")(&f.spec) })
		a := start(t, f, files)
		defer a.stop()
		until(t, a, cluster.Ready)
		f.change(rev(2), rev(1), changePods("10.32.0.0/16"))
		a.Look()
		if s := until(t, a, cluster.Stalled); s.Reason != cluster.FixedConfigChanged || s.Applied != rev(1) || len(s.Blocked) != 1 {
			t.Errorf("wk-1 is %v: %+v", f.power("wk-1"), s)
		}
		must(a.Destroy(all(f), nil))
		until(t, a, cluster.Suspended)
		must(a.Resume())
		if s := until(t, a, cluster.Ready); s.Applied != rev(2) {
			t.Errorf("wk-1 is %v: %+v", f.power("wk-1"), s)
		}
	})
}

// stop stops the VM of a node, as somebody may.
func (f *fake) stop(node string) {
	f.set(func() {
		vm := f.vms[node]
		vm.Power = cluster.Stopped
		f.vms[node] = vm
	})
}

// power is the state of the VM of a node.
func (f *fake) power(node string) (p cluster.Power) {
	f.set(func() { p = f.vms[node].Power })
	return p
}

// all are the VMs of the fake.
func all(f *fake) (ids []int) {
	f.set(func() {
		for _, vm := range f.vms {
			ids = append(ids, vm.VMID)
		}
	})
	return ids
}

// TestFixedFamilies: a cluster that lives keeps the families of addresses that it was made with, and the networks inside it of
// each, for the reason for which it keeps those of IPv4.
func TestFixedFamilies(t *testing.T) {
	net := func(pods, services string) dualstack.Networks {
		return dualstack.Networks{CIDR: netip.MustParsePrefix("fd00:10:10::/64"), Pods: netip.MustParsePrefix(pods), Services: netip.MustParsePrefix(services)}
	}
	dual := net("fd00:1::/56", "fd00:2::/112")
	moved := dual
	moved.CIDR = netip.MustParsePrefix("fd00:10:11::/64") // of which new nodes would get half
	for name, c := range map[string]struct {
		was, is dualstack.Networks
		want    string
	}{
		"none":           {},
		"the same":       {was: dual, is: dual},
		"other nodes":    {was: dual, is: moved, want: "network.cidr6: a cluster that lives keeps the IPv6 network of its nodes that it was made with, which is fd00:10:10::/64, and this is fd00:10:11::/64 (write `cidr6: fd00:10:10::/64`; another one needs another cluster)"},
		"added":          {is: dual, want: "network.cidr6: a cluster that lives keeps the address families that it was made with: IPv4 alone (remove cidr6, and what else is of IPv6; others need another cluster)"},
		"removed":        {was: dual, want: "network.cidr6: a cluster that lives keeps the address families that it was made with: IPv4 and IPv6, nodes in fd00:10:10::/64 (write `cidr6: fd00:10:10::/64`; others need another cluster)"},
		"other pods":     {was: dual, is: net("fd00:3::/56", "fd00:2::/112"), want: "network.pod_cidr6: a cluster that lives keeps the IPv6 pod network that it was made with, which is fd00:1::/56, and this is fd00:3::/56 (write `pod_cidr6: fd00:1::/56`; another one needs another cluster)"},
		"other services": {was: dual, is: net("fd00:1::/56", "fd00:3::/112"), want: "network.svc_cidr6: a cluster that lives keeps the IPv6 service network that it was made with, which is fd00:2::/112, and this is fd00:3::/112 (write `svc_cidr6: fd00:2::/112`; another one needs another cluster)"},
	} {
		var was, is cluster.Snapshot
		was.Spec.Network.IPv6, is.Spec.Network.IPv6 = c.was, c.is
		var got string
		for _, p := range compareSpecs(was, is) {
			got += p.Field + ": " + p.Message + " (" + p.Hint + ")"
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
