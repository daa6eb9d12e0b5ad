package talos

import (
	"context"
	"fmt"
	"net/netip"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// BenchmarkObserve is a quiet pass over so many machines: three control planes
// and workers, all watched, none of them asked.
func BenchmarkObserve(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := New(Config{})
			defer f.Close()
			services := map[string]cluster.Service{"etcd": {State: "Running", Healthy: true}, "kubelet": {State: "Running", Healthy: true}}
			var d cluster.Desired
			for i := range n {
				node := wk(i + 1)
				if i < 3 {
					node = cp(i + 1)
					f.members.members.Value = append(f.members.members.Value, cluster.Member{ID: uint64(i), Name: node.Name, Address: node.IP.String()})
				}
				d.Spec.Nodes = append(d.Spec.Nodes, node)
				f.watchers[node.Name] = &watcher{f: f, node: node, stop: func() {}, link: &link{}, machine: cluster.Machine{
					Reach: cluster.Configured, Stage: "running", Ready: true, Services: services, MACs: []string{node.MAC},
				}}
			}
			f.members.members.Known, f.members.at = true, time.Now().Add(24*time.Hour)
			b.ReportAllocs()
			for b.Loop() {
				var o cluster.Observed
				f.Observe(context.Background(), d, &o)
				if len(o.Machines) != n || !o.Members.Known {
					b.Fatalf("%+v", o.Members)
				}
			}
		})
	}
}

// BenchmarkWatch is what watching costs in memory, and the first look in time,
// both with the simulated machines' end of the connections.
func BenchmarkWatch(b *testing.B) {
	bundle, err := newSecrets()
	if err != nil {
		b.Fatal(err)
	}
	const n = 100
	var nodes []cluster.Node
	for i := range n {
		nodes = append(nodes, wk(i+1))
	}
	// The speed makes the machines boot in no time; timestamps stay true.
	t := newBench(b, world.Config{Speed: 1000}, 0, bundle, newest, append(nodes, cp(1)))
	defer t.close()
	t.mint()
	t.power(t.desired.Spec.Nodes...)
	for _, node := range t.desired.Spec.Nodes {
		l := t.raw(node)
		// The machines are so fast that the answer may get lost.
		if s := t.fleet.send(context.Background(), l, render(b, bundle, node, newest).Bytes, machineapi.ApplyConfigurationRequest_AUTO, nil); s.refused != nil {
			b.Fatal(s.refused)
		}
		l.close()
	}
	for _, node := range t.desired.Spec.Nodes {
		t.untilReach(node, cluster.Configured)
	}
	t.fleet.Close()
	var before, after goruntime.MemStats
	for b.Loop() {
		b.StopTimer()
		t.fleet = t.newFleet()
		goruntime.GC()
		goruntime.ReadMemStats(&before)
		goroutines := goruntime.NumGoroutine()
		b.StartTimer()
		o := t.observe()
		b.StopTimer()
		for name, m := range o.Machines {
			if m.Reach != cluster.Configured {
				b.Fatalf("%s: %+v", name, m)
			}
		}
		goruntime.GC()
		goruntime.ReadMemStats(&after)
		per := func(v uint64) float64 { return float64(v) / float64(n+1) / 1024 }
		b.ReportMetric(per(after.HeapInuse-before.HeapInuse), "heap-KiB/node")
		b.ReportMetric(per(after.StackInuse-before.StackInuse), "stack-KiB/node")
		b.ReportMetric(float64(goruntime.NumGoroutine()-goroutines)/float64(n+1), "goroutines/node")
		t.fleet.Close()
		b.StartTimer()
	}
}

// TestOverTheWire does once over real sockets and in real time what the other
// tests do in bubbles.
func TestOverTheWire(t *testing.T) {
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Skip(err)
	}
	defer release()
	bundle, err := newSecrets()
	if err != nil {
		t.Fatal(err)
	}
	at := func(host byte) netip.Addr {
		a := prefix.Addr().As4()
		a[3] = host
		return netip.AddrFrom4(a)
	}
	up, down := node(cluster.ControlPlane, "cp-1", 401, at(11)), node(cluster.Worker, "wk-1", 501, at(21))
	b := newBench(t, world.Config{Speed: 100, Network: world.Loopback{}}, 0, bundle, newest, []cluster.Node{up, down})
	defer b.close()
	b.mint()
	b.desired.Spec.Nodes = []cluster.Node{up, down}
	b.lab.PowerOn(guest(up, newest))
	b.untilReach(up, cluster.Maintenance)
	b.until("nothing listens there", func(o cluster.Observed) bool {
		m := o.Machines[down.Name]
		return m.Reach == cluster.Silent && strings.Contains(m.Why, "connection refused")
	})
	b.apply(up)
	b.until("etcd waits", func(o cluster.Observed) bool { return o.Machines[up.Name].Services["etcd"].State == "Preparing" })
	if err := b.fleet.Bootstrap(within(time.Minute), b.desired, up); err != nil {
		t.Fatal(err)
	}
	b.until("etcd votes", func(o cluster.Observed) bool { return o.Members.Known })
	b.lab.PowerOff(up.VMID)
	b.untilReach(up, cluster.Silent)
	b.wantNoViolations()
}
