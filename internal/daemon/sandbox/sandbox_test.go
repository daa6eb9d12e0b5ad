package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/repo/repotest"
	"github.com/talos-agent/talos-agent/internal/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clusterOf is the folder of a small cluster, with more files.
func clusterOf(fsys fstest.MapFS, name, more string, files map[string]string) {
	set := func(file, text string) { fsys["inventory/"+name+"/"+file] = &fstest.MapFile{Data: []byte(text)} }
	set("cluster.yaml", "cluster_name: "+name+"\ntalos_version: v1.13.9\nkubernetes_version: v1.36.1\nnetwork: {cidr: 10.10.0.0/20, gateway: 10.10.0.1}\nproxmox: {node: pve1}\n"+more)
	set("nodes.yaml", "controlplane:\n  - {name: "+name+"-cp-1, vmid: 590, ip: 10.10.8.1, cpu: 2, ram: 4096, disk: 20G}\n")
	for file, text := range files {
		set(file, text)
	}
}

// counting counts the workers that a runner begins.
func counting(n *int, on worker.Runner) worker.Runner {
	return func(ctx context.Context, job worker.Job, l worker.Limits, request []byte, answer worker.Answer) ([]byte, error) {
		*n++
		return on(ctx, job, l, request, answer)
	}
}

// TestOrdinaryClusters: what people have is read by one worker, and nothing of it is refused.
func TestOrdinaryClusters(t *testing.T) {
	for name, c := range map[string]struct {
		dir     string
		folders []string
	}{
		"the example": {"../../../examples/repo", []string{"inventory/dev", "inventory/lab", "inventory/prod"}},
		"200 nodes":   {repotest.LargeRepository(t, "../../../examples/repo", 200), []string{"inventory/prod"}},
	} {
		workers, read := 0, map[string]bool{}
		files := recorded{os.DirFS(c.dir), read}
		found, err := New(Config{Worker: counting(&workers, worker.Run)}).Inspect(t.Context(), files, c.folders)
		if err != nil || workers != 1 {
			t.Errorf("%s: %v, by %d workers", name, err, workers)
		}
		for _, folder := range c.folders {
			if refused, rendered := found[folder]; len(refused) > 0 || !rendered {
				t.Errorf("%s: %s was not rendered: %v", name, folder, refused)
			}
			for _, file := range []string{"cluster.yaml", "nodes.yaml", "secrets.sops.yaml"} {
				if !read[folder+"/"+file] {
					t.Errorf("%s: %s/%s was not read", name, folder, file)
				}
			}
		}
	}
}

// recorded notes which files are opened.
type recorded struct {
	fs.FS
	opened map[string]bool
}

func (r recorded) Open(name string) (fs.File, error) {
	r.opened[name] = true
	return r.FS.Open(name)
}

// TestClusterThatTakesTooMuch: it is refused, by its folder, and those before and after it are
// read.
func TestClusterThatTakesTooMuch(t *testing.T) {
	fsys := fstest.MapFS{}
	clusterOf(fsys, "a", "", nil)
	var names []string
	patches := map[string]string{}
	for i := range 500 {
		names = append(names, fmt.Sprintf("p%d.yaml", i))
		patches[names[i]] = "machine: {}\n"
	}
	clusterOf(fsys, "b", "patches: {all: ["+strings.Join(names, ", ")+"]}\n", patches)
	clusterOf(fsys, "c", "", nil)
	workers, read := 0, map[string]bool{}
	s := New(Config{Worker: counting(&workers, func(ctx context.Context, job worker.Job, l worker.Limits, request []byte, answer worker.Answer) ([]byte, error) {
		l.Output = 32 << 10
		return worker.Run(ctx, job, l, request, answer)
	})})
	refused, err := s.Inspect(t.Context(), recorded{fsys, read}, []string{"inventory/a", "inventory/b", "inventory/c"})
	if err != nil || len(refused) != 3 || len(refused["inventory/a"])+len(refused["inventory/c"]) > 0 || workers != 3 || !read["inventory/c/nodes.yaml"] {
		t.Fatalf("%v, %v, by %d workers", refused, err, workers)
	}
	got := refused["inventory/b"]
	if len(got) != 1 || got[0].File != "inventory/b" || !strings.HasPrefix(got[0].Message, "cannot be read: it takes more than 0 MiB of output") || got[0].Hint == "" || !got.HasErrors() {
		t.Errorf("%v", got)
	}
}

// ending is a runner whose workers end with an error when they begin one of these folders.
func ending(bad map[string]error, begun *[]string) worker.Runner {
	return func(ctx context.Context, job worker.Job, _ worker.Limits, request []byte, answer worker.Answer) ([]byte, error) {
		var err error
		result, done := job.Do(request, func(b []byte) ([]byte, error) {
			// What is asked for is in the question's text, whatever its encoding.
			if strings.Contains(string(b), opBegin) {
				for folder, why := range bad {
					if folder != "" && strings.Contains(string(b), folder) {
						err = why
					}
				}
				*begun = append(*begun, fmt.Sprint(len(*begun)))
			}
			got, failed := answer(ctx, b)
			if err != nil {
				return nil, err
			}
			return got, failed
		})
		if err != nil {
			return nil, err
		}
		if why := bad[""]; why != nil {
			return nil, why
		}
		return result, done
	}
}

// TestWorkersThatEnd: what a cluster does to its worker is its problem, and everything else is
// an error: the clusters may be as they should be.
func TestWorkersThatEnd(t *testing.T) {
	all := []string{"inventory/a", "inventory/b", "inventory/c", "inventory/d", "inventory/e"}
	fsys := fstest.MapFS{}
	for _, folder := range all {
		clusterOf(fsys, strings.TrimPrefix(folder, "inventory/"), "", nil)
	}
	memory := &worker.Exceeded{What: worker.Memory, Limit: "256 MiB"}
	late := &worker.Exceeded{What: worker.Time, Limit: "2m"}
	broken := errors.New("fork: resource temporarily unavailable")
	for name, c := range map[string]struct {
		bad     map[string]error
		refused string // folders
		why     string // of the last of them
		err     error
	}{
		"nothing":          {},
		"one":              {bad: map[string]error{"inventory/b": memory}, refused: "inventory/b", why: "cannot be read: it takes more than 256 MiB of memory"},
		"the first":        {bad: map[string]error{"inventory/a": memory}, refused: "inventory/a", why: "cannot be read: it takes more than 256 MiB of memory"},
		"the last":         {bad: map[string]error{"inventory/e": memory}, refused: "inventory/e", why: "cannot be read: it takes more than 256 MiB of memory"},
		"a crash":          {bad: map[string]error{"inventory/c": worker.ErrCrashed}, refused: "inventory/c", why: "cannot be read: the program that reads it crashes"},
		"two":              {bad: map[string]error{"inventory/b": memory, "inventory/d": memory}, refused: "inventory/b inventory/d", why: "cannot be read: it takes more than 256 MiB of memory"},
		"many":             {bad: map[string]error{"inventory/a": memory, "inventory/b": memory, "inventory/c": memory}, refused: strings.Join(all, " "), why: "not read: 3 other clusters of this revision take too much to be read"},
		"all together":     {bad: map[string]error{"": memory}, refused: strings.Join(all, " "), why: "cannot be read: it takes more than 256 MiB of memory"},
		"a busy host":      {bad: map[string]error{"inventory/b": late}, err: late},
		"no process":       {bad: map[string]error{"inventory/b": broken}, err: broken},
		"no process later": {bad: map[string]error{"": broken}, err: broken},
	} {
		var begun []string
		refused, err := New(Config{Worker: ending(c.bad, &begun)}).Inspect(t.Context(), fsys, all)
		var folders []string
		last := ""
		for _, folder := range all {
			ps, known := refused[folder]
			if len(ps) > 0 {
				folders, last = append(folders, folder), ps[0].Message
			}
			if !known && err == nil {
				t.Errorf("%s: %s was not rendered", name, folder)
			}
		}
		if got := strings.Join(folders, " "); got != c.refused || last != c.why || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: refused %q, %q, %v", name, got, last, err)
		}
	}
}

// TestInvalidClusters: they are not in the result, for what is wrong is found again by whoever
// reads them next; or it is not, and then nobody renders them.
func TestInvalidClusters(t *testing.T) {
	fsys := fstest.MapFS{}
	clusterOf(fsys, "a", "", nil)
	clusterOf(fsys, "b", "unknown: field\n", nil)
	found, err := New(Config{}).Inspect(t.Context(), fsys, []string{"inventory/a", "inventory/b"})
	if _, rendered := found["inventory/a"]; err != nil || !rendered || len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
}

// TestFilesOfAWorker: it sees the files as they are, within the bounds of one.
func TestFilesOfAWorker(t *testing.T) {
	fsys := fstest.MapFS{
		"a/b.yaml": {Data: []byte("text")}, "a/c/d.yaml": {Data: []byte("more")},
		"a/large": {Data: make([]byte, 2<<20)}, "a/link": {Mode: fs.ModeSymlink},
	}
	answer := worker.AnswerTo(func(_ context.Context, q question) (reply, error) { return answerFile(fsys, q), nil })
	files := askedFiles{func(b []byte) ([]byte, error) { return answer(t.Context(), b) }}
	if b, err := fs.ReadFile(files, "a/b.yaml"); err != nil || string(b) != "text" {
		t.Errorf("%q, %v", b, err)
	}
	var seen []string
	err := fs.WalkDir(files, "a", func(p string, e fs.DirEntry, err error) error {
		seen = append(seen, fmt.Sprint(p, " ", e.Type()))
		return err
	})
	if want := []string{"a d---------", "a/b.yaml ----------", "a/c d---------", "a/c/d.yaml ----------", "a/large ----------", "a/link L---------"}; err != nil || !slices.Equal(seen, want) {
		t.Errorf("%q, %v", seen, err)
	}
	for name, want := range map[string]error{"a/none": fs.ErrNotExist, "../x": fs.ErrNotExist, "a/large": nil, "a/link": nil} {
		_, err := fs.ReadFile(files, name)
		if err == nil || want != nil && !errors.Is(err, want) || want == nil && errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r := answerFile(fsys, question{Op: "write", Name: "a/b.yaml"}); r.Err == "" {
		t.Errorf("%v", r)
	}
}

// TestConfinement: it is that of a worker of this program.
func TestConfinement(t *testing.T) {
	has, lacks, err := New(Config{}).FindConfinement(t.Context())
	if err != nil || !strings.Contains(has, "seccomp: yes") != strings.Contains(lacks, "seccomp") {
		t.Errorf("has %s, lacks %s, %v", has, lacks, err)
	}
}
