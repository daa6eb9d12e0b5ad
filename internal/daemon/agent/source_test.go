package agent

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/follower"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/git"
)

// drip is a repository whose server says a little now and then: every question
// takes nearly as long as it may, and those after the first come to nothing.
type drip struct{ asked *int }

func (d drip) Head(ctx context.Context) (git.Commit, error) {
	*d.asked++
	select {
	case <-time.After(follower.Within - time.Second):
	case <-ctx.Done():
		return git.Commit{}, ctx.Err()
	}
	if *d.asked > 1 {
		return git.Commit{}, errors.New("the server hangs up")
	}
	return git.Commit{Revision: "main@sha1:1111111111111111111111111111111111111111"}, nil
}

func (drip) Tree(context.Context, git.Commit) (fs.FS, error) { return fstest.MapFS{}, nil }

func (drip) Find(string) (git.Commit, error) { return git.Commit{}, errors.New("object not found") }

func (drip) Descends(context.Context, string, string) (bool, error) { return true, nil }

// A server that takes all the time there is must not make the clusters that
// wait for it look stuck to the watchdog, nor the loop that fetches, whether it
// answers in the end or not.
func TestClustersThatWaitForOneRepository(t *testing.T) {
	t.Parallel()
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
				f := follower.New(follower.Config{Fetch: repo.Fetch, Take: func(r follower.Result, _ bool) error { return r.Err }, Interval: time.Minute})
				go f.Run(t.Context())
				for range 4 {
					go func() {
						began := time.Now()
						s := source{repo: repo, newest: f.Newest, name: "dev", patience: firstWithin}
						if _, err := s.Fetch(t.Context()); time.Since(began) >= StuckAfter {
							t.Errorf("%v after %v", err, time.Since(began))
						}
					}()
					time.Sleep(time.Second)
				}
				for began := time.Now(); time.Since(began) < time.Hour; time.Sleep(time.Second) {
					if late := time.Since(f.Due()); late >= StuckAfter {
						t.Fatalf("the next fetch is late by %v", late)
					}
				}
			})
		})
	}
}

// TestSourceReadsOnce: however often a cluster's loop asks, the inventory is read
// once from every result.
func TestSourceReadsOnce(t *testing.T) {
	t.Parallel()
	repo, err := sources.New(sources.Config{Store: drip{new(int)}})
	if err != nil {
		t.Fatal(err)
	}
	files := &counted{FS: fstest.MapFS{"inventory/dev/cluster.yaml": {Data: []byte("cluster_name: dev\n")}}}
	at := func(second int64, err error) *follower.Result {
		return &follower.Result{At: time.Unix(second, 0), Err: err, Tree: sources.Tree{Revision: "main@sha1:11", FS: files}}
	}
	var newest *follower.Result
	s := source{repo: repo, name: "dev", newest: func(context.Context) (*follower.Result, error) { return newest, nil }}
	for _, r := range []*follower.Result{at(1, nil), at(2, errors.New("down")), at(3, nil)} {
		newest, files.opened = r, 0
		var once int
		for range 3 {
			got, err := s.Fetch(t.Context())
			if r.Err != nil {
				if !errors.Is(err, r.Err) || files.opened != 0 {
					t.Errorf("%+v, %v, %d files opened", got, err, files.opened)
				}
				continue
			}
			if err != nil || !got.At.Equal(r.At) || !got.Problems.HasErrors() {
				t.Errorf("%+v, %v", got, err)
			}
			if once == 0 {
				once = files.opened
			}
			if once == 0 || files.opened != once {
				t.Errorf("%d files opened, at first %d", files.opened, once)
			}
		}
	}
}

// TestDirectoryThatIsNoTop: who names a folder below the top of the repository, or
// another repository, hears what to name.
func TestDirectoryThatIsNoTop(t *testing.T) {
	t.Parallel()
	repo, err := sources.New(sources.Config{Clusters: []string{"dev"}})
	if err != nil {
		t.Fatal(err)
	}
	m := &managedCluster{name: "dev", source: &source{repo: repo, name: "dev"}}
	file := &fstest.MapFile{Data: []byte("cluster_name: dev\n")}
	const hint = "name the top of the repository that has the folder inventory/dev"
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  string
	}{
		"the cluster's folder": {fstest.MapFS{"cluster.yaml": file, "nodes.yaml": file}, "inventory: there is no such folder (" + hint + ")"},
		"the folder of all":    {fstest.MapFS{"dev/cluster.yaml": file}, "inventory: there is no such folder (" + hint + ")"},
		"another repository":   {fstest.MapFS{"inventory/prod/cluster.yaml": file}, "inventory/dev: there is no such cluster (" + hint + ")"},
		"its top":              {fstest.MapFS{"inventory/dev/cluster.yaml": file}, "inventory/dev/nodes.yaml: the file is missing (a cluster needs cluster.yaml and nodes.yaml)"},
	} {
		f, err := m.ForecastDir(t.Context(), c.files)
		if err != nil || !strings.Contains(f.Problems.Error(), c.want) {
			t.Errorf("%s: %q, %v; want %q", name, f.Problems.Error(), err, c.want)
		}
		if len(f.Blocked) != 1 || f.Blocked[0].Reason != cluster.InventoryInvalid || f.Blocked[0].Message != "the inventory is invalid" {
			t.Errorf("%s: blocked %+v", name, f.Blocked)
		}
	}
}

// counted counts the files that are opened.
type counted struct {
	fs.FS
	opened int
}

func (c *counted) Open(name string) (fs.File, error) {
	c.opened++
	return c.FS.Open(name)
}

// A panic over the repository's files is reported, and does not end the daemon.
func TestPanicOverTheRepository(t *testing.T) {
	t.Parallel()
	a, err := New(newConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Stop()
	for range 2 { // the second one finds no lock held
		if names, err := a.listClusters(follower.Result{Tree: sources.Tree{FS: rotten{}}}); err == nil || names != nil {
			t.Errorf("%v, %v", names, err)
		}
	}
}

// rotten are files over which whatever reads them panics.
type rotten struct{}

func (rotten) Open(string) (fs.File, error) { panic("index out of range") }
