package main

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/host/state"
)

// chronicle keeps the runs of every cluster, for people. What it is told comes
// from the loops and their actions, and must never hold them up or stop them: a
// file that cannot be read or written is told, and costs history only.
type chronicle struct {
	files *state.Dir // nil: in memory only
	log   *slog.Logger

	mu    sync.Mutex
	keep  int
	books map[string]*book
}

// book is one cluster's, with its file.
type book struct {
	*history.Book
	file *keptLines
}

func newChronicle(files *state.Dir, keep int, log *slog.Logger) *chronicle {
	return &chronicle{files: files, keep: keep, log: log, books: map[string]*book{}}
}

// of opens the book of a cluster. c.mu is held.
func (c *chronicle) of(name string) *book {
	if b := c.books[name]; b != nil {
		return b
	}
	b := &book{file: &keptLines{}}
	var old []cluster.Run
	if c.files != nil {
		log := c.log.With("cluster", name)
		text, err := b.file.open(*c.files, "history-"+name+".jsonl", log)
		if err != nil {
			log.Warn("the history cannot be read; it begins anew", "err", err)
		}
		var bad int
		if old, bad = history.Lines[cluster.Run](text); bad > 0 {
			log.Info("some of the history cannot be read and is left out", "lines", bad)
		}
	}
	b.Book = history.NewBook(name, c.keep, old)
	c.books[name] = b
	return b
}

// write keeps the runs that have changed. c.mu is held.
func (b *book) write(changed []cluster.Run) {
	for _, r := range changed {
		addLine(b.file, r, func() []cluster.Run {
			all := b.Runs()
			slices.Reverse(all)
			return all
		})
	}
}

// told takes a status. plan is asked when a run begins with it.
func (c *chronicle) told(s cluster.Status, now time.Time, plan func() ([]cluster.Step, bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.of(s.Cluster)
	b.write(b.Told(s, now, plan))
}

// did takes an action that has ended, said root's word.
func (c *chronicle) did(name string, d cluster.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.of(name)
	b.write(b.Did(d))
}

func (c *chronicle) said(name, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of(name).Said(what)
}

// runs tells the runs of a cluster, newest first.
func (c *chronicle) runs(name string) []cluster.Run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(name).Runs()
}

// close writes down the runs that go on, with what they have come to.
func (c *chronicle) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.books {
		if all := b.Runs(); len(all) > 0 && all[0].Ended.IsZero() {
			b.write(all[:1])
		}
	}
}
