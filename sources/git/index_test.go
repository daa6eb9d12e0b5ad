package git

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-git/v5/plumbing"

	"github.com/talos-agent/talos-agent/internal/worker"
)

// TestPackInPieces: a pack that is much larger than what a worker keeps of it is indexed,
// also where it has to go back.
func TestPackInPieces(t *testing.T) {
	random := rand.NewChaCha8([32]byte{})
	var objects []packObject
	for range keptChunks*packChunk/(1<<20) + 4 {
		data := make([]byte, 1<<20)
		_, _ = random.Read(data)
		objects = append(objects, packObject{kind: plumbing.BlobObject, data: data})
	}
	objects = append(objects, packObject{kind: plumbing.OFSDeltaObject, data: delta(1<<20, 2), back: len(objects)})
	want := append(bytes.Clone(objects[0].data), objects[0].data...)
	b, err := newBare(memfs.New(), "main")
	check(t, err)
	check(t, b.add(t.Context(), worker.Run, bytes.NewReader(makePack(objects...)), Limits{Timeout: time.Minute, Pack: 64 << 20, Objects: 100, Object: 2 << 20, Unpacked: 64 << 20}))
	got, err := b.bytes(plumbing.BlobObject, plumbing.ComputeHash(plumbing.BlobObject, want), 2<<20)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestPackThatBringsTheWorkerDown: it is one that cannot be fetched, unless the host was busy.
func TestPackThatBringsTheWorkerDown(t *testing.T) {
	late := &worker.Exceeded{What: worker.Time, Limit: "5m"}
	for name, c := range map[string]struct {
		ends  error
		limit bool
	}{
		"memory":         {&worker.Exceeded{What: worker.Memory, Limit: "384 MiB"}, true},
		"processor time": {&worker.Exceeded{What: worker.CPU, Limit: "2m"}, true},
		"a crash":        {worker.ErrCrashed, true},
		"time":           {late, false},
		"no process":     {errors.New("fork"), false},
	} {
		fs := memfs.New()
		on := func(context.Context, worker.Job, worker.Limits, []byte, worker.Answer) ([]byte, error) {
			return nil, c.ends
		}
		err := importPack(t.Context(), on, fs, bytes.NewReader(makePack()), packLimits)
		if err == nil || errors.Is(err, ErrLimit) != c.limit {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := fs.ReadDir(packDir); len(left) != 0 {
			t.Errorf("%s: %d files left behind", name, len(left))
		}
	}
}
