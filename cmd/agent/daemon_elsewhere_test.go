package main

import (
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
)

// TestMigratedVM: a VM that people migrated stays Ready where it is, and is told
// of with its cures until one of them was taken.
func TestMigratedVM(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{Hosts: []pve.Host{{Name: "pve1"}, {Name: "pve2"}}})
	r.push(r.inventory(1))
	r.start()
	worker := r.untilReady("").Nodes[1]
	if worker.Host != "pve1" {
		t.Fatalf("%+v", worker)
	}
	r.run(0, do("plan", "dev"), "the host matches the repository")

	// looked has the agent look, and returns what it tells of the worker then.
	looked := func(has bool) (told string) {
		t.Helper()
		r.run(0, do("reconcile", "dev"))
		r.until("the worker's host is told, or is right", func() bool {
			told = ""
			for _, p := range r.status().Problems {
				if p.Field == "nodes.dev-wk-1" && p.Severity == cluster.Warning {
					told = p.String()
				}
			}
			return (told != "") == has
		})
		return told
	}
	must(r.lab.PVE.Migrate(worker.VMID, "pve2"))
	const is = "is on pve2, and the inventory has pve1"
	if told := looked(true); !strings.Contains(told, "inventory/dev/nodes.yaml:4:5: ") || !strings.Contains(told, is) || !strings.Contains(told, "write `node: pve2` for dev-wk-1") ||
		!strings.Contains(told, "qm migrate") {
		t.Errorf("told %q", told)
	}
	r.run(0, do("status", "dev"), is)
	if p := r.run(0, do("plan", "dev"), is, "nothing to do"); p.has("the host matches the repository") {
		t.Errorf("it is not: %v", p)
	}
	if s := r.status(); s.Condition != cluster.Ready || s.Nodes[1].Host != "pve2" || s.Nodes[1].Phase != cluster.PhaseReady {
		t.Errorf("%+v", s)
	}

	on := func(host string) string {
		nodes := strings.Replace(string(r.inventory(1)["inventory/dev/nodes.yaml"]), "21}", "21, node: "+host+"}", 1)
		config := strings.Replace(string(r.inventory(1)["inventory/dev/cluster.yaml"]), "node: pve1", "nodes: [pve1, pve2, pve9]", 1)
		return r.push(with(r.inventory(1), "inventory/dev/nodes.yaml", strings.Replace(nodes, "11}", "11, node: pve1}", 1), "inventory/dev/cluster.yaml", config))
	}
	nowhere := on("pve9")
	r.run(0, do("reconcile", "dev"))
	r.untilReady(nowhere)
	if told := looked(true); !strings.Contains(told, "the inventory has pve9: Proxmox VE knows no host pve9") || strings.Contains(told, "qm migrate") {
		t.Errorf("told %q", told)
	}
	there := on("pve2")
	r.run(0, do("reconcile", "dev"))
	r.untilReady(there)
	looked(false)
	must(r.lab.PVE.Migrate(worker.VMID, "pve1"))
	looked(true)
	must(r.lab.PVE.Migrate(worker.VMID, "pve2"))
	looked(false)
	// Where it is, it is taken away.
	r.run(0, do("destroy", "dev", "--confirm", "dev"))
	r.until("nothing is left", func() bool { return len(r.lab.PVE.VMs()) == 0 })
}
