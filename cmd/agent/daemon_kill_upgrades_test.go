package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// withPlanes gives the files of a cluster of one control plane more of them.
func (r *rig) withPlanes(files map[string][]byte, planes int) {
	const nodes = "inventory/dev/nodes.yaml"
	first := fmt.Sprintf("  - {name: dev-cp-1, ip: %s11}\n", r.base)
	all := first
	for i := 2; i <= planes; i++ {
		all += fmt.Sprintf("  - {name: dev-cp-%d, ip: %s%d}\n", i, r.base, 10+i)
	}
	files[nodes] = bytes.Replace(files[nodes], []byte(first), []byte(all), 1)
}

// freeze has the daemon stand still, so that what its files are now is what the next one finds if
// it is killed then; thaw has it go on.
func (r *rig) freeze() {
	_ = r.proc.cmd.Process.Signal(syscall.SIGSTOP) // it may have ended by itself
	for end := time.Now().Add(daemonPatience); !r.isStill(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Error("the daemon does not stand still")
			return
		}
	}
}

func (r *rig) thaw() { _ = r.proc.cmd.Process.Signal(syscall.SIGCONT) }

// isStill reports whether no thread of the daemon runs: a signal reaches one after the other. Source: proc(5).
func (r *rig) isStill() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", r.proc.cmd.Process.Pid))
	must(err)
	return !slices.ContainsFunc(threads, func(path string) bool {
		b, err := os.ReadFile(path)
		if err != nil {
			return false // it has ended
		}
		state := b[bytes.LastIndexByte(b, ')')+2] // behind the name, which may hold anything
		return !strings.ContainsRune("TtZX", rune(state))
	})
}

// installs are what the journal has of installations of Talos, by node.
func (r *rig) installs() map[string]cluster.Install {
	b, err := os.ReadFile(filepath.Join(r.dir, "state", "dev.json"))
	if os.IsNotExist(err) {
		return nil
	}
	must(err)
	line, _, _ := bytes.Cut(b, []byte("\n"))
	var facts cluster.Facts
	must(json.Unmarshal(line, &facts))
	return facts.Installs
}

// installsNow reports whether a machine was asked, or is about to be, to install another Talos, and it is
// not known yet how that ends. A machine that goes down for it brings it to its end by itself.
func (r *rig) installsNow() bool {
	for node, in := range r.installs() {
		goesDown := func(e world.Event) bool {
			return e.Subject == node && strings.HasPrefix(e.Text, "upgrades to Talos ")
		}
		if in.Unseen() && !slices.ContainsFunc(r.lab.World.Events(), goesDown) {
			return true
		}
	}
	return false
}

// sparesInstalls has the daemon stand still, and go on while a machine installs another Talos. An agent that is killed
// then never sees how that ended, and reboots the machine when the installer has had its time: a quarter of an hour of
// the host's own clock, which no lab makes faster. That is tried in virtual time, at every instant, by
// TestCrashDuringAnUpgradeOfTalos; every other instant is tried here.
func (r *rig) sparesInstalls() bool {
	if r.freeze(); r.installsNow() {
		r.thaw()
		return true
	}
	return false
}

// asked is how often the machine of each node was asked for another Talos since so many calls.
func (r *rig) asked(since int) map[string]int {
	n := map[string]int{}
	for _, c := range r.lab.World.Calls()[since:] {
		if c.System == "talos" && strings.HasSuffix(c.Op, "Service/Upgrade") && !c.Lost {
			n[c.Subject]++
		}
	}
	return n
}

// wentDown is how often each node was taken down since so many events.
func (r *rig) wentDown(since int) map[string]int {
	n := r.disruptions(since)
	for _, e := range r.lab.World.Events()[since:] {
		if strings.HasPrefix(e.Text, "upgrades to Talos ") {
			n[e.Subject]++
		}
	}
	return n
}

// wantVersions checks that every machine, every kubelet and every component of the control planes has them.
func (r *rig) wantVersions(talos, kubernetes string) {
	r.t.Helper()
	for _, n := range r.status().Nodes {
		if n.Talos != talos || n.Kubernetes != kubernetes || n.Phase != cluster.PhaseReady {
			r.t.Errorf("%s runs Talos %s and Kubernetes %s and is %s; %s and %s are wanted", n.Name, n.Talos, n.Kubernetes, n.Phase, talos, kubernetes)
		}
	}
	for _, vm := range r.lab.PVE.VMs() {
		running, _ := r.lab.Talos.ConfigsOf(vm.VMID)
		for line := range strings.Lines(string(running)) {
			if strings.Contains(line, "image: registry.k8s.io/kube-") && !strings.HasSuffix(strings.TrimSpace(line), ":"+kubernetes) {
				r.t.Errorf("%s has %s, and %s is wanted", vm.Name, strings.TrimSpace(line), kubernetes)
			}
		}
	}
}

// TestKillMinusNineInUpgrades kills the daemon at random moments while three control planes and three workers get
// another Talos, and another Kubernetes where that is pushed with it: the next daemon continues from what it observes. Every node
// ends with what was pushed, is asked for another Talos once, and goes down once.
//
// Of Talos alone it takes less than a minute; Kubernetes takes four more, most of which are spent waiting: the first control plane that
// gets each of four components is watched for a minute.
func TestKillMinusNineInUpgrades(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	t.Parallel()
	kinds := []struct{ talos, kubernetes, toTalos, toKubernetes string }{
		{"v1.13.8", "v1.35.10", "v1.13.9", "v1.36.1"}, // which installs in service
		{"v1.12.11", "v1.35.3", "v1.13.9", "v1.35.3"}, // and on its way down
	}
	for seed := range *killSeeds {
		v := kinds[seed%len(kinds)]
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := newRig(t, lab.Config{})
			files := r.inventory(3)
			r.withPlanes(files, 3)
			ask := func(fromTalos, fromKubernetes, talos, kubernetes string) {
				const file, form = "inventory/dev/cluster.yaml", "talos_version: %s\nkubernetes_version: %s\n"
				files[file] = bytes.Replace(files[file], fmt.Appendf(nil, form, fromTalos, fromKubernetes), fmt.Appendf(nil, form, talos, kubernetes), 1)
			}
			ask("v1.13.9", "v1.36.1", v.talos, v.kubernetes)
			r.push(files)
			r.start()
			r.untilReady("")
			machines := r.machines()
			calls, events := len(r.lab.World.Calls()), len(r.lab.World.Events())
			k := &killer{r: r, rnd: rand.New(rand.NewPCG(uint64(seed), 14)), most: 14, calls: 250, changes: 16, spares: r.sparesInstalls, struck: make(chan struct{}, 1)}
			r.lab.World.OnCall(k.watch)
			ask(v.talos, v.kubernetes, v.toTalos, v.toKubernetes)
			if kills := k.change(files); kills < 3 {
				t.Errorf("the daemon was killed %d times: the test proves little", kills)
			}
			r.wantVersions(v.toTalos, v.toKubernetes)
			once := map[string]int{"dev-cp-1": 1, "dev-cp-2": 1, "dev-cp-3": 1, "dev-wk-1": 1, "dev-wk-2": 1, "dev-wk-3": 1}
			if got := r.asked(calls); !maps.Equal(got, once) {
				t.Errorf("asked for another Talos: %v", got)
			}
			if got := r.wentDown(events); !maps.Equal(got, once) {
				t.Errorf("went down: %v\n%s", got, r.story())
			}
			if now := r.machines(); !maps.Equal(now, machines) {
				t.Errorf("the machines should be %v, and are %v", machines, now)
			}
			if code := r.stop(); code != exitOK {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
