package eventlog

import (
	"log/slog"
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
	var kept []byte
	if rs.files != nil {
		log := rs.log.With(logging.Cluster, name)
		text, err := b.file.open(rs.files, historyFile(name), log)
		if err != nil {
			log.Warn("the history cannot be read; it begins empty", logging.Err, err)
		}
		kept = text
	}
	var bad int
	if b.Book, bad = history.OpenBook(name, rs.keep, kept); bad > 0 {
		rs.log.Info("some of the history cannot be read and is left out", logging.Cluster, name, logging.Lines, bad)
	}
	b.write()
	rs.books[name] = b
	return b
}

// write keeps what has changed.
func (b *book) write() {
	changed := b.TakeChanges()
	if b.held {
		return
	}
	for _, e := range changed {
		appendLine(b.file, e, b.Entries)
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
	for _, e := range b.Entries() {
		appendLine(b.file, e, b.Entries)
	}
}

// AddStatus takes a status. plan is asked when a run begins with it.
func (rs *Runs) AddStatus(s cluster.Status, now time.Time, plan func() ([]cluster.Step, bool)) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	b := rs.openBook(s.Cluster)
	b.Update(s, now, plan)
	b.write()
}

// AddBegun takes an action that begins.
func (rs *Runs) AddBegun(name string, o cluster.Outcome) {
	rs.change(name, func(b *book) { b.Begin(o) })
}

// AddAction takes an action that has ended.
func (rs *Runs) AddAction(name string, o cluster.Outcome) {
	rs.change(name, func(b *book) { b.Did(o) })
}

// AddCommand takes an admin command. turns: it is carried out in the place of what is under way.
func (rs *Runs) AddCommand(name, what string, turns bool) {
	rs.change(name, func(b *book) { b.Request(what, turns) })
}

// change changes the book of a cluster, which is kept from then on, and writes what has changed.
func (rs *Runs) change(name string, do func(*book)) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	b := rs.openBook(name)
	b.release()
	do(b)
	b.write()
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
	b.KeepOpen(time.Now())
	b.write()
}

// historyFile is the name of the file that holds the history of a cluster.
func historyFile(name string) string { return "history-" + name + ".jsonl" }
