package sources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const revision = "main@sha1:0123456789abcdef0123456789abcdef01234567"

// files makes a repository with clusters that share nothing.
func files(names ...string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i, name := range names {
		net := string(rune('1' + i))
		set(fsys, name, "cluster.yaml", "cluster_name: "+name+`
talos_version: v1.13.9
kubernetes_version: v1.36.1
network: {cidr: 10.`+net+`.0.0/24, gateway: 10.`+net+`.0.1}
proxmox: {node: pve1, vmid_ranges: {controlplane: `+net+`400-`+net+`499}}
`)
		set(fsys, name, "nodes.yaml", "controlplane:\n  - {name: "+name+"-cp, ip: 10."+net+".0.11, cpu: 4, ram: 4096, disk: 40G}\n")
	}
	return fsys
}

func set(fsys fstest.MapFS, name, file, text string) {
	fsys["inventory/"+name+"/"+file] = &fstest.MapFile{Data: []byte(text)}
}

// counting is a tree that counts how often it is opened.
type counting struct {
	fs.FS
	mu    sync.Mutex
	opens int
	fail  error // for every file, when set
}

func (c *counting) Open(name string) (fs.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opens++
	if c.fail != nil && strings.HasSuffix(name, ".yaml") {
		return nil, &fs.PathError{Op: "open", Path: name, Err: c.fail}
	}
	return c.FS.Open(name)
}

func repository(t *testing.T, c Config) *Repository {
	t.Helper()
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func snapshot(t *testing.T, r *Repository, tree Tree, name string) (cluster.Snapshot, cluster.Problems) {
	t.Helper()
	snap, problems, err := r.Snapshot(t.Context(), tree, name)
	if err != nil {
		t.Fatal(err)
	}
	if problems.HasErrors() && snap.Spec.Name != "" {
		t.Errorf("a snapshot in spite of errors: %v", problems)
	}
	return snap, problems
}

// secretFile is decrypted by decrypt: what follows its first line.
const secretFile = "encrypted\ncluster: {id: a}\nsecrets: {b: c}\ntrustdinfo: {d: e}\ncerts: {f: g}\nvalues: {a: topsecret}\n"

func decrypt(_ context.Context, name string, file []byte) ([]byte, error) {
	plain, ok := strings.CutPrefix(string(file), "encrypted\n")
	if !ok {
		return nil, errors.New("not encrypted")
	}
	return []byte(plain), nil
}

// TestUnchangedTreeCostsNothing: the same content is neither read nor
// decrypted again, whatever the revision is called.
func TestUnchangedTreeCostsNothing(t *testing.T) {
	fsys := files("dev", "prod")
	set(fsys, "dev", inventory.SecretsFile, secretFile)
	decrypted := 0
	r := repository(t, Config{Decrypt: func(ctx context.Context, name string, file []byte) ([]byte, error) {
		decrypted++
		return decrypt(ctx, name, file)
	}})
	c := &counting{FS: fsys}
	first, _ := snapshot(t, r, Tree{Revision: revision, Content: "a", FS: c}, "dev")
	opens := c.opens
	second, _ := snapshot(t, r, Tree{Revision: "main@sha1:ffff", Content: "a", FS: c}, "dev")
	third, _ := snapshot(t, r, Tree{Revision: revision, Content: "a", FS: c}, "prod")
	if c.opens != opens || decrypted != 1 {
		t.Errorf("%d opens after %d, %d decryptions", c.opens, opens, decrypted)
	}
	if first.Revision != revision || second.Revision != "main@sha1:ffff" || third.Spec.Name != "prod" {
		t.Errorf("revisions %s and %s, cluster %s", first.Revision, second.Revision, third.Spec.Name)
	}
	set(fsys, "dev", "nodes.yaml", "controlplane:\n  - {name: dev-cp, ip: 10.1.0.12}\n")
	changed, _ := snapshot(t, r, Tree{Revision: revision, Content: "b", FS: c}, "dev")
	if got := changed.Spec.Nodes[0].IP.String(); got != "10.1.0.12" || decrypted != 2 {
		t.Errorf("%s after the change, %d decryptions", got, decrypted)
	}
	for range 2 {
		snapshot(t, r, Tree{Revision: revision, FS: c}, "dev")
	}
	if decrypted != 4 {
		t.Errorf("a tree of unknown content was remembered: %d decryptions", decrypted)
	}
}

func TestSecrets(t *testing.T) {
	patch := func(fsys fstest.MapFS) {
		set(fsys, "dev", "cluster.yaml", string(fsys["inventory/dev/cluster.yaml"].Data)+"patches: {all: [p.yaml]}\n")
		set(fsys, "dev", "p.yaml", "machine: {env: {A: \"${values.a}\"}}\n")
	}
	for name, c := range map[string]struct {
		file    string // "": none
		decrypt func(context.Context, string, []byte) ([]byte, error)
		want    string // the problems
		valid   bool
	}{
		"fine": {secretFile, decrypt, "", true},
		"values only": {"encrypted\nvalues: {a: topsecret}\n", decrypt,
			`inventory/dev/secrets.sops.yaml: warning: holds no Talos secrets: no cluster can be made without them (make them with: talos-agent secrets new --cluster dev DIR)`, true},
		"missing": {"", decrypt, `inventory/dev/cluster.yaml: note: the values of secrets.sops.yaml are not known here: placeholders stand for them, and what they lead to was not checked
inventory/dev/secrets.sops.yaml: warning: the file is missing: no cluster can be made without its secrets (make it with: talos-agent secrets new --cluster dev DIR)`, true},
		"no key": {secretFile, nil, `inventory/dev/cluster.yaml: note: the values of secrets.sops.yaml are not known here: placeholders stand for them, and what they lead to was not checked
inventory/dev/secrets.sops.yaml: warning: not decrypted, because there is no age key: what the secrets hold was not checked (give the age key whose public half stands in .sops.yaml)`, true},
		"wrong key": {secretFile, func(context.Context, string, []byte) ([]byte, error) { return nil, errHinted },
			`inventory/dev/cluster.yaml: note: the values of secrets.sops.yaml are not known here: placeholders stand for them, and what they lead to was not checked
inventory/dev/secrets.sops.yaml: no key fits (use another one)`, false},
		"nonsense": {"encrypted\ntopsecret: topsecret\n", decrypt,
			`inventory/dev/cluster.yaml: note: the values of secrets.sops.yaml are not known here: placeholders stand for them, and what they lead to was not checked
inventory/dev/secrets.sops.yaml:1:1: an unknown key at the top level (known are cluster, secrets, trustdinfo, certs (as ` + "`talosctl gen secrets`" + ` writes them) and values; secrets of your own belong under values)`, false},
		"too large": {secretFile + strings.Repeat("#", 1<<20), decrypt,
			`inventory/dev/cluster.yaml: note: the values of secrets.sops.yaml are not known here: placeholders stand for them, and what they lead to was not checked
inventory/dev/secrets.sops.yaml: cannot be read: larger than 1024 KiB`, false},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := files("dev")
			patch(fsys)
			if c.file != "" {
				set(fsys, "dev", inventory.SecretsFile, c.file)
			}
			r := repository(t, Config{Decrypt: c.decrypt})
			snap, problems := snapshot(t, r, Tree{Revision: revision, FS: fsys}, "dev")
			if problems.Error() != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", problems.Error(), c.want)
			}
			if valid := snap.Spec.Name != ""; valid != c.valid {
				t.Errorf("valid %v", valid)
			}
			if strings.Contains(problems.Error(), "topsecret") {
				t.Error("a secret shows")
			}
		})
	}
}

var errHinted = &fault.Error{Op: "decrypt inventory/dev/secrets.sops.yaml: no key fits", Hint: "use another one"}

// TestBundle: the Talos secrets come with the snapshot, the values in patches.
func TestBundle(t *testing.T) {
	fsys := files("dev")
	set(fsys, "dev", inventory.SecretsFile, "encrypted\ncluster: {id: a}\nsecrets: {b: c}\ntrustdinfo: {d: e}\ncerts: {f: g}\nvalues: {a: x}\n")
	snap, _ := snapshot(t, repository(t, Config{Decrypt: decrypt}), Tree{FS: fsys}, "dev")
	if got := snap.Bundle.RevealString(); got != "cluster: {id: a}\nsecrets: {b: c}\ntrustdinfo: {d: e}\ncerts: {f: g}\n" {
		t.Errorf("bundle %q", got)
	}
}

// TestUnreadableIsNotInvalid: a store that breaks is not about the inventory,
// and its error is not remembered.
func TestUnreadableIsNotInvalid(t *testing.T) {
	broken := errors.New("disk on fire")
	r := repository(t, Config{})
	c := &counting{FS: files("dev"), fail: broken}
	tree := Tree{Revision: revision, Content: "a", FS: c}
	if _, problems, err := r.Snapshot(t.Context(), tree, "dev"); !errors.Is(err, broken) {
		t.Fatalf("%v, %v", problems, err)
	}
	if _, _, err := r.Snapshot(t.Context(), Tree{FS: unlisted{}}, "dev"); !errors.Is(err, errUnlisted) {
		t.Fatal(err)
	}
	c.fail = nil
	if snap, problems := snapshot(t, r, tree, "dev"); problems.HasErrors() || snap.Spec.Name != "dev" {
		t.Errorf("after it was fixed: %v", problems)
	}
	// What is wrong with the files themselves is a problem, with its hint.
	c.fail = &git.Error{Kind: git.ErrNotRegular}
	if _, problems := snapshot(t, r, Tree{FS: c}, "dev"); !problems.HasErrors() {
		t.Error("links are read")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failing := repository(t, Config{Decrypt: func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
		cancel()
		return nil, ctx.Err()
	}})
	fsys := files("dev")
	set(fsys, "dev", inventory.SecretsFile, secretFile)
	if _, _, err := failing.Snapshot(ctx, Tree{FS: fsys}, "dev"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

var errUnlisted = errors.New("cannot list")

type unlisted struct{}

func (unlisted) Open(name string) (fs.File, error)          { return nil, errUnlisted }
func (unlisted) ReadDir(name string) ([]fs.DirEntry, error) { return nil, errUnlisted }

func TestSiblings(t *testing.T) {
	fsys := files("dev", "prod", "lab")
	r := repository(t, Config{})
	snap, _ := snapshot(t, r, Tree{Content: "1", FS: fsys}, "dev")
	want := []cluster.Usage{
		{Cluster: "lab", Nodes: 1, Cores: 4, MemoryMiB: 4096, DiskBytes: 40 << 30},
		{Cluster: "prod", Nodes: 1, Cores: 4, MemoryMiB: 4096, DiskBytes: 40 << 30},
	}
	if !slices.Equal(snap.Siblings, want) {
		t.Errorf("siblings %v", snap.Siblings)
	}
	// An invalid sibling counts with what it last was.
	set(fsys, "prod", "nodes.yaml", "controlplane: 3\n")
	snap, problems := snapshot(t, r, Tree{Content: "2", FS: fsys}, "dev")
	if !slices.Equal(snap.Siblings, want) {
		t.Errorf("siblings %v, %v", snap.Siblings, problems)
	}
	// One that never was valid is reported.
	snap, problems = snapshot(t, repository(t, Config{}), Tree{Content: "2", FS: fsys}, "dev")
	if len(snap.Siblings) != 1 || !strings.Contains(problems.Error(), "the cluster prod is invalid") || len(snap.Warnings) != len(problems) {
		t.Errorf("siblings %v, %v", snap.Siblings, problems)
	}
	if _, problems := snapshot(t, r, Tree{Content: "2", FS: fsys}, "prod"); !problems.HasErrors() {
		t.Error("prod is valid")
	}
	// Clusters of other hosts do not count.
	snap, _ = snapshot(t, repository(t, Config{Clusters: []string{"dev", "lab"}}), Tree{FS: files("dev", "prod", "lab")}, "dev")
	if len(snap.Siblings) != 1 || snap.Siblings[0].Cluster != "lab" {
		t.Errorf("siblings %v", snap.Siblings)
	}
}

// TestClash: what two clusters share stops both of them.
func TestClash(t *testing.T) {
	fsys := files("dev", "prod", "lab")
	set(fsys, "lab", "nodes.yaml", "controlplane:\n  - {name: lab-cp, ip: 10.3.0.11, vmid: 1411}\n")
	set(fsys, "dev", "nodes.yaml", "controlplane:\n  - {name: dev-cp, ip: 10.1.0.11, vmid: 1411}\n")
	r := repository(t, Config{})
	for name, stopped := range map[string]bool{"dev": true, "lab": true, "prod": false} {
		_, problems := snapshot(t, r, Tree{Content: "1", FS: fsys}, name)
		if problems.HasErrors() != stopped || stopped && !strings.Contains(problems.Error(), "VMID 1411") {
			t.Errorf("%s: %v", name, problems)
		}
	}
}

func TestChoosingClusters(t *testing.T) {
	fsys := files("dev", "prod")
	set(fsys, "odd", "cluster.yaml", string(fsys["inventory/dev/cluster.yaml"].Data))
	set(fsys, "odd", "nodes.yaml", "controlplane:\n  - {name: x, ip: 10.1.0.99, vmid: 99999}\n")
	names, problems, err := repository(t, Config{}).Clusters(t.Context(), Tree{FS: fsys})
	if err != nil || problems != nil || !slices.Equal(names, []string{"dev", "odd", "prod"}) {
		t.Error(names, problems, err)
	}
	r := repository(t, Config{Clusters: []string{"prod", "nope"}})
	names, problems, err = r.Clusters(t.Context(), Tree{FS: fsys})
	if err != nil || !slices.Equal(names, []string{"prod"}) || problems.Error() != "inventory/nope: there is no such cluster (the host's config lists nope under `clusters`: add that folder, or change the list; known are: dev, odd, prod)" {
		t.Error(names, problems, err)
	}
	if _, problems := snapshot(t, r, Tree{FS: fsys}, "dev"); problems.Error() != "inventory/dev: there is no such cluster (known are: prod)" {
		t.Error(problems)
	}
	if _, problems := snapshot(t, r, Tree{FS: fstest.MapFS{}}, "dev"); problems.Error() != "inventory: there is no such folder (check the path of the repository in the host's config)" {
		t.Error(problems)
	}
	if _, problems := snapshot(t, repository(t, Config{}), Tree{FS: fsys}, "odd"); !strings.Contains(problems.Error(), "cluster_name: the cluster dev lies in a folder named odd") {
		t.Error(problems)
	}
	for _, c := range []Config{{Path: "../x"}, {Path: "/x"}, {Clusters: []string{"a/b"}}, {Clusters: []string{"."}}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// TestMisnamedFolder: a folder that is named as no cluster is none, the others are not
// concerned, and who asks for it by its name gets why.
func TestMisnamedFolder(t *testing.T) {
	fsys := files("dev")
	const name = "::stop-commands::x"
	set(fsys, name, "cluster.yaml", string(fsys["inventory/dev/cluster.yaml"].Data))
	const want = `inventory: the folder "::stop-commands::x" has a cluster.yaml and a name that no cluster can have (name it as its cluster: a DNS label (lower-case letters, digits and -, at most 63))`
	for _, chosen := range [][]string{nil, {"dev"}, {"dev", name}} {
		r := repository(t, Config{Clusters: chosen})
		names, problems, err := r.Clusters(t.Context(), Tree{FS: fsys})
		if err != nil || !slices.Equal(names, []string{"dev"}) || !strings.Contains(problems.Error(), want) {
			t.Error(chosen, names, problems, err)
		}
		if _, problems := snapshot(t, r, Tree{FS: fsys}, "dev"); problems.HasErrors() {
			t.Error(chosen, problems)
		}
		if _, problems := snapshot(t, r, Tree{FS: fsys}, name); problems.Error() != want {
			t.Error(chosen, problems)
		}
	}
}

// fake is a store of one tree.
type fake struct {
	head git.Commit
	fsys fs.FS
	err  error
}

func (f *fake) Head(context.Context) (git.Commit, error)        { return f.head, f.err }
func (f *fake) Tree(context.Context, git.Commit) (fs.FS, error) { return f.fsys, f.err }
func (f *fake) Find(hash string) (git.Commit, error) {
	if hash != f.head.Hash {
		return git.Commit{}, errors.New("object not found")
	}
	return f.head, nil
}
func (f *fake) Descends(context.Context, string, string) (bool, error) { return true, f.err }

// TestTooManyClusters: a flood of folders is refused as a whole, and is none of
// the business of a host that owns a few of them.
// TestRemovedClusters: a cluster is removed only where a tree shows it.
func TestRemovedClusters(t *testing.T) {
	link := &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("prod")}
	for name, c := range map[string]struct {
		change  func(fstest.MapFS)
		removed bool
		problem string
	}{
		"removed":        {func(f fstest.MapFS) { drop(f, "inventory/dev") }, true, "inventory/dev: there is no such cluster (known are: prod)"},
		"half of it":     {func(f fstest.MapFS) { delete(f, "inventory/dev/cluster.yaml") }, false, "inventory/dev: has a nodes.yaml but no cluster.yaml, so it is no cluster (add cluster.yaml)"},
		"a link instead": {func(f fstest.MapFS) { drop(f, "inventory/dev"); f["inventory/dev"] = link }, false, "inventory/dev: is a symbolic link, which is not followed, so it is no cluster (put the folder itself there)"},
	} {
		for _, chosen := range [][]string{nil, {"dev", "prod"}} {
			fsys := files("dev", "prod")
			c.change(fsys)
			tree := Tree{FS: unfollowed{fsys}}
			r := repository(t, Config{Clusters: chosen})
			if got := r.IsRemoved(tree, "dev"); got != c.removed {
				t.Errorf("%s: removed: %v", name, got)
			}
			want := c.problem
			if chosen != nil {
				want = strings.Replace(want, "(known are", "(the host's config lists dev under `clusters`: add that folder, or change the list; known are", 1)
			}
			if _, problems := snapshot(t, r, tree, "dev"); problems.Error() != want {
				t.Errorf("%s: %v", name, problems)
			}
		}
	}
}

// unfollowed is a file system that does not follow links, as that of a commit is.
type unfollowed struct{ fstest.MapFS }

func (f unfollowed) Stat(name string) (fs.FileInfo, error) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if file := f.MapFS[dir]; file != nil && file.Mode&fs.ModeSymlink != 0 {
			return nil, &fs.PathError{Op: "stat", Path: name, Err: errors.New("is a symbolic link")}
		}
	}
	return f.MapFS.Stat(name)
}

func drop(fsys fstest.MapFS, folder string) {
	for name := range fsys {
		if strings.HasPrefix(name, folder+"/") {
			delete(fsys, name)
		}
	}
}

func TestTooManyClusters(t *testing.T) {
	fsys := files("dev")
	for i := range maxClusters {
		set(fsys, fmt.Sprintf("flood-%d", i), "cluster.yaml", "")
	}
	r := repository(t, Config{})
	if names, problems, err := r.Clusters(t.Context(), Tree{Revision: revision, FS: fsys}); len(names) != 0 || !problems.HasErrors() || err != nil {
		t.Errorf("%d clusters, %v, %v", len(names), problems, err)
	}
	if _, problems := snapshot(t, r, Tree{Revision: revision, FS: fsys}, "dev"); !strings.Contains(problems.Error(), "251 clusters") {
		t.Error(problems)
	}
	if _, problems := snapshot(t, repository(t, Config{Clusters: []string{"dev"}}), Tree{Revision: revision, FS: fsys}, "dev"); problems.HasErrors() {
		t.Error(problems)
	}
}

func TestFetch(t *testing.T) {
	store := &fake{head: git.Commit{Revision: revision, Content: "a"}, fsys: files("dev")}
	r := repository(t, Config{Store: store})
	tree, err := r.Fetch(t.Context())
	if err != nil || tree.Revision != revision || tree.Content != "a" {
		t.Fatal(tree, err)
	}
	if snap, _ := snapshot(t, r, tree, "dev"); snap.Revision != revision {
		t.Error(snap.Revision)
	}
	// One that is too large to be fetched is as wrong as one whose files are too large,
	// shows nothing to be removed, and has no history to be compared.
	store.head = git.Commit{Revision: "main@sha1:" + strings.Repeat("b", 40)}
	store.err = fault.WithHint(fmt.Errorf("receive pack: %w", git.ErrLimit), "use another one")
	tree, err = r.Fetch(t.Context())
	if err != nil || string(tree.Revision) != store.head.Revision {
		t.Fatal(tree, err)
	}
	snap, problems := snapshot(t, r, tree, "dev")
	if snap.Revision != tree.Revision || !problems.HasErrors() || problems[0].Message != "cannot be listed: receive pack: limit exceeded" || problems[0].Hint != "use another one" {
		t.Errorf("%v, %v", snap.Revision, problems)
	}
	if r.IsRemoved(tree, "dev") {
		t.Error("it is taken for removed")
	}
	store.err = errHinted
	if _, err := r.Fetch(t.Context()); fault.HintOf(err) != "use another one" {
		t.Errorf("%v has lost its hint", err)
	}
	if _, err := r.Descends(t.Context(), revision, revision); err == nil {
		t.Error("no error")
	}
	if ok, err := r.Descends(t.Context(), revision, "dir@sha256:00"); ok || err != nil {
		t.Error("a branch has a directory in its history", ok, err)
	}
}

// TestBefore: a revision that is no longer the head is read alone, and what is known of
// the newest stays.
func TestBefore(t *testing.T) {
	store := &fake{head: git.Commit{Revision: revision, Content: "a"}, fsys: files("dev", "prod")}
	r := repository(t, Config{Store: store})
	tree, err := r.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	snapshot(t, r, tree, "dev")
	store.fsys = files("dev")
	const old = "main@sha1:2222222222222222222222222222222222222222"
	snap, problems, err := r.Before(t.Context(), old, "dev")
	if err != nil || problems.HasErrors() || snap.Revision != old || snap.Spec.Name != "dev" || len(snap.Siblings) != 0 {
		t.Error(snap, problems, err)
	}
	if names, _, _ := r.Clusters(t.Context(), tree); len(names) != 2 {
		t.Errorf("the newest tree has %v", names)
	}
	if _, _, err := r.Before(t.Context(), "dir@sha256:00", "dev"); err == nil {
		t.Error("a directory has a history")
	}
	store.err = errHinted
	if _, _, err := r.Before(t.Context(), old, "dev"); err == nil {
		t.Error("no error")
	}
}

// TestTogether: several reconcilers ask at once.
func TestTogether(t *testing.T) {
	r := repository(t, Config{})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			name := []string{"dev", "prod"}[i%2]
			snap, problems, err := r.Snapshot(t.Context(), Tree{Content: string(rune('a' + i%3)), FS: files("dev", "prod")}, name)
			if err != nil || problems.HasErrors() || snap.Spec.Name != name {
				t.Error(snap.Spec.Name, problems, err)
			}
		})
	}
	wg.Wait()
}

// TestExamples: every cluster of the example repository is valid as it lies
// there, read as a directory the way the daemon reads one.
func TestExamples(t *testing.T) {
	dir, err := filepath.Abs("../examples/repo")
	if err != nil {
		t.Fatal(err)
	}
	store, err := git.OpenDir(git.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	r := repository(t, Config{Store: store})
	tree, err := r.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names, problems, err := r.Clusters(t.Context(), tree)
	if err != nil || problems != nil || !slices.Equal(names, []string{"dev", "lab", "prod"}) {
		t.Fatal(names, problems, err)
	}
	nodes := map[string]int{"dev": 3, "lab": 3, "prod": 6}
	for _, name := range names {
		snap, problems := snapshot(t, r, tree, name)
		if problems.HasErrors() || len(snap.Spec.Nodes) != nodes[name] {
			t.Errorf("%s: %d nodes, %v", name, len(snap.Spec.Nodes), problems)
		}
	}
	key, err := os.ReadFile(filepath.Join(dir, "lab-age-key.txt"))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile(filepath.Join(dir, ".sops.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, public, found := strings.Cut(string(key), "# public key: ")
	public, _, _ = strings.Cut(public, "\n")
	if !found || !strings.Contains(string(rules), "age: "+public+"\n") {
		t.Errorf(".sops.yaml does not name the key of lab-age-key.txt, %s", public)
	}
}

// TestInspect: a cluster that is not to be read here is reported as what was found, and
// the others are read, but one that is valid only here; each tree is inspected once. Where that fails after minutes, not every
// cluster tries it again at once.
func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		failed := errors.New("no worker")
		repo, err := New(Config{Inspect: func(_ context.Context, _ fs.FS, folders []string) (map[string]cluster.Problems, error) {
			asked = append(asked, strings.Join(folders, " "))
			if failed != nil {
				time.Sleep(2 * time.Minute)
			}
			return map[string]cluster.Problems{"inventory/c000": {{Severity: cluster.Error, File: "inventory/c000", Message: "cannot be read"}}, "inventory/c001": nil}, failed
		}})
		if err != nil {
			t.Fatal(err)
		}
		tree := Tree{Revision: revision, Content: "x", FS: flood(3, 1, true, "")}
		for _, name := range []string{"c000", "c001", "c002"} {
			if _, _, err := repo.Snapshot(t.Context(), tree, name); !errors.Is(err, failed) || fault.HintOf(err) == "" || len(asked) != 1 {
				t.Errorf("%s without a worker: %v, asked %d times", name, err, len(asked))
			}
		}
		time.Sleep(10 * time.Minute)
		failed, asked = nil, nil
		for range 2 {
			for name, want := range map[string]string{"c000": "inventory/c000: cannot be read", "c001": "", "c002": "inventory/c002: is too near to the bounds of what is read"} {
				snap, problems, err := repo.Snapshot(t.Context(), tree, name)
				if err != nil || !strings.HasPrefix(problems.First(), want) || problems.HasErrors() != (want != "") || (snap.Spec.Name == "") != (want != "") {
					t.Errorf("%s: %q, %v, %v", name, snap.Spec.Name, problems, err)
				}
			}
		}
		if got := strings.Join(asked, "; "); got != "inventory/c000 inventory/c001 inventory/c002" {
			t.Errorf("asked for %s", got)
		}
		tree.Content = "y"
		if _, _, err := repo.Snapshot(t.Context(), tree, "c001"); err != nil || len(asked) != 2 {
			t.Errorf("another tree: %v, asked for %q", err, asked)
		}
	})
}

// TestInspectReadsFiles: a file that cannot be read where clusters are inspected says nothing
// about them: it is an error, and they are inspected again.
func TestInspectReadsFiles(t *testing.T) { synctest.Test(t, testInspectReadsFiles) }

func testInspectReadsFiles(t *testing.T) {
	files := &failingOnce{FS: flood(1, 1, true, "")}
	repo, err := New(Config{Inspect: func(_ context.Context, files fs.FS, folders []string) (map[string]cluster.Problems, error) {
		if _, err := fs.ReadFile(files, folders[0]+"/cluster.yaml"); err != nil {
			return map[string]cluster.Problems{}, nil // as invalid as any other
		}
		return map[string]cluster.Problems{folders[0]: nil}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	tree := Tree{Revision: revision, Content: "x", FS: files}
	files.fail = true
	if _, problems, err := repo.Snapshot(t.Context(), tree, "c000"); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v, %v", problems, err)
	}
	time.Sleep(time.Until(repo.state.inspects))
	if snap, problems, err := repo.Snapshot(t.Context(), tree, "c000"); err != nil || problems.HasErrors() || snap.Spec.Name != "c000" {
		t.Errorf("%v, %v", problems, err)
	}
}

// failingOnce are files of which one cannot be opened once.
type failingOnce struct {
	fs.FS
	fail bool
}

func (f *failingOnce) Open(name string) (fs.File, error) {
	if f.fail && strings.HasSuffix(name, "/cluster.yaml") {
		f.fail = false
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EIO}
	}
	return f.FS.Open(name)
}
