package eventlog

import (
	"errors"
	"io/fs"
	"log/slog"
	"sync"

	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/journal"
)

// Files is the directory that is kept in: the state directory.
type Files interface {
	// Read returns a file's contents; fs.ErrNotExist when there is none.
	Read(name string) ([]byte, error)
	// Write makes or truncates a file that only its owner may read.
	Write(name string, data []byte) error
	// Append adds to a file, and makes it if there is none.
	Append(name string, data []byte) error
	// Rename replaces to by from, atomically.
	Rename(from, to string) error
	// Remove deletes a file; there may be none.
	Remove(name string) error
}

// maxFile bounds a file.
const maxFile = state.MaxFile

// lines is a file to which lines are added, and that is written again from what is
// still worth keeping when it has grown too large.
type lines struct {
	mu     sync.Mutex
	files  Files
	name   string // "": nothing is kept on disk
	size   int
	log    *slog.Logger
	failed bool // and logged
}

// open begins to keep lines in a file and returns what it holds.
func (l *lines) open(files Files, name string, log *slog.Logger) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.files, l.name, l.log = files, name, log
	text, err := files.Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		l.size = maxFile // the next line replaces it
	}
	if n := len(text); n > 0 && text[n-1] != '\n' {
		l.size = maxFile // torn: nothing may be glued to it
	}
	l.size += len(text)
	return text, err
}

// appendLine writes one line more. list returns everything that is worth keeping,
// oldest first, if the file has to be written again.
func appendLine[T any](l *lines, v T, list func() []T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.name == "" {
		return
	}
	err := l.write(v, func() []any {
		var out []any
		for _, x := range list() {
			out = append(out, x)
		}
		return out
	})
	if err != nil && !l.failed {
		l.log.Warn("cannot keep the history on disk; it is kept in memory", logging.File, l.name, logging.Err, err,
			logging.Hint, journal.RecordsHint(err))
	}
	l.failed = err != nil
}

// write adds a line, or replaces the file by the newest half of what fits. l.mu is
// held.
func (l *lines) write(v any, list func() []any) error {
	line, err := history.Line(v)
	if err != nil {
		return err
	}
	if l.size+len(line) <= maxFile {
		if err := l.files.Append(l.name, line); err != nil {
			return err
		}
		l.size += len(line)
		return nil
	}
	text, err := newestLines(list(), maxFile/2)
	if err != nil {
		return err
	}
	if err := l.files.Write(l.name+".new", text); err != nil {
		return err
	}
	if err := l.files.Rename(l.name+".new", l.name); err != nil {
		return err
	}
	l.size = len(text)
	return nil
}

// newestLines are the last of the values that fit, as lines.
func newestLines(all []any, left int) ([]byte, error) {
	from := len(all)
	var newest [][]byte // the last one first
	for from > 0 {
		line, err := history.Line(all[from-1])
		if err != nil {
			return nil, err
		}
		if left -= len(line); left < 0 {
			break
		}
		from--
		newest = append(newest, line)
	}
	var text []byte
	for i := range newest {
		text = append(text, newest[len(newest)-1-i]...)
	}
	return text, nil
}
