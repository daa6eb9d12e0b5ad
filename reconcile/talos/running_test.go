package talos

import (
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestRunningConfig: the config that a machine runs is read when it is asked for, one call
// each, and of the node's own machine only.
func TestRunningConfig(t *testing.T) {
	nodes := []cluster.Node{cp(1), wk(1)}
	inBubble(t, newest, nodes, func(b *bench) {
		b.bringUp(cp(1))
		b.calls()
		has, err := b.fleet.RunningConfig(within(time.Minute), b.desired, cp(1))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := digest(has.Reveal()); err != nil || got != b.config(cp(1)).Digest {
			t.Errorf("another config than it was given: %v", err)
		}
		changed := b.config(cp(1), "machine: {sysctls: {vm.max_map_count: \"262144\"}}")
		b.rawApply(cp(1), changed)
		if has, err = b.fleet.RunningConfig(within(time.Minute), b.desired, cp(1)); err != nil || !strings.Contains(has.RevealString(), "vm.max_map_count") {
			t.Errorf("it was changed, and the old one is read: %v", err)
		}

		// The worker is switched off, waits for its config, or is not the node's.
		if _, err := b.fleet.RunningConfig(within(time.Minute), b.desired, wk(1)); err == nil || !strings.HasPrefix(err.Error(), "read config of wk-1 (") {
			t.Errorf("it is off: %v", err)
		}
		b.power(wk(1))
		b.untilReach(wk(1), cluster.Maintenance)
		if _, err := b.fleet.RunningConfig(within(time.Minute), b.desired, wk(1)); err == nil {
			t.Error("it has none")
		}
		other := cp(1)
		other.UUID = wk(1).UUID
		if _, err := b.fleet.RunningConfig(within(time.Minute), b.desired, other); err == nil {
			t.Error("another machine's config was read")
		}
		if _, err := b.fleet.RunningConfig(within(time.Minute), cluster.Desired{}, cp(1)); err == nil || !strings.Contains(err.Error(), "no keys") {
			t.Errorf("without keys: %v", err)
		}
		b.fleet.Close()
		if _, err := b.fleet.RunningConfig(within(time.Minute), b.desired, cp(1)); err == nil {
			t.Error("it was read after the end")
		}
	})
}
