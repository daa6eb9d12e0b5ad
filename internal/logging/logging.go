// Package logging writes the agent's log: records with fields in the journal, or
// lines for people, and both from one constant message and attributes under the
// keys of this room.
//
// It knows nothing of what is logged. It looks for no secrets: values that are
// secret print as "[redacted]" by themselves. It makes text fit for a terminal no
// more than by putting it on one line: Output does.
package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/talos-agent/talos-agent/internal/text"
)

// Config says where records go.
type Config struct {
	// Output gets lines for people, each in one call.
	Output io.Writer
	// Journal gets records with fields, in place of Output. See Journal.
	Journal func(message string, p journal.Priority, fields map[string]string) error
	// Verbose writes debug records too.
	Verbose bool
	// Observe is handed every record of Info and above that is written, as it is
	// written: what keeps the log for people can never tell another story than the
	// journal. Nil: nobody.
	Observe func(slog.Record, []slog.Attr)
}

// Sentence is what people read of a record, wherever they read it: the message, the
// node where neither message nor detail names it, and the detail. The cluster, the
// error and the hint are left to who shows the record, because each stands
// elsewhere in a line, in the journal and in an event.
func Sentence(message string, attrs []slog.Attr) string {
	var node, detail string
	for _, a := range attrs {
		switch a.Key {
		case Node:
			node = a.Value.String()
		case Detail:
			detail = text.OneLine(a.Value.String())
		}
	}
	if node != "" && !strings.Contains(detail, node) && !strings.Contains(message, node) {
		message += " (" + node + ")"
	}
	if detail != "" {
		message += ": " + detail
	}
	return message
}

// New makes a log.
func New(c Config) *slog.Logger {
	h := &handler{level: slog.LevelInfo, observe: c.Observe}
	if c.Verbose {
		h.level = slog.LevelDebug
	}
	if c.Journal != nil {
		h.write = writeJournal(c.Journal)
	} else {
		h.write = writeLines(c.Output)
	}
	return slog.New(h)
}

// Journal writes to the journal of systemd. It is nil where systemd has not
// connected standard error to it.
func Journal() func(message string, p journal.Priority, fields map[string]string) error {
	if ok, err := journal.StderrIsJournalStream(); err != nil || !ok {
		return nil
	}
	return journal.Send
}

// WithoutObserver is the same log without whoever is handed its records: for the
// errors of that one, which must not go round in a circle.
func WithoutObserver(log *slog.Logger) *slog.Logger {
	h, ok := log.Handler().(*handler)
	if !ok {
		return log
	}
	c := *h
	c.observe = nil
	return slog.New(&c)
}

// handler is a slog.Handler over one function that writes a record.
type handler struct {
	level   slog.Level
	attrs   []slog.Attr
	write   func(slog.Record, []slog.Attr) error
	observe func(slog.Record, []slog.Attr) // nil: nobody
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

// Handle implements slog.Handler.
func (h *handler) Handle(_ context.Context, r slog.Record) error {
	attrs := append([]slog.Attr(nil), h.attrs...)
	r.Attrs(func(a slog.Attr) bool { attrs = append(attrs, a); return true })
	kept := attrs[:0]
	for _, a := range attrs {
		a.Value = a.Value.Resolve()
		// Loggers carry node and vmid for every action; most actions have none.
		if s := a.Value.String(); s != "" && !(a.Key == VMID && s == "0") {
			kept = append(kept, a)
		}
	}
	if h.observe != nil && r.Level >= slog.LevelInfo {
		h.observe(r, kept)
	}
	return h.write(r, kept)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = append(append([]slog.Attr(nil), h.attrs...), attrs...)
	return &c
}

// WithGroup implements slog.Handler. It is not used by this program; fields of the journal are flat.
func (h *handler) WithGroup(string) slog.Handler { return h }

// writeJournal sends records to the journal with the fields that
// docs/reference/journal.md lists, so that `journalctl NODE=cp-1` tells one
// node's story. MESSAGE is understandable without them.
func writeJournal(send func(string, journal.Priority, map[string]string) error) func(slog.Record, []slog.Attr) error {
	return func(r slog.Record, attrs []slog.Attr) error {
		fields := map[string]string{"SYSLOG_IDENTIFIER": "talos-agent"}
		msg := Sentence(r.Message, attrs)
		for _, a := range attrs {
			switch a.Key {
			case Cluster:
				fields["CLUSTER"] = a.Value.String()
				msg = "[" + a.Value.String() + "] " + msg
			case Err:
				fields["ERROR"] = a.Value.String()
				msg += ": " + text.OneLine(a.Value.String())
			case Hint:
				fields["HINT"] = a.Value.String()
				msg += " (" + a.Value.String() + ")"
			default:
				fields[FieldName(a.Key)] = a.Value.String()
			}
		}
		return send(msg, priority(r.Level), fields)
	}
}

// FieldName turns a key into a name the journal takes: upper case, digits and
// underscores, beginning with a letter.
func FieldName(key string) string {
	name := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z':
			return c - 'a' + 'A'
		case c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
			return c
		default:
			return '_'
		}
	}, key)
	return strings.TrimLeft(name, "_0123456789")
}

func priority(l slog.Level) journal.Priority {
	switch {
	case l >= slog.LevelError:
		return journal.PriErr
	case l >= slog.LevelWarn:
		return journal.PriWarning
	case l >= slog.LevelInfo:
		return journal.PriInfo
	default:
		return journal.PriDebug
	}
}

// writeLines writes records for people: time, message, reason, and the hint on
// a line of its own.
func writeLines(w io.Writer) func(slog.Record, []slog.Attr) error {
	var mu sync.Mutex
	return func(r slog.Record, attrs []slog.Attr) error {
		var b strings.Builder
		b.WriteString(r.Time.Format(time.TimeOnly))
		switch {
		case r.Level >= slog.LevelError:
			b.WriteString(" error:")
		case r.Level >= slog.LevelWarn:
			b.WriteString(" warning:")
		case r.Level < slog.LevelInfo:
			b.WriteString(" debug:")
		}
		hint := ""
		for _, a := range attrs {
			if a.Key == Cluster {
				fmt.Fprintf(&b, " [%s]", a.Value)
			}
		}
		b.WriteString(" " + Sentence(r.Message, attrs))
		for _, a := range attrs {
			switch a.Key {
			case Err:
				b.WriteString(": " + text.OneLine(a.Value.String()))
			case Hint:
				hint = a.Value.String()
			case Detail, Cluster, Node, VMID, Action, Addon, Condition, Console, Image, UPID, Log, Reason, State, Status, Phase, Revision, DurationMS:
				// The sentence says it already; the journal has the field.
			default:
				fmt.Fprintf(&b, " %s=%s", a.Key, a.Value)
			}
		}
		b.WriteString("\n")
		if hint != "" {
			b.WriteString("         -> " + hint + "\n")
		}
		mu.Lock()
		defer mu.Unlock()
		_, err := io.WriteString(w, b.String())
		return err
	}
}
