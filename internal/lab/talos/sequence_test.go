package talos_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// DrainNode implements world.Drainer: a drain is over at once, unless the test holds it.
func (k *books) DrainNode(_, node string, done func()) func() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drained = append(k.drained, node)
	if !k.holdDrains {
		return k.world.After(0, done)
	}
	k.drains = append(k.drains, done)
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.drained = append(k.drained, node+" no more")
	}
}

// forgetDrains returns what was drained since the last time.
func (k *books) forgetDrains() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	drained := k.drained
	k.drained = nil
	return drained
}

func (l *lab) wantDrains(when string, want ...string) {
	l.t.Helper()
	if got := l.kube.forgetDrains(); !slices.Equal(got, want) {
		l.t.Errorf("%s: drained %q, want %q", when, got, want)
	}
}

// stateAndData are the partitions of a machine's config and data.
var stateAndData = []*machineapi.ResetPartitionSpec{{Label: constants.StatePartitionLabel, Wipe: true}, {Label: constants.EphemeralPartitionLabel, Wipe: true}}

// watchEvents collects what a node reports until it falls silent.
func (l *lab) watchEvents(n node) func() []string {
	l.t.Helper()
	ch := make(chan client.EventResult, 500)
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	if err := l.admin(n).EventsWatchV2(ctx, ch); err != nil {
		l.t.Fatal(err)
	}
	time.Sleep(time.Second)
	return func() (all []string) {
		defer cancel()
		for {
			r := <-ch
			if r.Error != nil {
				return all
			}
			all = append(all, eventText(r.Event))
		}
	}
}

// TestPhases: what a machine does on its way down, in its order.
func TestPhases(t *testing.T) {
	for _, tc := range []struct {
		name string
		on   node
		do   func(*client.Client) error
		want string
	}{
		{"graceful reset of a control plane", cp(3), func(c *client.Client) error {
			return c.ResetGeneric(within(time.Second), &machineapi.ResetRequest{Graceful: true, Reboot: true, SystemPartitionsToWipe: stateAndData})
		}, "drain cleanup dbus leave preReset stopServices stopEverything"},
		{"reset of a control plane", cp(3), func(c *client.Client) error {
			return c.ResetGeneric(within(time.Second), &machineapi.ResetRequest{Reboot: true, SystemPartitionsToWipe: stateAndData})
		}, "cleanup dbus preReset stopServices stopEverything"},
		{"graceful reset of a worker", wk(1), func(c *client.Client) error {
			return c.ResetGeneric(within(time.Second), &machineapi.ResetRequest{Graceful: true, Reboot: true, SystemPartitionsToWipe: stateAndData})
		}, "drain cleanup dbus preReset stopServices stopEverything"},
		{"reboot", wk(1), func(c *client.Client) error { return c.Reboot(within(time.Second)) }, "cleanup dbus stopServices stopEverything"},
		{"shutdown", wk(1), func(c *client.Client) error { return c.Shutdown(within(time.Second)) }, "storeShutdown drain cleanup dbus stopServices stopEverything"},
		{"forced shutdown", wk(1), func(c *client.Client) error {
			return c.Shutdown(within(time.Second), client.WithShutdownForce(true))
		}, "storeShutdown cleanup dbus stopServices stopEverything"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				l.cluster(cp(1), cp(2), cp(3), wk(1))
				l.kube.forgetDrains()
				events := l.watchEvents(tc.on)
				if err := tc.do(l.admin(tc.on)); err != nil {
					t.Fatal(err)
				}
				var phases []string
				for _, e := range events() {
					if phase, ok := strings.CutPrefix(e, "phase "); ok && strings.HasSuffix(e, " START") {
						phases = append(phases, strings.TrimSuffix(phase, " START"))
					}
				}
				if got := strings.Join(phases, " "); got != tc.want {
					t.Errorf("phases %s, want %s", got, tc.want)
				}
				if drains := strings.Contains(tc.want, "drain"); drains != (len(l.kube.forgetDrains()) > 0) {
					t.Errorf("drains %v", !drains)
				}
			})
		})
	}
}

// TestGracefulResetWithADeadMember: etcd does not let the member go, for five minutes in
// which everything answers. Then the machine reboots as it is, and takes the quorum with it.
func TestGracefulResetWithADeadMember(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3))
		if err := l.fleet.Kill(403); err != nil {
			t.Fatal(err)
		}
		before := l.view(cp(2)).BootID
		events := l.watchEvents(cp(2))
		if err := l.admin(cp(2)).ResetGeneric(within(time.Second), &machineapi.ResetRequest{Graceful: true, Reboot: true}); err != nil {
			t.Fatal(err)
		}
		for range 29 {
			time.Sleep(10 * time.Second)
			if st := status(t, l.admin(cp(2))); st.Stage.String() != "resetting" || !st.Status.Ready {
				t.Fatalf("under way: %+v", st)
			}
			l.wantMembers(cp(1), "cp1", "cp2", "cp3")
		}
		var last []string
		for _, e := range events() {
			if !strings.HasPrefix(e, "phase ") && !strings.HasPrefix(e, "task ") && !strings.HasPrefix(e, "kubelet ") {
				last = append(last, e)
			}
		}
		if want := []string{"reset START FATAL", "RESETTING true", "reset STOP FATAL", "reset NOOP FATAL", "REBOOTING true"}; !slices.Equal(last, want) {
			t.Errorf("events %q, want %q", last, want)
		}
		time.Sleep(3 * time.Second)
		l.wantMembers(cp(1), "cp1", "cp2", "cp3") // its etcd is the last to stop
		time.Sleep(7 * time.Second)
		if _, err := l.members(cp(1), false); client.StatusCode(err) != codes.Unknown {
			t.Errorf("without it: %v, want no leader", err)
		}
		time.Sleep(3 * time.Minute)
		if v := l.view(cp(2)); v.BootID == before || !v.Ready {
			t.Errorf("afterwards: %+v, want the same node after another boot", v)
		}
		l.wantMembers(cp(1), "cp1", "cp2", "cp3")
		l.wantViolations()
	})
}

// TestGracefulResetWithoutAQuorum fails at once, with the same end.
func TestGracefulResetWithoutAQuorum(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), cp(2), cp(3))
		l.fleet.PowerOff(401)
		l.fleet.PowerOff(402)
		before := l.view(cp(3)).BootID
		if err := l.admin(cp(3)).ResetGeneric(within(time.Second), &machineapi.ResetRequest{Graceful: true, Reboot: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if v := l.view(cp(3)); v.BootID == before || !v.Configured || v.Etcd == "" {
			t.Errorf("afterwards: %+v, want the same node after another boot", v)
		}
	})
}

// TestShutdownTakesOver: a second reset or reboot is refused, though it is answered as if it
// were not; a shutdown ends what is under way, and nothing is wiped.
func TestShutdownTakesOver(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), wk(1))
		l.kube.holdDrains = true
		l.kube.forgetDrains()
		events := l.watchEvents(wk(1))
		ask := &machineapi.ResetRequest{Graceful: true, Reboot: true, SystemPartitionsToWipe: stateAndData}
		c := l.admin(wk(1))
		for _, err := range []error{c.ResetGeneric(within(time.Second), ask), c.ResetGeneric(within(time.Second), ask), c.Reboot(within(time.Second))} {
			if err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		l.wantStage(wk(1), "resetting")
		l.wantDrains("reset", "w1")
		if err := c.Shutdown(within(time.Second), client.WithShutdownForce(true)); err != nil {
			t.Error(err)
		}
		if vmid := <-l.off; vmid != 501 {
			t.Errorf("VM %d is off", vmid)
		}
		l.wantDrains("shutdown", "w1 no more")
		refused := slices.DeleteFunc(events(), func(e string) bool { return !strings.HasSuffix(e, " LOCKED") })
		if !slices.Equal(refused, []string{"reset NOOP LOCKED", "reboot NOOP LOCKED"}) {
			t.Errorf("refused %q", refused)
		}
	})
}

// TestShutdownWaitsForTheDrain, and the power button does not.
func TestShutdownWaitsForTheDrain(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), wk(1))
		l.kube.holdDrains = true
		l.kube.forgetDrains()
		if err := l.admin(wk(1)).Shutdown(within(time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if st := status(t, l.admin(wk(1))); st.Stage.String() != "shutting down" || !st.Status.Ready {
			t.Errorf("while it is drained: %+v", st)
		}
		l.wantDrains("shutdown", "w1")
		l.kube.mu.Lock()
		done := l.kube.drains[0]
		l.kube.mu.Unlock()
		done()
		if vmid := <-l.off; vmid != 501 {
			t.Errorf("VM %d is off", vmid)
		}

		l.wantDrains("afterwards", "w1 no more")

		l.bring("v1.13.9", wk(1))
		time.Sleep(time.Minute)
		off := make(chan struct{})
		if !l.fleet.Shutdown(501, func() { close(off) }) {
			t.Fatal("does not react to the power button")
		}
		<-off
		synctest.Wait()
		l.wantDrains("power button")
	})
}

// TestServicesStop: what runs on a machine stops one after another, and those who ask meanwhile
// see it. A boot that is not over when it is interrupted counts as over for a moment.
func TestServicesStop(t *testing.T) {
	inBubbleWith(t, world.Config{}, func(c *talos.Config) { c.Stop = time.Second }, func(l *lab) {
		l.bring("v1.13.9", cp(1))
		events := l.watchEvents(cp(1))
		l.bootstrap(cp(1))
		time.Sleep(l.world.Latency.Etcd)
		if err := l.admin(cp(1)).ResetGeneric(within(time.Second), &machineapi.ResetRequest{Reboot: true}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []map[string]string{
			{"kubelet": "Stopping", "etcd": "Running", "trustd": "Running", "cri": "Running", "apid": "Running"},
			{"kubelet": "Finished", "etcd": "Stopping", "trustd": "Stopping", "cri": "Running", "apid": "Running"},
			{"kubelet": "Finished", "etcd": "Finished", "trustd": "Finished", "cri": "Stopping", "apid": "Running"},
		} {
			time.Sleep(500 * time.Millisecond)
			for id, state := range want {
				if got := l.serviceState(cp(1), id); got != state {
					t.Errorf("%s is %s, want %s", id, got, state)
				}
			}
			if st := status(t, l.admin(cp(1))); st.Stage.String() != "resetting" || !st.Status.Ready {
				t.Errorf("meanwhile: %+v", st)
			}
			time.Sleep(500 * time.Millisecond)
		}
		seen := slices.DeleteFunc(events(), func(e string) bool { return !strings.HasSuffix(e, " true") && !strings.HasSuffix(e, " false") })
		if n := len(seen); n < 2 || seen[n-2] != "RUNNING false" || seen[n-1] != "RESETTING true" {
			t.Errorf("stages %q", seen)
		}
	})
}

// TestResetOfANewVoter: it leaves as soon as it is healthy, in the phase that leaves.
func TestResetOfANewVoter(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		l.bring("v1.13.9", cp(2))
		l.wantMembers(cp(1), "cp1", "cp2 (learner)")
		events := l.watchEvents(cp(2))
		if err := l.admin(cp(2)).ResetGeneric(within(time.Second), &machineapi.ResetRequest{Graceful: true, Reboot: true, SystemPartitionsToWipe: stateAndData}); err != nil {
			t.Fatal(err)
		}
		seen := events()
		leave, healthy, stops := slices.Index(seen, "phase leave START"), slices.Index(seen, "etcd RUNNING: Health check successful"), slices.IndexFunc(seen, func(e string) bool { return strings.HasPrefix(e, "etcd STOPPING: ") })
		if leave < 0 || healthy < leave || stops < healthy {
			t.Errorf("events %q", seen)
		}
		l.wantMembers(cp(1), "cp1")
	})
}
