package talos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const eventsCall = "machine.MachineService/Events"

// event is one as a machine sends it, from its payload as the recordings have it.
func event(t *testing.T, kind, actor, payload string) *machineapi.Event {
	t.Helper()
	var m proto.Message
	switch kind {
	case "SequenceEvent":
		m = &machineapi.SequenceEvent{}
	case "PhaseEvent":
		m = &machineapi.PhaseEvent{}
	default:
		return &machineapi.Event{Data: &anypb.Any{TypeUrl: "talos/runtime/machine." + kind}}
	}
	if err := protojson.Unmarshal([]byte(payload), m); err != nil {
		t.Fatal(err)
	}
	value, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return &machineapi.Event{ActorId: actor, Data: &anypb.Any{TypeUrl: "talos/runtime/machine." + kind, Value: value}}
}

// steps reads events that are written as kind, actor and payload. An actor "past/" is of no request,
// and before the request.
func steps(t *testing.T, events ...[3]string) (out []step) {
	t.Helper()
	for _, e := range events {
		s, ok := readStep(event(t, e[0], strings.TrimPrefix(e[1], "past/"), e[2]))
		if ok {
			s.past = strings.HasPrefix(e[1], "past/")
			out = append(out, s)
		}
	}
	return out
}

// TestCourse: what became of the request for a reboot that was answered with the actor "ours".
func TestCourse(t *testing.T) {
	seq := func(actor, name, action string) [3]string {
		return [3]string{"SequenceEvent", actor, fmt.Sprintf(`{"sequence": %q, "action": %q}`, name, action)}
	}
	bad := func(actor, name, code, message string) [3]string {
		return [3]string{"SequenceEvent", actor, fmt.Sprintf(`{"sequence": %q, "error": {"code": %q, "message": %q}}`, name, code, message)}
	}
	phase := func(actor, name, action string) [3]string {
		return [3]string{"PhaseEvent", actor, fmt.Sprintf(`{"phase": %q, "action": %q}`, name, action)}
	}
	locked := bad("", "reboot", "LOCKED", "sequence not started: locked")
	for _, tc := range []struct {
		name      string
		lost      bool // the answer
		events    [][3]string
		want      string // of the error
		is        error
		elsewhere bool // another sequence takes the machine down
		phase     string
	}{
		{name: "nothing is seen"},
		{name: "it goes down", events: [][3]string{
			phase("", "startEverything", "STOP"), seq("", "boot", "STOP"), bad("", "boot", "CANCELED", "sequence failed: context canceled"),
			seq("ours", "reboot", "START"), phase("ours", "cleanup", "START"), phase("ours", "cleanup", "STOP"), phase("ours", "dbus", "START")}, phase: "dbus"},
		{name: "another's is refused meanwhile", events: [][3]string{seq("ours", "reboot", "START"), phase("ours", "cleanup", "START"), locked}, phase: "cleanup"},
		{name: "another's is refused right before", events: [][3]string{locked, seq("ours", "reboot", "START")}},
		{name: "refused before the request", events: [][3]string{bad("past/", "reboot", "LOCKED", "sequence not started: locked")}},
		{name: "another's upgrade is refused", events: [][3]string{bad("", "upgrade", "LOCKED", "sequence not started: locked")}},
		{name: "nothing is known of what runs", events: [][3]string{locked},
			is: cluster.ErrSequenceRefused, want: "refused by Talos, because another sequence runs"},
		{name: "a reset runs", events: [][3]string{seq("past/theirs", "reset", "START"), phase("past/theirs", "drain", "START"), phase("past/theirs", "leave", "START"), phase("", "mine", "START"), locked},
			is: cluster.ErrSequenceRefused, want: "refused by Talos, because another sequence runs: reset, in phase leave", elsewhere: true, phase: "leave"},
		{name: "a reset begins right before", events: [][3]string{seq("theirs", "reset", "START"), locked},
			is: cluster.ErrSequenceRefused, want: "refused by Talos, because another sequence runs: reset", elsewhere: true},
		{name: "a reboot runs", events: [][3]string{seq("past/theirs", "reboot", "START"), locked},
			is: cluster.ErrSequenceRefused, want: "refused by Talos, because another sequence runs: reboot"},
		{name: "a boot is what was last", events: [][3]string{seq("past/", "boot", "START"), seq("past/", "boot", "STOP"), locked},
			is: cluster.ErrSequenceRefused, want: "refused by Talos, because another sequence runs"},
		{name: "a reset fails", events: [][3]string{seq("past/theirs", "reset", "START"), phase("past/theirs", "leave", "START"), locked, phase("theirs", "leave", "STOP"),
			seq("theirs", "reset", "STOP"), bad("theirs", "reset", "FATAL", "sequence failed: error running phase 4 in reset sequence: task 1/1: failed, \n\ttimeout")},
			is: cluster.ErrSequenceRefused, want: "refused by Talos, because another sequence runs: reset failed in phase leave: error running phase 4 in reset sequence: task 1/1: failed, timeout", phase: "leave"},
		{name: "it fails", events: [][3]string{seq("ours", "reboot", "START"), phase("ours", "unmount", "START"), seq("ours", "reboot", "STOP"), bad("ours", "reboot", "FATAL", "sequence failed: busy")},
			is: cluster.ErrSequenceFailed, want: "begun by Talos, and not brought to its end: reboot failed in phase unmount: busy", phase: "unmount"},
		{name: "another's fails", events: [][3]string{seq("theirs", "reboot", "START"), bad("theirs", "reboot", "FATAL", "busy")}},
		{name: "it fails at once", events: [][3]string{seq("ours", "reboot", "START"), bad("ours", "reboot", "FATAL", "busy")},
			is: cluster.ErrSequenceFailed, want: "begun by Talos, and not brought to its end: reboot failed: busy"},
		{name: "a shutdown takes over", events: [][3]string{seq("ours", "reboot", "START"), phase("ours", "cleanup", "START"), seq("ours", "reboot", "STOP"),
			bad("ours", "reboot", "CANCELED", "sequence failed: context canceled"), seq("theirs", "shutdown", "START"), phase("theirs", "drain", "START")},
			is: cluster.ErrSequenceFailed, want: "begun by Talos, and not brought to its end: another sequence took its place: shutdown, in phase drain", elsewhere: true, phase: "drain"},
		{name: "the answer was lost, and it goes down", lost: true, events: [][3]string{seq("ours", "reboot", "START"), locked}},
		{name: "the answer was lost, and it was refused", lost: true, events: [][3]string{locked, seq("theirs", "reboot", "START")},
			is: cluster.ErrSequenceRefused, want: "refused by Talos, because another sequence runs: reboot"},
		{name: "other events", events: [][3]string{{"TaskEvent", "", ""}, {"", "", ""}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			actor := "ours"
			if tc.lost {
				actor = ""
			}
			got := judgeCourse(rebootSequence, actor, steps(t, tc.events...))
			err := got.err()
			if tc.is == nil && err != nil || tc.is != nil && (!errors.Is(err, tc.is) || err.Error() != tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if got.endsElsewhere() != tc.elsewhere || got.runs.phase != tc.phase {
				t.Errorf("%+v", got)
			}
		})
	}
	if _, ok := readStep(&machineapi.Event{Data: &anypb.Any{TypeUrl: "talos/runtime/machine.PhaseEvent", Value: []byte{0xff}}}); ok {
		t.Error("what is no event was read")
	}
	if _, ok := readStep(&machineapi.Event{}); ok {
		t.Error("an empty event was read")
	}
}

// TestCourseRecorded: what real machines sent while a reboot was refused, while one was carried
// out, and while a reset failed.
func TestCourseRecorded(t *testing.T) {
	seen := map[string]int{}
	var before []step
	for _, l := range recordings(t) {
		if l.Method != "machine.MachineService/Events" {
			continue
		}
		var all []step
		for _, m := range l.Messages {
			var e struct {
				Type    string
				ActorID bool
				Event   json.RawMessage
			}
			if err := json.Unmarshal(m.Message, &e); err != nil {
				t.Fatal(err)
			}
			actor := ""
			if e.ActorID {
				actor = "someone"
			}
			if s, ok := readStep(event(t, e.Type, actor, string(e.Event))); ok {
				all = append(all, s)
			}
		}
		if !slices.ContainsFunc(all, func(s step) bool { return s.sequence.GetAction() == machineapi.SequenceEvent_START }) {
			all = slices.Concat(before, all) // the sequence of the stream before goes on
		}
		before = all
		theirs, own := judgeCourse(rebootSequence, "ours", all), judgeCourse(rebootSequence, "someone", all)
		switch {
		case theirs.refused:
			seen[theirs.err().Error()]++
		case own.err() == nil && own.runs.name == "reboot":
			seen["it reboots, in phase "+own.runs.phase]++
		case own.runs.failed != "":
			seen[own.runs.String()]++
		case len(all) > 0:
			seen[own.runs.name]++
		}
	}
	for _, want := range []string{"refused by Talos, because another sequence runs: upgrade, in phase stopEverything", "it reboots, in phase stopEverything", "reset", "shutdown",
		"reset failed in phase leave: error running phase 4 in reset sequence: task 1/1: failed, failed to leave cluster: 2 error(s) occurred: failed to remove member 10861541213741939876: etcdserver: unhealthy cluster timeout"} {
		if seen[want] == 0 {
			t.Errorf("not seen: %s", want)
		}
	}
	t.Log(seen)
}

// TestRebootRefused: while somebody else's sequence runs, Talos answers OK to a reboot and does
// nothing. It is not sent again; what runs is shown at once, and is what is waited for, unless
// the machine does not come back from it.
func TestRebootRefused(t *testing.T) {
	reset := func(graceful, reboot bool) func(*bench, *link) error {
		return func(_ *bench, l *link) error {
			_, err := l.machine.Reset(within(time.Minute), &machineapi.ResetRequest{Graceful: graceful, Reboot: reboot})
			return err
		}
	}
	for _, tc := range []struct {
		name     string
		node     cluster.Node
		theirs   func(*bench, *link) error
		progress string // that is shown
		want     string // of the error, "" : none
		most     time.Duration
		logged   string
	}{
		{"reboot", wk(1), func(_ *bench, l *link) error {
			_, err := l.machine.Reboot(within(time.Minute), &machineapi.RebootRequest{})
			return err
		}, "stops: it is rebooting: refused by Talos, because another sequence runs: reboot, in phase ", "", 2 * time.Minute, "because another sequence runs: reboot"},
		{"reset", wk(1), reset(false, true), "because another sequence runs: reset, in phase ",
			"it went down, and not to boot again: refused by Talos, because another sequence runs: reset, in phase ", 2 * time.Minute, ""},
		{"reset, to be switched off", wk(1), reset(false, false), "because another sequence runs: reset, in phase ",
			"it went down, and not to boot again: refused by Talos, because another sequence runs: reset, in phase ", 2 * time.Minute, ""},
		{"reset that cannot leave etcd", cp(2), func(b *bench, l *link) error {
			if err := b.lab.Kill(cp(3).VMID); err != nil {
				return err
			}
			if err := reset(true, true)(b, l); err != nil {
				return err
			}
			time.Sleep(time.Minute) // it is in phase leave since, and no event comes
			return nil
		}, "stops: it is resetting: refused by Talos, because another sequence runs: reset, in phase leave", "", 8 * time.Minute,
			"because another sequence runs: reset failed in phase leave: error running phase 4 in reset sequence"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nodes := []cluster.Node{cp(1), cp(2), cp(3), wk(1)}
			inBubble(t, newest, nodes, func(b *bench) {
				b.bringUp(nodes...)
				before := b.see(tc.node).BootID
				if err := tc.theirs(b, b.raw(tc.node)); err != nil {
					t.Fatal(err)
				}
				b.calls()
				var progress []string
				start := time.Now()
				err := b.fleet.Reboot(within(time.Hour), b.desired, tc.node, before, func(p cluster.Progress) { progress = append(progress, p.Waits) })
				if tc.want == "" && err != nil || tc.want != "" && (!errors.Is(err, cluster.ErrSequenceRefused) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(fault.HintOf(err), "events --tail=-1")) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				if took := time.Since(start); took > tc.most {
					t.Errorf("it took %v of virtual time", took)
				}
				if !slices.ContainsFunc(progress, func(s string) bool { return strings.Contains(s, tc.progress) }) {
					t.Errorf("progress %q, want %q", slices.Compact(progress), tc.progress)
				}
				if log := b.log.String(); !strings.Contains(log, tc.logged) {
					t.Errorf("log %s, want %q", log, tc.logged)
				}
				if calls := b.calls(); calls["Reboot"] != 1 {
					t.Errorf("calls %v", calls)
				}
			})
		})
	}
}

// TestRebootTakenOver: somebody shuts a machine down that reboots.
func TestRebootTakenOver(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1), wk(1)}, func(b *bench) {
		b.bringUp(cp(1), wk(1))
		before, theirs := b.see(wk(1)).BootID, b.raw(wk(1))
		b.world.OnCall(func(r world.CallRecord) {
			if r.Op == rebootCall {
				time.AfterFunc(100*time.Millisecond, func() {
					if _, err := theirs.machine.Shutdown(context.Background(), &machineapi.ShutdownRequest{}); err != nil {
						t.Error(err)
					}
				})
			}
		})
		start := time.Now()
		err := b.fleet.Reboot(within(time.Hour), b.desired, wk(1), before, nil)
		if !errors.Is(err, cluster.ErrSequenceFailed) || !strings.Contains(err.Error(), "it went down, and not to boot again: begun by Talos, and not brought to its end: another sequence took its place: shutdown, in phase ") {
			t.Error(err)
		}
		if took := time.Since(start); took > 2*time.Minute {
			t.Errorf("it took %v of virtual time", took)
		}
	})
}

// TestRebootWithoutEvents: what cannot be read changes nothing, neither of a reboot nor of the
// request for one that is refused.
func TestRebootWithoutEvents(t *testing.T) {
	for _, tc := range []world.Fault{
		{Kind: world.Answer, Status: int(codes.PermissionDenied), Text: "not authorized"},
		{Kind: world.LoseRequest},
		{Kind: world.Slow, Delay: time.Hour},
	} {
		for _, refused := range []bool{false, true} {
			if refused && tc.Kind == world.Slow {
				continue // it is down before it is asked
			}
			t.Run(fmt.Sprint(tc.Kind, refused), func(t *testing.T) {
				inBubble(t, newest, []cluster.Node{cp(1), wk(1)}, func(b *bench) {
					b.bringUp(cp(1), wk(1))
					before := b.see(wk(1)).BootID
					tc.System, tc.Op, tc.Times = "talos", eventsCall, 9
					b.world.Inject(tc)
					if refused {
						theirs := b.raw(wk(1))
						b.world.OnCall(func(r world.CallRecord) {
							if r.Op == eventsCall {
								b.world.OnCall(nil)
								go func() {
									if _, err := theirs.machine.Reboot(context.Background(), &machineapi.RebootRequest{}); err != nil {
										t.Error(err)
									}
								}()
							}
						})
					}
					if err := b.fleet.Reboot(within(time.Hour), b.desired, wk(1), before, nil); err != nil {
						t.Error(err)
					}
					if m := b.see(wk(1)); m.BootID == before || m.Stage != "running" {
						t.Errorf("%+v", m)
					}
					if log := b.log.String(); strings.Contains(log, "sequence") {
						t.Error(log)
					}
				})
			})
		}
	}
}
