package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/talos-agent/talos-agent/internal/text"
)

// newLog makes the log of the program: records with fields in the journal when
// systemd has connected standard error to it, lines for people otherwise.
//
// also, when there is one, is handed every record of Info and above that is
// written, as it is written: what keeps the log for people can never tell
// another story than the journal.
func newLog(w *os.File, verbose bool, also func(slog.Record, []slog.Attr)) *slog.Logger {
	h := &handler{level: slog.LevelInfo, also: also, write: writeLines(w)}
	if verbose {
		h.level = slog.LevelDebug
	}
	if ok, err := journal.StderrIsJournalStream(); err == nil && ok {
		h.write = writeJournal(journal.Send)
	}
	return slog.New(h)
}

// withoutAlso is the same log without whoever is handed its records: for the
// trouble of that one, which must not go round in a circle.
func withoutAlso(log *slog.Logger) *slog.Logger {
	h, ok := log.Handler().(*handler)
	if !ok {
		return log
	}
	c := *h
	c.also = nil
	return slog.New(&c)
}

// handler is a slog.Handler over one function that writes a record.
type handler struct {
	level slog.Level
	attrs []slog.Attr
	write func(slog.Record, []slog.Attr) error
	also  func(slog.Record, []slog.Attr) // nil: nobody
}

func (h *handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

func (h *handler) Handle(_ context.Context, r slog.Record) error {
	attrs := append([]slog.Attr(nil), h.attrs...)
	r.Attrs(func(a slog.Attr) bool { attrs = append(attrs, a); return true })
	kept := attrs[:0]
	for _, a := range attrs {
		a.Value = a.Value.Resolve()
		// Loggers carry node and vmid for every action; most actions have none.
		if s := a.Value.String(); s != "" && !(a.Key == "vmid" && s == "0") {
			kept = append(kept, a)
		}
	}
	if h.also != nil && r.Level >= slog.LevelInfo {
		h.also(r, kept)
	}
	return h.write(r, kept)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = append(append([]slog.Attr(nil), h.attrs...), attrs...)
	return &c
}

// WithGroup is not used by this program; fields of the journal are flat.
func (h *handler) WithGroup(string) slog.Handler { return h }

// writeJournal sends records to the journal with the fields that
// docs/reference/journal.md lists, so that `journalctl NODE=cp-1` tells one
// node's story. MESSAGE is understandable without them.
func writeJournal(send func(string, journal.Priority, map[string]string) error) func(slog.Record, []slog.Attr) error {
	return func(r slog.Record, attrs []slog.Attr) error {
		fields := map[string]string{"SYSLOG_IDENTIFIER": "talos-agent"}
		msg := r.Message
		for _, a := range attrs {
			switch a.Key {
			case "err":
				fields["ERROR"] = a.Value.String()
				msg += ": " + text.OneLine(a.Value.String())
			case "hint":
				fields["HINT"] = a.Value.String()
				msg += " (" + a.Value.String() + ")"
			default:
				fields[fieldName(a.Key)] = a.Value.String()
			}
		}
		return send(msg, priority(r.Level), fields)
	}
}

// fieldName turns a key into a name the journal takes: upper case, digits and
// underscores, beginning with a letter.
func fieldName(key string) string {
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

// writeLines writes records for people: time, message, reason, and the cure on
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
			if a.Key == "cluster" {
				fmt.Fprintf(&b, " [%s]", a.Value)
			}
		}
		b.WriteString(" " + r.Message)
		for _, a := range attrs {
			switch a.Key {
			case "err":
				b.WriteString(": " + text.OneLine(a.Value.String()))
			case "hint":
				hint = a.Value.String()
			case "cluster", "node", "vmid", "action", "addon", "console", "image", "upid", "log", "reason", "status", "phase", "revision", "duration_ms":
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
		_, err := clean{w}.Write([]byte(b.String()))
		return err
	}
}
