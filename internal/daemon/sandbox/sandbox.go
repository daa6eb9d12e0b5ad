package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/worker"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// limits bound the worker of one repository. What inventory's own bounds let through takes
// a tenth of them; what a worker sends are questions for files, some 200 bytes each.
var limits = worker.Limits{CPU: 10 * time.Second, Wall: 2 * time.Minute, Memory: 256 << 20, Output: 32 << 20, First: true}

// most is how many clusters of one revision may take too much: each costs the processor time
// of limits, and every cluster waits for it. The rest is not read then.
const most = 3

// Config holds what the daemon reads clusters with. The secrets, the revision and the budget in
// it are ignored.
type Config struct {
	Inventory inventory.Options
	Worker    worker.Runner // nil: worker.Run
}

// Sandbox has workers read clusters.
type Sandbox struct{ c Config }

// New makes a Sandbox.
func New(c Config) *Sandbox {
	if c.Worker == nil {
		c.Worker = worker.Run
	}
	return &Sandbox{c}
}

// Inspect has a worker read the clusters in some folders, in that order, and render their
// machine configs. It returns a problem for each that takes too much or that brings the
// worker down, and none for those that were rendered; what is invalid is not in the result.
// An error is about the worker: what the clusters take is not known.
func (s *Sandbox) Inspect(ctx context.Context, files fs.FS, folders []string) (map[string]cluster.Problems, error) {
	found, taking := map[string]cluster.Problems{}, 0
	for len(folders) > 0 {
		reading := -1 // none yet
		answer := worker.AnswerTo(func(_ context.Context, q question) (reply, error) {
			switch q.Op {
			case opBegin:
				if reading++; reading > len(folders) {
					return reply{}, errors.New("there are no more folders")
				}
				return reply{}, nil
			case opRendered:
				if reading < 0 || reading >= len(folders) {
					return reply{}, errors.New("no folder was begun")
				}
				found[folders[reading]] = nil
				return reply{}, nil
			}
			return answerFile(files, q), nil
		})
		o := s.c.Inventory
		_, err := readClusters.Run(ctx, s.c.Worker, limits, request{folders, o.Owner, o.Pool, o.ImageDatastore, o.Mirrors}, answer)
		if err == nil {
			return found, nil
		}
		why, known := describe(err)
		if !known || ctx.Err() != nil || reading < 0 {
			return nil, err
		}
		if reading >= len(folders) { // all of them together
			refuse(found, folders, why)
			return found, nil
		}
		if reading > 0 { // what came before may have taken nearly all: it is read again, first
			folders = folders[reading:]
			continue
		}
		refuse(found, folders[:1], why)
		folders = folders[1:]
		if taking++; taking >= most {
			refuse(found, folders, fmt.Sprintf("not read: %d other clusters of this revision take too much to be read", most))
			return found, nil
		}
	}
	return found, nil
}

func refuse(found map[string]cluster.Problems, folders []string, why string) {
	for _, folder := range folders {
		found[folder] = cluster.Problems{{Severity: cluster.Error, File: folder, Message: why,
			Hint: "look for what is unusual in its files, such as long lists, deep nesting or very long texts; `git revert` brings back what was read before"}}
	}
}

// describe is what a cluster did to the worker that read it; known is false when that is not its
// doing.
func describe(err error) (why string, known bool) {
	var exceeded *worker.Exceeded
	switch {
	case errors.As(err, &exceeded) && exceeded.What != worker.Time: // which a busy host takes
		return "cannot be read: " + exceeded.Error(), true
	case errors.Is(err, worker.ErrCrashed):
		return "cannot be read: the program that reads it crashes", true
	}
	return "", false
}

// The operations of a question.
const (
	opBegin    = "begin"    // to read the next folder, or to compare all of them
	opRendered = "rendered" // the folder
	opStat     = "stat"
	opList     = "list"
	opRead     = "read"
)

// What goes to the worker and back.
type (
	request struct {
		Folders                     []string
		Owner, Pool, ImageDatastore string
		Mirrors                     map[string]string
	}
	question struct{ Op, Name string }
	reply    struct {
		Entries []entry // one for opStat
		Data    []byte
		Missing bool
		Err     string
	}
)

// answerFile answers a question about a file or folder.
func answerFile(files fs.FS, q question) (r reply) {
	var err error
	switch q.Op {
	case opStat:
		var info fs.FileInfo
		if info, err = fs.Stat(files, q.Name); err == nil {
			r.Entries = []entry{{Label: info.Name(), Kind: info.Mode(), Bytes: info.Size()}}
		}
	case opList:
		var listed []fs.DirEntry
		listed, err = fs.ReadDir(files, q.Name)
		for _, e := range listed {
			r.Entries = append(r.Entries, entry{Label: e.Name(), Kind: e.Type()})
		}
	case opRead:
		r.Data, err = inventory.ReadFile(files, q.Name)
	default:
		err = errors.New("it is no question")
	}
	if err != nil {
		return reply{Missing: errors.Is(err, fs.ErrNotExist), Err: err.Error()}
	}
	return r
}

// listEntries are entries as a file system lists them.
func listEntries(entries []entry) []fs.DirEntry {
	out := make([]fs.DirEntry, len(entries))
	for i, e := range entries {
		out[i] = fs.FileInfoToDirEntry(e)
	}
	slices.SortFunc(out, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return out
}
