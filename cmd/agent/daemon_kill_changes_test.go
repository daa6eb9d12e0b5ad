package main

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

var killSeeds = flag.Int("kill-seeds", 2, "in how many lives of a cluster the daemon is killed at random moments of its changes")

// killer kills the daemon at moments that a seed draws. They are counted in calls that the lab has
// begun, of every kind or of those that change something, so that they fall into what the daemon does
// at any speed of the machine.
type killer struct {
	r   *rig
	rnd *rand.Rand
	// most is how often the daemon is killed in one change at most, so that it comes to its end.
	most int
	// calls and changes are how many calls of every kind, and of those that change something, a
	// daemon lives at most.
	calls, changes int
	// spares reports whether the daemon lives one call more; nil: it never does.
	spares func() bool

	mu       sync.Mutex
	left     int  // how many calls, until it is killed; 0: it is not
	mutating bool // only those count
	at       []string
	struck   chan struct{}
}

// watch looks at every call.
func (k *killer) watch(c world.CallRecord) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left == 0 || c.System == "forge" || k.mutating && !c.Mutating {
		return
	}
	if k.left--; k.left > 0 {
		return
	}
	if k.spares != nil && k.spares() {
		k.left = 1
		return
	}
	_ = k.r.proc.cmd.Process.Kill() // which may have ended by itself: bury looks
	k.at = append(k.at, strings.TrimSpace(c.System+" "+c.Op+" "+c.Subject))
	k.struck <- struct{}{}
}

// draw decides when the daemon that runs now is killed.
func (k *killer) draw() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mutating = k.rnd.IntN(2) == 0; k.mutating {
		k.left = 1 + k.rnd.IntN(k.changes)
	} else {
		k.left = 1 + k.rnd.IntN(k.calls)
	}
}

// spare lets the daemon that runs now live, and returns at which calls those were killed that ran since
// it did so last.
func (k *killer) spare() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left = 0
	at := k.at
	k.at = nil
	return at
}

// bury ends what is left of a daemon that was killed, and starts another.
func (k *killer) bury() {
	k.r.t.Helper()
	p := k.r.proc
	k.r.kill()
	if st, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !st.Signaled() {
		k.r.t.Errorf("the daemon has ended by itself: %v", p.cmd.ProcessState)
	}
	k.r.launch()
}

// change pushes files, kills the daemon on the way to Ready, and returns how often.
func (k *killer) change(files map[string][]byte) int {
	r := k.r
	r.t.Helper()
	commit := r.change(files)
	k.draw()
	for kills, end := 1, time.After(5*daemonPatience); ; {
		select {
		case <-k.struck:
			if k.bury(); kills < k.most {
				kills++
				k.draw()
			}
			continue
		case <-end:
			r.t.Fatalf("not Ready at %s; killed at %q\n%s\nlab: %s", commit, k.spare(), r.try("status"), r.story())
		case <-time.After(100 * time.Millisecond):
		}
		if s := r.status(); s.Condition == cluster.Ready && s.Applied == s.Revision && s.Revision.Commit() == commit {
			break
		}
	}
	at := k.spare()
	select {
	case <-k.struck: // just as it was Ready
		k.bury()
		r.untilReady(commit)
	default:
	}
	r.t.Logf("killed %d times: %s", len(at), strings.Join(at, ", "))
	return len(at)
}

// disruptions is how often each node was taken down since so many events: rebooted, or its VM off.
func (r *rig) disruptions(since int) map[string]int {
	n := map[string]int{}
	for _, e := range r.lab.World.Events()[since:] {
		if name, off := strings.CutSuffix(e.Text, ") is off"); off {
			n[name[strings.LastIndex(name, "(")+1:]]++
		} else if e.Text == "reboots" {
			n[e.Subject]++
		}
	}
	return n
}

// TestKillMinusNineInChanges kills the daemon at random moments while a setting of the kubelet, with one that
// takes a reboot, rolls over the nodes, and while a worker is removed. The next daemon ends what it was at:
// every node goes down once for the one, and the worker that leaves for the other.
func TestKillMinusNineInChanges(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	for seed := range *killSeeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := newRig(t, lab.Config{})
			r.push(r.inventory(2))
			r.start()
			r.untilReady("")
			machines := r.machines()
			k := &killer{r: r, rnd: rand.New(rand.NewPCG(uint64(seed), 9)), most: 6, calls: 80, changes: 4, struck: make(chan struct{}, 1)}
			r.lab.World.OnCall(k.watch)
			kills := 0
			down := func(change string, files map[string][]byte, want map[string]int) {
				t.Helper()
				since := len(r.lab.World.Events())
				kills += k.change(files)
				if got := r.disruptions(since); !maps.Equal(got, want) {
					t.Errorf("%s: went down %v, want %v\n%s", change, got, want, r.story())
				}
			}

			files := r.inventory(2)
			files["inventory/dev/cluster.yaml"] = append(files["inventory/dev/cluster.yaml"], "patches: {all: [patches/all.yaml]}\n"...)
			files["inventory/dev/patches/all.yaml"] = []byte("machine: {kubelet: {extraConfig: {maxPods: 120}}, env: {ROUND: \"1\"}}\n")
			down("a roll", files, map[string]int{"dev-cp-1": 1, "dev-wk-1": 1, "dev-wk-2": 1})
			for _, vm := range r.lab.PVE.VMs() {
				if running, _ := r.lab.Talos.ConfigsOf(vm.VMID); !strings.Contains(string(running), "maxPods: 120") {
					t.Errorf("%s does not have the setting", vm.Name)
				}
			}

			files["inventory/dev/nodes.yaml"] = r.inventory(1)["inventory/dev/nodes.yaml"]
			down("a removal", files, map[string]int{"dev-wk-2": 1})
			delete(machines, "dev-wk-2")
			if now := r.machines(); !maps.Equal(now, machines) {
				t.Errorf("the machines should be %v, and are %v", machines, now)
			}

			if kills < 3 {
				t.Errorf("the daemon was killed %d times in two changes: the test proves little", kills)
			}
			if code := r.stop(); code != exitOK {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// machines identifies the VM of each node: another one has another id.
func (r *rig) machines() map[string]string {
	out := map[string]string{}
	for _, vm := range r.lab.PVE.VMs() {
		out[vm.Name] = vm.Config["vmgenid"]
	}
	return out
}
