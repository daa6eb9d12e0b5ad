package talos_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestBootHasALimit: an etcd that finds nothing to join fails after half an hour and notices
// no more what comes later, and a boot whose services do not come up ends in a reboot after 70
// minutes. A boot that is over has no limit.
func TestBootHasALimit(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		first, second := cp(1).guest("v1.13.9"), cp(2).guest("v1.13.9")
		start := time.Now()
		for _, g := range []world.Guest{first, second} {
			l.fleet.PowerOn(g)
		}
		time.Sleep(time.Minute)
		for _, n := range []node{cp(1), cp(2)} {
			l.apply(n, l.config(n, "v1.13.9"))
		}
		time.Sleep(29 * time.Minute)
		if state := l.serviceState(cp(2), "etcd"); state != "Preparing" {
			t.Errorf("etcd is %s after half an hour", state)
		}
		time.Sleep(2 * time.Minute)
		if state := l.serviceState(cp(2), "etcd"); state != "Failed" {
			t.Errorf("etcd is %s after more than half an hour", state)
		}
		l.bootstrap(cp(1)) // of one that failed just the same
		boots := map[string]string{"cp1": l.view(cp(1)).BootID, "cp2": l.view(cp(2)).BootID}
		time.Sleep(30 * time.Minute)
		l.wantMembers(cp(1), "cp1")
		l.wantStage(cp(2), booting)
		events := l.watchEvents(cp(2))
		fatal := func(e string) bool { return strings.HasPrefix(e, "boot NOOP FATAL") }
		if all := events(); !slices.ContainsFunc(all, fatal) {
			t.Errorf("events %q, want a boot that fails", all)
		}
		if took := time.Since(start); took < 71*time.Minute || took > 72*time.Minute {
			t.Errorf("it gives up after %v", took)
		}
		time.Sleep(2 * time.Minute)
		l.wantMembers(cp(1), "cp1", "cp2")
		if id := l.view(cp(2)).BootID; id == boots["cp2"] {
			t.Error("it did not boot again")
		}
		time.Sleep(3 * time.Hour)
		if id := l.view(cp(1)).BootID; id != boots["cp1"] {
			t.Error("one that runs booted again")
		}
		l.wantViolations()
	})
}

// TestRebootEndsTheLimit: each boot has its own.
func TestRebootEndsTheLimit(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1))
		time.Sleep(time.Hour)
		if _, err := l.admin(cp(1)).MachineClient.Reboot(within(time.Second), &machineapi.RebootRequest{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		before := l.view(cp(1)).BootID
		time.Sleep(20 * time.Minute)
		if after := l.view(cp(1)).BootID; after != before {
			t.Error("the limit of the boot before ended this one")
		}
	})
}
