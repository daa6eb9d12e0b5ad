package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/git"
)

// Several states of the files can have one revision: a work tree that is edited
// (+dirty), directories that are sent to be planned. Each is judged by itself.
func TestRendererJudgesWhatItIsGiven(t *testing.T) {
	f, err := factory.New(factory.Config{URL: "https://factory.example.org", CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r := &renderer{factory: f, policy: func() cluster.Policy { return cluster.Policy{} }}
	for _, c := range []struct {
		talos string
		bad   bool
	}{{"v1.13.9", false}, {"v1.99.0", true}, {"v1.13.9", false}} {
		snap := cluster.Snapshot{Revision: sentDirectory, Spec: cluster.Spec{Name: "dev",
			Versions: cluster.Versions{Talos: c.talos, Kubernetes: "v1.36.1", Contract: "v1.13"}}}
		if _, problems := r.Desired(snap, cluster.Facts{}, time.Now()); problems.HasErrors() != c.bad {
			t.Errorf("Talos %s: %v", c.talos, problems)
		}
	}
}

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
						if _, err := h.tree(t.Context(), began); time.Since(began) >= overdue {
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

// A cluster that the loop of another one sees first, just after the repository
// was read for its clusters, is taken up at once and not an interval later.
func TestClusterThatIsSeenMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{1, 0}, lab.Config{})
		defer s.close()
		s.log = slog.New(onRecord(func(message string) {
			if message != readAgain {
				return
			}
			s.push(map[string][]byte{"inventory/prod/cluster.yaml": []byte("cluster_name: prod\n")}, "a second cluster")
			if _, err := s.agent.hub.tree(t.Context(), time.Now()); err != nil {
				t.Error(err)
			}
		}))
		s.lab.World.Inject(world.Fault{System: "git", Kind: world.Answer, Status: 503, Text: "down", Times: 1})
		s.boot(func(w *wiring) { w.clusters, w.interval = nil, time.Hour })
		time.Sleep(time.Minute) // the first look fails, and is soon made again
		if got := s.agent.Clusters(); !slices.Equal(got, []string{"dev", "prod"}) {
			t.Errorf("clusters %v are looked after", got)
		}
		s.halt()
	})
}

// onRecord is a log that is heard by the words of its records.
type onRecord func(message string)

func (onRecord) Enabled(context.Context, slog.Level) bool { return true }
func (h onRecord) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h onRecord) WithGroup(string) slog.Handler          { return h }
func (h onRecord) Handle(_ context.Context, r slog.Record) error {
	h(r.Message)
	return nil
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

// What the policy refuses for its size is not rendered first.
func TestNothingIsRenderedForARefusal(t *testing.T) {
	f, err := factory.New(factory.Config{URL: "https://factory.example.org", CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := machineconfig.NewBundle("v1.13", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	spec := cluster.Spec{ID: cluster.ClusterID("test", "dev"), Name: "dev", CNI: cluster.CNIFlannel, InstallerRegistry: "factory.example.org",
		Versions: cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1", Contract: "v1.13"},
		Network: cluster.Network{Endpoint: "https://10.10.0.11:6443", CIDR: netip.MustParsePrefix("10.10.0.0/24"), Gateway: netip.MustParseAddr("10.10.0.1"),
			PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12")},
		Nodes: []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane, IP: netip.MustParseAddr("10.10.0.11"), MAC: "BC:24:11:00:00:01"}}}
	snap := cluster.Snapshot{Revision: sentDirectory, Spec: spec, Siblings: []cluster.Usage{{Cluster: "prod", Nodes: 2}}}
	snap.Bundle = cluster.NewSecret(bundle)
	facts := cluster.Facts{Images: map[string]cluster.ImagePin{"x": {For: spec.Schematic.Digest(), Schematic: machineconfig.PlaceholderSchematic}}}
	for limit, want := range map[int]int{0: 1, 2: 0, 3: 1} {
		r := &renderer{factory: f, policy: func() cluster.Policy { return cluster.Policy{Limits: cluster.Limits{Nodes: limit}} }}
		if d, problems := r.Desired(snap, facts, time.Now()); r.configs.Count() != want || len(d.Configs) != want || problems.HasErrors() {
			t.Errorf("limit %d: %d configs rendered, want %d: %v", limit, r.configs.Count(), want, problems)
		}
	}
}

// TestRefusedClusterLeavesNothingBehind: a cluster that cannot be looked after is
// tried again and again.
func TestRefusedClusterLeavesNothingBehind(t *testing.T) {
	work, cache := t.TempDir(), t.TempDir()
	must(os.WriteFile(filepath.Join(cache, "charts"), nil, 0o600)) // where a folder is wanted
	dir := newHost(t, hostFiles(t), map[string]string{"config.yaml": sshConfig + "state_dir: " + work + "\ncache_dir: " + cache + "\n"})
	s, problems := config.LoadFrom(filepath.Join(dir, "config.yaml"), config.Credentials{})
	must(problems.Err())
	w, err := wireSettings(s, state.Dir{Path: work}, slog.New(slog.DiscardHandler))
	must(err)
	a, err := newAgent(w)
	must(err)
	defer a.stop()
	before := goleak.IgnoreCurrent()
	for range 3 {
		a.manage("dev")
	}
	if s, err := a.Status("dev"); err != nil || !strings.Contains(s.Message, "make chart cache") {
		t.Errorf("%+v %v", s, err)
	}
	goleak.VerifyNone(t, before)
}
