package agent

import (
	"context"
	"errors"
	"io/fs"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/git"
)

// drip is a repository whose server says a little now and then: every question
// takes nearly as long as it may, and those after the first come to nothing.
type drip struct{ asked *int }

func (d drip) Head(ctx context.Context) (git.Commit, error) {
	*d.asked++
	select {
	case <-time.After(answerWithin - time.Second):
	case <-ctx.Done():
		return git.Commit{}, ctx.Err()
	}
	if *d.asked > 1 {
		return git.Commit{}, errors.New("the server hangs up")
	}
	return git.Commit{Revision: "main@sha1:1111111111111111111111111111111111111111"}, nil
}

func (drip) Tree(context.Context, git.Commit) (fs.FS, error) { return fstest.MapFS{}, nil }

func (drip) Descends(context.Context, string, string) (bool, error) { return true, nil }

// A server that takes all the time there is must not make the clusters that
// wait for each other look stuck to the watchdog, whether it answers in the end
// or not.
func TestClustersThatWaitForOneRepository(t *testing.T) {
	for _, c := range []struct {
		name  string
		asked int // questions before
	}{{"the first is answered", 0}, {"none is answered", 1}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				repo, err := sources.New(sources.Config{Store: drip{&c.asked}})
				if err != nil {
					t.Fatal(err)
				}
				h := &hub{repo: repo, did: func(error) {}, lock: make(chan struct{}, 1)}
				for range 4 {
					go func() {
						began := time.Now()
						if _, err := h.tree(t.Context(), began); time.Since(began) >= StuckAfter {
							t.Errorf("%v after %v", err, time.Since(began))
						}
					}()
					time.Sleep(time.Second)
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

// A panic over the repository's files is told, and does not end the daemon.
func TestPanicOverTheRepository(t *testing.T) {
	repo, err := sources.New(sources.Config{Store: rotten{}})
	if err != nil {
		t.Fatal(err)
	}
	h := &hub{repo: repo, did: func(error) {}, lock: make(chan struct{}, 1)}
	for range 2 { // the second one finds no lock held
		if names, err := h.clusters(t.Context(), time.Now()); err == nil || names != nil {
			t.Errorf("%v, %v", names, err)
		}
	}
}

// rotten is a repository over which the library that reads it panics.
type rotten struct{ drip }

func (rotten) Head(context.Context) (git.Commit, error) { panic("index out of range") }
