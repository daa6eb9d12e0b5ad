package main

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestChangingWithCommands has a cluster changed and made smaller as people do it: a
// window holds a change until another is pushed, and nodes that leave wait for an
// approval, which is for what was shown and outlives the daemon.
func TestChangingWithCommands(t *testing.T) {
	r := newRig(t, lab.Config{})
	r.push(r.inventory(2))
	r.start()
	r.untilReady("")
	before := r.vms()

	// A window that is closed now.
	files := r.inventory(2)
	files["inventory/dev/nodes.yaml"] = bytes.Replace(files["inventory/dev/nodes.yaml"], []byte("name: dev-wk-1, "), []byte("name: dev-wk-1, cpu: 6, "), 1)
	wide := files["inventory/dev/cluster.yaml"]
	yesterday := []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}[(int(time.Now().UTC().Weekday())+6)%7]
	files["inventory/dev/cluster.yaml"] = append(slices.Clone(wide), "window: {days: ["+yesterday+"], from: \"00:00\", to: \"00:01\"}\n"...)
	r.change(files)
	r.until("the window is waited for", func() bool { return r.waits(cluster.WaitingForWindow) })
	r.run(exitReconciling, do("status", "dev"), "waits for its window, which opens at ", "drain dev-wk-1 to change cores from 4 to 6")
	r.run(exitChanges, do("plan", "dev"), "drain dev-wk-1 to change cores from 4 to 6", "shut down vm", "waits for its window")
	if now := r.vms(); len(now) != len(before) || r.cores("dev-wk-1") == "6" {
		t.Errorf("changed outside the window: %v", now)
	}
	files["inventory/dev/cluster.yaml"] = wide
	r.untilReady(r.change(files))
	if r.cores("dev-wk-1") != "6" {
		t.Error("dev-wk-1 does not have 6 cores")
	}

	// Two nodes at once are more than the policy lets go.
	commit := r.change(r.inventory(0))
	s := r.untilStalled("may be without approval")
	if s.Revision.Commit() != commit || len(r.vms()) != len(before) {
		t.Errorf("not held: %+v", s)
	}
	a := r.run(exitDestructive, do("plan", "dev"), "stop and delete vm", "drain dev-wk-1 to remove it", "waits for approval: `talos-agent approve dev ")
	digest := regexp.MustCompile("approve dev ([0-9a-f]{12})").FindStringSubmatch(a.out)
	if digest == nil {
		t.Fatalf("no digest: %v", a)
	}
	r.run(exitFailed, do("approve", "dev", "0123456789ab"), "talos-agent plan dev")
	// What was shown is void once something else was pushed.
	r.change(r.inventory(3))
	r.untilReady("")
	r.run(exitFailed, do("approve", "dev", digest[1]))
	r.change(r.inventory(0))
	r.untilStalled("may be without approval")
	a = r.run(exitDestructive, do("plan", "dev"))
	digest = regexp.MustCompile("approve dev ([0-9a-f]{12})").FindStringSubmatch(a.out)
	r.run(exitOK, do("approve", "dev", digest[1]))
	r.until("one is drained", func() bool { return strings.Contains(r.story(), "is off") || len(r.vms()) < 4 })
	r.kill()
	r.start()
	r.untilReady("")
	if left := r.vms(); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	r.run(exitOK, do("plan", "dev"), "nothing")
	r.run(exitFailed, do("approve", "dev", digest[1]), "there is nothing to approve")
}

// change pushes files and has the daemon look.
func (r *rig) change(files map[string][]byte) string {
	r.t.Helper()
	commit := r.push(files)
	r.run(exitOK, do("reconcile", "dev"))
	return commit
}

// waits reports whether the cluster waits for that reason.
func (r *rig) waits(reason cluster.Reason) bool {
	return slices.ContainsFunc(r.status().Waiting, func(w cluster.WaitStatus) bool { return w.Reason == reason })
}

// cores are those in the config of a node's VM.
func (r *rig) cores(node string) string {
	for _, vm := range r.lab.PVE.VMs() {
		if vm.Config["name"] == node {
			return vm.Config["cores"]
		}
	}
	return ""
}

// TestForgetWithCommands has a machine hang that root takes for lost: what that means is
// shown, the node's name is asked for, and the node gets another machine.
func TestForgetWithCommands(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	r.push(r.inventory(2))
	r.start()
	r.untilReady("")
	r.run(exitFailed, do("forget", "dev", "dev-wk-1", "--confirm", "dev-wk-1"), "its machine answers", "take it out of nodes.yaml")
	r.run(exitFailed, do("forget", "dev-wk-9"), "no such node", "dev-wk-1")
	r.run(exitUsage, do("forget"), "accepts between 1 and 2")
	var vmid int
	for _, vm := range r.lab.PVE.VMs() {
		if vm.Config["name"] == "dev-wk-1" {
			vmid = vm.VMID
		}
	}
	before, _ := r.lab.PVE.VM(vmid)
	must(r.lab.Talos.Kill(vmid))
	r.until("it is seen that nothing answers", func() bool {
		return strings.Contains(r.try("forget", "dev", "dev-wk-1").out, "vm 5")
	})
	r.run(exitUsage, do("forget", "dev", "dev-wk-1"), "is deleted with its disks", "the inventory has it: it gets a new machine", "stop and delete vm", "not confirmed; use `--confirm dev-wk-1`")
	r.run(exitFailed, do("forget", "dev", "dev-wk-1", "--confirm", "dev-wk-2"), "is not its name; nothing was changed")
	if now, ok := r.lab.PVE.VM(vmid); !ok || now.Config["vmgenid"] != before.Config["vmgenid"] {
		t.Error("the vm was touched before anything was confirmed")
	}
	r.run(exitOK, do("forget", "dev", "dev-wk-1", "--confirm", "dev-wk-1"), "dev-wk-1 is taken for lost")
	r.until("it has another machine", func() bool {
		now, ok := r.lab.PVE.VM(vmid)
		return ok && now.Config["vmgenid"] != before.Config["vmgenid"]
	})
	r.untilReady("")
}
