package sources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// transit opens secrets, while it is not away, of all clusters but prod; those of prod are opened without it.
type transit struct {
	away  bool
	takes time.Duration
	asked []string // the files, since it was last looked
}

func (a *transit) decrypt(ctx context.Context, name string, file []byte) ([]byte, error) {
	if strings.Contains(name, "/prod/") {
		return decrypt(ctx, name, file)
	}
	a.asked = append(a.asked, name)
	select {
	case <-time.After(a.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if a.away {
		return nil, fmt.Errorf("%s: %w", name, secrets.ErrUnavailable)
	}
	return decrypt(ctx, name, file)
}

func (a *transit) times() int {
	n := len(a.asked)
	a.asked = nil
	return n
}

// sealed are clusters that share nothing, each with secrets.
func sealed(names ...string) fstest.MapFS {
	fsys := files(names...)
	for _, name := range names {
		set(fsys, name, inventory.SecretsFile, strings.ReplaceAll(secretFile, "g}", name+"}"))
	}
	return fsys
}

// oneTree is a store of which each commit has one tree.
type oneTree struct {
	Store
	fs.FS
}

func (s oneTree) Tree(context.Context, git.Commit) (fs.FS, error) { return s.FS, nil }

func unopened(t *testing.T, r *Repository, tree Tree, name string) {
	t.Helper()
	if snap, problems, err := r.Snapshot(t.Context(), tree, name); !errors.Is(err, secrets.ErrUnavailable) || problems != nil || snap.Spec.Name != "" {
		t.Fatalf("%s: %v, %v", name, problems, err)
	}
}

// TestSecretsThatCannotBeOpenedNow: a cluster whose secrets take a server that is away is neither wrong nor known; the others are
// read, with what it uses of the host, and the server is asked once in a while.
func TestSecretsThatCannotBeOpenedNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := sealed("dev", "prod", "test")
		// It uses up no budget, however long it takes.
		set(fsys, "dev", inventory.SecretsFile, secretFile+"# "+strings.Repeat("x", 200<<10)+"\n")
		a := &transit{away: true}
		r := repository(t, Config{Decrypt: a.decrypt})
		tree := Tree{Revision: revision, Content: "a", FS: fsys}
		for range 3 {
			unopened(t, r, tree, "dev")
			unopened(t, r, tree, "test")
			if snap, problems := snapshot(t, r, tree, "prod"); snap.Bundle.IsZero() || problems.HasErrors() || len(snap.Siblings) != 2 {
				t.Fatalf("prod: %v, beside %d", problems, len(snap.Siblings))
			}
		}
		if n := a.times(); n != 2 {
			t.Errorf("two files were asked for %d times at once", n)
		}
		for range 25 {
			time.Sleep(reopenAfter)
			unopened(t, r, tree, "dev")
		}
		a.away = false
		unopened(t, r, tree, "dev") // it was asked a moment ago
		time.Sleep(reopenAfter)
		for _, name := range []string{"dev", "prod", "test"} {
			if snap, problems := snapshot(t, r, tree, name); snap.Bundle.IsZero() || problems.HasErrors() {
				t.Errorf("%s: %v", name, problems)
			}
		}
		a.times()
		time.Sleep(time.Hour)
		if snapshot(t, r, tree, "dev"); a.times() != 0 {
			t.Error("what is open is opened again")
		}
		a.away = true
		r.c.Store = oneTree{FS: fsys}
		if _, _, err := r.Before(t.Context(), revision, "dev"); !errors.Is(err, secrets.ErrUnavailable) {
			t.Errorf("one revision by itself: %v", err)
		}
	})
}

// TestSlowServerOfSecrets: a server that answers late, and with nothing, keeps everybody waiting for a small part of the time,
// whether one cluster needs it or several.
func TestSlowServerOfSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &transit{away: true, takes: 5 * time.Second}
		r := repository(t, Config{Decrypt: a.decrypt})
		tree := Tree{Revision: revision, Content: "a", FS: sealed("dev", "prod", "test")}
		began, waited := time.Now(), time.Duration(0)
		for time.Since(began) < time.Hour {
			asked := time.Now()
			unopened(t, r, tree, "dev")
			waited += time.Since(asked)
			time.Sleep(time.Second)
		}
		if waited > time.Hour/4 {
			t.Errorf("it is waited for for %v of an hour", waited)
		}
	})
}

// TestClashWithSecretsThatCannotBeOpened: what several clusters have is a problem of theirs, whether their secrets can be opened or not.
func TestClashWithSecretsThatCannotBeOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := sealed("dev", "prod")
		set(fsys, "prod", "nodes.yaml", "controlplane:\n  - {name: prod-cp, vmid: 2400, ip: 10.2.0.11, cpu: 4, ram: 4096, disk: 40G}\n")
		set(fsys, "dev", "nodes.yaml", "controlplane:\n  - {name: dev-cp, vmid: 2400, ip: 10.1.0.11, cpu: 4, ram: 4096, disk: 40G}\n")
		a := &transit{away: true}
		r := repository(t, Config{Decrypt: a.decrypt})
		tree := Tree{Revision: revision, Content: "a", FS: fsys}
		if _, problems := snapshot(t, r, tree, "prod"); !problems.HasErrors() || !strings.Contains(fmt.Sprint(problems), "2400") {
			t.Errorf("prod: %v", problems)
		}
		unopened(t, r, tree, "dev")
		a.away = false
		time.Sleep(reopenAfter)
		for _, name := range []string{"dev", "prod"} {
			if _, problems := snapshot(t, r, tree, name); !problems.HasErrors() {
				t.Errorf("%s: %v", name, problems)
			}
		}
	})
}

// TestOpeningIsInterrupted: who does not wait for an answer any longer leaves nothing half read behind.
func TestOpeningIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &transit{away: true}
		r := repository(t, Config{Decrypt: a.decrypt})
		tree := Tree{Revision: revision, Content: "a", FS: sealed("dev", "prod", "test")}
		interrupted := func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, _, err := r.Snapshot(ctx, tree, "prod"); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("interrupted: %v", err)
			}
		}
		for range 30 { // at first, when it is tried again, and while all is read again
			a.takes = time.Minute
			interrupted()
			a.takes = 0
			unopened(t, r, tree, "dev")
			time.Sleep(time.Hour)
			a.takes = time.Minute
			interrupted()
			a.takes = 0
			snapshot(t, r, tree, "prod")
			time.Sleep(time.Hour)
			r.state = state{used: map[string]cluster.Usage{}}
		}
		unopened(t, r, tree, "dev")
		a.away = false
		time.Sleep(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a.takes = 700 * time.Millisecond
		if _, _, err := r.Snapshot(ctx, tree, "prod"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("interrupted: %v", err)
		}
		for _, name := range []string{"dev", "prod", "test"} {
			if snap, problems := snapshot(t, r, tree, name); snap.Bundle.IsZero() || problems.HasErrors() {
				t.Errorf("%s: %v", name, problems)
			}
		}
	})
}
