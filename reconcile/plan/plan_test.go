package plan

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/golden"
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
		{"that is Ready in Kubernetes", false, func(w *world) { editNode(&w.o, "cp-3", func(kn *cluster.KubeNode) { kn.Ready = true }) }},
		{"that joined by hand and is switched off", false, func(w *world) {
			editNode(&w.o, "cp-3", func(kn *cluster.KubeNode) { kn.UUID = "11111111-2222-3333-4444-555555555555" })
		}},
		{"without a Node object", false, func(w *world) { w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{}) }},
		{"whose address a new node has", true, func(w *world) { w.addPlane("cp-4", 414, 13) }},
		{"whose address a new node has, and whose VM is there", false, func(w *world) {
			w.addPlane("cp-4", 414, 13)
			w.o.Orphans = cluster.Saw([]cluster.VM{{VMID: 413, Node: "cp-3", Presence: cluster.Present, Owner: cluster.Ours}})
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
			editNode(&w.o, "cp-3", func(kn *cluster.KubeNode) { kn.Ready = true })
		}},
	} {
		w := newWorld(2, 0)
		for _, n := range w.d.Spec.Nodes {
			w.o.VMs[n.Name] = w.vm(n)
		}
		w.o.Members = cluster.Saw([]cluster.Member{{ID: id, Name: "cp-3", Address: "10.10.0.13"}})
		w.o.Machines["cp-3"] = cluster.Machine{Reach: cluster.Silent}
		w.o.Nodes = cluster.Saw(map[string]cluster.KubeNode{"cp-3": {Name: "cp-3", UUID: cluster.NodeUUID(w.d.Spec.ID, "cp-3"), Why: "Kubelet stopped posting node status."}})
		c.edit(w)
		if got := slices.Contains(LostMembers(w.d, w.o), id); got != c.lost {
			t.Errorf("one %s: lost is %v", c.name, got)
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
	w.o = cloneObserved(w.o)
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
	w.o = cloneObserved(w.o)
	vms := slices.Clone(w.o.Orphans.Value)
	vms[1].Protected = true
	w.o.Orphans = cluster.Saw(vms)
	if f := Forecast(w.d, w.o, w.p); !f.Unapproved || !slices.Equal(f.VMs, []int{522, 524}) {
		t.Errorf("vm 523 is protected, and an approval is for %v", f.VMs)
	}
}
