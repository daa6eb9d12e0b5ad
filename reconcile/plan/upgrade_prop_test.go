package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
	"github.com/talos-agent/talos-agent/reconcile/settled"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// slots are what a machine has on its disk: what it runs, and what its next boot runs.
type slots struct{ runs, next string }

// upgrading is a cluster whose machines do what machines do, and not what the forecast expects.
type upgrading struct {
	*world
	disks  map[string]*slots
	asked  map[string]int  // upgrades, by node, image and revision
	unseen map[string]bool // of these, whether it was not seen how the first ended
	faults int             // that may still happen
	pushes int
}

// newUpgrading is a cluster that works and runs a version.
func newUpgrading(t *testing.T, talos, kubernetes string) *upgrading {
	u := &upgrading{world: newWorld(1, 0), disks: map[string]*slots{}, asked: map[string]int{}, unseen: map[string]bool{}}
	for _, line := range []string{"made cps=3 workers=2", "facts bootstrap=cp-1 done was-ready", "runs " + talos + " " + kubernetes, "settled", "agree"} {
		u.run(t, line)
	}
	u.o.Facts.Installs, u.o.Facts.Restarts = map[string]cluster.Install{}, map[string]cluster.Restart{}
	for _, n := range u.d.Spec.Nodes {
		u.disks[n.Name] = &slots{talos, talos}
	}
	return u
}

// fault draws whether something goes wrong, as long as that may.
func (u *upgrading) fault(t *rapid.T, what string) bool {
	if u.faults == 0 || rapid.IntRange(0, 3).Draw(t, what) > 0 {
		return false
	}
	u.faults--
	return true
}

// boot has a machine boot what its disk has next, or, where that does not start, what it ran.
func (u *upgrading) boot(t *rapid.T, name string) {
	d := u.disks[name]
	if u.fault(t, "falls back") {
		d.next = d.runs
	}
	d.runs = d.next
	m := u.o.Machines[name]
	m.Talos, m.Installer = d.runs, ""
	u.o.Machines[name] = m
}

// install asks for an upgrade once, and returns whether the machine took it.
func (u *upgrading) install(t *rapid.T, n cluster.Node, image, version, boot string) bool {
	in := u.o.Facts.Installs[n.Name]
	if in.Boot == boot && in.Failed == "" && in.Image != "" {
		t.Fatalf("%s has %+v, and gets %s during the same boot", n.Name, in, image)
	}
	key := fmt.Sprint(n.Name, image, u.d.Revision)
	d, begun := u.disks[n.Name], true
	if !ladder.IsOlder(d.runs, version) {
		t.Fatalf("%s runs %s, and gets %s", n.Name, d.runs, version)
	}
	hops, err := ladder.Find(cluster.Versions{Talos: d.runs, Kubernetes: u.d.Spec.Versions.Kubernetes}, cluster.Versions{Talos: version, Kubernetes: u.d.Spec.Versions.Kubernetes})
	if err != nil || len(hops) != 1 {
		t.Fatalf("%s goes from %s to %s: %v %v", n.Name, d.runs, version, hops, err)
	}
	note := cluster.Install{Image: image, Boot: boot, Revision: u.d.Revision, At: u.o.Now}
	note.Again = note.Follows(in)
	switch {
	case u.fault(t, "is not begun"):
		return false // what was noted before holds
	case u.fault(t, "fails"):
		note.Failed, begun = "exit code 7", false
	case u.fault(t, "its failure is not seen"):
		begun = false
	case u.fault(t, "its end is not seen"):
		d.next = version
	default:
		d.next, note.Done = version, true
	}
	u.o.Facts.Installs = maps.Clone(u.o.Facts.Installs)
	u.o.Facts.Installs[n.Name] = note
	if u.asked[key]++; u.asked[key] > 2 || u.asked[key] > 1 && !u.unseen[key] {
		t.Fatalf("%s is upgraded with %s for the %d. time at the same revision", n.Name, image, u.asked[key])
	}
	u.unseen[key] = note.Unseen()
	for _, other := range u.d.Spec.Nodes {
		if o := u.disks[other.Name]; other.Name != n.Name && o.next != o.runs {
			t.Fatalf("%s gets %s, and %s does not run %s yet", n.Name, version, other.Name, o.next)
		}
	}
	return begun
}

// do carries out an action, as far as the world lets it.
func (u *upgrading) do(t *rapid.T, a action.Action) {
	restart := func(r cluster.Restart, name string) {
		r.At = u.o.Now
		u.o.Facts.Restarts = maps.Clone(u.o.Facts.Restarts)
		u.o.Facts.Restarts[name] = r
	}
	switch a := a.(type) {
	case action.PullInstaller:
		if u.fault(t, "is not pulled") {
			return
		}
		effect.Of(&u.d, &u.o, a)
	case action.InstallTalos:
		u.install(t, a.Node, a.Image, a.Version, a.Boot)
	case action.UpgradeTalos:
		if u.install(t, a.Node, a.Image, a.Version, a.Restart.Boot) {
			restart(a.Restart, a.Node.Name)
			effect.Of(&u.d, &u.o, a)
			u.boot(t, a.Node.Name)
		}
	case action.RebootNode:
		restart(a.Restart, a.Node.Name)
		effect.Of(&u.d, &u.o, a)
		u.boot(t, a.Node.Name)
	default:
		effect.Of(&u.d, &u.o, a)
	}
}

// checkAlarm fails when something of an upgrade is begun while etcd has an alarm, or it is not known. What was begun
// before that goes on.
func (u *upgrading) checkAlarm(t *rapid.T, p Plan) {
	for _, a := range p.Actions {
		i := a.Info()
		begins := i.Kind == cluster.InstallTalos || i.Kind == cluster.DrainNode || i.Kind == cluster.UpgradeTalos
		if begins && u.o.Nodes.Value[i.Node].Turn == "" {
			t.Fatalf("with an alarm of etcd: %s", i.Text)
		}
	}
}

// checkService fails when more nodes are out of service than may be.
func (u *upgrading) checkService(t *rapid.T) {
	out := map[cluster.Role][]string{}
	for _, n := range u.d.Spec.Nodes {
		kn, m := u.o.Nodes.Value[n.Name], u.o.Machines[n.Name]
		if kn.Cordoned || m.Stage != "running" {
			out[n.Role] = append(out[n.Role], n.Name)
		}
	}
	if all := slices.Concat(out[cluster.ControlPlane], out[cluster.Worker]); len(out[cluster.ControlPlane]) > 1 || len(out[cluster.Worker]) > 1 {
		t.Fatalf("out of service: %v", all)
	}
}

// TestUpgradesEnd: whatever goes wrong with an installer or a boot, and wherever the agent ends, no machine gets
// one version twice for one commit, nor two during one boot; no hop is skipped; no more nodes are out of
// service than may be; and with another commit after what failed the cluster gets to its versions.
func TestUpgradesEnd(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		from := rapid.SampledFrom([]string{"v1.11.6", "v1.12.11", "v1.13.9"}).Draw(rt, "from")
		u := newUpgrading(t, from, "v1.34.13")
		u.faults = rapid.IntRange(0, 6).Draw(rt, "faults")
		u.asks = cluster.Versions{Talos: rapid.SampledFrom([]string{"v1.13.9", "v1.14.1"}).Draw(rt, "to"), Kubernetes: "v1.34.13"}
		quiet := 0
		for round := 0; ; round++ {
			u.o.Facts.Settled = settled.FindNodes(u.d, u.o)
			u.stage()
			for _, name := range EndedTurns(u.d, u.o, u.p) {
				u.o.Facts.Restarts = maps.Clone(u.o.Facts.Restarts)
				delete(u.o.Facts.Restarts, name)
			}
			for _, name := range upgrade.EndedInstalls(u.d, u.o) {
				u.o.Facts.Installs = maps.Clone(u.o.Facts.Installs)
				delete(u.o.Facts.Installs, name)
			}
			alarm := rapid.IntRange(0, 9).Draw(rt, "alarm") == 0
			u.o.Etcd = cluster.Saw(cluster.Etcd{})
			if alarm {
				u.o.Etcd = rapid.SampledFrom([]cluster.Seen[cluster.Etcd]{cluster.Saw(cluster.Etcd{Alarms: []string{"NOSPACE"}}), cluster.Unseen[cluster.Etcd]("no answer in time")}).Draw(rt, "etcd")
			}
			p := Make(u.d, u.o, u.p)
			if alarm {
				u.checkAlarm(rt, p)
			}
			u.o = effect.Clone(u.o)
			if p.Converged() && len(u.d.Hops) == 0 {
				break
			}
			for _, a := range p.Actions {
				u.do(rt, a)
			}
			u.checkService(rt)
			u.o.Now = u.o.Now.Add(time.Duration(rapid.IntRange(1, 10).Draw(rt, "minutes")) * time.Minute)
			if quiet++; len(p.Actions) > 0 || settleWorld(u.d, &u.o) {
				quiet = 0
			}
			if quiet > 20 { // somebody looks at it, and pushes
				u.pushes++
				quiet = 0
				u.d.Revision = cluster.Revision(fmt.Sprintf("main@sha1:%040d", u.pushes+1))
			}
			if round > 2000 || u.pushes > 20 {
				rt.Fatalf("does not end: %s", p)
			}
		}
		for name, d := range u.disks {
			if d.runs != u.asks.Talos {
				rt.Fatalf("%s runs %s at the end", name, cmp.Or(d.runs, "nothing"))
			}
		}
	})
}
