package main

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestUpgradeCommand: upgrade shows what is left and what holds it, and with an order over the socket it goes on;
// what there is not is named.
func TestUpgradeCommand(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	files := r.inventory(0)
	commit := r.push(files)
	r.start()
	r.untilReady(commit)
	r.run(exitOK, do("upgrade"), "dev: no other versions are asked for than its nodes run")
	r.run(exitFailed, do("upgrade", "dev", "--now"), "there is nothing to upgrade")
	r.run(exitFailed, do("rollback", "dev", "wk-9"), `cluster dev has no node "wk-9"`, "its nodes are ")
	r.run(exitFailed, do("rollback", r.status().Nodes[0].Name), "does not know what its other slot has", "rollback` boots whatever its other slot has")
	const file = "inventory/dev/cluster.yaml"
	opens := time.Now().UTC().Add(6 * time.Hour)
	closed := fmt.Sprintf("window: {from: %q, to: %q}\n", opens.Format("15:04"), opens.Add(time.Hour).Format("15:04"))
	files[file] = append(bytes.Replace(files[file], []byte("talos_version: v1.13.9"), []byte("talos_version: v1.14.1"), 1), closed...)
	r.change(files)
	r.until("it waits for its window", func() bool { return r.waits(cluster.WaitingForWindow) })
	r.run(exitOK, do("upgrade", "dev"), "upgrade to Talos v1.14.1: 0 of ", "waits for its window")
	r.run(exitOK, do("upgrade", "dev", "-o", "json"), `"kind": "Upgrade"`, `"Talos v1.14.1"`, `"reason": "WaitingForWindow"`)
	r.run(exitUsage, do("upgrade", "dev", "-o", "json", "--now"), "--output json shows an upgrade")
	r.run(exitFailed, do("upgrade", "dev", "--despite", "wk-9"), `cluster dev has no node "wk-9"`, "its nodes are ")
	r.run(exitFailed, do("upgrade", "dev", "--cancel"), "no order to withdraw")
	r.run(exitFailed, do("rollback", r.status().Nodes[0].Name, "--cancel"), "no order to withdraw")
	r.run(exitUsage, do("upgrade", "dev", "--cancel", "--now"), "--cancel withdraws what --now and --despite order")
	r.run(exitOK, do("upgrade", "dev", "--despite", r.status().Nodes[0].Name), "dev: noted: although ", "; still held: ", "waits for its window")
	r.run(exitOK, do("upgrade", "dev", "--cancel"), "dev: the order is withdrawn")
	r.run(exitOK, do("upgrade", "dev", "--now"), "dev: the upgrade goes on outside of its window and without a soak, by order of ")
	r.until("it goes on", func() bool { return !r.waits(cluster.WaitingForWindow) })
	r.run(exitOK, do("upgrade", "dev"), "; goes on outside of its window")
	r.run(exitOK, do("events", "dev"), "ordered the upgrade of ", "withdrew ")
}
