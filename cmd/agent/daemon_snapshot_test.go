package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestSnapshotNow: a daemon takes a snapshot when somebody asks for it, which its key opens; where the
// member sends no whole one the command fails with why, and where a host takes none with what to do.
func TestSnapshotNow(t *testing.T) {
	r := newRig(t, lab.Config{})
	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	r.until("the first one is there", func() bool {
		s := r.status()
		return s.Snapshots != nil && s.Snapshots.Kept == 1 && len(s.Running) == 0
	})
	r.run(exitOK, do("status", "dev"), "etcd snapshots: the newest is ", "; the next is due at ")
	r.run(exitOK, do("snapshot", "now", "dev"), "dev: taken at ", "MiB, verified")
	dir := filepath.Join(r.dir, "state", "snapshots")
	r.run(exitOK, do("snapshot", "list", "--dir", dir, "--age-key", filepath.Join(r.dir, "age.key")), "dev: 2 snapshots", "-manual.etcd", "-scheduled.etcd", "verified")

	config := filepath.Join(r.dir, "config.yaml")
	r.run(exitOK, do("snapshot", "verify", "dev", "--config", config), "dev: 2 snapshots, the newest verified one is ", "-manual.etcd", "-scheduled.etcd", "verified")

	r.lab.World.Inject(world.Fault{System: "talos", Op: "machine.MachineService/EtcdSnapshot", Kind: world.EndStream, Bytes: 10_000})
	r.run(exitFailed, do("snapshot", "now", "dev"), "truncated", "it is tried again")
	r.lab.World.Heal()
	r.run(exitOK, do("snapshot", "now"), "dev: taken at ")

	r.stop()
	r.run(exitOK, do("snapshot", "verify", "dev", "--config", config), "dev: 3 snapshots, the newest verified one is ")
	scheduled, err := filepath.Glob(filepath.Join(dir, "*-scheduled.etcd"))
	if err != nil || len(scheduled) != 1 {
		t.Fatal(scheduled, err)
	}
	if err := os.Truncate(scheduled[0], 5000); err != nil {
		t.Fatal(err)
	}
	r.run(exitFailed, do("snapshot", "verify", "dev", "--config", config), "damaged", filepath.Base(scheduled[0])+": it is damaged")

	r.config["snapshots"] = map[string]any{"disabled": true}
	r.write()
	r.start()
	r.untilReady(commit)
	r.run(exitFailed, do("snapshot", "now", "dev"), "this host takes no snapshots of etcd", "disabled: true")
}
