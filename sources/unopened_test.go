package sources

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// TestSecretsThatCannotBeOpenedNow: a cluster whose secrets take a server that is away is not
// wrong and not known; the others are read, the server is asked once in a while, and what both
// clusters have is found as soon as both are known.
func TestSecretsThatCannotBeOpenedNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := files("dev", "prod")
		set(fsys, "dev", inventory.SecretsFile, secretFile+"# "+strings.Repeat("x", 200<<10)+"\n")
		set(fsys, "prod", inventory.SecretsFile, strings.ReplaceAll(secretFile, "g}", "h}"))
		away, asked := true, 0
		r := repository(t, Config{Decrypt: func(ctx context.Context, name string, file []byte) ([]byte, error) {
			if strings.Contains(name, "/dev/") {
				if asked++; away {
					return nil, fmt.Errorf("%s: %w", name, secrets.ErrUnavailable)
				}
			}
			return decrypt(ctx, name, file)
		}})
		tree := Tree{Revision: revision, Content: "a", FS: fsys}
		for range 3 {
			if snap, problems, err := r.Snapshot(t.Context(), tree, "dev"); !errors.Is(err, secrets.ErrUnavailable) || problems != nil || snap.Spec.Name != "" {
				t.Fatalf("%v, %v", problems, err)
			}
			snap, problems := snapshot(t, r, tree, "prod")
			if snap.Bundle.IsZero() || problems.HasErrors() || !strings.Contains(fmt.Sprint(problems), "the secrets of the cluster dev cannot be opened now: what it uses of the host does not count") {
				t.Fatalf("prod: %v", problems)
			}
		}
		if asked != 1 {
			t.Errorf("asked %d times at once", asked)
		}
		// However long that takes, it uses nothing up.
		for range 25 {
			time.Sleep(reopenAfter)
			if _, _, err := r.Snapshot(t.Context(), tree, "dev"); !errors.Is(err, secrets.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		away = false
		if _, _, err := r.Snapshot(t.Context(), tree, "dev"); err == nil {
			t.Error("it was asked again at once")
		}
		time.Sleep(reopenAfter)
		if snap, problems := snapshot(t, r, tree, "dev"); snap.Bundle.IsZero() || problems.HasErrors() {
			t.Errorf("dev: %v", problems)
		}
		if _, problems := snapshot(t, r, tree, "prod"); strings.Contains(fmt.Sprint(problems), "cannot be opened") {
			t.Errorf("prod: %v", problems)
		}
		// Away again when the next tree comes: what dev used of the host before still counts.
		away = true
		set(fsys, "prod", "nodes.yaml", "controlplane:\n  - {name: prod-cp, ip: 10.2.0.12, cpu: 4, ram: 4096, disk: 40G}\n")
		next := Tree{Revision: revision, Content: "b", FS: fsys}
		if snap, problems := snapshot(t, r, next, "prod"); len(snap.Siblings) != 1 || problems.HasErrors() {
			t.Errorf("prod: %v, %v", snap.Siblings, problems)
		}
	})
}
