package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// hurried is a lab whose own latencies vanish beside what the agent needs. A
// higher speed would have its statistics gathered more often than it could.
var hurried = lab.Config{Speed: 20, Latency: world.Latencies{
	Call: moment, Download: moment, Upload: moment, Import: moment, Create: moment, Resize: moment, Start: moment, Stop: moment, Delete: moment,
	Boot: moment, Apply: moment, Etcd: moment, Learn: moment, ImagePull: moment, API: moment, Chart: moment, CNIPull: moment, Ready: moment, Pods: moment,
}}

// moment is a twentieth of a millisecond in a hurried lab.
const moment = time.Millisecond

// mostGoroutines is how many goroutines an agent may have at rest, whatever the number of its machines.
const mostGoroutines = 150

// measureIdle measures what passes cost in which nothing changes, and what
// memory the agent holds after them. The agent was started anew on the cluster:
// that is how one that runs for months looks.
func measureIdle(t *testing.T, table *figures) {
	for _, c := range []struct {
		size           size
		cpu            float64 // milliseconds
		memory         float64 // MiB; 0: no figure
		objects, bytes float64 // thousands, and MiB, of a pass
	}{
		{size{ControlPlanes: 1, Workers: 2}, 2, 24, 10, 1},
		{size{ControlPlanes: 3, Workers: 97}, 10, 0, 100, 10},
		{size{ControlPlanes: 3, Workers: 297}, 25, 40, 300, 30},
		{size{ControlPlanes: 3, Workers: 997}, 60, 70, 1000, 100},
	} {
		n := c.size.ControlPlanes + c.size.Workers
		t.Run(c.size.String(), func(t *testing.T) {
			h := newLive(t, hurried)
			h.start()
			h.grow(c.size)
			h.stop()
			h.start()
			h.untilReady(5*time.Minute, time.Second)
			q := h.rest()
			per := func(system string) float64 { return float64(q.asked[system]) / quietPasses }
			of := fmt.Sprintf("%d nodes: ", n)
			note := fmt.Sprintf("mean of %d passes", quietPasses)
			table.add(figure{what: of + "Proxmox VE calls of a quiet pass", measured: per("pve"), must: 2 + float64(n)/10, note: note})
			table.add(figure{what: of + "Talos calls of a quiet pass", measured: per("talos"), note: note})
			table.add(figure{what: of + "Git calls of a quiet pass", measured: per("git"), must: 1, note: note})
			table.add(figure{what: of + "processor time of a quiet pass", measured: milliseconds(q.spent) / quietPasses, must: c.cpu, unit: "ms", note: note})
			table.add(figure{what: of + "objects allocated in a quiet pass", measured: q.objects / quietPasses, must: c.objects, unit: "thousand", note: note})
			table.add(figure{what: of + "allocated in a quiet pass", measured: q.bytes / quietPasses, must: c.bytes, unit: "MiB", note: note})
			table.add(figure{what: of + "goroutines at rest", measured: q.goroutines, must: mostGoroutines})
			if c.memory > 0 {
				table.add(figure{what: of + "anonymous memory", measured: float64(q.anonymous) / (1 << 20), must: c.memory, unit: "MiB"})
			}
		})
	}
}

// quiet is what an agent takes for quietPasses in which nothing changes.
type quiet struct {
	asked          map[string]int // by system
	spent          time.Duration  // of processors
	objects, bytes float64        // allocated, in thousands and in MiB; reading that twice is a part of it
	goroutines     float64        // in the end, as the anonymous memory is
	anonymous      int64
}

// rest lets the agent make passes in which nothing changes.
func (h *live) rest() (q quiet) {
	h.t.Helper()
	var before map[string]float64
	var first time.Duration
	began := make(chan time.Duration, 1)
	ended := make(chan time.Duration, 1)
	var mu sync.Mutex
	var calls []world.CallRecord
	passes := 0
	h.lab.World.OnCall(func(c world.CallRecord) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, c)
		if c.System != "pve" || c.Op != passCall {
			return
		}
		cpu, err := h.agent.cpu()
		if err != nil {
			h.t.Error(err)
		}
		// The first pass after a start may be young yet.
		if passes++; passes == 2 {
			calls = calls[len(calls)-1:]
			began <- cpu
		}
		if passes == 2+quietPasses {
			ended <- cpu
		}
	})
	defer h.lab.World.OnCall(nil)
	for end := time.After(10 * time.Minute); ; {
		select {
		case first = <-began:
			before = h.scrape()
		case cpu := <-ended:
			q.spent = cpu - first
			now := h.scrape()
			q.objects = (now["go_memstats_mallocs_total"] - before["go_memstats_mallocs_total"]) / 1000
			q.bytes = (now["go_memstats_alloc_bytes_total"] - before["go_memstats_alloc_bytes_total"]) / (1 << 20)
			q.goroutines = now["go_goroutines"]
			mu.Lock()
			defer mu.Unlock()
			for _, c := range calls {
				if c.Mutating {
					h.t.Errorf("a converged world was changed: %s %s %s", c.System, c.Op, c.Subject)
				}
			}
			asked, ok := askedIn(calls, quietPasses)
			if !ok {
				h.t.Fatal("the passes were miscounted")
			}
			if q.asked = asked; before == nil {
				h.t.Fatal("the first passes were not measured")
			}
			var err error
			if q.anonymous, err = h.agent.anonymous(); err != nil {
				h.t.Fatal(err)
			}
			return q
		case <-end:
			h.t.Fatal("the agent makes no passes")
		}
	}
}

// runs is how often a time is measured.
const runs = 11

// measurePush measures from the moment a branch has moved, and the daemon was
// told to look, to the first call that changes the host.
func measurePush(t *testing.T, table *figures) {
	h := newLive(t, hurried)
	h.start()
	sz := size{ControlPlanes: 1, Workers: 2}
	h.grow(sz)
	var took sample
	for range runs {
		acted := h.firstChange()
		sz.Workers++
		h.push(sz)
		began := time.Now()
		h.look()
		took = append(took, milliseconds((<-acted).Sub(began)))
		h.untilReady(time.Minute, 100*time.Millisecond)
	}
	table.add(figure{what: "push to first change on the host", measured: took.median(), must: 300, unit: "ms", note: took.String()})
}

// firstChange tells when the host or a machine is changed next.
func (h *live) firstChange() <-chan time.Time {
	acted := make(chan time.Time, 1)
	h.lab.World.OnCall(func(c world.CallRecord) {
		if changesHost(c) {
			select {
			case acted <- time.Now():
			default:
			}
		}
	})
	return acted
}

// measureStart measures from exec to READY with a cluster of a hundred nodes.
func measureStart(t *testing.T, table *figures) {
	_, took := restarted(t, size{ControlPlanes: 3, Workers: 97})
	table.add(figure{what: "100 nodes: start to READY", measured: took.median(), must: 300, unit: "ms", note: took.String()})
}

// restarted brings a cluster up and starts the agent anew on it several times. It
// returns how long each start took, to READY, in milliseconds.
func restarted(t *testing.T, sz size) (*live, sample) {
	t.Helper()
	h := newLive(t, hurried)
	h.start()
	h.grow(sz)
	var took sample
	for range runs {
		h.stop()
		took = append(took, milliseconds(h.start().ready))
		h.untilReady(time.Minute, 100*time.Millisecond)
	}
	return h, took
}

// TestPackageFigures measures, for `make deb`, what an installed agent needs that
// has nothing to do: it starts the program of a package on a lab.
func TestPackageFigures(t *testing.T) {
	if !*measure || *program == "" {
		t.Skip("run by make deb")
	}
	h, took := restarted(t, size{ControlPlanes: 1, Workers: 2})
	// The first passes after a start are young yet.
	passed := make(chan struct{}, 3)
	h.lab.World.OnCall(func(c world.CallRecord) {
		if c.System == "pve" && c.Op == passCall {
			select {
			case passed <- struct{}{}:
			default:
			}
		}
	})
	for range cap(passed) {
		<-passed
	}
	h.lab.World.OnCall(nil)
	anonymous, err := h.agent.anonymous()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("the packaged program: start to READY %.0f ms (%s), memory at rest %.1f MiB, with a cluster of 3 nodes\n", took.median(), took, float64(anonymous)/(1<<20))
}

// measureKill kills the agent at changes all along a bring-up, starts it again
// at once, and measures until it changes the host or a machine the next time.
// No change that reached the host may be asked for again. (An upload does not: it
// is cut off with its sender.)
func measureKill(t *testing.T, table *figures) {
	var took sample
	repeated := 0
	for _, op := range killedAt {
		h := newLive(t, hurried)
		struck := make(chan struct{}, 1)
		asked := map[world.Call]int{}
		var mu sync.Mutex
		var acted chan time.Time
		h.lab.World.OnCall(func(c world.CallRecord) {
			mu.Lock()
			defer mu.Unlock()
			if !changesHost(c) {
				return
			}
			if asked[c.Call]++; asked[c.Call] > 1 {
				t.Logf("killed at %s, it asked again: %s %s", op, c.Op, c.Subject)
				repeated++
			}
			switch {
			case acted != nil:
				select {
				case acted <- time.Now():
				default:
				}
			case c.Op == op:
				select {
				case struck <- struct{}{}:
				default:
				}
			}
		})
		h.push(size{ControlPlanes: 3, Workers: 10})
		h.start()
		h.look()
		<-struck
		h.kill()
		next := make(chan time.Time, 1)
		mu.Lock()
		acted = next
		mu.Unlock()
		began := time.Now()
		h.start()
		took = append(took, milliseconds((<-next).Sub(began)))
		h.untilReady(2*time.Minute, 100*time.Millisecond)
	}
	table.add(figure{what: "killed and started to the next change", measured: slices.Max(took), must: 1000, unit: "ms", note: fmt.Sprintf("worst of %d", len(took))})
	table.add(figure{what: "changes asked for again after a kill", measured: float64(repeated), note: fmt.Sprintf("%d kills along a bring-up of 3+10", len(took))})
}

// measureValidate measures a validation of a hundred nodes by a process that
// does nothing else.
func measureValidate(t *testing.T, table *figures) {
	dir := t.TempDir()
	for name, b := range (size{ControlPlanes: 3, Workers: 97}).Files() {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	key := filepath.Join(t.TempDir(), "age.key")
	if err := os.WriteFile(key, daemontest.Keys().AgeKey, 0o600); err != nil {
		t.Fatal(err)
	}
	var spent sample
	for range runs {
		cmd, err := command("validate", dir, "--age-key", key, "--output", "json")
		if err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("validate: %v\n%s%s", err, &out, &errs)
		}
		if !strings.Contains(out.String(), `"rendered": 100`) {
			t.Fatalf("not every config was rendered:\n%s", &out)
		}
		spent = append(spent, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	}
	table.add(figure{what: "100 nodes: processor time of validate", measured: spent.median(), must: 2, unit: "s", note: spent.String()})
}
