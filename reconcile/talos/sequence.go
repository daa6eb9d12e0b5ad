package talos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// A reboot, a reset, an upgrade and a shutdown are sequences of phases, of which a machine
// carries out one at a time. Talos answers a request for one as soon as it was received: that
// another one runs, so that nothing is done, or that a phase fails, is in the machine's events
// and nowhere else (Talos 1.13.9: recorded). They are read around a request, on a connection of
// their own, and not otherwise.

// The names of sequences, in events.
const (
	rebootSequence   = "reboot"
	upgradeSequence  = "upgrade"
	resetSequence    = "reset"
	shutdownSequence = "shutdown"
)

// mostSteps is how many events about sequences are kept of one request. A machine has about
// thirty from the request until its API ends.
const mostSteps = 500

// step is an event about a sequence, or about one of its phases.
type step struct {
	id, actor string
	past      bool // it was before the request
	sequence  *machineapi.SequenceEvent
	phase     *machineapi.PhaseEvent // where sequence is nil
}

// readStep reads an event. ok is false when it is about something else.
func readStep(e *machineapi.Event) (s step, ok bool) {
	s = step{id: e.GetId(), actor: e.GetActorId()}
	var payload proto.Message
	switch e.GetData().MessageName() {
	case "machine.SequenceEvent":
		s.sequence = &machineapi.SequenceEvent{}
		payload = s.sequence
	case "machine.PhaseEvent":
		s.phase = &machineapi.PhaseEvent{}
		payload = s.phase
	default:
		return step{}, false
	}
	return s, proto.Unmarshal(e.GetData().GetValue(), payload) == nil
}

// refuses reports whether a step is that a request for this sequence was refused, whoever sent
// it: these events do not name the call (recorded).
func (s step) refuses(name string) bool {
	return s.sequence.GetSequence() == name && s.sequence.GetError().GetCode() == common.Code_LOCKED
}

// sequence is one that a machine carries out, or carried out last. The zero sequence is none
// that is known.
type sequence struct {
	name, actor string
	phase       string // the one that it is in, or was in last
	over        bool
	failed      string // why it did not get to its end, "": it did, or may yet
}

func (s sequence) String() string {
	switch {
	case s.failed != "" && s.phase != "":
		return fmt.Sprintf("%s failed in phase %s: %s", s.name, s.phase, s.failed)
	case s.failed != "":
		return fmt.Sprintf("%s failed: %s", s.name, s.failed)
	case s.phase != "":
		return fmt.Sprintf("%s, in phase %s", s.name, s.phase)
	}
	return s.name
}

// course is what became of a request for a sequence, as far as events show it. The zero course
// is that nothing is known.
type course struct {
	refused  bool // another sequence ran, so that it did nothing
	began    bool
	replaced bool // it began, and another sequence took its place
	runs     sequence
}

// judgeCourse reads from events what became of the request for a sequence that was answered with
// this actor; "" : the answer was lost.
func judgeCourse(of, actor string, steps []step) (c course) {
	for _, s := range steps {
		e := s.sequence
		switch {
		case e == nil:
			if s.phase.GetAction() == machineapi.PhaseEvent_START && c.runs.name != "" && s.actor == c.runs.actor {
				c.runs.phase = s.phase.GetPhase()
			}
		case s.refuses(of):
			// While this one runs, or may, it is another's that is refused.
			if !s.past && !c.began {
				c.refused = true
			}
		case e.GetAction() == machineapi.SequenceEvent_START:
			c.runs = sequence{name: e.GetSequence(), actor: s.actor}
			isOurs := !s.past && c.runs.name == of && (actor == s.actor || actor == "" && !c.refused)
			switch {
			case isOurs:
				c.began, c.refused = true, false
			case c.began:
				c.replaced = true
			}
		case e.GetSequence() != c.runs.name || s.actor != c.runs.actor:
			// Of one that ended, because this one took its place.
		case e.GetError() != nil:
			c.runs.failed = sanitize(strings.TrimPrefix(e.GetError().GetMessage(), "sequence failed: "))
			c.runs.over = true
		case e.GetAction() == machineapi.SequenceEvent_STOP:
			c.runs.over = true
		}
	}
	return c
}

// err is why the machine does not do what it was asked to; nil while nothing speaks against it.
func (c course) err() error {
	runs := c.runs.String()
	switch {
	case c.refused && c.runs.over && c.runs.failed == "":
		return cluster.ErrSequenceRefused
	case c.refused:
		return fmt.Errorf("%w%s", cluster.ErrSequenceRefused, text.Colon(runs))
	case c.replaced:
		return fmt.Errorf("%w: another sequence took its place: %s", cluster.ErrSequenceFailed, runs)
	case c.began && c.runs.failed != "":
		return fmt.Errorf("%w: %s", cluster.ErrSequenceFailed, runs)
	}
	return nil
}

// endsElsewhere reports whether another sequence than the one asked for takes the machine down, and not
// to boot as it is. One that failed ends in a reboot (from the source of Talos 1.13.9).
func (c course) endsElsewhere() bool {
	return (c.refused || c.replaced) && c.runs.failed == "" && slices.Contains([]string{resetSequence, shutdownSequence}, c.runs.name)
}

// eventLog has the events about the sequences of one machine from right before a request on.
type eventLog struct {
	of     string // the sequence that is asked for
	link   *link  // nil: the machine could not be asked
	cancel context.CancelFunc
	opened chan struct{} // closed when the machine sends what happens from then on
	ended  chan struct{} // closed when it does not, or no longer

	mu    sync.Mutex
	actor string // of the request
	steps []step
}

// openEventLog begins to read a machine's events, and returns when it sends them. Where it does
// not, nothing will be known of what became of the request. Close it when done.
func (f *Fleet) openEventLog(ctx context.Context, n cluster.Node, k keys, of string) *eventLog {
	ctx, cancel := context.WithCancel(ctx)
	g := &eventLog{of: of, cancel: cancel, opened: make(chan struct{}), ended: make(chan struct{})}
	l, err := f.connectOwn(ctx, n, k)
	if err != nil {
		close(g.ended)
		return g
	}
	g.link = l
	go g.read(ctx)
	wait := time.NewTimer(callWithin)
	defer wait.Stop()
	select {
	case <-g.opened:
	case <-g.ended:
	case <-wait.C:
	}
	return g
}

// close ends the reading.
func (g *eventLog) close() {
	g.cancel()
	if g.link != nil {
		g.link.close()
	}
	<-g.ended
}

// read reads events until the machine's API ends. The first one is empty, and shows that the
// others follow.
func (g *eventLog) read(ctx context.Context) {
	defer close(g.ended)
	stream, err := g.link.machine.Events(ctx, &machineapi.EventsRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		return // nothing will be known
	}
	close(g.opened)
	for known := false; ; {
		s, err := nextStep(stream)
		if err != nil {
			return // the machine goes down, or nothing more will be known
		}
		var past []step
		if s.refuses(g.of) && !known {
			known, past = true, g.link.readPast(ctx, s.id)
		}
		g.add(past, s)
	}
}

// nextStep reads events up to the next one about a sequence.
func nextStep(stream grpc.ServerStreamingClient[machineapi.Event]) (step, error) {
	for {
		e, err := stream.Recv()
		if err != nil {
			return step{}, err
		}
		if s, ok := readStep(e); ok {
			return s, nil
		}
	}
}

// readPast reads what a machine keeps of its events, up to the one with this id. It is how to
// know which sequence runs. What cannot be read is left out.
func (l *link) readPast(ctx context.Context, id string) (past []step) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	stream, err := l.machine.Events(ctx, &machineapi.EventsRequest{TailEvents: -1})
	if err != nil {
		return nil
	}
	for {
		s, err := nextStep(stream)
		switch {
		case err != nil:
			return nil // without its end it may show one that is over
		case s.id == id:
			return past
		}
		if s.past = true; len(past) == mostSteps {
			past = past[1:]
		}
		past = append(past, s)
	}
}

// add adds a step, and puts what was before the request in front.
func (g *eventLog) add(past []step, s step) {
	g.mu.Lock()
	defer g.mu.Unlock()
	past = slices.DeleteFunc(past, func(p step) bool {
		return slices.ContainsFunc(g.steps, func(known step) bool { return known.id == p.id })
	})
	g.steps = append(past, g.steps...)
	if len(g.steps) < 2*mostSteps {
		g.steps = append(g.steps, s)
	}
}

// setActor notes with which actor the request was answered.
func (g *eventLog) setActor(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.actor = id
}

// judge is what became of the request, as far as it was seen yet.
func (g *eventLog) judge() course {
	g.mu.Lock()
	defer g.mu.Unlock()
	return judgeCourse(g.of, g.actor, g.steps)
}

// isDown reports whether an error of a look at a machine is that it went down: nothing answers,
// or it came back without a config.
func isDown(err error) bool { return isSilent(err) || errors.Is(err, errUnclaimed) }

// isSilent reports whether an error of a look at a machine is that nothing answers.
func isSilent(err error) bool {
	var u *unreached
	return errors.As(err, &u) && u.reach == cluster.Silent
}
