package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"sync"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile"
)

// keepEvents is how many events are kept: some days of a lively host.
const keepEvents = 2000

// maxField bounds a field of an event. The journal has the whole.
const maxField = 2 << 10

// eventsFile is the file of the state directory that events survive a restart in.
const eventsFile = "events.jsonl"

// told keeps what the log told: the same records, as the journal gets them. The
// file may be lost, torn or full; it is for people, and nothing waits for it.
type told struct {
	ring *history.Ring
	file keptLines
}

func newTold() *told { return &told{ring: history.NewRing(keepEvents)} }

// take is a second writer of the log's handler.
func (t *told) take(r slog.Record, attrs []slog.Attr) {
	e := t.ring.Add(eventOf(r, attrs))
	addLine(&t.file, e, func() []cluster.Event { return t.ring.Select(cluster.EventQuery{}) })
}

// open takes up the events of an earlier life and keeps those to come. log is
// where trouble with the file is told: once, and not back into it.
func (t *told) open(files state.Dir, log *slog.Logger) {
	text, err := t.file.open(files, eventsFile, log)
	if err != nil {
		log.Warn("the events of before cannot be read; they begin anew", "err", err)
	}
	old, bad := history.Lines[cluster.Event](text)
	if bad > 0 {
		log.Info("some of the events of before cannot be read and are left out", "lines", bad)
	}
	t.ring.Recall(old)
}

// eventOf is a record of the log as an event. Field by field it holds what the
// journal gets.
func eventOf(r slog.Record, attrs []slog.Attr) cluster.Event {
	e := cluster.Event{At: r.Time.UTC(), Message: bounded(r.Message), Level: "info"}
	switch {
	case r.Level >= slog.LevelError:
		e.Level = "error"
	case r.Level >= slog.LevelWarn:
		e.Level = "warning"
	}
	for _, a := range attrs {
		v := bounded(a.Value.String())
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

func bounded(s string) string {
	if len(s) > maxField {
		return strings.ToValidUTF8(s[:maxField], "") + "..."
	}
	return s
}

// keptLines is a file of the state directory to which lines are added, and that
// is written anew from what is still worth keeping when it has grown too large.
type keptLines struct {
	mu    sync.Mutex
	files state.Dir
	name  string // "": nothing is kept on disk
	size  int
	log   *slog.Logger
	sick  bool // and told
}

// open begins to keep lines in a file and returns what it holds.
func (k *keptLines) open(files state.Dir, name string, log *slog.Logger) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.files, k.name, k.log = files, name, log
	text, err := files.Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		k.size = state.MaxFile // the next line writes it anew
	}
	if n := len(text); n > 0 && text[n-1] != '\n' {
		k.size = state.MaxFile // torn: nothing may be glued to it
	}
	k.size += len(text)
	return text, err
}

// addLine writes one line more. whole tells everything that is worth keeping, oldest
// first, if the file has to be written anew.
func addLine[T any](k *keptLines, v T, whole func() []T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.name == "" {
		return
	}
	err := k.write(v, func() []any {
		var out []any
		for _, x := range whole() {
			out = append(out, x)
		}
		return out
	})
	if err != nil && !k.sick {
		k.log.Warn("cannot keep what is told on disk; it is kept in memory", "file", k.name, "err", err,
			"hint", reconcile.RecordsHint)
	}
	k.sick = err != nil
}

// write adds a line, or writes the newest half of what fits anew. k.mu is held.
func (k *keptLines) write(v any, whole func() []any) error {
	line, err := history.Line(v)
	if err != nil {
		return err
	}
	if k.size+len(line) <= state.MaxFile {
		if err := k.files.Append(k.name, line); err != nil {
			return err
		}
		k.size += len(line)
		return nil
	}
	all, left := whole(), state.MaxFile/2
	from := len(all)
	var lines [][]byte
	for from > 0 {
		line, err := history.Line(all[from-1])
		if err != nil {
			return err
		}
		if left -= len(line); left < 0 {
			break
		}
		from--
		lines = append(lines, line)
	}
	var text []byte
	for i := range lines {
		text = append(text, lines[len(lines)-1-i]...)
	}
	if err := k.files.Write(k.name+".new", text); err != nil {
		return err
	}
	if err := k.files.Rename(k.name+".new", k.name); err != nil {
		return err
	}
	k.size = len(text)
	return nil
}
