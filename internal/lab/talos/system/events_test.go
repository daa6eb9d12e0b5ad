package system

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// TestEventsBegin finds where a request begins, among more events than are kept.
func TestEventsBegin(t *testing.T) {
	e, start := NewEvents("run"), time.Unix(1_700_000_000, 0)
	for i := range keptEvents + 10 {
		e.Publish(start.Add(time.Duration(i)*time.Second), "", &machineapi.SequenceEvent{Sequence: "boot"})
	}
	const end = keptEvents + 10
	now := start.Add((end - 1) * time.Second)
	third := e.kept[2].message.GetId()
	for _, tc := range []struct {
		in   *machineapi.EventsRequest
		want int
		err  string
	}{
		{&machineapi.EventsRequest{}, end, ""},
		{&machineapi.EventsRequest{TailEvents: 3}, end - 3, ""},
		{&machineapi.EventsRequest{TailEvents: end}, 10, ""},
		{&machineapi.EventsRequest{TailEvents: -1}, 10, ""},
		{&machineapi.EventsRequest{TailSeconds: 5}, end - 5, ""},
		{&machineapi.EventsRequest{TailId: third}, 13, ""},
		{&machineapi.EventsRequest{TailId: "nonsense"}, 0, "invalid ID"},
		{&machineapi.EventsRequest{TailId: third, TailEvents: 1}, 0, "WithTailID can't be specified"},
		{&machineapi.EventsRequest{TailSeconds: 1, TailEvents: 1}, 0, "WithTailDuration can't be specified"},
	} {
		got, err := e.begin(tc.in, now)
		if tc.err == "" && (err != nil || got != tc.want) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%v begins at %d, %v, want %d, %s", tc.in, got, err, tc.want, tc.err)
		}
	}
	if ids := e.kept; ids[0].message.GetId() >= ids[1].message.GetId() || len(third) != 20 {
		t.Errorf("ids %s, %s do not grow", ids[0].message.GetId(), ids[1].message.GetId())
	}
}

// TestEventsFollow hands events on as they come, and ends with the machine or the
// client.
func TestEventsFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEvents("run")
		ctx, cancel := context.WithCancel(t.Context())
		var seen int
		ended := make(chan error, 2)
		go func() { ended <- e.follow(t.Context(), 0, func(event) error { seen++; return nil }) }()
		go func() { ended <- e.follow(ctx, 0, func(event) error { return nil }) }()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a client that hangs up: %v", err)
		}
		e.Publish(time.Now(), "", &machineapi.SequenceEvent{})
		e.Publish(time.Now(), "", &machineapi.SequenceEvent{})
		e.Close()
		e.Publish(time.Now(), "", &machineapi.SequenceEvent{})
		if err := <-ended; err != nil || seen != 2 {
			t.Errorf("%d events, %v", seen, err)
		}
	})
}
