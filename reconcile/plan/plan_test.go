package plan

import (
	"fmt"
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
)

// TestScenarios runs every script in testdata: a line is a command, the lines
// that begin with ">" are what the command before must print. world_test.go
// lists the commands.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			w := newWorld(1, 0)
			for _, line := range strings.Split(strings.TrimSuffix(string(src), "\n"), "\n") {
				if strings.HasPrefix(line, ">") {
					continue
				}
				got.WriteString(line + "\n")
				if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
					continue
				}
				for _, out := range strings.Split(strings.TrimSuffix(w.run(t, line), "\n"), "\n") {
					if out != "" {
						got.WriteString("> " + out + "\n")
					}
				}
			}
			golden.Check(t, file, []byte(got.String()))
		})
	}
}

// TestLostMembers: a member of etcd is lost with its machine, and not because nothing
// answers, or because its address was given to another node.
func TestLostMembers(t *testing.T) {
	const id = 0x13
	for _, c := range []struct {
		name string
		lost bool
		edit func(*world)
	}{
		{"of a removed node of ours, without a VM and silent", true, func(*world) {}},
		{"that answers", false, func(w *world) { w.o.Machines["cp-3"] = cluster.Machine{Reach: cluster.Configured} }},
		{"that is Ready in Kubernetes", false, func(w *world) { effect.EditNode(&w.o, "cp-3", func(kn *cluster.KubeNode) { kn.Ready = true }) }},
		{"that joined by hand and is switched off", false, func(w *world) {
			effect.EditNode(&w.o, "cp-3", func(kn *cluster.KubeNode) { kn.UUID = "11111111-2222-3333-4444-555555555555" })
		}},
		{"without a Node object", false, func(w *world) { w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{}) }},
		{"without a Node object, that the inventory had", true, func(w *world) { w.forgetObject("52:54:00:00:00:13 10.10.0.13/24,gw=10.10.0.1") }},
		{"without a Node object, that the inventory had with an address of a DHCP server", true, func(w *world) { w.forgetObject("52:54:00:00:00:13 ") }},
		{"without a Node object, at another address than the node that the inventory had", false, func(w *world) { w.forgetObject("52:54:00:00:00:13 10.10.0.113/24,gw=10.10.0.1") }},
		{"without a Node object, that the inventory had, and that answers", false, func(w *world) {
			w.forgetObject("52:54:00:00:00:13 10.10.0.13/24,gw=10.10.0.1")
			w.o.Machines["cp-3"] = cluster.Machine{Reach: cluster.Configured}
		}},
		{"without a Node object, that the inventory had, and whose VM is there", false, func(w *world) {
			w.forgetObject("52:54:00:00:00:13 10.10.0.13/24,gw=10.10.0.1")
			w.o.Orphans = cluster.Saw([]cluster.VM{{VMID: 413, Node: "cp-3", Presence: cluster.Present, Owner: cluster.Ours}})
		}},
		{"with another's Node object, of the name of a node that the inventory had", false, func(w *world) {
			w.o.Facts.Cards = map[string]string{"cp-3": "52:54:00:00:00:13 10.10.0.13/24,gw=10.10.0.1"}
			effect.EditNode(&w.o, "cp-3", func(kn *cluster.KubeNode) { kn.UUID = "11111111-2222-3333-4444-555555555555" })
		}},
		{"whose address a new node has", true, func(w *world) { w.addPlane("cp-4", 414, 13) }},
		{"whose address a new node has, and whose VM is there", false, func(w *world) {
			w.addPlane("cp-4", 414, 13)
			w.o.Orphans = cluster.Saw([]cluster.VM{{VMID: 413, Node: "cp-3", Presence: cluster.Present, Owner: cluster.Ours}})
		}},
		{"whose address a new node has, which is made and does not answer", false, func(w *world) {
			w.addPlane("cp-4", 414, 13)
			n, _ := w.d.Spec.Node("cp-4")
			w.o.VMs["cp-4"] = w.vm(n)
		}},
		{"of a node whose address one without a VM has now", false, func(w *world) {
			w.addPlane("cp-3", 413, 14)
			w.o.VMs["cp-3"] = w.vm(w.d.Spec.Nodes[2])
			w.d.Spec.Nodes[1].IP = netip.MustParseAddr("10.10.0.13")
			w.o.VMs["cp-2"] = cluster.VM{VMID: 412, Node: "cp-2", Presence: cluster.Absent}
		}},
		{"of a node without a VM", true, func(w *world) { w.addPlane("cp-3", 413, 13) }},
		{"of a node whose vmid was changed", false, func(w *world) {
			w.addPlane("cp-3", 499, 13)
			w.o.Orphans = cluster.Saw([]cluster.VM{{VMID: 413, Node: "cp-3", Presence: cluster.Present, Owner: cluster.Ours}})
		}},
		{"of a node that is Ready, at whose address somebody is in maintenance", false, func(w *world) {
			w.addPlane("cp-3", 413, 13)
			vm := w.vm(w.d.Spec.Nodes[2])
			vm.Power = cluster.PowerRunning
			w.o.VMs["cp-3"], w.o.Machines["cp-3"] = vm, cluster.Machine{Reach: cluster.Maintenance}
			effect.EditNode(&w.o, "cp-3", func(kn *cluster.KubeNode) { kn.Ready = true })
		}},
		{"of a node in maintenance, whose disk is empty", true, func(w *world) {
			w.addPlane("cp-3", 413, 13)
			vm := w.vm(w.d.Spec.Nodes[2])
			vm.Power = cluster.PowerRunning
			w.o.VMs["cp-3"], w.o.Machines["cp-3"] = vm, cluster.Machine{Reach: cluster.Maintenance}
		}},
		{"without a name, at the address of a node without a VM", true, func(w *world) {
			w.addPlane("cp-3", 413, 13)
			w.o.Members = cluster.Saw([]cluster.Member{{ID: id, Address: "10.10.0.13"}})
		}},
		{"without a name, at the address of a node that is there", false, func(w *world) {
			w.addPlane("cp-3", 413, 13)
			w.o.VMs["cp-3"] = w.vm(w.d.Spec.Nodes[2])
			w.o.Members = cluster.Saw([]cluster.Member{{ID: id, Address: "10.10.0.13"}})
		}},
		{"without a name, at an address of no node", false, func(w *world) {
			w.o.Members = cluster.Saw([]cluster.Member{{ID: id, Address: "10.10.0.13"}})
			w.o.Machines[""] = cluster.Machine{Reach: cluster.Silent}
			w.o.Nodes.Value[""] = cluster.KubeNode{UUID: cluster.NodeUUID(w.d.Spec.ID, "")}
		}},
		{"at whose address is a new node that answers", false, func(w *world) {
			w.addPlane("cp-4", 414, 13)
			w.o.Machines["cp-4"] = cluster.Machine{Reach: cluster.Maintenance}
		}},
		{"of a node that the inventory has as a worker now, and that has a VM", false, func(w *world) {
			w.addPlane("cp-3", 413, 13)
			w.d.Spec.Nodes[2].Role = cluster.Worker
			w.o.VMs["cp-3"] = w.vm(w.d.Spec.Nodes[2])
		}},
		{"of a node that the inventory has as a worker now, without a VM", true, func(w *world) {
			w.addPlane("cp-3", 413, 13)
			w.d.Spec.Nodes[2].Role = cluster.Worker
			w.o.VMs["cp-3"] = cluster.VM{Presence: cluster.Absent}
		}},
		{"while it is not known which members there are", false, func(w *world) { w.o.Members.Known = false }},
		{"while Kubernetes does not answer", false, func(w *world) { w.o.Nodes.Known = false }},
		{"while it is not known which other VMs there are", false, func(w *world) { w.o.Orphans.Known = false }},
		{"while a VM cannot be seen", false, func(w *world) { w.o.VMs["cp-1"] = cluster.VM{} }},
		{"while it is not known whose a VM is", false, func(w *world) { w.o.VMs["cp-1"] = cluster.VM{Presence: cluster.Present} }},
	} {
		w := newWorld(2, 0)
		for _, n := range w.d.Spec.Nodes {
			w.o.VMs[n.Name] = w.vm(n)
		}
		w.o.Members = cluster.Saw([]cluster.Member{{ID: id, Name: "cp-3", Address: "10.10.0.13"}})
		w.o.Machines["cp-3"] = cluster.Machine{Reach: cluster.Silent}
		w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"cp-3": {Name: "cp-3", UUID: cluster.NodeUUID(w.d.Spec.ID, "cp-3"), Why: "Kubelet stopped posting node status."}})
		c.edit(w)
		if got := slices.Contains(leftover.LostMembers(w.d, w.o), id); got != c.lost {
			t.Errorf("one %s: lost is %v", c.name, got)
		}
	}
}

// forgetObject has somebody delete the Node object of cp-3, whose VM was seen to have a card.
func (w *world) forgetObject(card string) {
	w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{})
	w.o.Facts.Cards = map[string]string{"cp-3": card}
}

// TestRemovedNodesAreRecognized: what is left of a node that the inventory does not have any
// more shows what it was, and what was known of it before fills in the rest.
func TestRemovedNodesAreRecognized(t *testing.T) {
	vm := func(address string) cluster.VM {
		return cluster.VM{VMID: 413, Node: "x", Host: "pve1", Presence: cluster.Present, Owner: cluster.Ours, Hardware: cluster.Saw(cluster.Hardware{Address: address})}
	}
	ip := netip.MustParseAddr
	for _, c := range []struct {
		what string
		edit func(*world)
		want string // role and address; "" : there is none
	}{
		{"its VM alone", func(w *world) { w.o.Orphans = cluster.Saw([]cluster.VM{vm("10.10.0.13/24")}) }, "worker 10.10.0.13"},
		{"its VM without an address", func(w *world) { w.o.Orphans = cluster.Saw([]cluster.VM{vm("dhcp")}) }, "worker invalid IP"},
		{"its VM and a Node of a control plane", func(w *world) {
			w.o.Orphans = cluster.Saw([]cluster.VM{vm("")})
			w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"x": {Name: "x", ControlPlane: true, Address: "10.10.0.14"}})
		}, "controlplane 10.10.0.14"},
		{"its VM and a Node of a worker elsewhere", func(w *world) {
			w.o.Orphans = cluster.Saw([]cluster.VM{vm("10.10.0.13/24")})
			w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"x": {Name: "x", Address: "10.10.0.14"}})
		}, "worker 10.10.0.13"},
		{"its VM and its etcd", func(w *world) {
			w.o.Orphans = cluster.Saw([]cluster.VM{vm("")})
			w.o.Machines["x"] = cluster.Machine{Services: map[string]cluster.Service{"etcd": {}}}
		}, "controlplane invalid IP"},
		{"a member of etcd alone", func(w *world) {
			w.o.Members = cluster.Saw([]cluster.Member{{Name: "x", Address: "10.10.0.15"}})
		}, "controlplane 10.10.0.15"},
		{"its VM and a member of etcd", func(w *world) {
			w.o.Orphans = cluster.Saw([]cluster.VM{vm("")})
			w.o.Members = cluster.Saw([]cluster.Member{{Name: "x", Address: "10.10.0.15"}})
		}, "controlplane 10.10.0.15"},
		{"its VM, and a member of etcd elsewhere", func(w *world) {
			w.o.Orphans = cluster.Saw([]cluster.VM{vm("10.10.0.13/24")})
			w.o.Members = cluster.Saw([]cluster.Member{{Name: "x", Address: "10.10.0.15"}})
		}, "controlplane 10.10.0.13"},
		{"a member of etcd without a name", func(w *world) { w.o.Members = cluster.Saw([]cluster.Member{{Address: "10.10.0.15"}}) }, ""},
		{"a member of etcd at the address of a node", func(w *world) {
			w.o.Members = cluster.Saw([]cluster.Member{{Name: "x", Address: "10.10.0.11"}})
		}, ""},
		{"what was a control plane before", func(w *world) {
			w.d.Removed = []cluster.Node{{Name: "x", Role: cluster.ControlPlane, IP: ip("10.10.0.16")}}
			w.o.Orphans = cluster.Saw([]cluster.VM{vm("")})
		}, "controlplane 10.10.0.16"},
		{"what was at another address before", func(w *world) {
			w.d.Removed = []cluster.Node{{Name: "x", Role: cluster.Worker, IP: ip("10.10.0.16")}}
			w.o.Orphans = cluster.Saw([]cluster.VM{vm("10.10.0.13/24")})
		}, "worker 10.10.0.13"},
		{"nothing that can be seen now", func(w *world) {
			w.d.Removed = []cluster.Node{{Name: "x", Role: cluster.Worker, IP: ip("10.10.0.16")}}
			w.o.Orphans = cluster.Unseen[[]cluster.VM]("no answer")
		}, "worker 10.10.0.16"},
	} {
		w := newWorld(1, 0)
		w.o.Members = cluster.Saw([]cluster.Member{{Name: "cp-1", Address: "10.10.0.11"}})
		c.edit(w)
		got := ""
		for _, n := range leftover.RemovedNodes(w.d, w.o) {
			got += fmt.Sprintf("%s %s", n.Role, n.IP)
			if n.Name != "x" {
				t.Errorf("%s: %s is removed", c.what, n.Name)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// TestBootstrapIsHeldBack: etcd is founded where it is known that no control plane has one,
// and on the node that was intended, once that one waits for it.
func TestBootstrapIsHeldBack(t *testing.T) {
	etcd := func(state, stage string) cluster.Machine {
		m := cluster.Machine{Reach: cluster.Configured, Stage: stage, Services: map[string]cluster.Service{}}
		if state != "" {
			m.Services["etcd"] = cluster.Service{State: state}
		}
		return m
	}
	for _, c := range []struct {
		what    string
		founded bool
		edit    func(*world)
	}{
		{"both wait", true, func(*world) {}},
		{"the first is running", true, func(w *world) { w.o.Machines["cp-1"] = etcd("Preparing", "running") }},
		{"the first installs", false, func(w *world) { w.o.Machines["cp-1"] = etcd("Preparing", "installing") }},
		{"the first has no etcd yet", false, func(w *world) { w.o.Machines["cp-1"] = etcd("", "booting") }},
		{"the first is locked in the inventory", false, func(w *world) { w.d.Spec.Nodes[0].Locked = true }},
		{"the other is not made yet", true, func(w *world) {
			w.o.VMs["cp-2"], w.o.Machines["cp-2"] = cluster.VM{Presence: cluster.Absent}, cluster.Machine{Reach: cluster.Silent}
		}},
		{"the other is in maintenance", true, func(w *world) { w.o.Machines["cp-2"] = cluster.Machine{Reach: cluster.Maintenance} }},
		{"the other does not answer", false, func(w *world) { w.o.Machines["cp-2"] = cluster.Machine{Reach: cluster.Silent} }},
		{"the other answered before, and does not now", false, func(w *world) {
			w.o.Machines["cp-2"] = cluster.Machine{Reach: cluster.Silent, Services: map[string]cluster.Service{"etcd": {State: "Preparing"}}}
		}},
		{"the other has no etcd yet", false, func(w *world) { w.o.Machines["cp-2"] = etcd("", "booting") }},
		{"the other's etcd runs", false, func(w *world) { w.o.Machines["cp-2"] = etcd("Running", "running") }},
		{"etcd lists members", false, func(w *world) { w.o.Members = cluster.Saw([]cluster.Member{{Name: "cp-2"}}) }},
		{"etcd lists no member", true, func(w *world) { w.o.Members = cluster.Saw([]cluster.Member{}) }},
		{"members were listed before, and cannot be asked", true, func(w *world) {
			w.o.Members = cluster.Seen[[]cluster.Member]{Value: []cluster.Member{{Name: "cp-2"}}}
		}},
		{"it was intended for the first", true, func(w *world) {
			w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, Node: "cp-1", UUID: w.d.Spec.Nodes[0].UUID})
		}},
		{"it was intended for an earlier machine of that name", false, func(w *world) {
			w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, Node: "cp-1", UUID: "another"})
		}},
		{"it was intended for a node that the inventory has not", false, func(w *world) {
			w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, Node: "cp-9", UUID: w.d.Spec.Nodes[0].UUID})
		}},
		{"it was done", false, func(w *world) {
			w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, Node: "cp-1", UUID: w.d.Spec.Nodes[0].UUID, Done: true})
		}},
		{"the records are lost", false, func(w *world) { w.o.Facts.Lost = true }},
	} {
		w := newWorld(2, 0)
		w.d.Spec.AllowEven = true
		for _, line := range []string{"image stored", "vm cp-1 running", "vm cp-2 running"} {
			w.run(t, line)
		}
		w.o.Machines["cp-1"], w.o.Machines["cp-2"] = etcd("Preparing", "booting"), etcd("Preparing", "booting")
		c.edit(w)
		p := Make(w.d, w.o, w.p)
		if got := strings.Contains(p.String(), "bootstrap etcd on cp-1"); got != c.founded || strings.Contains(p.String(), "bootstrap etcd on cp-2") {
			t.Errorf("%s: founded is %v, want %v\n%s", c.what, got, c.founded, p)
		}
	}
}

// TestRemovalSparesTheSuccessor: a removed control plane whose VM is left takes no member
// with it that has its address by now.
func TestRemovalSparesTheSuccessor(t *testing.T) {
	w := newWorld(4, 0)
	for _, line := range []string{"image stored", "steps", "agree", "remove cp-4"} {
		w.run(t, line)
	}
	w.o = effect.Clone(w.o)
	delete(w.o.Nodes.Value, "cp-4")
	vm := w.o.Orphans.Value[0]
	vm.Power = cluster.Stopped
	w.o.Orphans = cluster.Saw([]cluster.VM{vm})
	w.o.Machines["cp-4"] = cluster.Machine{Reach: cluster.Silent}
	w.addPlane("cp-5", 415, 14)
	n, _ := w.d.Spec.Node("cp-5")
	w.d.Spec.AllowEven = true
	w.o.VMs["cp-5"], w.o.Machines["cp-5"], w.o.APIs["cp-5"] = w.vm(n), w.o.Machines["cp-3"], cluster.Saw(true)
	w.run(t, "vm cp-5 running old")
	kn := w.o.Nodes.Value["cp-3"]
	kn.Name, kn.UUID = n.Name, n.UUID
	w.o.Nodes.Value["cp-5"] = kn
	for i, mem := range w.o.Members.Value {
		if mem.Name == "cp-4" {
			w.o.Members.Value[i].Name = "cp-5"
		}
	}
	got := Make(w.d, w.o, w.p).String()
	if strings.Contains(got, "remove member") || !strings.Contains(got, "stop and delete vm 414 (cp-4)") {
		t.Errorf("the member of cp-5 is at the address that cp-4 had:\n%s", got)
	}
}

// TestRenamedNodeIsKept: the VM of a node that was renamed is reported, and never removed,
// also while the VM of the new name cannot be read for once.
func TestRenamedNodeIsKept(t *testing.T) {
	for _, how := range []string{"foreign", "unknown"} {
		w := newWorld(1, 2)
		for _, line := range []string{"image stored", "steps", "agree", "vm wk-2 stopped", "machine wk-2 silent", "remove wk-2", "not-ready wk-2 Kubelet stopped posting node status."} {
			w.run(t, line)
		}
		n := w.taken[0]
		n.Name, n.UUID = "wk-9", cluster.NodeUUID(w.d.Spec.ID, "wk-9")
		w.d.Spec.Nodes = append(w.d.Spec.Nodes, n)
		w.refresh()
		w.run(t, "vm wk-9 "+how)
		if p := Make(w.d, w.o, w.p); len(p.Actions) > 0 || p.Converged() {
			t.Errorf("the vm of wk-9 is %s:\n%s", how, p)
		}
	}
}

// TestApprovalIsForWhatIsShown: a VM whose deletion is not among the steps that were shown
// is not approved with them.
func TestApprovalIsForWhatIsShown(t *testing.T) {
	w := newWorld(1, 4)
	for _, line := range []string{"image stored", "steps", "agree", "remove wk-2", "remove wk-3", "remove wk-4"} {
		w.run(t, line)
	}
	w.o = effect.Clone(w.o)
	vms := slices.Clone(w.o.Orphans.Value)
	vms[1].Protected = true
	w.o.Orphans = cluster.Saw(vms)
	if f := Forecast(w.d, w.o, w.p); !f.Unapproved || !slices.Equal(f.VMs, []int{522, 524}) {
		t.Errorf("vm 523 is protected, and an approval is for %v", f.VMs)
	}
}

// TestPodsAreDeleted: the pods that a drain leaves are deleted where the inventory has
// that, and of a machine that does not come back.
func TestPodsAreDeleted(t *testing.T) {
	for _, c := range []struct{ delete, forgotten, want bool }{{false, false, false}, {true, false, true}, {false, true, true}} {
		w := newWorld(1, 2)
		w.run(t, "made cps=1 workers=2")
		w.run(t, "dead wk-2 5m")
		w.run(t, "node wk-2 replace=again")
		if w.d.Spec.Drain.Delete = c.delete; c.forgotten {
			w.run(t, "forget wk-2")
		}
		p := Make(w.d, w.o, w.p)
		if a, ok := p.Actions[0].(action.DrainNode); !ok || a.How.Delete != c.want {
			t.Errorf("%+v: %+v", c, p.Actions)
		}
	}
}

// TestOnlyOwnVMsAreChanged: whoever asks, a VM is corrected only while it is there, ours,
// and not being deleted.
func TestOnlyOwnVMsAreChanged(t *testing.T) {
	for what, edit := range map[string]func(*cluster.VM){
		"ours":          func(*cluster.VM) {},
		"not seen":      func(vm *cluster.VM) { vm.Presence = cluster.PresenceUnknown },
		"foreign":       func(vm *cluster.VM) { vm.Owner = cluster.Foreign },
		"whose unknown": func(vm *cluster.VM) { vm.Owner = cluster.OwnerUnknown },
		"being deleted": func(vm *cluster.VM) { vm.Deleting = true },
	} {
		w := newWorld(1, 1)
		n := w.d.Spec.Nodes[1]
		vm := w.vm(n)
		vm.Hardware.Value.OnBoot = !vm.Hardware.Value.OnBoot
		edit(&vm)
		m := newPlanner(w.d, w.o, w.p)
		if changes := m.planVM(n, vm); changes != (what == "ours") || len(m.plan.Actions) > 0 != changes {
			t.Errorf("a VM %s: %v, %v", what, changes, m.plan)
		}
	}
}

// TestUnmade: a VM was not made to its end if it never ran and its disk was not grown,
// or it has no tag.
func TestUnmade(t *testing.T) {
	for what, edit := range map[string]func(*cluster.VM){
		"small disk": func(vm *cluster.VM) { vm.Hardware.Value.System.Bytes = 1 << 30 },
		"no tag":     func(vm *cluster.VM) { vm.Tags = nil },
		"finished":   func(*cluster.VM) {},
		"runs":       func(vm *cluster.VM) { vm.Tags, vm.Power = nil, cluster.PowerRunning },
		"unread":     func(vm *cluster.VM) { vm.Tags, vm.Hardware.Known = nil, false },
		"no disk":    func(vm *cluster.VM) { vm.Hardware.Value.System = cluster.DiskSeen{} },
	} {
		w := newWorld(1, 0)
		vm := w.vm(w.d.Spec.Nodes[0])
		vm.Power = cluster.Stopped
		edit(&vm)
		if got := drift.IsUnmade(vm); got != (what == "small disk" || what == "no tag") {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// TestCanary: the first node that gets a new config takes it as it runs; a worker, if there
// is one.
func TestCanary(t *testing.T) {
	for what, c := range map[string]struct {
		want string
		edit func(*cluster.Node, *cluster.Machine)
	}{
		"both workers take it": {"wk-1", func(*cluster.Node, *cluster.Machine) {}},
		"locked":               {"wk-2", func(n *cluster.Node, _ *cluster.Machine) { n.Locked = true }},
		"silent":               {"wk-2", func(_ *cluster.Node, m *cluster.Machine) { m.Reach = cluster.Silent }},
		"not asked":            {"wk-2", func(_ *cluster.Node, m *cluster.Machine) { m.Change = nil }},
		"asked for another":    {"wk-2", func(_ *cluster.Node, m *cluster.Machine) { m.Change = &cluster.Change{For: "old"} }},
		"reboots":              {"wk-2", func(_ *cluster.Node, m *cluster.Machine) { m.Change = &cluster.Change{For: "new", Reboots: true} }},
		"refuses":              {"wk-2", func(_ *cluster.Node, m *cluster.Machine) { m.Change = &cluster.Change{For: "new", Refused: "no"} }},
		"has it":               {"wk-2", func(_ *cluster.Node, m *cluster.Machine) { m.ConfigDigest = "new" }},
		"keeps its network":    {"wk-2", func(_ *cluster.Node, m *cluster.Machine) { m.Summary = cluster.ConfigSummary{Pods: "10.99.0.0/16"} }},
	} {
		w := newWorld(2, 2)
		for i := range w.d.Spec.Nodes {
			n := &w.d.Spec.Nodes[i]
			w.d.Configs[n.Name] = cluster.Config{Digest: "new", Summary: cluster.ConfigSummary{Pods: "10.244.0.0/16"}}
			m := cluster.Machine{Reach: cluster.Configured, ConfigDigest: "before", Change: &cluster.Change{For: "new"}, Summary: cluster.ConfigSummary{Pods: "10.244.0.0/16"}}
			if n.Name == "wk-1" {
				c.edit(n, &m)
			}
			w.o.Machines[n.Name] = m
		}
		if got := newPlanner(w.d, w.o, w.p).chooseCanary(false); got != c.want {
			t.Errorf("%s: %s is the first", what, got)
		}
	}
}

// TestBootingIsNotWaitedFor: a machine that boots, which may be for ever, is neither the first
// that gets a new config where another one can be, nor waited for with a turn.
func TestBootingIsNotWaitedFor(t *testing.T) {
	w := newWorld(2, 2)
	for range 100 {
		if w.step().Converged() {
			break
		}
	}
	for _, c := range []struct{ booting, want string }{{"", "wk-1"}, {"wk-1", "wk-2"}, {"wk-1 wk-2", "cp-1"}, {"cp-1 wk-1 wk-2", "cp-2"}, {"cp-1 cp-2 wk-1 wk-2", "wk-1"}} {
		for _, n := range w.d.Spec.Nodes {
			w.d.Configs[n.Name] = cluster.Config{Digest: "new"}
			m := w.o.Machines[n.Name]
			m.ConfigDigest, m.Change, m.Stage = "before", &cluster.Change{For: "new"}, "running"
			if slices.Contains(strings.Fields(c.booting), n.Name) {
				m.Stage = "booting"
			}
			w.o.Machines[n.Name] = m
		}
		if got := newPlanner(w.d, w.o, w.p).chooseCanary(false); got != c.want {
			t.Errorf("while %q boot, %s is the first", c.booting, got)
		}
	}
	cp2 := w.o.Machines["cp-2"]
	cp2.Change = &cluster.Change{For: "new", Reboots: true}
	wk1, _ := w.d.Spec.Node("wk-1")
	for stage, want := range map[string]string{"running": "cp-2", "booting": ""} {
		cp2.Stage = stage
		w.o.Machines["cp-2"] = cp2
		if got := newPlanner(w.d, w.o, w.p).turnBefore(wk1); got != want {
			t.Errorf("cp-2 is %s: the turn before that of wk-1 is %q", stage, got)
		}
	}
}

// TestEndedTurns: a turn has ended when the node is Ready with all that the inventory has.
func TestEndedTurns(t *testing.T) {
	for what, edit := range map[string]func(*world){
		"ended":             func(*world) {},
		"of another node":   func(w *world) { w.o.Facts.Restarts = map[string]cluster.Restart{"wk-1": {Target: "x"}} },
		"not Ready":         func(w *world) { w.run(&testing.T{}, "node-is wk-2 ready=false") },
		"hardware unread":   func(w *world) { w.run(&testing.T{}, "vm wk-2 running configless") },
		"hardware differs":  func(w *world) { w.run(&testing.T{}, "vm wk-2 running cores=2") },
		"config not read":   func(w *world) { w.run(&testing.T{}, "edit wk-2 config=") },
		"another config":    func(w *world) { w.run(&testing.T{}, "edit wk-2 config=edited") },
		"nothing restarted": func(w *world) { w.o.Facts.Restarts = nil },
		"ended, and somebody has staged a config": func(w *world) { w.run(&testing.T{}, "edit wk-2 staged=theirs") },
	} {
		w := newWorld(1, 2)
		w.run(t, "made cps=1 workers=2")
		w.o.Facts.Restarts = map[string]cluster.Restart{"wk-2": {Target: "x"}}
		edit(w)
		if got := slices.Contains(EndedTurns(w.d, w.o, cluster.Policy{}), "wk-2"); got != strings.HasPrefix(what, "ended") {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// TestStagedConfigIsNotBooted: a node that goes down for its hardware boots with the config of
// the inventory, and not with one that somebody has staged meanwhile.
func TestStagedConfigIsNotBooted(t *testing.T) {
	for staged, want := range map[string]string{"": "", "theirs": "config-wk-2"} {
		w := newWorld(1, 2)
		w.run(t, "made cps=1 workers=2")
		w.run(t, "edit wk-2 cores=2 staged="+staged)
		w.o.Backoffs = append(w.o.Backoffs, cluster.Backoff{ActionID: cluster.ActionID{Kind: cluster.DropConfig, Subject: "wk-2"}, Until: w.o.Now.Add(time.Hour)})
		for range 10 {
			for _, a := range Make(w.d, w.o, w.p).Actions {
				if down, ok := a.(action.ShutDownVM); ok {
					if down.Config.Digest != want {
						t.Errorf("with %q staged it boots with %q, want %q", staged, down.Config.Digest, want)
					}
					want = "done"
				}
			}
			w.step()
		}
		if want != "done" {
			t.Errorf("with %q staged it does not go down", staged)
		}
	}
}

// TestOnlyMemberGoesDown: nothing keeps the etcd of an only control plane up; of three,
// one goes down while the others are healthy.
func TestOnlyMemberGoesDown(t *testing.T) {
	w := newWorld(1, 0)
	w.run(t, "made cps=1")
	if why := EtcdWithout(w.d, w.o, "cp-1"); why != "" {
		t.Error(why)
	}
	w.addPlane("cp-2", 412, 12)
	if EtcdWithout(w.d, w.o, "cp-1") == "" {
		t.Error("cp-1 may go down before cp-2 has joined it")
	}
	w.run(t, "made cps=3")
	w.run(t, "machine cp-2 silent")
	if EtcdWithout(w.d, w.o, "cp-1") == "" {
		t.Error("cp-1 may go down beside cp-2, which is silent")
	}
}
