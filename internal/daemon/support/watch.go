package support

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

// retryEvery is how often a daemon that went away is looked for.
const retryEvery = 500 * time.Millisecond

// ErrAway is shown by a watching command while the daemon is not reachable.
var ErrAway = errors.New("the daemon is not reachable; waiting for it to come back")

// AskAgain asks a question that goes on, and asks it again when the daemon comes
// back. A daemon that was never there is an error, as is the end of ctx. away gets
// ErrAway when it goes, and nil when it is back.
func AskAgain(ctx context.Context, away func(error) error, question func(asked func()) error) error {
	been, lost := false, false
	for {
		var viewErr error
		err := question(func() {
			been = true
			if lost {
				lost, viewErr = false, away(nil)
			}
		})
		// A daemon that has just begun does not know its clusters yet.
		var e *api.Error
		starting := been && errors.As(err, &e) && e.Reason == cluster.Starting
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case viewErr != nil:
			return viewErr
		case !errors.Is(err, api.ErrEnded) && !(been && errors.Is(err, api.ErrNoDaemon)) && !starting:
			return err
		case !lost:
			lost = true
			if err := away(ErrAway); err != nil {
				return err
			}
		}
		if err := retry.Sleep(ctx, retryEvery); err != nil {
			return err
		}
	}
}

// Watch shows the statuses as they change, of one cluster or with "" of all, until ctx
// ends, and returns those it showed last.
func Watch(ctx context.Context, c *api.Client, view terminal.View, name string) ([]cluster.Status, error) {
	w := &watched{view: view, all: map[string]cluster.Status{}}
	err := w.run(ctx, c, name)
	return w.list(), err
}

// watched is what a watching command has received.
type watched struct {
	view     terminal.View
	all      map[string]cluster.Status
	problems []string
}

func (w *watched) list() []cluster.Status {
	var out []cluster.Status
	for _, s := range w.all {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b cluster.Status) int { return strings.Compare(a.Cluster, b.Cluster) })
	return out
}

// run hands everything to the watcher on one goroutine.
func (w *watched) run(ctx context.Context, c *api.Client, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type news struct {
		status *cluster.Status
		about  *api.About
		away   error
	}
	came, ended := make(chan news), make(chan error, 1)
	hand := func(n news) error {
		select {
		case came <- n:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	about := func(a api.About) error { return hand(news{about: &a}) }
	go func() {
		ended <- AskAgain(ctx, func(err error) error { return hand(news{away: err}) }, func(asked func()) error {
			return c.Watch(ctx, name, func() { asked(); _ = hand(news{}) }, func(s cluster.Status) error { return hand(news{status: &s}) }, about)
		})
	}()
	began := false
	defer func() {
		if began {
			w.view.End()
		}
	}()
	var away error
	for {
		var changed *cluster.Status
		select {
		case err := <-ended:
			return err
		case <-w.view.Ticks():
		case n := <-came:
			if !began {
				if err := w.view.Begin(); err != nil {
					return err
				}
				began = true
				if n == (news{}) {
					continue // what there is comes next: that nothing is known is not shown before
				}
			}
			away, changed = n.away, n.status
			if changed != nil {
				w.all[changed.Cluster] = *changed
			}
			if n.about != nil {
				w.problems = n.about.Problems
				if names := n.about.Clusters; names != nil {
					maps.DeleteFunc(w.all, func(name string, _ cluster.Status) bool { return !slices.Contains(names, name) })
				}
			}
		}
		if !began {
			continue
		}
		if err := w.view.Show(w.list(), changed, w.problems, away); err != nil {
			cancel()
			<-ended
			return err
		}
	}
}
