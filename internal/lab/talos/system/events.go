package system

import (
	"context"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// keptEvents is how many events a machine remembers.
const keptEvents = 990

// Events are what a machine has reported since its boot. They are forgotten at the
// next one.
type Events struct {
	node [5]byte // of the ids

	mu      sync.Mutex
	kept    []event
	dropped int           // how many came before those that are kept
	moved   chan struct{} // closed at the next event
	closed  bool
}

type event struct {
	at      time.Time
	payload proto.Message
	message *machineapi.Event
}

// NewEvents makes the events of one run of a machine. Runs with different names have
// different ids.
func NewEvents(run string) *Events {
	e := &Events{moved: make(chan struct{})}
	copy(e.node[:], hashText(run))
	return e
}

// ids are written as xid writes them: seconds, machine, process, counter.
var ids = base32.HexEncoding.WithPadding(base32.NoPadding)

func (e *Events) makeID(at time.Time, n int) string {
	var id [12]byte
	binary.BigEndian.PutUint32(id[:4], uint32(at.Unix()))
	copy(id[4:9], e.node[:])
	id[9], id[10], id[11] = byte(n>>16), byte(n>>8), byte(n)
	return strings.ToLower(ids.EncodeToString(id[:]))
}

// Publish adds an event; actor is the id of the call that caused it, or "".
func (e *Events) Publish(at time.Time, actor string, payload proto.Message) {
	value, err := proto.Marshal(payload)
	if err != nil {
		panic(fmt.Sprintf("marshal a %T: %v", payload, err)) // only for strings that are no UTF-8
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.kept = append(e.kept, event{at, payload, &machineapi.Event{
		Data: &anypb.Any{TypeUrl: "talos/runtime/" + string(payload.ProtoReflect().Descriptor().FullName()), Value: value},
		Id:   e.makeID(at, e.dropped+len(e.kept)+1), ActorId: actor,
	}})
	if len(e.kept) > keptEvents {
		e.kept = e.kept[1:]
		e.dropped++
	}
	e.wake()
}

// Close ends every watch after the last event.
func (e *Events) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.wake()
}

func (e *Events) wake() {
	close(e.moved)
	e.moved = make(chan struct{})
}

// after returns the events from a position on, the position behind them, and what
// the next one closes; nil once there will be none.
func (e *Events) after(pos int) (batch []event, end int, moved <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	batch = append(batch, e.kept[max(pos-e.dropped, 0):]...)
	if !e.closed {
		moved = e.moved
	}
	return batch, e.dropped + len(e.kept), moved
}

// begin is the position a request wants to begin at.
func (e *Events) begin(in *machineapi.EventsRequest, now time.Time) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	end := e.dropped + len(e.kept)
	firstWith := func(wanted func(event) bool) int {
		for i, kept := range e.kept {
			if wanted(kept) {
				return e.dropped + i
			}
		}
		return end
	}
	tail, id, seconds := in.GetTailEvents(), in.GetTailId(), in.GetTailSeconds()
	switch {
	case id != "" && !isID(id):
		return 0, errors.New("error parsing tail_id: xid: invalid ID")
	case tail != 0 && id != "":
		return 0, errors.New("WithTailID can't be specified at the same time with WithTailEvents or WithTailDuration")
	case seconds != 0 && (tail != 0 || id != ""):
		return 0, errors.New("WithTailDuration can't be specified at the same time with WithTailEvents or WithTailID")
	case tail < 0:
		return e.dropped, nil
	case tail > 0:
		return max(end-int(tail), e.dropped), nil
	case id != "":
		return firstWith(func(k event) bool { return k.message.GetId() > id }), nil
	case seconds != 0:
		since := now.Add(-time.Duration(seconds) * time.Second)
		return firstWith(func(k event) bool { return k.at.After(since) }), nil
	}
	return end, nil
}

func isID(id string) bool {
	_, err := ids.DecodeString(strings.ToUpper(id))
	return err == nil && len(id) == 20
}

// Events sends an empty event first, then those that were asked for and what comes,
// until the client or the machine ends.
func (s *Service) Events(in *machineapi.EventsRequest, out grpc.ServerStreamingServer[machineapi.Event]) error {
	now, err := s.Machine.Look()
	if err != nil {
		return err
	}
	e := s.Machine.Events()
	if err := out.Send(&machineapi.Event{Data: &anypb.Any{}, Id: e.makeID(now.Now, 0), ActorId: in.GetWithActorId()}); err != nil {
		return err
	}
	pos, err := e.begin(in, now.Now)
	if err != nil {
		return err
	}
	return e.follow(out.Context(), pos, func(k event) error {
		if actor := in.GetWithActorId(); actor != "" && k.message.GetActorId() != actor {
			return nil
		}
		return out.Send(proto.CloneOf(k.message))
	})
}

// follow hands on the events from a position on until the client or the machine ends.
func (e *Events) follow(ctx context.Context, pos int, hand func(event) error) error {
	for {
		batch, end, moved := e.after(pos)
		for _, k := range batch {
			if err := hand(k); err != nil {
				return err
			}
		}
		pos = end
		if moved == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		}
	}
}
