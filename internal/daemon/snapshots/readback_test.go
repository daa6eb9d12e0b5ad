package snapshots

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"filippo.io/age"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/snapshot"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/snapshottest"
)

// keepThree has an agent store three snapshots of a cluster, an hour apart, and ends it. It returns
// their files, the newest first.
func keepThree(t *testing.T, dir string, id *age.X25519Identity) (files []string) {
	t.Helper()
	a := archiveWith(t, dir, id)
	k := a.Keep("dev", sending(snapshottest.Sent(t), nil), func() {})
	for range 3 {
		if err := take(k, retention.BeforeUpgrade); err != nil {
			t.Fatal(err)
		}
		name := snapshot.Name{Cluster: "dev", Kind: retention.BeforeUpgrade, At: time.Now()}
		files = append([]string{filepath.Join(dir, name.String())}, files...)
		time.Sleep(time.Hour)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	return files
}

// change changes the bytes of a file.
func change(t *testing.T, file string, to func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, to(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

func flipBit(b []byte) []byte {
	b[len(b)-100] ^= 1
	return b
}

// TestReadBack: after a restart the newest snapshot counts that is whole, as soon as it was read again, and what
// has changed while no agent ran is found; until then it is unknown whether there is one. One of other secrets, or
// of an etcd that is no more, is none.
func TestReadBack(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(t *testing.T, files []string)
		founded  time.Duration // ago
		key      bool          // another one
		verified int           // which counts, from the newest; -1: none
		damaged  int
		warned   string
	}{
		{name: "whole", founded: day},
		{name: "a bit of the newest is another", founded: day, change: func(t *testing.T, files []string) { change(t, files[0], flipBit) }, verified: 1, damaged: 1, warned: "it is damaged"},
		{name: "the newest is truncated", founded: day, change: func(t *testing.T, files []string) {
			change(t, files[0], func(b []byte) []byte { return b[:len(b)-1] })
		}, verified: 1, damaged: 1, warned: "it is damaged"},
		{name: "the newest is an older one", founded: day, change: func(t *testing.T, files []string) {
			if err := os.Rename(files[1], files[0]); err != nil {
				t.Fatal(err)
			}
		}, verified: 2, damaged: 1},
		{name: "an older one is damaged, which nobody needs", founded: day, change: func(t *testing.T, files []string) { change(t, files[1], flipBit) }},
		{name: "all are damaged", founded: day, change: func(t *testing.T, files []string) {
			for _, f := range files {
				change(t, f, flipBit)
			}
		}, verified: -1, damaged: 3, warned: "it is damaged"},
		{name: "another key", founded: day, key: true, verified: -1, warned: "no key that was given opens it"},
		{name: "etcd is newer than two", founded: time.Hour + time.Minute},
		{name: "etcd is newer", founded: time.Minute, verified: -1},
		{name: "no etcd was founded", verified: -1},
		{name: "removed", founded: day, change: func(t *testing.T, files []string) {
			if err := os.RemoveAll(filepath.Dir(files[0])); err != nil {
				t.Fatal(err)
			}
		}, verified: -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, id := filepath.Join(t.TempDir(), "snapshots"), newKey(t)
				files := keepThree(t, dir, id)
				if c.change != nil {
					c.change(t, files)
				}
				if c.key {
					id = newKey(t)
				}
				var log bytes.Buffer
				a, reads := archiveWith(t, dir, id), 0
				a.c.Log = slog.New(slog.NewTextHandler(&log, nil))
				k := a.Keep("dev", sending(snapshottest.Sent(t), nil), func() { reads++ })
				o := cluster.Observed{}
				d, facts := desired(c.founded)
				if o.Facts = facts; c.founded == 0 {
					o.Facts = cluster.Facts{}
				}
				k.Observe(t.Context(), d, &o)
				want, due := time.Time{}, o.Snapshots.Due
				if c.verified >= 0 {
					name, _ := snapshot.ParseName(filepath.Base(files[c.verified]))
					want = name.At
				}
				synctest.Wait()
				k.Observe(t.Context(), d, &o)
				if s := o.Snapshots; !s.Verified.Known || !s.Verified.Value.Equal(want) || s.Damaged != c.damaged || reads > 1 || s.Due.Before(due) {
					t.Errorf("%+v after %d reads, and %v is wanted", s, reads, want)
				}
				if got := log.String(); !strings.Contains(got, c.warned) || c.warned == "" && got != "" {
					t.Errorf("the log is %s", got)
				}
				time.Sleep(2 * seenFor)
				k.Observe(t.Context(), d, &o)
				if synctest.Wait(); reads > 1 {
					t.Errorf("read again: %d", reads)
				}
				if err := a.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

const day = 24 * time.Hour

// TestOtherSecrets: a snapshot of a cluster with other secrets, or that names none, does not count.
func TestOtherSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, id := t.TempDir(), newKey(t)
		before := archiveWith(t, dir, id)
		for _, fingerprint := range []string{"sha256:other", ""} {
			if err := before.Keep("dev", sending(snapshottest.Sent(t), nil), func() {}).Take(t.Context(), cluster.Desired{Fingerprint: fingerprint}, retention.Manual, nothing); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		a := archiveWith(t, dir, id)
		k := a.Keep("dev", Source{}, func() { t.Error("it was read") })
		if s := observe(k); !s.Verified.Known || !s.Verified.Value.IsZero() || s.Kept != 2 {
			t.Errorf("%+v", s)
		}
		for _, a := range []*Archive{before, a} {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestChangedIsNotVerified: a file that was read to its end and was written since is not what was read, whatever its size is: it is
// read again, and where it is damaged, or removed, none counts as verified until another one is taken.
func TestChangedIsNotVerified(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(file string) error
		damaged int
	}{
		"cut":     {func(file string) error { return os.Truncate(file, 2000) }, 1},
		"removed": {os.Remove, 0},
		"the same size": {func(file string) error {
			b, err := os.ReadFile(file)
			return errors.Join(err, os.WriteFile(file, flipBit(b), 0o600))
		}, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			dir, id := t.TempDir(), newKey(t)
			files := keepThree(t, dir, id)
			newest, _ := snapshot.ParseName(filepath.Base(files[0]))
			a := archiveWith(t, dir, id)
			k := a.Keep("dev", sending(snapshottest.Sent(t), nil), func() {})
			settle := func() cluster.EtcdSnapshots {
				observe(k)
				synctest.Wait()
				return observe(k)
			}
			if s := settle(); !s.Verified.Value.Equal(newest.At) || s.Damaged != 0 {
				t.Errorf("%s: %+v", name, s)
			}
			if err := c.change(files[0]); err != nil {
				t.Fatal(err)
			}
			time.Sleep(seenFor)
			if s := settle(); !s.Verified.Known || s.Verified.Value.Equal(newest.At) || s.Damaged != c.damaged {
				t.Errorf("%s, after that: %+v", name, s)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// slowFolder is a folder on a storage that returns the content of no file before it may, which is for each file, and lists
// none before it may; nil: at once.
type slowFolder struct {
	*snapshot.Folder
	may  func(file string) <-chan struct{}
	list <-chan struct{}
}

func (f slowFolder) Open(name string) (snapshot.File, error) {
	file, err := f.Folder.Open(name)
	return &slowFile{File: file, may: f.may(name)}, err
}

func (f slowFolder) List() ([]string, error) {
	if f.list != nil {
		<-f.list
	}
	return f.Folder.List()
}

// slowFile returns what a list reads of it at once.
type slowFile struct {
	snapshot.File
	may   <-chan struct{}
	reads int
}

func (f *slowFile) ReadAt(b []byte, at int64) (int, error) {
	if f.reads++; f.reads > 1 {
		<-f.may
	}
	return f.File.ReadAt(b, at)
}

// inSlowRestart plays a story over an agent that was restarted while its storage is slow.
func inSlowRestart(t *testing.T, story func(a *Archive, k *Keeper, may chan struct{}, newest time.Time)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dir, id, may := t.TempDir(), newKey(t), make(chan struct{})
		files := keepThree(t, dir, id)
		name, _ := snapshot.ParseName(filepath.Base(files[0]))
		a := archiveWith(t, dir, id)
		a.c.Open = func() (Folder, error) {
			f, err := snapshot.OpenFolder(dir)
			return slowFolder{Folder: f, may: func(string) <-chan struct{} { return may }}, err
		}
		story(a, a.Keep("dev", sending(snapshottest.Sent(t), nil), func() {}), may, name.At)
	})
}

// TestReadingHoldsNobodyUp: a look does not wait for the reading, which is unknown meanwhile, and due times are known.
func TestReadingHoldsNobodyUp(t *testing.T) {
	inSlowRestart(t, func(a *Archive, k *Keeper, may chan struct{}, newest time.Time) {
		for range 2 {
			if s := observe(k); s.Verified.Known || s.Verified.Why != "" || !s.Enabled || !s.Newest.Equal(newest) || s.Due.IsZero() || s.Kept != 3 {
				t.Errorf("while it is read: %+v", s)
			}
			synctest.Wait()
		}
		close(may)
		synctest.Wait()
		if s := observe(k); !s.Verified.Known || !s.Verified.Value.Equal(newest) {
			t.Errorf("%+v", s)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestReadingIsBounded: a storage that hangs is not waited for: none counts as verified then, so that one is taken.
func TestReadingIsBounded(t *testing.T) {
	inSlowRestart(t, func(a *Archive, k *Keeper, may chan struct{}, newest time.Time) {
		observe(k)
		time.Sleep(readWithin - time.Second)
		if s := observe(k); s.Verified.Known {
			t.Errorf("before: %+v", s)
		}
		time.Sleep(seenFor)
		if s := observe(k); !s.Verified.Known || !s.Verified.Value.IsZero() {
			t.Errorf("after: %+v", s)
		}
		close(may)
		synctest.Wait()
		if s := observe(k); !s.Verified.Known || !s.Verified.Value.IsZero() {
			t.Errorf("when it goes on: %+v", s)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// after is a channel that is closed in some time.
func after(d time.Duration) <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(d, func() { close(c) })
	return c
}

// TestReadingsAreCountedByThemselves: what waits for the reading of another cluster has its own time after that.
func TestReadingsAreCountedByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, id := t.TempDir(), newKey(t)
		before := archiveWith(t, dir, id)
		for _, name := range []string{"dev", "prod"} {
			if err := take(before.Keep(name, sending(snapshottest.Sent(t), nil), func() {}), retention.Scheduled); err != nil {
				t.Fatal(err)
			}
		}
		a, slow := archiveWith(t, dir, id), map[string]<-chan struct{}{}
		a.c.Open = func() (Folder, error) {
			f, err := snapshot.OpenFolder(dir)
			return slowFolder{Folder: f, may: func(file string) <-chan struct{} {
				if name, _ := snapshot.ParseName(file); name.Cluster == "dev" {
					return slow["dev"]
				}
				return slow["prod"]
			}}, err
		}
		slow["dev"], slow["prod"] = after(readWithin-time.Minute), after(2*readWithin-2*time.Minute)
		dev, prod := a.Keep("dev", Source{}, func() {}), a.Keep("prod", Source{}, func() {})
		observe(dev)
		synctest.Wait() // it reads first
		observe(prod)
		time.Sleep(2*readWithin - 3*time.Minute)
		if s := observe(prod); s.Verified.Known {
			t.Errorf("while it is read: %+v", s)
		}
		time.Sleep(2 * time.Minute)
		for _, k := range []*Keeper{dev, prod} {
			if s := observe(k); s.Verified.Value.IsZero() {
				t.Errorf("%s: %+v", k.cluster, s)
			}
		}
		for _, a := range []*Archive{before, a} {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestTwoReadings: the end of one reading is not that of another one of the same cluster, and a new snapshot ends both.
func TestTwoReadings(t *testing.T) {
	for _, taken := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			dir, id, older, newer := t.TempDir(), newKey(t), make(chan struct{}), make(chan struct{})
			files := keepThree(t, dir, id)
			a := archiveWith(t, dir, id)
			a.c.Open = func() (Folder, error) {
				f, err := snapshot.OpenFolder(dir)
				return slowFolder{Folder: f, may: func(file string) <-chan struct{} {
					if file > filepath.Base(files[0]) {
						return newer
					}
					return older
				}}, err
			}
			k := a.Keep("dev", Source{}, func() {})
			observe(k)
			synctest.Wait()
			added := keepThree(t, t.TempDir(), id)[0] // by somebody
			b, err := os.ReadFile(added)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(added)), b, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				change(t, file, flipBit)
			}
			time.Sleep(2 * seenFor)
			observe(k)
			synctest.Wait()
			if taken {
				k.stopReadingBack()
				synctest.Wait()
				if s := observe(k); !s.Verified.Known || !s.Verified.Value.IsZero() {
					t.Errorf("with both ended: %+v", s)
				}
			}
			close(older)
			synctest.Wait()
			if s := observe(k); !taken && s.Verified.Known {
				t.Errorf("with the older ones read: %+v", s)
			}
			close(newer)
			synctest.Wait()
			if s := observe(k); !taken && !s.Verified.Value.Equal(s.Newest) {
				t.Errorf("with all read: %+v", s)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTakenWhileItReads: a new one is taken and counts, whatever is read of those before it.
func TestTakenWhileItReads(t *testing.T) {
	inSlowRestart(t, func(a *Archive, k *Keeper, may chan struct{}, newest time.Time) {
		observe(k)
		synctest.Wait()
		taken := make(chan error)
		go func() { taken <- take(k, retention.Scheduled) }()
		close(may) // writing reads back as well
		if err := <-taken; err != nil {
			t.Fatal(err)
		}
		if s := observe(k); !s.Verified.Known || !s.Verified.Value.After(newest) {
			t.Errorf("%+v", s)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestClosedWhileItReads: an agent that is stopped does not wait for all to be read.
func TestClosedWhileItReads(t *testing.T) {
	inSlowRestart(t, func(a *Archive, k *Keeper, may chan struct{}, _ time.Time) {
		observe(k)
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- a.Close() }()
		synctest.Wait()
		close(may)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		for file, state := range k.states {
			if state.state != retention.Unverified {
				t.Errorf("%s was read: %s", file, state.state)
			}
		}
	})
}

// brokenFolder is a folder of which no file can be read after a list.
type brokenFolder struct{ *snapshot.Folder }

func (f brokenFolder) Open(name string) (snapshot.File, error) {
	file, err := f.Folder.Open(name)
	return &brokenFile{File: file}, err
}

type brokenFile struct {
	snapshot.File
	reads int
}

func (f *brokenFile) ReadAt(b []byte, at int64) (int, error) {
	if f.reads++; f.reads > 1 {
		panic("no such byte")
	}
	return f.File.ReadAt(b, at)
}

// TestReadingThatPanics: whatever a file has, the agent runs on, and does not count it.
func TestReadingThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, id := t.TempDir(), newKey(t)
		keepThree(t, dir, id)
		var log bytes.Buffer
		a := archiveWith(t, dir, id)
		a.c.Log = slog.New(slog.NewTextHandler(&log, nil))
		a.c.Open = func() (Folder, error) {
			f, err := snapshot.OpenFolder(dir)
			return brokenFolder{f}, err
		}
		k := a.Keep("dev", Source{}, func() {})
		observe(k)
		synctest.Wait()
		if s := observe(k); !s.Verified.Known || !s.Verified.Value.IsZero() || !strings.Contains(log.String(), "no such byte") {
			t.Errorf("%+v, and the log is %s", s, &log)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestClockSetBack: a snapshot of the future does not hide one that is as young as it says.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, id := t.TempDir(), newKey(t)
		keepThree(t, dir, id)
		a := archiveWith(t, dir, id)
		k := a.Keep("dev", sending(snapshottest.Sent(t), nil), func() {})
		if err := take(k, retention.Scheduled); err != nil {
			t.Fatal(err)
		}
		d, facts := desired(day)
		s, err := a.open()
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.List(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		at := all[0].At
		for _, e := range all {
			k.states[e.File] = known{retention.Verified, e.Size, e.Changed}
		}
		if seen := k.look(t.Context(), lineageOf(d, facts), at.Add(-30*time.Minute), at); !seen.Verified.Value.Equal(all[1].At) {
			t.Errorf("%+v, and %v is wanted", seen, all[1].At)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestHangingStorage: a storage that does not answer holds up neither a look, nor what else is seen in a pass, nor the stop of
// the agent, which the log has a line of.
func TestHangingStorage(t *testing.T) {
	for _, c := range []struct {
		name           string
		reads, listing bool
		taking         bool
	}{
		{name: "within a read", reads: true},
		{name: "within a list", listing: true},
		{name: "while one is taken", taking: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, id, hang, answers := t.TempDir(), newKey(t), make(chan struct{}), make(chan struct{})
				close(answers)
				keepThree(t, dir, id)
				var log bytes.Buffer
				a := archiveWith(t, dir, id)
				a.c.Log = slog.New(slog.NewTextHandler(&log, nil))
				a.c.Open = func() (Folder, error) {
					f, err := snapshot.OpenFolder(dir)
					slow := slowFolder{Folder: f, may: func(string) <-chan struct{} { return answers }}
					if c.reads || c.taking {
						slow.may = func(string) <-chan struct{} { return hang }
					}
					if c.listing {
						slow.list = hang
					}
					return slow, err
				}
				k := a.Keep("dev", sending(snapshottest.Sent(t), nil), func() {})
				d, facts := desired(day)
				ctx, cancel := context.WithCancel(t.Context())
				looked, taken := make(chan cluster.EtcdSnapshots, 1), make(chan error, 1)
				if c.taking {
					go func() { taken <- k.Take(ctx, d, retention.Scheduled, nothing) }()
				} else {
					go func() {
						o := cluster.Observed{Facts: facts}
						k.Observe(ctx, d, &o)
						looked <- o.Snapshots
					}()
				}
				synctest.Wait()
				cancel()
				if c.taking {
					if err := <-taken; !errors.Is(err, errHangs) {
						t.Errorf("taken: %v", err)
					}
				} else if s := <-looked; s.Verified.Known || c.listing == (s.Verified.Why == "") {
					t.Errorf("%+v", s)
				}
				if c.listing {
					time.Sleep(2 * seenFor)
					o := cluster.Observed{Facts: facts}
					if k.Observe(context.Background(), d, &o); o.Snapshots.Verified.Why != errHangs.Error() {
						t.Errorf("the next look: %+v", o.Snapshots)
					}
				}
				if err := a.Close(); err != nil {
					t.Error(err)
				}
				if !strings.Contains(log.String(), "does not answer") {
					t.Errorf("the log is %s", &log)
				}
				close(hang)
				synctest.Wait()
			})
		})
	}
}

// TestStorageThatAnswersAgain: what is there is seen as soon as a list has ended that hung.
func TestStorageThatAnswersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, id, answers := t.TempDir(), newKey(t), make(chan struct{})
		keepThree(t, dir, id)
		a, list := archiveWith(t, dir, id), make(chan struct{})
		close(answers)
		a.c.Open = func() (Folder, error) {
			f, err := snapshot.OpenFolder(dir)
			return slowFolder{Folder: f, may: func(string) <-chan struct{} { return answers }, list: list}, err
		}
		k := a.Keep("dev", Source{}, func() {})
		d, facts := desired(day)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		o := cluster.Observed{Facts: facts}
		if k.Observe(ctx, d, &o); o.Snapshots.Verified.Why == "" {
			t.Errorf("%+v", o.Snapshots)
		}
		close(list)
		time.Sleep(2 * seenFor)
		k.Observe(t.Context(), d, &o)
		synctest.Wait()
		if k.Observe(t.Context(), d, &o); o.Snapshots.Verified.Value.IsZero() || o.Snapshots.Kept != 3 {
			t.Errorf("%+v", o.Snapshots)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}
