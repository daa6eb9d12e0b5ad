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
		text, err := b.file.open(rs.files, "history-"+name+".jsonl", log)
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
	for _, r := range changed {
		appendLine(b.file, r, func() []cluster.Run {
			all := b.Runs()
			slices.Reverse(all)
			return all
		})
	}
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
	b.write(b.Did(o))
}

// AddCommand takes an admin command.
func (rs *Runs) AddCommand(name, what string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.openBook(name).Request(what)
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

// Close writes down the runs that go on, with what they have come to.
func (rs *Runs) Close() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, b := range rs.books {
		if all := b.Runs(); len(all) > 0 && all[0].Ended.IsZero() {
			b.write(all[:1])
		}
	}
}
