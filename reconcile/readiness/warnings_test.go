package readiness

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
)

// shareHost adds two control planes that are on one host, and might have been on some.
func shareHost(o cluster.Observed, d *cluster.Desired, on string, among ...string) {
	for i, name := range []string{"cp-1", "cp-2"} {
		d.Spec.Nodes = append(d.Spec.Nodes, cluster.Node{Name: name, Role: cluster.ControlPlane, Placement: cluster.Placement{Pin: on, Among: among}})
		o.VMs[name] = cluster.VM{VMID: 411 + i, Host: on, Presence: cluster.Present, Owner: cluster.Ours}
	}
}

// TestWarnings: what differs from the inventory and does not matter is reported once, and
// what is as the inventory has it, or is not known, is not.
func TestWarnings(t *testing.T) {
	type world struct {
		d cluster.Desired
		o cluster.Observed
	}
	vm := func(w *world, edit func(*cluster.VM)) {
		vm := w.o.VMs["wk-1"]
		edit(&vm)
		w.o.VMs["wk-1"] = vm
	}
	host := func(w *world, name string, edit func(*cluster.Host)) {
		h := w.o.Hosts[name]
		edit(&h)
		w.o.Hosts[name] = h
	}
	release := func(w *world, name string, rel cluster.Release) { w.o.Releases.Value[name] = rel }
	ours := cluster.Release{Namespace: "apps", Status: "deployed", Digest: "d"}
	for _, c := range []struct {
		what string
		edit func(*world)
		want []string // parts of the warnings, in their order
	}{
		{"as it should be", func(*world) {}, nil},
		{"on another host", func(w *world) { vm(w, func(vm *cluster.VM) { vm.Host = "pve2" }) }, []string{"vm 521 is on pve2, and the inventory has pve1 -> write `node: pve2` for wk-1 in nodes.yaml, or migrate it back: `qm migrate 521 pve1"}},
		{"on another host, and its own is not seen", func(w *world) {
			vm(w, func(vm *cluster.VM) { vm.Host = "pve2" })
			host(w, "pve1", func(h *cluster.Host) { h.Known, h.Why = false, "it is off" })
		}, []string{"vm 521 is on pve2, and the inventory has pve1: it is off -> write `node: pve2` for wk-1 in nodes.yaml;"}},
		{"on another host, and of its own nothing is known", func(w *world) {
			vm(w, func(vm *cluster.VM) { vm.Host = "pve2" })
			host(w, "pve1", func(h *cluster.Host) { h.Known = false })
		}, []string{"vm 521 is on pve2, and the inventory has pve1 -> write `node: pve2` for wk-1 in nodes.yaml;"}},
		{"what Talos deployed is kept by somebody", func(w *world) {
			w.o.Manifests = cluster.Saw(cluster.Manifests{Left: []string{"Deployment kube-system/coredns: Helm has it, in release dns"}})
		}, []string{"what Talos has deployed is not as it renders it now, and is left: Deployment kube-system/coredns: Helm has it, in release dns -> to give an object back to Talos"}},
		{"HA, which somebody has disarmed", func(w *world) {
			w.d.Spec.Availability, w.o.Availability = true, cluster.Saw(availability.Manager{Disarmed: availability.Freeze})
		}, []string{"somebody has disarmed Proxmox VE's HA manager (freeze): it starts no VM again, here or on another host -> `ha-manager crm-command arm-ha`"}},
		{"HA that is armed", func(w *world) {
			w.d.Spec.Availability, w.o.Availability = true, cluster.Saw(availability.Manager{})
		}, nil},
		{"HA that is not in the inventory", func(w *world) { w.o.Availability = cluster.Saw(availability.Manager{Disarmed: availability.Freeze}) }, nil},
		{"HA that is not seen now", func(w *world) {
			w.d.Spec.Availability, w.o.Availability = true, cluster.Seen[availability.Manager]{Value: availability.Manager{Disarmed: availability.Freeze}}
		}, nil},
		{"control planes on one host", func(w *world) { shareHost(w.o, &w.d, "pve1", "pve1", "pve2") }, []string{"the control planes cp-1 and cp-2 are on one host, pve1, which takes them all down when it goes down -> migrate one to a host that has none, once there is room: `qm migrate 412 pve2 --online"}},
		{"the same, where there is no other host", func(w *world) { shareHost(w.o, &w.d, "pve1") }, nil},
		{"the same, and one is another's", func(w *world) {
			shareHost(w.o, &w.d, "pve1", "pve1", "pve2")
			w.o.VMs["cp-2"] = cluster.VM{VMID: 412, Host: "pve1", Presence: cluster.Present, Owner: cluster.Foreign}
		}, nil},
		{"the same, and one is not seen", func(w *world) {
			shareHost(w.o, &w.d, "pve1", "pve1", "pve2")
			w.o.VMs["cp-2"] = cluster.VM{VMID: 412, Host: "pve1", Owner: cluster.Ours}
		}, nil},
		{"another's, on another host", func(w *world) { vm(w, func(vm *cluster.VM) { vm.Host, vm.Owner = "pve2", cluster.Foreign }) }, nil},
		{"not seen", func(w *world) {
			vm(w, func(vm *cluster.VM) { vm.Host, vm.Presence = "pve2", cluster.PresenceUnknown })
		}, nil},
		{"without tags that somebody has given it", func(w *world) {
			vm(w, func(vm *cluster.VM) { vm.Untaggable, vm.Tags = true, w.d.Spec.Nodes[0].VMTags() })
		}, nil},
		{"without tags", func(w *world) { vm(w, func(vm *cluster.VM) { vm.Untaggable = true }) }, []string{"vm 521 is without tags of the agent"}},
		{"without a cloud-init drive", func(w *world) { vm(w, func(vm *cluster.VM) { vm.Seedless = true }) }, []string{"somebody removed the cloud-init drive of vm 521, from which its machine takes its address before it has a config -> as root on pve1: `qm set 521 --ide2 "}},
		{"locked while it is made", func(w *world) { vm(w, func(vm *cluster.VM) { vm.Seedless, vm.Lock = true, "create" }) }, nil},
		{"an object that is changed again", func(w *world) {
			release(w, "app", cluster.Release{Namespace: "apps", Digest: "d", AlteredAgain: "Deployment app"})
		}, []string{"an object of addon app was put back and is changed again, and is left so: Deployment app"}},
		{"the same, of releases that are not seen now", func(w *world) {
			release(w, "app", cluster.Release{Namespace: "apps", Digest: "d", AlteredAgain: "Deployment app"})
			w.o.Releases.Known = false
		}, nil},
		{"the same, in another namespace", func(w *world) {
			release(w, "app", cluster.Release{Namespace: "other", AlteredAgain: "Deployment app"})
		}, nil},
		{"the same, of one that others manage", func(w *world) {
			w.d.Spec.Addons[0].Ownership = cluster.BootstrapOnly
			release(w, "app", cluster.Release{Namespace: "apps", Digest: "d", AlteredAgain: "Deployment app"})
		}, nil},
		{"a host whose memory is not known", func(w *world) {
			vm(w, func(vm *cluster.VM) { vm.Presence = cluster.Absent })
			w.d.Spec.Nodes = append(w.d.Spec.Nodes, cluster.Node{Name: "wk-2", Placement: cluster.Placement{Pin: "pve1"}})
			w.o.VMs["wk-2"] = cluster.VM{Presence: cluster.Absent}
			host(w, "pve1", func(h *cluster.Host) { h.MemoryBytes = 0 })
		}, []string{"how much memory pve1 has is not known"}},
		{"the same, with nothing to make", func(w *world) { host(w, "pve1", func(h *cluster.Host) { h.MemoryBytes = 0 }) }, nil},
		{"the same, where the inventory bounds it", func(w *world) {
			vm(w, func(vm *cluster.VM) { vm.Presence = cluster.Absent })
			host(w, "pve1", func(h *cluster.Host) { h.MemoryBytes = 0 })
			w.d.Spec.Capacity = map[string]cluster.HostCapacity{"pve1": {MemoryMiB: 1024}}
		}, nil},
		{"the same, of a host that is not seen", func(w *world) {
			vm(w, func(vm *cluster.VM) { vm.Presence = cluster.Absent })
			host(w, "pve1", func(h *cluster.Host) { h.MemoryBytes, h.Known = 0, false })
		}, nil},
		{"its memory is known", func(w *world) { vm(w, func(vm *cluster.VM) { vm.Presence = cluster.Absent }) }, nil},
		{"a release that is left", func(w *world) { release(w, "old", ours) }, []string{"the release old in namespace apps stays: no addon of the inventory has it -> put the addon back, or remove the release by hand: `helm -n apps uninstall old`; `prune: true`"}},
		{"one that is uninstalled", func(w *world) { release(w, "old", ours); w.d.Spec.Prune = true }, nil},
		{"one that is kept in any case", func(w *world) {
			w.d.Spec.Prune = true
			w.o.Left = []cluster.LeftRelease{{ReleaseName: cluster.ReleaseName{Namespace: "apps", Name: "old"}, Kept: "is kept by its values"}}
		}, []string{"the release old in namespace apps stays: no addon of the inventory has it, and it is kept by its values -> put the addon back, or remove the release by hand: `helm -n apps uninstall old`;"}},
	} {
		w := &world{d: cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{
			Nodes:  []cluster.Node{{Name: "wk-1", Placement: cluster.Placement{Pin: "pve1"}}},
			Addons: []cluster.Addon{{Name: "app", Namespace: "apps", Ownership: cluster.Managed, File: "app.yaml"}}}}},
			o: cluster.Observed{Hosts: map[string]cluster.Host{"pve1": {Known: true, MemoryBytes: 1 << 30}},
				VMs:      map[string]cluster.VM{"wk-1": {VMID: 521, Host: "pve1", Presence: cluster.Present, Owner: cluster.Ours}},
				Releases: cluster.Saw(map[string]cluster.Release{"app": ours})}}
		c.edit(w)
		var got []string
		for _, p := range Warnings(w.d, w.o) {
			got = append(got, p.Message+" -> "+p.Hint+";")
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %q", c.what, got)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: %q lacks %q", c.what, got[i], want)
			}
		}
	}
}

// TestListLeft: a release of ours is left when no addon has its name and namespace, be it
// one that was seen before or one that was asked for; each counts once.
func TestListLeft(t *testing.T) {
	name := func(namespace, name string) cluster.ReleaseName {
		return cluster.ReleaseName{Namespace: namespace, Name: name}
	}
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Addons: []cluster.Addon{{Name: "app", Namespace: "apps"}}}}}
	o := cluster.Observed{
		Left: []cluster.LeftRelease{{ReleaseName: name("apps", "app")}, {ReleaseName: name("apps", "old"), Kept: "is kept"}, {ReleaseName: name("kube-system", "cilium")}},
		Releases: cluster.Saw(map[string]cluster.Release{
			"app": {Namespace: "elsewhere", Digest: "d", Status: "failed"}, "old": {Namespace: "apps", Digest: "d"}, "others": {Namespace: "apps"}, "cilium": {Namespace: "kube-system", Digest: "d"}}),
	}
	list := func() (out []string) {
		for _, r := range ListLeft(d, o) {
			out = append(out, fmt.Sprintf("%s/%s %s%s", r.Namespace, r.Name, r.Status, r.Kept))
		}
		return out
	}
	if got := list(); !slices.Equal(got, []string{"apps/old is kept", "kube-system/cilium is the container network", "elsewhere/app failed"}) {
		t.Errorf("%q", got)
	}
	o.Facts.Intend(cluster.Intent{Kind: cluster.IntendDestroy})
	if got := list(); got != nil {
		t.Errorf("while everything is destroyed: %q", got)
	}
}

// TestElsewhereOfSpread: a VM that was to be on one of several hosts and is on another one is reported, and on one of them it is not; several
// control planes on one host are.
func TestElsewhereOfSpread(t *testing.T) {
	d := cluster.Desired{}
	o := cluster.Observed{VMs: map[string]cluster.VM{}}
	for i, host := range []string{"pve1", "pve1", "pve9"} {
		n := cluster.Node{Name: fmt.Sprintf("cp-%d", i+1), Role: cluster.ControlPlane, VMID: 411 + i, Placement: cluster.Placement{Pin: host, Among: []string{"pve1", "pve2"}}}
		d.Spec.Nodes = append(d.Spec.Nodes, n)
		o.VMs[n.Name] = cluster.VM{VMID: n.VMID, Presence: cluster.Present, Owner: cluster.Ours, Host: host}
	}
	var got []string
	for _, p := range Warnings(d, o) {
		got = append(got, p.Message)
	}
	want := "vm 413 is on pve9, which is not among the hosts of the inventory; the control planes cp-1 and cp-2 are on one host, pve1, which takes them all down when it goes down"
	if strings.Join(got, "; ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, "; "), want)
	}
}
