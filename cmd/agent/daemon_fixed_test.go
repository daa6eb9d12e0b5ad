package main

import (
	"bytes"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
)

// TestChangeOfWhatAClusterKeeps has another pod network pushed for a cluster that runs: status, the
// plan and the log show where it stands and the way back; a VM that somebody stops meanwhile is
// started, and when the change is taken back all is well.
func TestChangeOfWhatAClusterKeeps(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	r.push(r.inventory(1))
	r.start()
	good := r.untilReady("").Applied
	files := r.inventory(1)
	spec := files["inventory/dev/cluster.yaml"]
	files["inventory/dev/cluster.yaml"] = bytes.Replace(spec, []byte("network: {"), []byte("network: {pod_cidr: 10.32.0.0/16, "), 1)
	commit := r.change(files)
	const place = "inventory/dev/cluster.yaml:4:21: network.pod_cidr: "
	s := r.untilStalled(place)
	if s.Reason != cluster.FixedConfigChanged || s.Revision.Commit() != commit || s.Applied != good || !s.Problems.HasErrors() {
		t.Errorf("%+v", s)
	}
	const back = "write `pod_cidr: 10.244.0.0/16`"
	r.run(exitStalled, do("status", "dev"), place, "10.32.0.0/16", back, "stays in force: all nodes are Ready")
	r.run(exitFailed, do("plan", "dev"), place, back)
	if !r.log.has("does not come into force") || !r.log.has(place) {
		t.Errorf("the log: %s", r.log)
	}
	isOn := func() (on bool) {
		for _, vm := range r.lab.PVE.VMs() {
			on = on || vm.Name == "dev-wk-1" && vm.Power == pve.Running
		}
		return on
	}
	for _, vm := range r.lab.PVE.VMs() {
		if vm.Name == "dev-wk-1" {
			must(r.lab.PVE.Stop(vm.VMID))
		}
	}
	r.until("the worker runs again", isOn)
	files["inventory/dev/cluster.yaml"] = spec
	r.untilReady(r.change(files))
	if s := r.status(); s.Problems.HasErrors() {
		t.Errorf("%+v", s.Problems)
	}
}
