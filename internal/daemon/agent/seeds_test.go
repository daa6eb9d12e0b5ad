package agent_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

var (
	seedCount = flag.Int("seeds", 100, "how many seeds of the simulation to run")
	firstSeed = flag.Uint64("seed", 1, "the first seed to run")
)

// TestSeeds gives every seed a life of its own: a cluster of some size, on some
// version of Proxmox VE, with latencies, faults, crashes and people who get in
// the way, drawn from the seed. Then the world is healed, and the cluster must
// become what the repository says and stay so.
//
// To see one again: go test ./internal/daemon/agent -run TestSeeds -seed N -seeds 1 -v
func TestSeeds(t *testing.T) {
	calls := usualCalls(t)
	var faults, deaths, troubles atomic.Int64
	count := max(min(*seedCount, 5), *seedCount/daemontest.Thinner)
	t.Run("all", func(t *testing.T) {
		for i := range count {
			seed := *firstSeed + uint64(i)
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					l := newLife(t, seed, calls)
					l.live()
					faults.Add(int64(l.Lab.World.Struck()))
					deaths.Add(int64(l.Deaths))
					troubles.Add(int64(l.troubled))
					if t.Failed() {
						t.Logf("to see it again: go test ./internal/daemon/agent -run TestSeeds -seed %d -seeds 1 -v\n%s", seed, l.plot())
					}
				})
			})
		}
	})
	t.Logf("%d seeds: %v faults struck, the agent died %v times, people got in the way %v times", count, faults.Load(), deaths.Load(), troubles.Load())
	if count >= 5 && (faults.Load() == 0 || deaths.Load() == 0 || troubles.Load() == 0) {
		t.Error("nothing ever went wrong: the simulation proves nothing")
	}
}

// usualCalls lists the calls of an undisturbed bring-up: what faults can strike.
func usualCalls(t *testing.T) []world.CallRecord {
	t.Helper()
	seen := map[world.Call]world.CallRecord{}
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 3, Workers: 2}, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		for _, c := range s.Lab.World.Calls() {
			seen[c.Call] = c
		}
		s.Halt()
	})
	return slices.SortedFunc(maps.Values(seen), func(a, b world.CallRecord) int {
		return strings.Compare(a.System+a.Op+a.Subject, b.System+b.Op+b.Subject)
	})
}

// life is the run of one seed.
type life struct {
	*sim
	rnd   *rand.Rand
	size  size // what the repository finally asks for
	calls []world.CallRecord
	told  []string // what was planned to go wrong

	edited map[int]string    // by VMID, the UUID of a VM that somebody tagged
	asked  map[string]size   // by commit, what it asks for; a broken one is not here
	tokens map[string]string // by node, of those that are to be replaced

	peace    atomic.Bool
	lock     sync.Mutex // calls reach the world side by side
	troubled int
	undo     []func() // what people do to clean up after themselves
	founders map[string]bool
}

func newLife(t *testing.T, seed uint64, calls []world.CallRecord) *life {
	l := &life{rnd: rand.New(rand.NewPCG(seed, 20260101)), calls: calls, edited: map[int]string{}, founders: map[string]bool{}, asked: map[string]size{}, tokens: map[string]string{}}
	l.size = []size{{ControlPlanes: 1, Workers: 1}, {ControlPlanes: 1, Workers: 2}, {ControlPlanes: 1, Workers: 3}, {ControlPlanes: 3, Workers: 1}, {ControlPlanes: 3, Workers: 3}}[l.rnd.IntN(5)]
	c := lab.Config{Flavour: []string{"9.2", "9.2", "8.4"}[l.rnd.IntN(3)], Latency: l.latencies()}
	l.plan("%v nodes on Proxmox VE %s", l.size, c.Flavour)
	l.sim = newSim(t, l.size, c)
	l.Removals = 20 // there is no one to approve
	l.asked[l.Head()[:12]] = l.size
	ambush := l.ambush()
	l.Lab.World.OnCall(func(c world.CallRecord) {
		l.Witness(c)
		if strings.HasSuffix(c.Op, "/Bootstrap") {
			l.lock.Lock()
			l.founders[c.Subject] = true
			l.lock.Unlock()
		}
		ambush(c)
	})
	return l
}

func (l *life) plan(format string, args ...any) {
	l.told = append(l.told, fmt.Sprintf(format, args...))
}

// plot tells what was to go wrong and what happened.
func (l *life) plot() string {
	return "planned:\n  " + strings.Join(l.told, "\n  ") + "\nhappened:\n" + l.Story(60)
}

// latencies draws how fast this world is: a tenth to three times the usual.
func (l *life) latencies() world.Latencies {
	d := world.DefaultLatencies()
	for _, p := range []*time.Duration{&d.Call, &d.Download, &d.Upload, &d.Import, &d.Create, &d.Start, &d.Stop, &d.Delete, &d.Boot,
		&d.Apply, &d.Etcd, &d.Learn, &d.ImagePull, &d.API, &d.Chart, &d.CNIPull, &d.Ready, &d.Pods} {
		*p = time.Duration(float64(*p) * (0.1 + 2.9*l.rnd.Float64()*l.rnd.Float64()))
	}
	return d
}

// live is the whole life: chaos, healing, and what must be true in the end.
func (l *life) live() {
	defer l.Close()
	for range l.rnd.IntN(9) {
		l.addFault()
	}
	if l.rnd.IntN(8) == 0 {
		l.foreign(l.vmid(l.rnd.IntN(l.size.ControlPlanes + l.size.Workers)))
	}
	if l.rnd.IntN(3) == 0 {
		n := 1 + l.rnd.IntN(12)
		l.Disk.DieAt = n
		if l.rnd.IntN(2) == 0 {
			l.Disk.DieAt = -n
		}
		l.plan("the agent dies at durable step %d", l.Disk.DieAt)
	}
	l.Boot()
	l.chaos(time.Duration(30+l.rnd.IntN(420)) * time.Second)
	l.heal()
	l.pass(3 * time.Minute) // for what was undone to be noticed
	l.Until(time.Hour, "Ready", func(st cluster.Status) bool {
		return st.Condition == cluster.Ready && st.Revision == st.Applied && st.Revision.Commit() == l.Head()
	})
	if l.T.(*testing.T).Failed() {
		return
	}
	l.Quiet(10 * time.Minute)
	l.CheckRules(l.size)
	l.tidy()
	l.Halt()
}

// kinds are the faults that any call can have; some count more than once, so
// that they come up more often.
var kinds = []world.FaultKind{world.LoseRequest, world.LoseReply, world.LoseReply, world.Answer, world.Answer, world.Slow,
	world.CrashBefore, world.CrashAfter, world.CrashAfter}

// addFault draws one fault and lays it in wait.
func (l *life) addFault() {
	// What changes something is the more interesting, and each kind of change
	// as much as any other.
	c := l.calls[l.rnd.IntN(len(l.calls))]
	if l.rnd.IntN(3) > 0 {
		ops := map[string]world.CallRecord{}
		for _, c := range l.calls {
			if c.Mutating && c.System != "forge" {
				ops[c.System+c.Op] = c
			}
		}
		c = ops[slices.Sorted(maps.Keys(ops))[l.rnd.IntN(len(ops))]]
	}
	f := world.Fault{System: c.System, Op: c.Op, Nth: 1 + l.rnd.IntN(3), Times: 1 + l.rnd.IntN(3), Kind: kinds[l.rnd.IntN(len(kinds))]}
	if l.rnd.IntN(2) == 0 {
		f.Subject = c.Subject
	}
	if c.Mutating && l.rnd.IntN(3) == 0 {
		f.Kind = world.LoseReply // the one that tempts to ask twice
	}
	if c.System == "pve" {
		switch {
		case strings.HasPrefix(c.Op, "GET ") && l.rnd.IntN(3) == 0:
			f.Kind = world.EmptyList
		case strings.HasSuffix(c.Op, "/status/start") && l.rnd.IntN(2) == 0:
			f.Kind, f.Times = world.NeverUp, 1
		case c.Mutating && l.rnd.IntN(3) == 0:
			f.Kind = []world.FaultKind{world.FailTask, world.HangTask}[l.rnd.IntN(2)]
		}
	}
	if c.System == "kube" && strings.HasPrefix(c.Op, "GET ") && l.rnd.IntN(3) == 0 {
		f.Kind = world.EmptyList
	}
	switch f.Kind {
	case world.Answer:
		f.Status, f.Text = l.refusal(c.System)
	case world.Slow, world.HangTask:
		f.Delay = time.Duration(1+l.rnd.IntN(90)) * time.Second
	case world.FailTask:
		f.Text = "no space left on device"
	case world.CrashBefore, world.CrashAfter:
		f.Times = 1
	}
	l.plan("%s %s %s %s, no. %d, %d times, delay %v, status %d", f.Kind, f.System, f.Op, f.Subject, f.Nth, f.Times, f.Delay, f.Status)
	l.Lab.World.Inject(f)
}

// refusal is an answer that a system gives when something is wrong with it.
func (l *life) refusal(system string) (int, string) {
	codes := map[string][]int{"pve": {401, 403, 500, 502, 595, 596, 599}, "talos": {4, 8, 13, 14}, "kube": {401, 429, 500, 503}}[system]
	if codes == nil {
		codes = []int{403, 404, 429, 500, 502, 503}
	}
	return codes[l.rnd.IntN(len(codes))], "out of order"
}

// chaos lets time pass while people get in the way.
func (l *life) chaos(d time.Duration) {
	end := time.Now().Add(d)
	for time.Now().Before(end) && !l.T.(*testing.T).Failed() {
		l.pass(min(time.Duration(5+l.rnd.IntN(90))*time.Second, time.Until(end)))
		if l.rnd.IntN(2) == 0 {
			l.trouble()
		}
	}
}

// files is the repository of what the cluster should be now.
func (l *life) files() map[string][]byte {
	files := l.size.Files()
	for name, token := range l.tokens {
		row := "{name: " + name + ","
		files["inventory/dev/nodes.yaml"] = []byte(strings.Replace(string(files["inventory/dev/nodes.yaml"]), row, row+" replace: "+token+",", 1))
	}
	return files
}

// ask pushes what the cluster should be now.
func (l *life) ask(message string) {
	l.Push(l.files(), message)
	l.asked[l.Head()[:12]] = l.size
}

// pass lets time pass, starting the agent again when it dies.
func (l *life) pass(d time.Duration) {
	began := time.Now()
	l.Until(d+time.Second, "past", func(cluster.Status) bool { return time.Since(began) >= d })
}

// vmid is the VMID of the nth node.
func (l *life) vmid(n int) int {
	if n < l.size.ControlPlanes {
		return 411 + n
	}
	return 541 + n - l.size.ControlPlanes
}

func (l *life) address(n int) string {
	if n < l.size.ControlPlanes {
		return fmt.Sprintf("10.10.0.%d", 11+n)
	}
	return fmt.Sprintf("10.10.0.%d", 41+n-l.size.ControlPlanes)
}

// trouble is one thing that people or the house do.
func (l *life) trouble() {
	n := l.rnd.IntN(l.size.ControlPlanes + l.size.Workers)
	id := l.vmid(n)
	vm, exists := l.Lab.PVE.VM(id)
	switch l.rnd.IntN(12) {
	case 10:
		l.plan("one worker less is pushed")
		if l.size.Workers > 1 {
			l.size.Workers--
			l.ask("one worker less")
		}
	case 11:
		name := l.size.Name(n)
		l.plan("%s is to be replaced", name)
		if n >= l.size.ControlPlanes || l.size.ControlPlanes > 1 {
			l.tokens[name] = fmt.Sprintf("t%d", len(l.told))
			l.ask("replace " + name)
		}
	case 0:
		l.plan("the agent is killed")
		l.Die()
	case 1:
		l.plan("somebody stops vm %d", id)
		if exists && vm.Lock == "" {
			_ = l.Lab.PVE.Stop(id) // it may be busy; then nothing was done to it
		}
	case 2:
		l.edit(id, vm, exists)
	case 3:
		l.plan("somebody adds a tag to vm %d", id)
		if exists && vm.Maker != "root@pam" && vm.Lock == "" {
			must(l.Lab.PVE.Edit(id, "tags", vm.Config["tags"]+";keep-me"))
			l.lock.Lock()
			l.edited[id] = vm.UUID
			l.lock.Unlock()
		}
	case 4:
		l.plan("a backup of vm %d runs", id)
		if exists && vm.Lock == "" {
			must(l.Lab.PVE.Lock(id, "backup"))
			l.later(func() { _ = l.Lab.PVE.Unlock(id) })
		}
	case 5:
		l.plan("%s falls dark", l.address(n))
		l.darken(l.address(n))
	case 6:
		l.plan("Proxmox VE falls dark")
		l.darken("pve")
	case 7:
		l.plan("one worker more is pushed")
		l.size.Workers++
		l.ask("one worker more")
	case 8:
		l.plan("a broken inventory is pushed, and mended")
		files := l.files()
		files["inventory/dev/nodes.yaml"] = append(slices.Clone(files["inventory/dev/nodes.yaml"]), []byte("- nonsense\n")...)
		l.Push(files, "break it")
		l.later(func() { l.ask("mend it") })
	case 9:
		if n < l.size.ControlPlanes || !exists || vm.Lock != "" || vm.Maker == "root@pam" {
			l.plan("nobody does anything")
			return
		}
		l.plan("somebody removes vm %d and makes another one of its number", id)
		if l.remove(id) && l.rnd.IntN(2) == 0 {
			l.foreign(id)
		}
	}
}

// later has somebody who got in the way undo it when the world is healed.
func (l *life) later(f func()) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.troubled++
	l.undo = append(l.undo, f)
}

// edit changes something the inventory fixes, until it is changed back.
func (l *life) edit(id int, vm pve.VMView, exists bool) {
	key, value := "memory", "3072"
	if l.rnd.IntN(2) == 0 {
		key, value = "description", "mine now"
	}
	l.plan("somebody sets %s of vm %d", key, id)
	if !exists || vm.Lock != "" || vm.Maker == "root@pam" {
		return
	}
	old := vm.Config[key]
	must(l.Lab.PVE.Edit(id, key, value))
	l.later(func() {
		if now, ok := l.Lab.PVE.VM(id); ok && now.UUID == vm.UUID {
			must(l.Lab.PVE.Edit(id, key, old))
		}
	})
}

func (l *life) darken(host string) {
	net := l.Lab.World.Net.(*world.Memory)
	net.Darken(host, true)
	l.later(func() { net.Darken(host, false) })
}

// ambush draws whether somebody swaps a worker's VM for one of their own in the
// instant before the agent reads its config: what was known of the VM a moment
// ago is of no use then.
func (l *life) ambush() func(world.CallRecord) {
	if l.rnd.IntN(3) != 0 {
		return func(world.CallRecord) {}
	}
	id := l.vmid(l.size.ControlPlanes + l.rnd.IntN(l.size.Workers))
	var left atomic.Int64
	left.Store(1 + l.rnd.Int64N(8))
	l.plan("somebody swaps vm %d as it is read the %d. time", id, left.Load())
	return func(c world.CallRecord) {
		if c.Op != "GET /nodes/{node}/qemu/{vmid}/config" || c.Subject != fmt.Sprint(id) || left.Add(-1) != 0 || l.peace.Load() {
			return
		}
		if vm, ok := l.Lab.PVE.VM(id); ok && vm.Maker != "root@pam" && l.remove(id) {
			l.foreignIn(id, "talos")
		}
	}
}

// remove takes a VM away with all that was ever done to it.
func (l *life) remove(id int) bool {
	if l.Lab.PVE.Remove(id) != nil {
		return false
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	delete(l.edited, id)
	return true
}

// foreign puts somebody else's VM on a VMID of ours.
func (l *life) foreign(id int) {
	l.plan("somebody makes a vm %d of their own", id)
	l.foreignIn(id, []string{"", "talos"}[l.rnd.IntN(2)])
}

func (l *life) foreignIn(id int, pool string) {
	if l.Lab.PVE.CreateForeign(id, pve.Foreign{Pool: pool, Config: map[string]string{"name": "precious"}}) != nil {
		return // the agent was faster
	}
	l.later(func() {
		vm, ok := l.Lab.PVE.VM(id)
		if !ok || vm.Maker != "root@pam" || vm.Config["name"] != "precious" {
			l.T.Errorf("somebody's vm %d did not survive", id)
			return
		}
		must(l.Lab.PVE.Remove(id))
	})
}

// heal lifts every fault and has people clean up after themselves.
func (l *life) heal() {
	l.peace.Store(true)
	l.Lab.World.Heal()
	l.lock.Lock()
	undo := l.undo
	l.lock.Unlock()
	for _, f := range slices.Backward(undo) {
		f()
	}
	// A machine that never came up is switched off and on, as its Wait says.
	for _, vm := range l.Lab.PVE.VMs() {
		if vm.Power == pve.Running && vm.Dead {
			must(l.Lab.PVE.Stop(vm.VMID))
			must(l.Lab.PVE.Start(vm.VMID))
		}
	}
}

// tidy looks for what must not be left: disks of nobody, lost edits, a second
// founder of etcd, untruths at the forge.
func (l *life) tidy() {
	for _, v := range l.Lab.PVE.Volumes("pve1", "local-lvm") {
		if _, ok := l.Lab.PVE.VM(v.VMID); !ok {
			l.T.Errorf("volume %s was left behind", v.Volid)
		}
	}
	for id, uuid := range l.edited {
		if vm, ok := l.Lab.PVE.VM(id); ok && vm.UUID == uuid && !strings.Contains(vm.Config["tags"], "keep-me") {
			l.T.Errorf("the tag that somebody added to vm %d was taken away", id)
		}
	}
	l.truthful()
	if len(l.founders) != 1 {
		l.T.Errorf("bootstrap was sent to %v", slices.Sorted(maps.Keys(l.founders)))
	}
}

// truthful looks at what the forge was told: success of a commit only after
// every node that it asks for had been Ready, and success in the end.
func (l *life) truthful() {
	ready, last := map[string]bool{}, ""
	for _, e := range l.Lab.World.Events() {
		if e.Text == "is Ready" {
			ready[e.Subject] = true
		}
		commit, told, _ := strings.Cut(e.Text, " talos-agent/dev: ")
		if e.Subject != "forge" || told == "" {
			continue
		}
		state, _, _ := strings.Cut(told, ":")
		if strings.HasPrefix(l.Head(), commit) {
			last = state
		}
		if state != "success" {
			continue
		}
		sz, ok := l.asked[commit]
		if !ok {
			l.T.Errorf("the forge was told success of %s, which is broken", commit)
		}
		for n := range sz.ControlPlanes + sz.Workers {
			if name := sz.Name(n); !ready[name] {
				l.T.Errorf("the forge was told success of %s when %s had never been Ready", commit, name)
			}
		}
	}
	if last != "success" {
		l.T.Errorf("the forge was last told %q of a commit at which the cluster is Ready", last)
	}
}
