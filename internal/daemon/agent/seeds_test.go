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
// version of Proxmox VE, with latencies, faults, crashes, pushes, and people who get
// in the way in Proxmox VE, with kubectl and with talosctl, drawn from the seed. Then the world is healed, and the cluster must
// become what the repository says and stay so.
//
// To see one again: go test ./internal/daemon/agent -run TestSeeds -seed N -seeds 1 -v
func TestSeeds(t *testing.T) {
	t.Parallel()
	calls := usualCalls(t)
	var faults, deaths, hands, downs atomic.Int64
	count := max(min(*seedCount, 5), *seedCount/daemontest.Thin(t))
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
					hands.Add(int64(l.interfered))
					downs.Add(int64(l.guard.countDowns()))
					if t.Failed() || count == 1 {
						t.Logf("to see it again: go test ./internal/daemon/agent -run TestSeeds -seed %d -seeds 1 -v\n%s", seed, l.plot())
					}
				})
			})
		}
	})
	t.Logf("%d seeds: %v faults struck, the agent died %v times and took down %v nodes, people got in the way %v times", count, faults.Load(), deaths.Load(), downs.Load(), hands.Load())
	if count >= 5 && (faults.Load() == 0 || deaths.Load() == 0 || hands.Load() == 0 || downs.Load() == 0) {
		t.Error("nothing ever went wrong: the simulation proves nothing")
	}
}

// usualCalls lists the calls of an undisturbed bring-up, of changes that take a node down,
// and of a replacement: what faults can strike.
func usualCalls(t *testing.T) []world.CallRecord {
	t.Helper()
	seen := map[world.Call]world.CallRecord{}
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := newWishes(sz)
		w.wkCores, w.env, w.tokens["dev-cp-1"] = 6, 1, "now"
		s.Push(w.files(sz), "changes")
		s.UntilReady(2 * time.Hour)
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
	plans []string // what was planned to go wrong

	wishes wishes
	edited map[int]string  // by VMID, which one of it somebody tagged
	asked  map[string]size // by commit, what it asks for; a broken one is not here
	guard  *guard

	chaotic     atomic.Bool
	lock        sync.Mutex // calls reach the world side by side
	interfered  int
	theme       func(target)         // what happens more often than else; nil: nothing
	grown       bool                 // the chaos begins when the cluster is there
	pushes      int                  // that change nothing, in the end
	helped      map[advice]time.Time // when that was taken
	shown       cluster.Forecast     // a plan that was shown
	planesSpent int                  // how many control planes are to leave, or were lost
	trap        func()               // what happens as soon as something is under way that takes a node out of service
	undo        []func() bool        // what people do to clean up after themselves
	founders    map[string]bool
	unplugged   map[int]string    // by VMID, which machine somebody moved to a bridge where nothing answers
	labelled    map[string]string // by node, the UID of the Node object that somebody labelled
	dies        bool              // the agent dies for certain: of five seeds in a row it does in one
	several     bool              // Proxmox VE is a cluster of several hosts
	noQuorum    bool              // and has no quorum
	room        int64             // of the storage of the disks, in bytes
}

func newLife(t *testing.T, seed uint64, calls []world.CallRecord) *life {
	l := &life{rnd: rand.New(rand.NewPCG(seed, 20260101)), calls: calls, edited: map[int]string{}, founders: map[string]bool{}, unplugged: map[int]string{}, labelled: map[string]string{}, helped: map[advice]time.Time{}, asked: map[string]size{}, dies: seed%5 == 0}
	sizes := []size{{ControlPlanes: 1, Workers: 1}, {ControlPlanes: 1, Workers: 2}, {ControlPlanes: 1, Workers: 3}, {ControlPlanes: 3, Workers: 1}, {ControlPlanes: 3, Workers: 3},
		{ControlPlanes: 3, Workers: 2}, {ControlPlanes: 5, Workers: 1}}
	l.size = sizes[l.rnd.IntN(len(sizes))]
	c := lab.Config{Flavour: []string{"9.2", "9.2", "8.4"}[l.rnd.IntN(3)], Latency: l.latencies()}
	host := l.size.Host()
	if l.room = host.Storages[1].TotalBytes; l.rnd.IntN(3) == 0 {
		other := l.size.Host()
		other.Name, l.several = "pve2", true
		c.Hosts = []pve.Host{host, other}
		l.size.Spread = seed%2 == 0
	}
	l.plan("%v nodes on Proxmox VE %s, of several hosts: %v, spread: %v", l.size, c.Flavour, l.several, l.size.Spread)
	l.sim = newSim(t, l.size, c)
	l.drawWishes()
	l.Removals = []int{20, 20, 1}[l.rnd.IntN(3)]
	l.guard = newGuard(l.sim, l.size)
	l.guard.orderNext(l.order())
	l.guard.named(l.Head())
	l.asked[l.Head()[:12]] = l.size
	ambush := l.ambush()
	l.Lab.World.OnCall(func(c world.CallRecord) {
		l.Witness(c)
		l.guard.watch(c)
		if strings.HasSuffix(c.Op, "/Bootstrap") {
			l.lock.Lock()
			l.founders[c.Subject] = true
			l.lock.Unlock()
		}
		ambush(c)
	})
	l.Lab.World.OnConfig(l.guard.judgeConfig)
	return l
}

func (l *life) plan(format string, args ...any) {
	l.plans = append(l.plans, fmt.Sprintf(format, args...))
}

// plot tells what was to go wrong and what happened.
func (l *life) plot() string {
	return "planned:\n  " + strings.Join(l.plans, "\n  ") + "\nhappened:\n" + l.Story(60)
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

// live is the whole life: chaos, healing, and what must be true in the end. In every
// second one the chaos begins when the cluster is there.
func (l *life) live() {
	defer l.Close()
	l.grown = l.rnd.IntN(2) == 0
	if l.grown {
		l.plan("at first nothing goes wrong")
		l.Boot()
		l.UntilReady(time.Hour)
	}
	l.chaotic.Store(true)
	for range l.rnd.IntN(9) {
		l.addFault()
	}
	if l.rnd.IntN(8) == 0 {
		l.foreign(l.vmid(l.rnd.IntN(l.size.ControlPlanes + l.size.Workers)))
	}
	if l.rnd.IntN(3) == 0 || l.dies {
		n := 1 + l.rnd.IntN(12)
		l.Disk.DieAt = l.Disk.Steps + n
		if l.rnd.IntN(2) == 0 {
			l.Disk.DieAt = -l.Disk.DieAt
		}
		l.plan("the agent dies at durable step %d", l.Disk.DieAt)
	}
	if l.grown {
		l.push(l.drawTarget())
	} else {
		l.Boot()
	}
	l.theme = l.drawTheme()
	l.chaos(time.Duration(30+l.rnd.IntN(300)) * time.Second)
	l.heal()
	l.pass(3 * time.Minute) // for what was undone to be noticed
	cleanUp := l.cleanUpAgain(time.Minute)
	l.Until(3*time.Hour, "Ready", func(st cluster.Status) bool {
		l.see(st)
		return cleanUp() && !isUntagged(st) && st.Condition == cluster.Ready && st.Revision == st.Applied && st.Revision.Commit() == l.Head()
	})
	if l.T.(*testing.T).Failed() {
		return
	}
	l.Quiet(10 * time.Minute)
	l.CheckRules(l.size)
	l.guard.wantInService()
	l.wishes.check(l.sim, l.size)
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

// chaos lets time pass while people get in the way, some of them in a hurry.
func (l *life) chaos(d time.Duration) {
	end := time.Now().Add(d)
	pause := []int{90, 90, 15}[l.rnd.IntN(3)]
	for time.Now().Before(end) && !l.T.(*testing.T).Failed() {
		l.pass(min(time.Duration(5+l.rnd.IntN(pause))*time.Second, time.Until(end)))
		if l.rnd.IntN(2) == 0 {
			l.interfere()
		}
		if l.theme != nil {
			l.theme(l.drawTarget())
		}
	}
}

// ask pushes what the cluster should be now.
func (l *life) ask(message string) {
	l.guard.resize(l.size)
	l.guard.orderNext(l.order())
	l.Push(l.wishes.files(l.size), message)
	l.guard.named(l.Head())
	l.asked[l.Head()[:12]] = l.size
}

// see has the guard know what the agent knows: which revision it has read, and whether the
// cluster was made.
func (l *life) see(st cluster.Status) {
	l.guard.read(st.Revision.Commit())
	if st.Condition == cluster.Ready && st.Revision == st.Applied {
		l.guard.noteReady(st.Revision.Commit())
	}
	l.guard.lookAgain()
	l.connect()
	if l.trap != nil && l.chaotic.Load() && isDisrupting(st) {
		spring := l.trap
		l.trap = nil
		spring()
	}
}

// isDisrupting reports whether something is under way that takes a node out of service.
func isDisrupting(st cluster.Status) bool {
	return slices.ContainsFunc(st.Running, func(r cluster.RunningStatus) bool {
		return slices.Contains([]cluster.ActionKind{cluster.DrainNode, cluster.ShutDownVM, cluster.RebootNode, cluster.RemoveMember, cluster.DeleteVM, cluster.DeleteNode}, r.Action)
	})
}

// order is what the guard judges by of what the cluster should be now.
func (l *life) order() order {
	return l.wishes.order(l.size)
}

// pass lets time pass, starting the agent again when it dies.
func (l *life) pass(d time.Duration) {
	began := time.Now()
	l.Until(d+time.Second, "past", func(st cluster.Status) bool {
		l.see(st)
		return time.Since(began) >= d
	})
}

// vmid is the VMID of the nth node.
func (l *life) vmid(n int) int {
	if n < l.size.ControlPlanes {
		return 411 + l.size.Left + n
	}
	return 541 + n - l.size.ControlPlanes
}

func (l *life) address(n int) string {
	if n < l.size.ControlPlanes {
		return fmt.Sprintf("10.10.0.%d", 11+l.size.Left+n)
	}
	return fmt.Sprintf("10.10.0.%d", 41+n-l.size.ControlPlanes)
}

// tidy looks for what must not be left: disks of nobody, lost edits, a second
// founder of etcd, untruths at the forge.
func (l *life) tidy() {
	for _, v := range l.Lab.PVE.Volumes("pve1", "local-lvm") {
		if _, ok := l.Lab.PVE.VM(v.VMID); !ok {
			l.T.Errorf("volume %s was left behind", v.Volid)
		}
	}
	for id, made := range l.edited {
		if vm, ok := l.Lab.PVE.VM(id); ok && vm.Config["vmgenid"] == made && !strings.Contains(vm.Config["tags"], "keep-me") {
			l.T.Errorf("the tag that somebody added to vm %d was taken away", id)
		}
	}
	l.checkLabels()
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
