package plan

import (
	"fmt"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/cluster/window"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/lost"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// anyWorld draws a world in which everything may be as it should not be.
func anyWorld(t *rapid.T) *world {
	w := newWorld(rapid.IntRange(1, 3).Draw(t, "control planes"), rapid.IntRange(0, 3).Draw(t, "workers"))
	if rapid.Bool().Draw(t, "cilium") {
		w.d.Spec.CNI = cluster.CNICilium
		w.d.Spec.Addons = []cluster.Addon{{Name: "cilium", Namespace: "kube-system", Ownership: cluster.Managed, ReadyAfter: time.Minute}}
	}
	for i := range w.d.Spec.Nodes {
		n := &w.d.Spec.Nodes[i]
		n.Protect = rapid.IntRange(0, 9).Draw(t, "protect") == 0
		n.Replace = rapid.SampledFrom([]string{"", "", "", "again"}).Draw(t, "replace")
		n.Locked = rapid.IntRange(0, 9).Draw(t, "locked") == 0
		if rapid.IntRange(0, 4).Draw(t, "replaced before") == 0 {
			w.o.Facts.Replaced = cloneMap(w.o.Facts.Replaced)
			w.o.Facts.Replaced[n.Name] = []string{"again"}
		}
		meta := anyMeta(t, "inventory")
		n.Labels, n.Taints, n.Annotations = meta.Labels, meta.Taints, meta.Annotations
		w.o.VMs[n.Name] = anyVM(t, w, *n)
		w.o.Machines[n.Name] = anyMachine(t, *n)
	}
	switch rapid.IntRange(0, 5).Draw(t, "orphans") {
	case 0:
		w.o.Orphans = cluster.Unseen[[]cluster.VM]("timeout")
	case 1:
		other := rapid.SampledFrom(w.d.Spec.Nodes).Draw(t, "orphan")
		other.VMID = 599
		w.o.Orphans = cluster.Saw([]cluster.VM{w.vm(other)})
	}
	if rapid.Bool().Draw(t, "image stored") {
		h := w.o.Hosts["pve1"]
		h.Images = cluster.Saw(map[string]int64{imageName: 1})
		w.o.Hosts["pve1"] = h
	}
	h := w.o.Hosts["pve1"]
	h.Known = rapid.IntRange(0, 4).Draw(t, "host known") > 0
	h.Quorate = rapid.SampledFrom([]cluster.Seen[bool]{cluster.Saw(true), cluster.Saw(false), {}}).Draw(t, "quorum")
	w.o.Hosts["pve1"] = h
	w.o.ImageCached = rapid.SampledFrom([]cluster.Seen[bool]{cluster.Saw(true), cluster.Saw(false), {}}).Draw(t, "cached")
	if rapid.Bool().Draw(t, "api") {
		w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{})
		for _, n := range w.d.Spec.Nodes {
			w.o.APIs[n.Name] = cluster.Saw(true)
			kn := cluster.KubeNode{Name: n.Name, Ready: rapid.IntRange(0, 4).Draw(t, "node ready") > 0, BootID: "boot", UUID: n.UUID}
			if kn.Cordoned = rapid.IntRange(0, 2).Draw(t, "cordoned") == 0; kn.Cordoned {
				kn.Turn = rapid.SampledFrom([]string{"", "turn", cluster.TurnRemoval}).Draw(t, "turn")
				kn.Drained = rapid.SampledFrom([]string{"", "boot", "earlier"}).Draw(t, "drained")
			}
			if !kn.Ready {
				kn.NotReadySince = w.o.Now.Add(-time.Duration(rapid.IntRange(0, 30).Draw(t, "down for")) * time.Minute)
			}
			kn.Created = w.o.Now.Add(-time.Duration(rapid.IntRange(50, 500).Draw(t, "registered for")) * time.Minute)
			kn.Meta, kn.Owned = anyMeta(t, "has"), anyMeta(t, "owns").Noted()
			if rapid.IntRange(0, 9).Draw(t, "registered") > 0 {
				w.o.Nodes.Value[n.Name] = kn
			}
		}
		w.o.Releases = cluster.Saw(map[string]cluster.Release{})
		if rapid.IntRange(0, 4).Draw(t, "releases unknown") == 0 {
			w.o.Releases = cluster.Unseen[map[string]cluster.Release]("timeout")
		}
	}
	anyAvailability(t, w)
	if rapid.IntRange(0, 2).Draw(t, "replace dead") == 0 {
		w.d.Spec.ReplaceDead = cluster.ReplaceDead{Worker: 15 * time.Minute, ControlPlane: 20 * time.Minute}
		w.d.Spec.ObserveOnly = rapid.IntRange(0, 3).Draw(t, "observe") == 0
	}
	if rapid.IntRange(0, 4).Draw(t, "window") == 0 {
		for _, win := range []*window.Window{&w.d.Spec.Window, &w.p.Window} {
			from := rapid.IntRange(0, 1438).Draw(t, "from")
			*win = window.Window{From: from, To: from + 1, Zone: time.UTC}
		}
	}
	w.d.Spec.Prune, w.d.Spec.ApplyOff = rapid.Bool().Draw(t, "prune"), rapid.IntRange(0, 4).Draw(t, "apply off") == 0
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"cilium", "podinfo", "web"}), rapid.ID).Draw(t, "left") {
		w.o.Left = append(w.o.Left, cluster.LeftRelease{
			ReleaseName: cluster.ReleaseName{Namespace: rapid.SampledFrom([]string{"kube-system", "apps"}).Draw(t, "namespace"), Name: name},
			Status:      rapid.SampledFrom([]string{"deployed", "failed", "uninstalling", "pending-install"}).Draw(t, "status"),
			Kept:        rapid.SampledFrom([]string{"", "is kept"}).Draw(t, "kept"),
		})
	}
	f := &w.o.Facts
	f.Lost = rapid.IntRange(0, 4).Draw(t, "lost") == 0
	if rapid.IntRange(0, 9).Draw(t, "suspended") == 0 {
		f.Intend(cluster.Intent{Kind: cluster.IntendSuspend})
	}
	if rapid.Bool().Draw(t, "was ready") {
		f.Intend(cluster.Intent{Kind: cluster.SeenReady})
	}
	if rapid.IntRange(0, 4).Draw(t, "destroying") == 0 {
		f.Intend(cluster.Intent{Kind: cluster.IntendDestroy, VMs: rapid.SliceOfDistinct(rapid.SampledFrom([]int{411, 412, 521, 599}), rapid.ID).Draw(t, "shown")})
	}
	if rapid.Bool().Draw(t, "intent") {
		n := rapid.SampledFrom(w.d.Spec.ControlPlanes()).Draw(t, "founder")
		f.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, Node: n.Name, UUID: n.UUID, Done: rapid.Bool().Draw(t, "done")})
	}
	if rapid.IntRange(0, 3).Draw(t, "busy") == 0 {
		n := rapid.SampledFrom(w.d.Spec.Nodes).Draw(t, "running on")
		a := action.CreateVM{Node: n, Host: n.Placement.Pin}.Info()
		w.o.Running = append(w.o.Running, cluster.Running{ActionID: a.ID(), Node: n.Name, Claims: a.Claims})
	}
	if rapid.Bool().Draw(t, "members seen") {
		anyMembers(t, w)
	}
	if rapid.Bool().Draw(t, "some removed") {
		for _, n := range slices.Clone(w.d.Spec.Nodes) {
			if vm := w.o.VMs[n.Name]; len(w.d.Spec.ControlPlanes()) > 1 && rapid.IntRange(0, 2).Draw(t, "removed") == 0 && w.o.Orphans.Known && (vm.Presence == cluster.Absent || vm.Presence == cluster.Present && vm.Owner == cluster.Ours) {
				w.remove(n.Name)
			}
		}
		w.d.Spec.AllowEven = rapid.Bool().Draw(t, "even")
		w.d.Spec.ApplyOff = rapid.IntRange(0, 9).Draw(t, "apply off") == 0
		f.Intend(cluster.Intent{Kind: cluster.IntendApproved, VMs: rapid.SliceOfDistinct(rapid.SampledFrom([]int{411, 412, 521, 522}), rapid.ID).Draw(t, "approved")})
	}
	if len(w.taken) > 0 && rapid.Bool().Draw(t, "renamed") {
		n := w.taken[0]
		n.Name, n.UUID, n.Replace = "renamed", cluster.NodeUUID(w.d.Spec.ID, "renamed"), rapid.SampledFrom([]string{"", "again", "other"}).Draw(t, "replace")
		w.d.Spec.Nodes = append(w.d.Spec.Nodes, n)
		w.o.VMs[n.Name] = cluster.VM{VMID: n.VMID, Node: n.Name, Host: "pve1", Presence: cluster.Present, Owner: cluster.Foreign}
		w.o.Machines[n.Name] = cluster.Machine{Reach: cluster.Unexpected}
		w.refresh()
	}
	w.p.Removals = rapid.SampledFrom([]int{-1, 0, 5}).Draw(t, "removals")
	w.o.LostSince = map[uint64]time.Time{}
	for _, id := range leftover.LostMembers(w.d, w.o) {
		w.o.LostSince[id] = w.o.Now.Add(-rapid.SampledFrom([]time.Duration{0, leftover.LostFor}).Draw(t, "lost for"))
	}
	return w
}

// anyMembers draws who is a member of etcd, and who was asked.
func anyMembers(t *rapid.T, w *world) {
	var members []cluster.Member
	for i, n := range w.d.Spec.ControlPlanes() {
		if rapid.IntRange(0, 4).Draw(t, "member") > 0 {
			members = append(members, cluster.Member{ID: uint64(i + 1), Name: n.Name, Address: n.IP.String(), Learner: rapid.IntRange(0, 9).Draw(t, "learner") == 0})
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "another member") == 0 {
		members = append(members, cluster.Member{ID: 9, Name: "other", Address: "10.10.0.99"})
		w.o.Machines["other"] = cluster.Machine{Reach: rapid.SampledFrom([]cluster.Reach{cluster.ReachUnknown, cluster.Silent, cluster.Configured}).Draw(t, "other")}
	}
	if len(members) > 0 {
		w.o.Members = cluster.Saw(members)
		for _, mem := range members {
			if rapid.IntRange(0, 3).Draw(t, "asked") > 0 {
				w.o.MembersAsked = append(w.o.MembersAsked, mem.Name)
			}
		}
		w.o.MembersAgree = rapid.SampledFrom([]cluster.Seen[bool]{cluster.Saw(true), cluster.Unseen[bool]("one is dead"), cluster.Saw(false)}).Draw(t, "agree")
	}
}

// anyMeta draws labels, taints and annotations.
func anyMeta(t *rapid.T, whose string) cluster.NodeMeta {
	some := func(what string) map[string]string {
		return rapid.MapOfN(rapid.SampledFrom([]string{"zone", "rack"}), rapid.SampledFrom([]string{"a", "b"}), 0, 2).Draw(t, whose+" "+what)
	}
	return cluster.NodeMeta{Labels: some("labels"), Taints: some("taints"), Annotations: some("annotations")}
}

func anyVM(t *rapid.T, w *world, n cluster.Node) cluster.VM {
	vm := w.vm(n)
	vm.Presence = rapid.SampledFrom([]cluster.Presence{cluster.PresenceUnknown, cluster.Absent, cluster.Present, cluster.Present, cluster.Present}).Draw(t, "presence")
	vm.Owner = rapid.SampledFrom([]cluster.Owned{cluster.OwnerUnknown, cluster.Ours, cluster.Ours, cluster.Ours, cluster.Foreign}).Draw(t, "owner")
	vm.Power = rapid.SampledFrom([]cluster.Power{cluster.PowerUnknown, cluster.Stopped, cluster.PowerRunning, cluster.PowerRunning, cluster.Paused}).Draw(t, "power")
	if vm.Power == cluster.Paused {
		vm.Halted = rapid.SampledFrom([]string{"", "io-error"}).Draw(t, "halted")
	}
	vm.Lock = rapid.SampledFrom([]string{"", "", "", "backup", "create"}).Draw(t, "lock")
	vm.Deleting = rapid.IntRange(0, 9).Draw(t, "deleting") == 0
	vm.Uptime = rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "uptime")
	if rapid.IntRange(0, 4).Draw(t, "config unseen") == 0 {
		vm.Hardware = cluster.Unseen[cluster.Hardware]("timeout")
	} else if rapid.IntRange(0, 4).Draw(t, "unfinished") == 0 {
		vm.Hardware.Value.System.Bytes = 1246 << 20
	}
	vm.Hardware.Value.Cores = rapid.SampledFrom([]int{n.Cores, n.Cores, 2}).Draw(t, "cores")
	vm.Hardware.Value.Bridge = rapid.SampledFrom([]string{n.Bridge, n.Bridge, "vmbr9"}).Draw(t, "bridge")
	vm.Managed = rapid.IntRange(0, 9).Draw(t, "managed") == 0
	vm.HA = rapid.SampledFrom([]string{"", "", "", "started", "migrate", "error"}).Draw(t, "ha")
	if vm.Presence == cluster.Absent {
		return cluster.VM{VMID: n.VMID, Node: n.Name, Presence: cluster.Absent}
	}
	return vm
}

// anyAvailability draws what Proxmox VE's HA manager is to hold, and what it does.
func anyAvailability(t *rapid.T, w *world) {
	w.d.Spec.Availability, w.p.HA = rapid.Bool().Draw(t, "ha wanted"), true
	if rapid.IntRange(0, 3).Draw(t, "ha unseen") == 0 {
		w.o.Availability = rapid.SampledFrom([]cluster.Seen[availability.Manager]{{}, {Why: "timeout"}}).Draw(t, "why")
		return
	}
	m := availability.Manager{Resources: map[int]availability.Resource{}, HasRules: rapid.Bool().Draw(t, "rules")}
	for _, n := range w.d.Spec.Nodes {
		vm := w.o.VMs[n.Name]
		if state := rapid.SampledFrom([]availability.State{"started", "stopped", "disabled"}).Draw(t, "state"); vm.Managed {
			m.Resources[n.VMID] = availability.Resource{State: state, Own: rapid.Bool().Draw(t, "own")}
		} else if rapid.Bool().Draw(t, "ignored") {
			m.Resources[n.VMID] = availability.Resource{State: availability.Ignored, Own: rapid.Bool().Draw(t, "own")}
		}
	}
	if rapid.Bool().Draw(t, "rule") {
		m.Apart = &availability.Rule{VMs: []int{411, 412}, Disabled: rapid.Bool().Draw(t, "disabled")}
	}
	st := w.o.Hosts["pve1"].Storages.Value
	for name, s := range st {
		s.Shared = rapid.Bool().Draw(t, "shared")
		st[name] = s
	}
	w.o.Availability = cluster.Saw(m)
}

func anyMachine(t *rapid.T, n cluster.Node) cluster.Machine {
	m := cluster.Machine{
		Reach:    rapid.SampledFrom([]cluster.Reach{cluster.ReachUnknown, cluster.Silent, cluster.Maintenance, cluster.Configured, cluster.Configured, cluster.Unexpected}).Draw(t, "reach"),
		Stage:    rapid.SampledFrom([]string{"", "booting", "running", "rebooting"}).Draw(t, "stage"),
		Ready:    rapid.Bool().Draw(t, "ready"),
		Services: map[string]cluster.Service{},
		BootID:   rapid.SampledFrom([]string{"", "boot", "boot", "boot", "later"}).Draw(t, "boot"),
	}
	if m.Reach == cluster.Configured && rapid.Bool().Draw(t, "config read") {
		m.ConfigDigest = rapid.SampledFrom([]string{"config-" + n.Name, "another"}).Draw(t, "config")
		m.Change = rapid.SampledFrom([]*cluster.Change{nil, {For: "config-" + n.Name}, {For: "config-" + n.Name, Reboots: true}, {For: "config-" + n.Name, Reboots: true, Network: "meanwhile"}, {For: "config-" + n.Name, Refused: "no"}, {For: "config-" + n.Name, Lacks: "image", Reboots: true}, {For: "config-" + n.Name, Lacks: "image"}, {For: "old", Lacks: "image", Reboots: true}}).Draw(t, "answer")
		m.Staged = rapid.SampledFrom([]string{"", "", "theirs"}).Draw(t, "staged")
	}
	m.Since = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).Add(-time.Duration(rapid.IntRange(0, 30).Draw(t, "reached so for")) * time.Minute)
	if n.Role == cluster.ControlPlane && rapid.Bool().Draw(t, "has etcd") {
		m.Services["etcd"] = cluster.Service{State: rapid.SampledFrom([]string{"Waiting", "Preparing", "Preparing", "Starting", "Running", "Finished"}).Draw(t, "etcd"), Healthy: rapid.Bool().Draw(t, "healthy")}
	}
	return m
}

// TestLaws checks, in any world whatever, what a plan must never hold.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		p := Make(w.d, w.o, w.p)
		if again := Make(w.d, w.o, w.p); !reflect.DeepEqual(p, again) {
			t.Fatalf("the same input gave two plans:\n%s\n%s", p, again)
		}
		moving := map[cluster.Role]int{}
		seen := map[cluster.ActionID]bool{}
		held, alone := map[cluster.Claim][]cluster.ActionID{}, map[cluster.Claim]bool{}
		for _, r := range w.o.Running {
			seen[r.ActionID] = true
			for _, c := range r.Claims {
				held[c.Resource()], alone[c.Resource()] = append(held[c.Resource()], r.ActionID), alone[c.Resource()] || !c.IsCopy()
			}
		}
		for _, a := range p.Actions {
			i := a.Info()
			if seen[i.ID()] {
				t.Errorf("planned twice, or although it is under way: %s", i)
			}
			if n, _ := w.d.Spec.Node(i.Node); i.Kind == cluster.ChangeVM && i.Disrupts {
				moving[n.Role]++
			}
			seen[i.ID()] = true
			for _, c := range i.Claims {
				if by := held[c.Resource()]; len(by) > 0 && (!c.IsCopy() || alone[c.Resource()] || len(by) >= w.p.Capacity.Copies()) {
					t.Errorf("%v and %s claim %s", by, i, c)
				}
				held[c.Resource()], alone[c.Resource()] = append(held[c.Resource()], i.ID()), !c.IsCopy()
			}
			lawOf(t, w, a)
		}
		if moving[cluster.ControlPlane] > 1 || moving[cluster.Worker] > 1 {
			t.Errorf("%v move to another network at once: %s", moving, p)
		}
		if w.o.Facts.Suspended() && !w.o.Facts.Destroying() && len(p.Actions) > 0 {
			t.Errorf("suspended, and still: %s", p)
		}
		w.p.Problems = cluster.Problems{{Message: "there is no policy"}}
		if p := Make(w.d, w.o, w.p); len(p.Actions) > 0 || len(p.Blocked) == 0 || p.Blocked[0].Hint == "" {
			t.Errorf("it is not known what the host allows, and still: %s", p)
		}
		if p.Destroyed {
			for _, n := range w.d.Spec.Nodes {
				if vm := w.o.VMs[n.Name]; vm.Presence == cluster.PresenceUnknown || vm.Presence == cluster.Present && vm.Owner != cluster.Foreign {
					t.Errorf("destroyed, although vm %d is %v", vm.VMID, vm)
				}
			}
		}
	})
}

// lawOf checks one action against the world it was planned in.
func lawOf(t *rapid.T, w *world, a action.Action) {
	var n cluster.Node
	switch a := a.(type) {
	case action.CreateVM:
		n = a.Node
		vm := w.o.VMs[n.Name]
		if a.Finish {
			if vm.Presence != cluster.Present || vm.Owner != cluster.Ours || vm.Power != cluster.Stopped || vm.Lock != "" {
				t.Errorf("%s, but the vm is %+v", a.Info(), vm)
			}
		} else if vm.Presence != cluster.Absent {
			t.Errorf("%s, but the vm is not known to be absent: %+v", a.Info(), vm)
		} else if others := w.o.Orphans; !others.Known || slices.ContainsFunc(others.Value, func(vm cluster.VM) bool { return vm.Node == n.Name }) {
			t.Errorf("%s, but it may have another vm: %+v", a.Info(), others)
		}
		if h := w.o.Hosts[a.Host]; !h.Known || h.Quorate.Known && !h.Quorate.Value {
			t.Errorf("%s on a host that is not seen or has no quorum", a.Info())
		}
	case action.StartVM:
		n = a.Node
		if vm := w.o.VMs[n.Name]; vm.Presence != cluster.Present || vm.Owner != cluster.Ours || vm.Power != cluster.Stopped || vm.Lock != "" || vm.Deleting {
			t.Errorf("%s, but the vm is %+v", a.Info(), vm)
		}
	case action.ResumeVM:
		n = a.Node
		if vm := w.o.VMs[n.Name]; vm.Presence != cluster.Present || vm.Owner != cluster.Ours || vm.Power != cluster.Paused || vm.Halted != "" || vm.Lock != "" || vm.Deleting {
			t.Errorf("%s, but the vm is %+v", a.Info(), vm)
		}
	case action.ResetVM:
		n = a.Node
		vm, r, in := w.o.VMs[n.Name], w.o.Facts.Restarts[n.Name], w.o.Facts.Installs[n.Name]
		if vm.Presence != cluster.Present || vm.Owner != cluster.Ours || vm.Power != cluster.PowerRunning || vm.Lock != "" || vm.Task != nil || vm.Deleting || vm.Managed || upgrade.HasRequest(vm) {
			t.Errorf("%s, but the vm is %+v", a.Info(), vm)
		}
		if w.o.Machines[n.Name].Reach != cluster.Silent || r.Boot == "" || r.Boot != a.Boot || r.Boot != in.Boot || r.Reset.Revision == w.d.Repository().Revision {
			t.Errorf("%s, but it is not down for an upgrade, or it was reset: %+v, %+v", a.Info(), r, in)
		}
	case action.ApplyConfig:
		n = a.Node
		if w.o.Machines[n.Name].Reach != cluster.Maintenance || w.o.VMs[n.Name].Owner != cluster.Ours {
			t.Errorf("%s to a machine that is not ours in maintenance mode", a.Info())
		}
		if n.Role == cluster.ControlPlane && w.o.Facts.BootstrapSent() && !w.o.Members.Known {
			t.Errorf("%s, which may be a member of etcd", a.Info())
		}
	case action.Bootstrap:
		n = a.Node
		in, intended := w.o.Facts.Intent(cluster.IntendBootstrap)
		if quorum.WasSeen(w.o) || intended && (in.Done || in.Node != n.Name) || !intended && w.o.Facts.Lost {
			t.Errorf("%s although etcd was or may have been founded: %+v", a.Info(), w.o.Facts)
		}
		for _, other := range w.d.Spec.ControlPlanes() {
			if !intended && other.Name != n.Name && !quorum.IsNeverFounded(w.o, other) {
				t.Errorf("%s although %s may have an etcd", a.Info(), other.Name)
			}
		}
	case action.ChangeVM:
		n = a.Node
		if vm := w.o.VMs[n.Name]; vm.Presence != cluster.Present || vm.Owner != cluster.Ours || vm.Lock != "" || vm.Deleting || !vm.Hardware.Known {
			t.Errorf("%s, but the vm is %+v", a.Info(), vm)
		}
		moves := slices.ContainsFunc(a.Drifts, func(dr drift.Drift) bool { return dr.Field == string(cluster.FieldBridge) })
		if m := w.o.Machines[n.Name]; moves && w.o.VMs[n.Name].Power != cluster.Stopped && m.Reach != cluster.Maintenance && w.o.Facts.BootstrapSent() && !a.Info().Disrupts {
			t.Errorf("%s, which takes a machine to another network that may work: %+v", a.Info(), m)
		}
	case action.ChangeConfig:
		n = a.Node
		if m := w.o.Machines[n.Name]; lacks(w, n) || m.Reach != cluster.Configured || m.Change == nil || m.Change.Reboots != (a.Network != "") || m.Change.Network != a.Network || m.Change.Refused != "" || m.Change.For != a.Config.Digest {
			t.Errorf("%s, but the machine is %+v", a.Info(), m)
		}
	case action.DropConfig:
		n = a.Node
		if m := w.o.Machines[n.Name]; m.Reach != cluster.Configured || m.Staged == "" || m.ConfigDigest != a.Config.Digest {
			t.Errorf("%s, but the machine is %+v", a.Info(), m)
		}
	case action.PullImages:
		if n = a.Node; !lacks(w, n) || w.o.Machines[n.Name].Change.Refused != "" {
			t.Errorf("%s, but the machine is %+v", a.Info(), w.o.Machines[n.Name])
		}
	case action.RemoveMember:
		n = a.Node
		lawOfMember(t, w, a)
	case action.DeleteNode:
		n = a.Node
		vm, ok := w.o.VMs[n.Name]
		orphan := slices.ContainsFunc(w.o.Orphans.Value, func(vm cluster.VM) bool { return vm.Node == n.Name })
		kn := w.o.Nodes.Value[n.Name]
		ended := kn.Turn == cluster.TurnRemoval || !kn.Ready && w.o.Machines[n.Name].Reach == cluster.Silent
		if orphan || !w.o.Orphans.Known || !w.o.Nodes.Known || ok && (vm.Presence != cluster.Absent || !ended) || kn.UUID != n.UUID {
			t.Errorf("%s, but node and vm are %+v, %+v", a.Info(), kn, vm)
		}
	case action.DrainNode:
		n = a.Node
		_, stays := w.d.Spec.Node(n.Name)
		replaced := w.asksReplacement(n, w.o.VMs[n.Name])
		if stays && !replaced && a.Target == cluster.TurnRemoval {
			lawOfDead(t, w, a, n, w.o.VMs[n.Name])
			break
		}
		if !stays || replaced {
			if a.Target != cluster.TurnRemoval || !a.How.Adopt || w.o.Nodes.Value[n.Name].UUID != n.UUID {
				t.Errorf("%s, which is %+v", a.Info(), w.o.Nodes.Value[n.Name])
			}
			break
		}
		if vm, kn := w.o.VMs[n.Name], w.o.Nodes.Value[n.Name]; readiness.Classify(n, w.o) != cluster.PhaseReady && !brokenForLong(w, n) || vm.Lock != "" || vm.Managed || upgrade.IsBusy(vm) || kn.Cordoned && kn.Turn == "" || lacks(w, n) && strings.Contains(a.For, "machine config") {
			t.Errorf("%s, but vm and node are %+v, %+v", a.Info(), vm, kn)
		}
	case action.ShutDownVM:
		n = a.Node
		if m := w.o.Machines[n.Name]; a.Config.Digest != "" && m.ConfigDigest != a.Config.Digest && (m.Change == nil || m.Change.For != a.Config.Digest || m.Change.Refused != "" || lacks(w, n)) ||
			a.Config.Digest == "" && m.Staged != "" {
			t.Errorf("%s with config %q, but the machine is %+v", a.Info(), a.Config.Digest, m)
		}
		lawOfRestart(t, w, a, n, a.Undrained)
	case action.RebootNode:
		n = a.Node
		lawOfRestart(t, w, a, n, a.Undrained)
	case action.SetAvailability:
		lawOfAvailability(t, w, a)
		return
	case action.UncordonNode:
		n = a.Node
		if w.o.Nodes.Value[n.Name].Turn == "" {
			t.Errorf("%s, whose cordon is not ours", a.Info())
		}
	case action.LabelNode:
		n = a.Node
		lawOfEdits(t, w, a)
	case action.UninstallAddon:
		left := slices.IndexFunc(w.o.Left, func(r cluster.LeftRelease) bool { return r.ReleaseName == a.Release && r.Kept == "" })
		wanted := slices.ContainsFunc(w.d.Spec.Addons, func(x cluster.Addon) bool {
			return x.Name == a.Release.Name && x.Namespace == a.Release.Namespace
		})
		if !w.d.Spec.Prune || !w.o.Releases.Known || w.o.Facts.Destroying() || left < 0 || wanted || a.Release.Name == "cilium" {
			t.Errorf("%s, but left are %v, of %v", a.Info(), w.o.Left, w.o.Releases)
		}
		if w.d.Spec.ApplyOff && a.Status != "uninstalling" {
			t.Errorf("%s although apply is off", a.Info())
		}
	case action.DeleteVM:
		n, _ = w.d.Spec.Node(a.VM.Node)
		if !w.o.Facts.Destroying() {
			lawOfRemoval(t, w, a)
		}
		if in, _ := w.o.Facts.Intent(cluster.IntendDestroy); len(in.VMs) > 0 && !slices.Contains(in.VMs, a.VM.VMID) {
			t.Errorf("%s, which was not shown: %v", a.Info(), in.VMs)
		}
		if a.VM.Presence != cluster.Present || a.VM.Owner != cluster.Ours || n.Protect {
			t.Errorf("%s, but the vm is %+v (protect %v)", a.Info(), a.VM, n.Protect)
		}
	}
	if n.Locked {
		t.Errorf("%s although the node is locked", a.Info())
	}
	open := w.d.Spec.Window.IsOpen(w.o.Now) && w.p.Window.IsOpen(w.o.Now)
	if i := a.Info(); !open && !isRepairOf(w, n, i.Kind) && i.Disrupts && i.Kind != cluster.RemoveMember && w.o.Nodes.Value[i.Node].Turn == "" && !w.o.Facts.Destroying() {
		t.Errorf("%s although the window is closed", i)
	}
}

// isRepairOf reports whether a node has not worked for long enough to be changed at any time, or is
// to be removed because it is dead.
func isRepairOf(w *world, n cluster.Node, kind cluster.ActionKind) bool {
	lasts := func(since time.Time, within time.Duration) bool {
		return !since.IsZero() && w.o.Now.Sub(since) >= within
	}
	joins := readiness.Classify(n, w.o) == cluster.PhaseJoining
	mach, kn := w.o.Machines[n.Name], w.o.Nodes.Value[n.Name]
	failed := !w.o.Nodes.Known && n.Role == cluster.ControlPlane
	for _, cp := range w.d.Spec.ControlPlanes() {
		cp := w.o.Machines[cp.Name]
		failed = failed && !cp.Ready && lasts(cp.Since, readiness.BootWithin)
	}
	switch {
	case kind == cluster.ChangeVM && mach.Reach == cluster.Silent:
		return lasts(mach.Since, readiness.BootWithin) && (failed || w.o.Nodes.Known && !kn.Ready)
	case kind == cluster.ChangeConfig, kind == cluster.ChangeVM:
		return joins && (!w.o.Facts.WasReady() || failed && lasts(mach.Since, repairAfter)) || brokenForLong(w, n)
	}
	return mach.Reach == cluster.Silent || brokenForLong(w, n)
}

// lacks reports whether the machine of a node that is Ready pulls images before it is given its
// config.
func lacks(w *world, n cluster.Node) bool {
	c := w.o.Machines[n.Name].Change
	return c != nil && c.Lacks != "" && readiness.Classify(n, w.o) == cluster.PhaseReady
}

// asksReplacement reports whether somebody asks for a new machine of a node, which has had none
// for that.
func (w *world) asksReplacement(n cluster.Node, vm cluster.VM) bool {
	return n.Replace != "" && n.Replace != vm.Replace && !slices.Contains(w.o.Facts.Replaced[n.Name], n.Replace)
}

// isKept reports whether a VM stays because a node of another name has its VMID, and no token asks
// for a new machine that neither has had.
func (w *world) isKept(vm cluster.VM) bool {
	for _, n := range w.d.Spec.Nodes {
		if n.VMID == vm.VMID && n.Name != vm.Node && (n.Locked || n.Protect || !w.asksReplacement(n, vm) || slices.Contains(w.o.Facts.Replaced[vm.Node], n.Replace)) {
			return true
		}
	}
	return false
}

// lawOfRemoval checks that a VM is deleted without a command to destroy only when the
// inventory no longer has its node, which is no member of etcd, and was drained if
// Kubernetes has it; and that no more are than the host allows.
func lawOfRemoval(t *rapid.T, w *world, a action.DeleteVM) {
	in, _ := w.o.Facts.Intent(cluster.IntendApproved)
	n, ok := w.d.Spec.Node(a.VM.Node)
	replaced := w.asksReplacement(n, a.VM)
	dead := ok && !replaced
	if !dead && (!ok && !w.o.Orphans.Known || w.d.Spec.ApplyOff || w.p.ApplyOff) {
		t.Errorf("%s, whose node the inventory may have", a.Info())
	}
	if dead {
		lawOfDead(t, w, a, n, a.VM)
	}
	if ok && n.Role == cluster.ControlPlane && len(w.d.Spec.ControlPlanes()) == 1 {
		t.Errorf("%s, which is the only control plane", a.Info())
	}
	if w.isKept(a.VM) {
		t.Errorf("%s, whose place another node has, for which no new machine was asked for", a.Info())
	}
	removed := 0
	for _, vm := range w.o.Orphans.Value {
		if _, ok := w.d.Spec.Node(vm.Node); !ok && !w.isKept(vm) {
			removed++
		}
	}
	for _, n := range w.d.Spec.Nodes {
		if vm := w.o.VMs[n.Name]; vm.Presence == cluster.Present && vm.Owner == cluster.Ours && w.asksReplacement(n, vm) {
			removed++
		}
	}
	if removed > w.p.RemovalLimit() && !slices.Contains(in.VMs, a.VM.VMID) {
		t.Errorf("%s without approval", a.Info())
	}
	if founded := w.o.Facts.BootstrapSent() || w.o.Facts.Lost; founded && !a.VM.Deleting && (!w.o.Members.Known || !w.o.Nodes.Known) {
		t.Errorf("%s, and it is not known whether it is a member of etcd or a node", a.Info())
	}
	mayVote := w.o.Facts.BootstrapSent() && (n.Role == cluster.ControlPlane || !w.o.Nodes.Known || w.o.Nodes.Value[a.VM.Node].ControlPlane)
	if mayVote && (!a.Votes || !w.o.Members.Known) {
		t.Errorf("%s, which may be a member of etcd", a.Info())
	}
	if slices.ContainsFunc(w.o.Members.Value, func(mem cluster.Member) bool { return mem.Name == a.VM.Node }) {
		t.Errorf("%s, which is a member of etcd", a.Info())
	}
	kn, isNode := w.o.Nodes.Value[a.VM.Node]
	if isNode && !a.VM.Deleting && kn.UUID == cluster.NodeUUID(w.d.Spec.ID, a.VM.Node) && kn.BootID != "" && !leftover.IsDrained(kn) {
		t.Errorf("%s, which was not drained: %+v", a.Info(), kn)
	}
	if a.VM.Protected || a.VM.Managed || a.VM.Lock != "" || len(a.VM.Others) > 0 {
		t.Errorf("%s, which somebody keeps: %+v", a.Info(), a.VM)
	}
}

// lawOfDead checks that a node which the inventory has, with the machine that it has,
// loses that only when the inventory wants dead nodes replaced, it has been dead for long
// enough, and nothing else is.
func lawOfDead(t *rapid.T, w *world, a action.Action, n cluster.Node, vm cluster.VM) {
	kn, down, young := w.o.Nodes.Value[n.Name], 0, false
	for _, other := range w.d.Spec.Nodes {
		if o, ok := w.o.Nodes.Value[other.Name]; ok && !o.Ready || w.o.Machines[other.Name].Reach == cluster.Silent {
			down++
		}
		_, registered := w.o.Nodes.Value[other.Name]
		young = young || !registered || !w.o.Nodes.Value[other.Name].Created.IsZero() && w.o.Now.Sub(w.o.Nodes.Value[other.Name].Created) < time.Hour
	}
	limit := w.d.Spec.ReplaceDead.Of(n.Role)
	silent := w.o.Machines[n.Name].Reach == cluster.Silent || vm.Deleting
	if limit == 0 || w.d.Spec.ObserveOnly || w.p.ObserveOnly || n.Locked || kn.Ready || !silent || !w.o.Nodes.Known || w.o.Now.Sub(kn.NotReadySince) < limit || !vm.Deleting && w.o.Now.Sub(w.o.DeadSince[n.Name]) < lost.DeadFor {
		t.Errorf("%s, which is not dead, or is to stay so: %+v", a.Info(), kn)
	}
	if 3*down > len(w.d.Spec.Nodes) || young || !w.o.Hosts[vm.Host].Known {
		t.Errorf("%s, while %d are down, or one came lately (%t)", a.Info(), down, young)
	}
}

// lawOfMember checks that a member is removed from etcd only when it has no machine that
// is to stay, a majority decides on it, and a majority is left.
func lawOfMember(t *rapid.T, w *world, a action.RemoveMember) {
	voters, healthy, left := 0, 0, 0
	planes := append(w.d.Spec.ControlPlanes(), w.taken...)
	for _, mem := range w.o.Members.Value {
		if mem.Learner {
			if mem.ID != a.Member.ID {
				t.Errorf("%s, and %s learns", a.Info(), mem.Name)
			}
			continue
		}
		voters++
		up := slices.ContainsFunc(planes, func(n cluster.Node) bool {
			return n.Name == mem.Name && slices.Contains(w.o.MembersAsked, n.Name) && w.o.Machines[n.Name].Reach == cluster.Configured && w.o.Machines[n.Name].Services["etcd"].Healthy
		})
		if up {
			healthy++
			if mem.ID != a.Member.ID {
				left++
			}
		}
	}
	stays := voters - 1
	if a.Member.Learner {
		stays = voters
	}
	if healthy <= voters/2 || left <= stays/2 || w.o.MembersAgree.Known && !w.o.MembersAgree.Value || len(w.o.MembersAsked) <= voters/2 {
		t.Errorf("%s: %d of %d voters are healthy, %d of %d afterwards; asked %v, %+v", a.Info(), healthy, voters, left, stays, w.o.MembersAsked, w.o.MembersAgree)
	}
	if n, ok := w.d.Spec.Node(a.Node.Name); ok {
		if phase := readiness.Classify(n, w.o); phase != cluster.PhaseAbsent && phase != cluster.PhaseMaintenance && n.Replace == w.o.VMs[n.Name].Replace {
			t.Errorf("%s, which is %s", a.Info(), phase)
		}
	} else if a.Node.Name == "other" && (w.o.Machines["other"].Reach != cluster.Silent || w.o.LostSince[9] == w.o.Now) {
		t.Errorf("%s, whose machine may run: %+v", a.Info(), w.o.Machines["other"])
	}
}

// lawOfEdits checks that a node which is labelled is Ready, and has nothing left to change
// afterwards.
func lawOfEdits(t *rapid.T, w *world, a action.LabelNode) {
	if phase := readiness.Classify(a.Node, w.o); phase != cluster.PhaseReady {
		t.Errorf("%s, and it is %s", a.Info(), phase)
	}
	o := effect.Clone(w.o)
	effect.Of(&w.d, &o, a)
	if p := Make(w.d, o, w.p); slices.ContainsFunc(p.Actions, func(b action.Action) bool { return b.Info().ID() == a.Info().ID() }) {
		t.Errorf("%s is planned again and again", a.Info())
	}
}

// TestEditsLeaveOthers: whatever the inventory has, is there and is noted, a label, taint or
// annotation is changed only where the inventory names its key, or where it is as the agent has set
// it; and the inventory has its own in the end.
func TestEditsLeaveOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, have, owned := anyMeta(t, "inventory"), anyMeta(t, "has"), anyMeta(t, "owns")
		after := cluster.NodeMeta{Labels: maps.Clone(have.Labels), Taints: maps.Clone(have.Taints), Annotations: maps.Clone(have.Annotations)}
		for _, e := range want.EditsOf(have, owned.Noted()) {
			wanted, was, ours, now := want.Labels, have.Labels, owned.Labels, after.Labels
			switch e.Kind {
			case cluster.MetaLabel:
			case cluster.MetaTaint:
				wanted, was, ours, now = want.Taints, have.Taints, owned.Taints, after.Taints
			case cluster.MetaAnnotation:
				wanted, was, ours, now = want.Annotations, have.Annotations, owned.Annotations, after.Annotations
			}
			value, named := wanted[e.Key]
			if named && value == was[e.Key] || !named && (was[e.Key] == "" || was[e.Key] != ours[e.Key]) {
				t.Errorf("%s is not ours to change: %v, %v, %v", e.Key, wanted, was, ours)
			}
			if delete(now, e.Key); e.Want != nil {
				now[e.Key] = *e.Want
			}
		}
		if left := want.EditsOf(after, want.Noted()); len(left) > 0 || !want.IsNoted(want.Noted(), cluster.Worker) {
			t.Errorf("left is %v", left)
		}
		for key, value := range want.Labels {
			if after.Labels[key] != value {
				t.Errorf("label %s is %q", key, after.Labels[key])
			}
		}
		for key, value := range want.Annotations {
			if after.Annotations[key] != value {
				t.Errorf("annotation %s is %q", key, after.Annotations[key])
			}
		}
		if noted := cluster.OpenNodeMeta(want.Seal(cluster.SecretString("key"), "n"), cluster.SecretString("key"), "n"); !maps.Equal(noted.Annotations, want.Noted().Annotations) {
			t.Errorf("noted is %v", noted)
		}
	})
}

// lawOfRestart checks that a node goes down only when it is ours, and was drained; or when it has not
// worked for long and has nothing to drain, or cannot be drained.
func lawOfRestart(t *rapid.T, w *world, a action.Action, n cluster.Node, undrained bool) {
	vm, kn, m := w.o.VMs[n.Name], w.o.Nodes.Value[n.Name], w.o.Machines[n.Name]
	phase := readiness.Classify(n, w.o)
	if vm.Owner != cluster.Ours || vm.Power != cluster.PowerRunning || vm.Lock != "" || vm.Managed || upgrade.IsBusy(vm) {
		t.Errorf("%s, but the vm is %+v", a.Info(), vm)
	}
	if m.Change != nil && m.Change.Network != "" && m.Change.For == w.d.Configs[n.Name].Digest && m.ConfigDigest != m.Change.For && slices.Contains(a.Info().Fields, drift.FieldConfig) {
		t.Errorf("%s, but its network is not tried yet: %+v", a.Info(), m.Change)
	}
	idle := !w.o.Nodes.Known || kn.Name == "" || kn.BootID != m.BootID && !kn.Ready
	switch {
	case undrained && (!idle || !brokenForLong(w, n)):
		t.Errorf("%s, but node and machine are %+v, %+v", a.Info(), kn, m)
	case !undrained && phase != cluster.PhaseReady && !brokenForLong(w, n):
		t.Errorf("%s, but it is %s", a.Info(), phase)
	case !undrained && (!kn.Cordoned || kn.Turn == "" || m.BootID == "" || kn.Drained != m.BootID):
		t.Errorf("%s, but it was not drained: %+v, boot %s", a.Info(), kn, m.BootID)
	}
}

// brokenForLong reports whether a machine answers whose node has not worked for long.
func brokenForLong(w *world, n cluster.Node) bool {
	kn, m := w.o.Nodes.Value[n.Name], w.o.Machines[n.Name]
	long := func(since time.Time) bool { return !since.IsZero() && w.o.Now.Sub(since) >= repairAfter }
	return readiness.Classify(n, w.o) == cluster.PhaseJoining && (long(m.Since) && !m.Ready || long(kn.NotReadySince) && !kn.Ready)
}

// TestConverges runs the planner forward from any state of our own making:
// however far a bring-up had come when it was cut off, it comes to its end.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.SampledFrom([]int{1, 3, 5}).Draw(t, "control planes"), rapid.IntRange(0, 5).Draw(t, "workers"))
		if rapid.Bool().Draw(t, "cilium") {
			w.d.Spec.CNI = cluster.CNICilium
			w.d.Spec.Addons = []cluster.Addon{
				{Name: "cilium", Namespace: "kube-system", Ownership: cluster.Managed},
				{Name: "a", Namespace: "a", Ownership: cluster.Managed, DependsOn: []string{"b"}},
				{Name: "b", Namespace: "b", Ownership: cluster.Managed},
			}
		}
		for range rapid.IntRange(0, 40).Draw(t, "passes before the crash") {
			p := Make(w.d, w.o, w.p)
			w.o = effect.Clone(w.o)
			// A crash lets any part of a plan happen.
			for i, a := range p.Actions {
				if rapid.Bool().Draw(t, fmt.Sprint("done ", i)) {
					effect.Of(&w.d, &w.o, a)
				}
			}
			if rapid.Bool().Draw(t, "settles") {
				settleWorld(w.d, &w.o)
			}
		}
		for range 400 {
			if p := w.step(); p.Converged() {
				for _, n := range w.d.Spec.Nodes {
					if p.Phases[n.Name] != cluster.PhaseReady {
						t.Fatalf("converged, but %s is %s", n.Name, p.Phases[n.Name])
					}
				}
				return
			}
		}
		t.Fatalf("does not converge:\n%s", Make(w.d, w.o, w.p))
	})
}

// TestForecastFindsTheSameEnd: carrying out a forecast's rounds and planning
// again leaves nothing to do.
func TestForecastFindsTheSameEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.SampledFrom([]int{1, 3}).Draw(t, "control planes"), rapid.IntRange(0, 3).Draw(t, "workers"))
		f := Forecast(w.d, w.o, w.p)
		steps := 0
		for range 400 {
			p := w.step()
			steps += len(p.Actions)
			if p.Converged() {
				break
			}
		}
		if steps != len(f.Steps) || len(f.Waiting)+len(f.Blocked) > 0 {
			t.Fatalf("foretold %d steps, took %d; waiting %v blocked %v", len(f.Steps), steps, f.Waiting, f.Blocked)
		}
	})
}

// lawOfAvailability checks that the HA manager gets VMs that are seen to be ours, of none that somebody else has given to it, and
// to keep none running that is off by our own hand or whose node is out of service.
func lawOfAvailability(t *rapid.T, w *world, a action.SetAvailability) {
	r, there := w.o.Availability.Value.Resources[a.VM.VMID]
	vm := w.o.VMs[a.Node.Name]
	switch {
	case !w.o.Availability.Known, there && !r.Own:
		t.Errorf("%s, but the manager has %+v of it (%+v)", a.Info(), r, w.o.Availability)
	case a.VM.Owner != cluster.Ours || a.VM.Presence != cluster.Present:
		t.Errorf("%s, but the vm is %+v", a.Info(), a.VM)
	case a.State == availability.Started && (!w.d.Spec.Availability && !vm.Managed || vm.Power == cluster.PowerRunning && w.o.Nodes.Value[a.Node.Name].Turn != ""):
		t.Errorf("%s, but the node is %+v", a.Info(), w.o.Nodes.Value[a.Node.Name])
	case a.State == availability.Ignored && w.o.Nodes.Value[a.Node.Name].Turn == "" && readiness.Classify(a.Node, w.o) == cluster.PhaseReady:
		t.Errorf("%s, but it is Ready and has no turn", a.Info())
	}
}
