package archive

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/reconcile/snapshot"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/snapshottest"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newKey writes a file with an age key, and returns its public half.
func newKey(t *testing.T, dir string) (file, public string) {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, id.Recipient().String()[:20])
	if err := os.WriteFile(file, []byte(id.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, id.Recipient().String()
}

var now = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// store stores scheduled snapshots as the daemon does, so many hours before now.
func store(t *testing.T, dir, cluster, public string, hours ...int) {
	t.Helper()
	storeKind(t, dir, cluster, public, retention.Scheduled, hours...)
}

// storeKind stores snapshots of another kind.
func storeKind(t *testing.T, dir, cluster, public string, kind retention.Kind, hours ...int) {
	t.Helper()
	to, err := secrets.ParseRecipient(public)
	if err != nil {
		t.Fatal(err)
	}
	folder, err := snapshot.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := folder.Close(); err != nil {
			t.Error(err)
		}
	}()
	s := snapshot.New(snapshot.Config{Directory: folder, Recipients: []snapshot.Recipient{to}})
	for _, h := range hours {
		name := snapshot.Name{Cluster: cluster, Kind: kind, At: now.Add(-time.Duration(h) * time.Hour)}
		if _, err := s.Write(t.Context(), snapshot.Source{Name: name, ClusterID: "id"}, bytes.NewReader(snapshottest.Sent(t))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPrune: of the named cluster, or of all, and only with a key.
func TestPrune(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	key, public := newKey(t, t.TempDir())
	store(t, dir, "dev", public, 1, 2, 3)
	store(t, dir, "prod", public, 0, 5)
	for _, c := range []struct {
		cluster       string
		kept, removed string
	}{
		{"none", "", ""},
		{"dev", "dev-20261127T110000Z", "dev-20261127T100000Z dev-20261127T090000Z"},
		{"", "dev-20261127T110000Z prod-20261127T120000Z prod-20261127T070000Z", ""},
	} {
		all, err := Prune(t.Context(), placeOf(t, dir, key), c.cluster)
		if err != nil {
			t.Fatal(err)
		}
		var kept, removed []string
		for _, k := range all {
			name := strings.TrimSuffix(k.File, "-scheduled.etcd")
			if k.Prune {
				removed = append(removed, name)
			} else {
				kept = append(kept, name)
			}
		}
		if strings.Join(kept, " ") != c.kept || strings.Join(removed, " ") != c.removed {
			t.Errorf("%q: kept %v, removed %v", c.cluster, kept, removed)
		}
	}
	if _, err := Prune(t.Context(), placeOf(t, dir), ""); err == nil || !strings.Contains(err.Error(), "dev: without a key") {
		t.Error(err)
	}
}

// TestPruneWithAnotherKey: a key that opens nothing is named, also where nothing had to be read, as of
// a manual one alone, and nothing is removed.
func TestPruneWithAnotherKey(t *testing.T) {
	key, public := newKey(t, t.TempDir())
	other, _ := newKey(t, t.TempDir())
	for _, kind := range []retention.Kind{retention.Scheduled, retention.Manual} {
		dir := filepath.Join(t.TempDir(), "snapshots")
		storeKind(t, dir, "dev", public, kind, 1, 2)
		kept, err := Prune(t.Context(), placeOf(t, dir, other), "dev")
		if err != nil {
			t.Fatal(err)
		}
		if len(kept) != 2 || kept[0].Prune || kept[1].Prune || kept[0].Problem == "" || !IsUnverified(kept) {
			t.Errorf("%s: %+v", kind, kept)
		}
		if kept, err = Prune(t.Context(), placeOf(t, dir, key), "dev"); err != nil || len(kept) != 2 || kept[0].Problem != "" || IsUnverified(kept) {
			t.Errorf("%s: %+v, %v", kind, kept, err)
		}
	}
	if IsUnverified(nil) {
		t.Error("of none it is known that none is whole")
	}
}

// TestList: with a key it is known what is whole and what may be removed; when the next
// one is due follows from the newest that is not damaged.
func TestList(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	key, public := newKey(t, t.TempDir())
	store(t, dir, "dev", public, 1, 2, 30)
	store(t, dir, "prod", public, 400)
	l, err := List(t.Context(), placeOf(t, dir, key), "", now)
	if err != nil {
		t.Fatal(err)
	}
	dev, prod := l.Clusters[0], l.Clusters[1]
	if dev.Snapshots != 3 || dev.Verified == nil || !dev.Verified.Equal(now.Add(-time.Hour)) || !dev.Due.After(now) || dev.Due.Sub(now) > Every || len(l.Snapshots) != 4 || !l.Snapshots[1].Prune {
		t.Errorf("%+v, %+v", dev, l.Snapshots)
	}
	if prod.Due.After(now) {
		t.Errorf("%+v is not overdue", prod)
	}
	if one, err := List(t.Context(), placeOf(t, dir), "prod", now); err != nil || len(one.Clusters) != 1 || len(one.Snapshots) != 1 || one.Snapshots[0].Cluster != "prod" {
		t.Errorf("of one cluster: %+v, %v", one, err)
	}
	unread, err := List(t.Context(), placeOf(t, dir), "", now)
	if err != nil || unread.Clusters[0].Verified != nil || unread.Snapshots[1].Prune {
		t.Errorf("without a key: %+v, %v", unread, err)
	}
	newest := filepath.Join(dir, l.Snapshots[0].File)
	if err := os.WriteFile(newest, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err = List(t.Context(), placeOf(t, dir, key), "", now)
	if dev := l.Clusters[0]; err != nil || dev.Damaged != 1 || !dev.Verified.Equal(now.Add(-2*time.Hour)) || dev.Due.After(now.Add(Every-2*time.Hour)) {
		t.Errorf("%+v, %v", dev, err)
	}
	empty, err := List(t.Context(), placeOf(t, t.TempDir()), "", now)
	if err != nil || empty.Clusters == nil || empty.Snapshots == nil {
		t.Errorf("%+v, %v", empty, err)
	}
}

// TestAddTwice: who adds a file once more gets the name of what is there already.
func TestAddTwice(t *testing.T) {
	dir := t.TempDir()
	folder, sent := filepath.Join(dir, "snapshots"), filepath.Join(dir, "db.snapshot")
	if err := os.WriteFile(sent, snapshottest.Sent(t), 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	a := Addition{File: sent, Cluster: "dev", Recipients: []string{id.Recipient().String()}}
	e, err := Add(t.Context(), folder, a, "v1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Add(t.Context(), folder, a, "v1"); err == nil || !strings.Contains(err.Error(), e.File+" is in "+folder+" already") || fault.HintOf(err) == "" {
		t.Errorf("once more: %v", err)
	}
}

// TestOddFiles: a pipe is not waited for, and errors name the file once.
func TestOddFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, none := filepath.Join(dir, "pipe"), filepath.Join(dir, "none")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, none, dir} {
		for what, do := range map[string]func() error{
			"verify": func() error { _, err := Verify(t.Context(), path, nil); return err },
			"open":   func() error { _, err := Open(t.Context(), path, filepath.Join(dir, "out"), nil); return err },
			"add": func() error {
				_, err := Add(t.Context(), filepath.Join(dir, "snapshots"), Addition{File: path, Cluster: "dev"}, "v1")
				return err
			},
		} {
			if err := do(); err == nil || strings.Count(err.Error(), path) != 1 {
				t.Errorf("%s %s: %v", what, path, err)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "snapshots")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder was made for nothing: %v", err)
	}
	for _, keys := range [][]string{{none}, {pipe}} {
		if _, err := FindPlace(dir, keys); err == nil || !strings.Contains(err.Error(), "age key "+keys[0]) {
			t.Error(err)
		}
	}
}

// placeOf is a folder with the files of keys that open it.
func placeOf(t *testing.T, dir string, keys ...string) Place {
	t.Helper()
	in, err := FindPlace(dir, keys)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// TestGet: the newest snapshot of a cluster that can be verified is what is written, whole and as a member sent it.
func TestGet(t *testing.T) {
	dir, out := filepath.Join(t.TempDir(), "snapshots"), filepath.Join(t.TempDir(), "db")
	key, public := newKey(t, t.TempDir())
	store(t, dir, "dev", public, 1, 2, 30)
	store(t, dir, "prod", public, 4)
	r, skipped, err := Get(t.Context(), placeOf(t, dir, key), "dev", out, now)
	if err != nil || skipped != 0 || r.Header.Cluster != "dev" || !r.Header.At.Equal(now.Add(-time.Hour)) {
		t.Fatalf("%+v, %d, %v", r, skipped, err)
	}
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, snapshottest.Sent(t)) {
		t.Errorf("%d bytes were written, which are not those that were sent: %v", len(got), err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(r.File)), []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Get(t.Context(), placeOf(t, dir, key), "dev", out, now); err == nil || !strings.Contains(err.Error(), "file already exists") {
		t.Errorf("over a file that is there: %v", err)
	}
	r, skipped, err = Get(t.Context(), placeOf(t, dir, key), "dev", out+"2", now)
	if err != nil || skipped != 1 || !r.Header.At.Equal(now.Add(-2*time.Hour)) {
		t.Errorf("past a damaged one: %+v, %d, %v", r, skipped, err)
	}
	other, _ := newKey(t, t.TempDir())
	for want, in := range map[string]Place{"no snapshot of dev in " + dir + " can be verified": placeOf(t, dir, other), "there is no key": placeOf(t, dir)} {
		if _, _, err := Get(t.Context(), in, "dev", out+"3", now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, and %q is wanted", err, want)
		}
	}
	if _, _, err := Get(t.Context(), placeOf(t, dir, key), "test", out+"3", now); err == nil || !strings.Contains(err.Error(), "there is no snapshot of test") {
		t.Errorf("of another cluster: %v", err)
	}
	if _, err := os.Stat(out + "3"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
}

// flip changes a bit of a file.
func flip(t *testing.T, file string, at int) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[(len(b)+at)%len(b)] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestVerifyAll: each snapshot of a cluster has a row, whatever it is, and others none; all are whole only when
// each is. What is not verified for want of a key, or because there is none, is an error.
func TestVerifyAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	key, public := newKey(t, t.TempDir())
	other, unknown := newKey(t, t.TempDir())
	store(t, dir, "dev", public, 1, 2, 30)
	store(t, dir, "prod", public, 4)
	store(t, dir, "mixed", public, 3)
	store(t, dir, "mixed", unknown, 5)
	in := placeOf(t, dir, key)
	l, err := VerifyAll(t.Context(), in, "dev", now)
	if err != nil || !l.AllVerified() || len(l.Snapshots) != 3 || len(l.Clusters) != 1 {
		t.Fatalf("%+v, %v", l, err)
	}
	flip(t, filepath.Join(dir, l.Snapshots[1].File), -10) // of the content
	flip(t, filepath.Join(dir, l.Snapshots[2].File), 60)  // of the header
	l, err = VerifyAll(t.Context(), in, "dev", now)
	if err != nil || l.AllVerified() || len(l.Snapshots) != 3 || l.Snapshots[0].State != retention.Verified || l.Snapshots[1].State != retention.Damaged || l.Snapshots[2].State != retention.Damaged || l.Clusters[0].Damaged != 2 {
		t.Errorf("damaged: %+v, %v", l, err)
	}
	l, err = VerifyAll(t.Context(), in, "mixed", now)
	if err != nil || l.AllVerified() || l.Snapshots[1].State != retention.Unverified || !strings.Contains(l.Snapshots[1].Problem, "no key that was given opens it") {
		t.Errorf("of another key: %+v, %v", l, err)
	}
	for want, in := range map[string]Place{"there is no key that opens the snapshots in": placeOf(t, dir), "there is no snapshot of test in ": placeOf(t, dir, other)} {
		if _, err := VerifyAll(t.Context(), in, "test", now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, and %q is wanted", err, want)
		}
	}
	if _, err := VerifyAll(t.Context(), in, "", now); err == nil {
		t.Error("of no cluster")
	}
}

// TestNamesCluster: a word is a file where there is one, or where no cluster is called so.
func TestNamesCluster(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := errors.Join(os.Mkdir("inventory", 0o700), os.WriteFile("snapshot", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]bool{"dev": true, "inventory": true, "snapshot": false, "./dev": false, "db.snapshot": false, "a/b": false, `a\b`: false, "./inventory": false} {
		if NamesCluster(word) != want {
			t.Errorf("%q: %v", word, !want)
		}
	}
}

// TestPlaceOfAgent: where no folder is named it is the one of the agent's config, and the agent's key opens what is there.
func TestPlaceOfAgent(t *testing.T) {
	config := `repository: {url: "ssh://git@example.org/infra.git", ssh_key_file: deploy.key, known_hosts_file: known_hosts}
age_key_file: age.key
proxmox: {token_file: proxmox.token}
`
	dir := hosttest.New(t, hosttest.Files(t))
	folder := filepath.Join(dir, "kept")
	hosttest.Write(t, filepath.Join(dir, "config.yaml"), config+"snapshots: {directory: "+folder+"}\n", 0o600)
	key, public := newKey(t, dir)
	if err := os.Rename(key, filepath.Join(dir, "age.key")); err != nil {
		t.Fatal(err)
	}
	store(t, folder, "dev", public, 1)
	in, err := FindPlaceOfAgent(filepath.Join(dir, "config.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := List(t.Context(), in, "", now); err != nil || in.Dir != folder || len(l.Snapshots) != 1 || l.Snapshots[0].State != retention.Verified {
		t.Errorf("%+v in %s, %v", l, in.Dir, err)
	}
	other, _ := newKey(t, dir)
	in, err = FindPlaceOfAgent(filepath.Join(dir, "config.yaml"), []string{other})
	if err != nil {
		t.Fatal(err)
	}
	if l, err := List(t.Context(), in, "", now); err != nil || l.Snapshots[0].State == retention.Verified {
		t.Errorf("with another key: %+v, %v", l, err)
	}
	if _, err := FindPlaceOfAgent(filepath.Join(dir, "none.yaml"), nil); err == nil || !strings.Contains(fault.HintOf(err), "--dir") {
		t.Errorf("without a config: %v", err)
	}
}
