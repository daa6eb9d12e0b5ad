package world

import (
	"bytes"
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Faults of one single message of a stream that is open: an event of a watch, a step of what is carried out, a line. They strike
// whether the stream was opened before they were injected or after. Op is that of the call, and what the message is:
// "WATCH /api/v1/nodes MODIFIED".
const (
	DropEvent  FaultKind = "drop-event"  // it does not arrive, and those after it do
	BreakEvent FaultKind = "break-event" // the connection breaks in its place
)

func (k FaultKind) isOfEvents() bool { return k == DropEvent || k == BreakEvent }

// Deliver counts a message that a service is about to send and returns what becomes of it; "" : it arrives.
func (w *World) Deliver(c Call) FaultKind {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delivered[Call{System: c.System, Op: c.Op}]++
	if f := w.strike(c, true); f != nil {
		return f.Kind
	}
	return ""
}

// Delivered returns how many messages of each kind the services sent so far, whoever they are about.
func (w *World) Delivered() map[Call]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.delivered)
}

// strike returns the first fault that strikes a call, or a message of one; nil: none does. w.mu is held.
func (w *World) strike(c Call, event bool) *Fault {
	for _, f := range w.faults {
		if f.Kind.isOfEvents() != event || !f.matchesCall(c) {
			continue
		}
		f.seen++
		limit := f.Times
		if f.Nth > 0 && limit == 0 {
			limit = 1
		}
		if f.Nth > 0 && f.seen < f.Nth || limit > 0 && f.struck >= limit {
			continue
		}
		f.struck++
		w.struck++
		return f
	}
	return nil
}

// eventWriter is the answer to a watch over HTTP, of which each Write is one event.
type eventWriter struct {
	http.ResponseWriter
	w *World
	c Call
}

// Unwrap is for http.ResponseController.
func (e *eventWriter) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *eventWriter) Write(b []byte) (int, error) {
	_, kind, _ := bytes.Cut(b, []byte(`{"type":"`))
	kind, _, _ = bytes.Cut(kind, []byte(`"`))
	switch e.w.Deliver(Call{System: e.c.System, Op: e.c.Op + " " + string(kind), Subject: e.c.Subject}) {
	case DropEvent:
		return len(b), nil
	case BreakEvent:
		panic(http.ErrAbortHandler)
	}
	return e.ResponseWriter.Write(b)
}

// eventStream is a stream over gRPC whose messages are delivered one by one.
type eventStream struct {
	grpc.ServerStream
	w      *World
	c      Call
	broken bool
}

// SendMsg implements grpc.ServerStream.
func (e *eventStream) SendMsg(m any) error {
	if e.broken {
		return ErrBroken
	}
	switch e.w.Deliver(Call{System: e.c.System, Op: e.c.Op + " " + nameMessage(m), Subject: e.c.Subject}) {
	case DropEvent:
		return nil
	case BreakEvent:
		e.broken = true
		return ErrBroken
	}
	return e.ServerStream.SendMsg(m)
}

// nameMessage is what a message is: of a resource that is watched what became of it, and its type; of others the names of what they
// have, and the type of what they carry.
func nameMessage(m any) string {
	p, ok := m.(proto.Message)
	if !ok {
		return "message"
	}
	var names []string
	p.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && f.Kind() == protoreflect.MessageKind: // of a watch
			for i := range v.List().Len() {
				names = append(names, nameEvent(v.List().Get(i).Message()))
			}
		case f.Name() == "metadata": // whom it is from
		default:
			name := string(f.Name())
			if f.Kind() == protoreflect.MessageKind {
				name += textAt(v.Message(), "type_url")
			}
			names = append(names, name)
		}
		return true
	})
	slices.Sort(names) // they come in any order
	return cmp.Or(strings.Join(names, " "), "empty")
}

// nameEvent names an event of a watch.
func nameEvent(m protoreflect.Message) string {
	kind := m.Descriptor().Fields().ByName("event_type")
	if kind == nil {
		return string(m.Descriptor().Name())
	}
	name := string(kind.Enum().Values().ByNumber(m.Get(kind).Enum()).Name())
	resource := m.Descriptor().Fields().ByName("resource")
	if resource == nil || !m.Has(resource) {
		return name
	}
	of := m.Get(resource).Message()
	if metadata := of.Descriptor().Fields().ByName("metadata"); metadata != nil {
		name += textAt(of.Get(metadata).Message(), "type")
	}
	return name
}

// textAt is the text in a field of a message, after a space; "" where that has none of the name, or it is empty.
func textAt(m protoreflect.Message, field protoreflect.Name) string {
	f := m.Descriptor().Fields().ByName(field)
	if f == nil || f.Kind() != protoreflect.StringKind {
		return ""
	}
	text := m.Get(f).String()
	if text = text[strings.LastIndexByte(text, '/')+1:]; text == "" {
		return ""
	}
	return " " + text
}
