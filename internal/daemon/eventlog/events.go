package eventlog

import (
	"log/slog"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/clock"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// keepEvents is how many events are kept: some days of a lively host.
const keepEvents = 2000

// maxField bounds a field of an event. The journal has the whole.
const maxField = 2 << 10

// EventsFile is the file of the state directory that events survive a restart in.
const EventsFile = "events.jsonl"

// Events keeps the records of the log, the same that the journal gets.
type Events struct {
	ring *history.Ring
	file lines
}

// NewEvents keeps events in memory, until Open.
func NewEvents() *Events { return &Events{ring: history.NewRing(keepEvents)} }

// Add takes a record of the log. It is a second writer of the log's handler.
func (ev *Events) Add(r slog.Record, attrs []slog.Attr) {
	e := ev.ring.Add(newEvent(r, attrs))
	appendLine(&ev.file, e, func() []cluster.Event { return ev.ring.Select(cluster.EventQuery{}) })
}

// Open takes up the events of an earlier life and keeps those to come. log is
// where trouble with the file is logged: once, and not back into it.
func (ev *Events) Open(files Files, log *slog.Logger) {
	text, err := ev.file.open(files, EventsFile, log)
	if err != nil {
		log.Warn("the earlier events cannot be read; the list begins empty", logging.Err, err)
	}
	old, bad := history.Lines[cluster.Event](text)
	if bad > 0 {
		log.Info("some of the earlier events cannot be read and are left out", logging.Lines, bad)
	}
	ev.ring.Recall(old)
}

// Select returns the events that a query asks for, oldest first.
func (ev *Events) Select(q cluster.EventQuery) []cluster.Event { return ev.ring.Select(q) }

// Clocks returns since when a cluster is as it was seen last, as far as the events
// reach back.
func (ev *Events) Clocks(name string) clock.Clocks {
	c := clock.Clocks{Nodes: map[string]clock.Clock{}, Addons: map[string]clock.Clock{}}
	for _, e := range ev.Select(cluster.EventQuery{Cluster: name}) {
		field := func(key string) string { return e.Fields[logging.FieldName(key)] }
		condition, phase, addon, state := field(logging.Condition), field(logging.Phase), field(logging.Addon), field(logging.State)
		switch {
		case condition != "":
			c.Condition = c.Condition.Next(condition, condition == string(cluster.Unknown), e.At)
		case e.Node != "" && phase != "":
			c.Nodes[e.Node] = c.Nodes[e.Node].Next(phase, phase == string(cluster.PhaseUnknown), e.At)
		case addon != "" && state != "":
			c.Addons[addon] = c.Addons[addon].Next(state, state == "unknown", e.At)
		}
	}
	return c
}

// Changed is closed when there is another event.
func (ev *Events) Changed() <-chan struct{} { return ev.ring.Changed() }

// newEvent makes an event of a record. Its message is the sentence of every other form
// of the record, and field by field it holds what the journal gets.
func newEvent(r slog.Record, attrs []slog.Attr) cluster.Event {
	e := cluster.Event{At: r.Time.UTC(), Message: limit(logging.Sentence(r.Message, attrs)), Level: "info"}
	switch {
	case r.Level >= slog.LevelError:
		e.Level = "error"
	case r.Level >= slog.LevelWarn:
		e.Level = "warning"
	}
	for _, a := range attrs {
		v := limit(a.Value.String())
		switch a.Key {
		case logging.Cluster:
			e.Cluster = v
		case logging.Node:
			e.Node = v
		case logging.Err:
			e.Error = v
		case logging.Hint:
			e.Hint = v
		default:
			if e.Fields == nil {
				e.Fields = map[string]string{}
			}
			e.Fields[logging.FieldName(a.Key)] = v
		}
	}
	return e
}

func limit(s string) string {
	if len(s) > maxField {
		return strings.ToValidUTF8(s[:maxField], "") + "..."
	}
	return s
}
