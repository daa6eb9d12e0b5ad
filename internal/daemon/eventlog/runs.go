package eventlog

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// Runs keeps the runs of every cluster. What it takes comes from the loops and
// their actions, and must never hold them up or stop them: a file that cannot be
// read or written is logged, and costs history only.
type Runs struct {
	files Files // nil: in memory only
	log   *slog.Logger

	mu    sync.Mutex
	keep  int
	books map[string]*book
}

// book is one cluster's, with its file.
type book struct {
	*history.Book
	file *lines
	held bool // nothing is written yet
}

// NewRuns keeps so many runs of each cluster, without files in memory only.
func NewRuns(files Files, keep int, log *slog.Logger) *Runs {
	return &Runs{files: files, keep: keep, log: log, books: map[string]*book{}}
}

// openBook opens the book of a cluster. rs.mu is held.
func (rs *Runs) openBook(name string) *book {
	if b := rs.books[name]; b != nil {
		return b
	}
	b := &book{file: &lines{}}
	var old []cluster.Run
	if rs.files != nil {
		log := rs.log.With(logging.Cluster, name)
		text, err := b.file.open(rs.files, historyFile(name), log)
		if err != nil {
			log.Warn("the history cannot be read; it begins empty", logging.Err, err)
		}
		var bad int
		if old, bad = history.Lines[cluster.Run](text); bad > 0 {
			log.Info("some of the history cannot be read and is left out", logging.Lines, bad)
		}
	}
	b.Book = history.NewBook(name, rs.keep, old)
	rs.books[name] = b
	return b
}

// write keeps the runs that have changed.
func (b *book) write(changed []cluster.Run) {
	if b.held {
		return
	}
	for _, r := range changed {
		appendLine(b.file, r, func() []cluster.Run {
			all := b.Runs()
			slices.Reverse(all)
			return all
		})
	}
}

// Hold keeps the runs of a cluster without a history in memory until its first action or
// command: a folder that leads to neither leaves no file.
func (rs *Runs) Hold(name string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	b := rs.openBook(name)
	b.held = len(b.Runs()) == 0
}

// release writes down what was held.
func (b *book) release() {
	if !b.held {
		return
	}
	b.held = false
	all := b.Runs()
	slices.Reverse(all)
	b.write(all)
}

// AddStatus takes a status. plan is asked when a run begins with it.
func (rs *Runs) AddStatus(s cluster.Status, now time.Time, plan func() ([]cluster.Step, bool)) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	b := rs.openBook(s.Cluster)
	b.write(b.Update(s, now, plan))
}

// AddAction takes an action that has ended.
func (rs *Runs) AddAction(name string, o cluster.Outcome) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	b := rs.openBook(name)
	b.release()
	b.write(b.Did(o))
}

// AddCommand takes an admin command. turns: it is carried out in the place of what is under way.
func (rs *Runs) AddCommand(name, what string, turns bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	b := rs.openBook(name)
	b.release()
	b.Request(what, turns)
}

// Usual is how long an action of each kind took at most in a cluster.
func (rs *Runs) Usual(name string) map[cluster.ActionKind]time.Duration {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.openBook(name).Usual()
}

// List returns the runs of a cluster, newest first.
func (rs *Runs) List(name string) []cluster.Run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.openBook(name).Runs()
}

// Forget drops the book of a cluster that is not managed any more. Its file is read again
// when the cluster comes back; whole has it removed, too.
func (rs *Runs) Forget(name string, whole bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	b := rs.books[name]
	delete(rs.books, name)
	if !whole {
		if b != nil {
			b.writeOpen()
		}
		return
	}
	if rs.files == nil {
		return
	}
	if err := rs.files.Remove(historyFile(name)); err != nil {
		rs.log.Warn("cannot remove the history of a cluster of which nothing is left", logging.Cluster, name, logging.Err, err)
	}
}

// Close writes down the runs that go on, with what they have come to.
func (rs *Runs) Close() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, b := range rs.books {
		b.writeOpen()
	}
}

// writeOpen writes down the run that goes on, with what it has come to.
func (b *book) writeOpen() {
	if all := b.Runs(); len(all) > 0 && all[0].Ended.IsZero() {
		b.write(all[:1])
	}
}

// historyFile is the name of the file that holds the history of a cluster.
func historyFile(name string) string { return "history-" + name + ".jsonl" }
