package talos

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/talos/access"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Config sizes a fleet.
type Config struct {
	World *world.World
	// Kubernetes is what the nodes run. nil: nothing, no node ever becomes
	// ready.
	Kubernetes world.Kubernetes
	// Reservations is what the DHCP server on the bridge knows: the address of
	// each lower-case hardware address. A machine that does not know its address
	// otherwise and is not listed here gets none and stays silent.
	Reservations map[string]netip.Prefix
	// Lease is asked for the address of a hardware address that is not in Reservations; nil: it has none.
	Lease func(mac string) netip.Prefix
	// Step is how long a service takes from one state to the next, before
	// Speed; 0 means 100 ms. It is short on purpose, about a tenth of what real
	// machines take: what takes long in the lab is in the world's latencies,
	// where it is accounted for.
	Step time.Duration
	// Stop is how long a service takes to stop; 0 means 1.7 Steps, as recorded.
	Stop time.Duration
	// Off is called when a guest switched itself off without the power button
	// (Shutdown, or Reset without reboot, through the Talos API). nil: nobody
	// is notified.
	Off func(vmid int)
}

// Fleet is every Talos machine of a lab. It implements world.Guests.
type Fleet struct {
	world        *world.World
	kubernetes   world.Kubernetes
	reservations map[string]netip.Prefix
	lease        func(mac string) netip.Prefix
	step, stop   time.Duration
	off          func(vmid int)
	kinds        *access.Kinds

	mu          sync.Mutex
	closed      bool
	machines    map[int]*machine
	serials     map[int]*system.Serial // by VMID
	etcds       []*etcd
	authorities map[string]access.Authority // machine CAs seen with their key, by fingerprint
	flaws       map[string]installer.Flaw   // of versions of Talos
	searches    int                         // see seeksPlanes
	split       map[string]bool             // pairs of etcds already reported as a split brain
	touched     map[*boot]struct{}
	effects     []func() // queued for carry
	carrying    bool
	moved       chan struct{} // closed at the next change

	serving sync.WaitGroup // every goroutine of this package
}

var (
	_ world.Guests     = (*Fleet)(nil)
	_ world.DiskCopier = (*Fleet)(nil)
	_ world.Pauser     = (*Fleet)(nil)

	_ world.MediumChanger = (*Fleet)(nil)
)

// New makes an empty fleet. Close it when done.
func New(c Config) (*Fleet, error) {
	if c.World == nil {
		return nil, errors.New("make talos fleet: no world")
	}
	if c.Off == nil {
		c.Off = func(int) {}
	}
	if c.Step == 0 {
		c.Step = 100 * time.Millisecond
	}
	if c.Stop == 0 {
		c.Stop = c.Step * 17 / 10
	}
	kinds, err := access.NewKinds()
	if err != nil {
		return nil, fmt.Errorf("make talos fleet: %w", err)
	}
	return &Fleet{
		world:        c.World,
		kubernetes:   c.Kubernetes,
		reservations: maps.Clone(c.Reservations),
		lease:        c.Lease,
		step:         c.Step,
		stop:         c.Stop,
		off:          c.Off,
		kinds:        kinds,
		machines:     map[int]*machine{},
		serials:      map[int]*system.Serial{},
		authorities:  map[string]access.Authority{},
		flaws:        map[string]installer.Flaw{},
		split:        map[string]bool{},
		touched:      map[*boot]struct{}{},
		moved:        make(chan struct{}),
	}, nil
}

// Close switches every machine off and waits until nothing of the fleet runs
// any more.
func (f *Fleet) Close() {
	f.changeState(func() {
		f.closed = true
		for _, m := range f.sortMachines() {
			m.switchOff()
		}
	})
	f.serving.Wait()
}

// changeState alters the fleet: do runs with the lock held, then etcd and the
// status of the machines concerned follow, then what others have to know
// is reported.
func (f *Fleet) changeState(do func()) {
	// It cannot fail.
	_ = f.attemptChange(func() error { do(); return nil })
}

// attemptChange is change for what may not be possible yet: nothing follows, and
// nobody is woken, when do returns errHang.
func (f *Fleet) attemptChange(do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := do()
	if errors.Is(err, errHang) {
		return err
	}
	f.settleState()
	close(f.moved)
	f.moved = make(chan struct{})
	if len(f.effects) > 0 && !f.carrying {
		f.carrying = true
		f.serving.Go(f.runEffects)
	}
	return err
}

// runEffects does in order what was queued, without the lock: it calls other
// services, which may call back.
func (f *Fleet) runEffects() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.effects) > 0 {
		next := f.effects[0]
		f.effects = f.effects[1:]
		f.mu.Unlock()
		next()
		f.mu.Lock()
	}
	f.carrying = false
}

// settleState lets everything that follows from the state of the fleet follow. Only
// the machines that were touched, and those of an etcd, can be concerned.
func (f *Fleet) settleState() {
	var planes []*machine
	for _, m := range f.machines {
		if m.isPlane() {
			planes = append(planes, m)
		}
	}
	slices.SortFunc(planes, byVMID)
	f.settleEtcd(planes)
	for _, m := range planes {
		f.markTouched(m.boot)
	}
	touched := slices.SortedFunc(maps.Keys(f.touched), func(a, b *boot) int { return byVMID(a.m, b.m) })
	clear(f.touched)
	for _, b := range touched {
		if b.m.boot == b && b.state != nil {
			b.evaluateState()
		}
	}
}

// markTouched has a machine judged when the change is over.
func (f *Fleet) markTouched(b *boot) {
	if b != nil {
		f.touched[b] = struct{}{}
	}
}

func byVMID(a, b *machine) int { return cmp.Compare(a.guest.VMID, b.guest.VMID) }

// sortMachines returns the machines by VMID, so that equal histories stay equal.
func (f *Fleet) sortMachines() []*machine {
	return slices.SortedFunc(maps.Values(f.machines), byVMID)
}

// QueueEffect implements reports.Machine.
func (b *boot) QueueEffect(do func()) { b.f.queueEffect(do) }

// ChangeState implements reports.Machine.
func (b *boot) ChangeState(do func() bool) {
	b.f.changeState(func() {
		if do() {
			b.f.markTouched(b)
		}
	})
}

// queueEffect queues something that must happen without the lock.
func (f *Fleet) queueEffect(do func()) { f.effects = append(f.effects, do) }

// PowerOn implements world.Guests.
func (f *Fleet) PowerOn(g world.Guest) {
	f.changeState(func() {
		if f.closed {
			return
		}
		if old := f.machines[g.VMID]; old != nil {
			old.switchOff()
		}
		m := &machine{f: f, guest: g, drives: system.OrderDisks(g)}
		m.disks = system.ListDisks(m.drives)
		if g.Boot == nil {
			m.guest.Boot = &world.Disk{}
		}
		f.machines[g.VMID] = m
		if m.canBoot() {
			m.startBoot(false)
		}
	})
}

// PowerOff implements world.Guests.
func (f *Fleet) PowerOff(vmid int) {
	f.changeState(func() {
		if m := f.machines[vmid]; m != nil {
			m.switchOff()
		}
	})
}

// Shutdown implements world.Guests: a machine that has booted reacts to the
// power button, leaves nothing behind but its disk, and is off.
func (f *Fleet) Shutdown(vmid int, off func()) bool {
	reacts := false
	f.changeState(func() {
		m := f.machines[vmid]
		if m == nil || m.boot == nil || m.boot.state == nil {
			return
		}
		reacts = true
		m.boot.goDown(&sequence{stage: runtime.MachineStageShuttingDown, off: max(f.world.Latency.Stop-silence, 0), then: func() {
			m.switchOff()
			f.world.After(0, off)
		}})
	})
	return reacts
}

// CopyContents implements world.DiskCopier. A copy of an etcd member is that member:
// whoever boots from it goes on where the member stands.
func (f *Fleet) CopyContents(d *world.Disk) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept, ok := d.Contents.(*disk)
	if !ok {
		return d.Contents
	}
	copied := *kept
	copied.images = slices.Clone(kept.images)
	return &copied
}

// MachineView is one machine as an onlooker with X-ray eyes sees it.
type MachineView struct {
	VMID       int
	Node       string // hostname
	Talos      string // version that runs, or boots next
	Schematic  string // of that; "": none
	Address    netip.Addr
	Stage      string // as the machine itself calls it; "" while it boots, hangs or has nothing to boot
	Ready      bool
	Configured bool // it runs with a machine config
	Control    bool
	BootID     string
	Etcd       string // name of the etcd it is a member of, as reported to Kubernetes; "" : none
	Learner    bool
	Healthy    bool // that member answers
	Leads      bool // and leads its etcd
	Voters, Up int  // of that etcd, and how many of them run and can be reached
	NodeReady  bool // its Kubernetes node reports Ready
	Partition  bool
	Medium     bool // it runs from its installation medium
}

// Machines returns every machine that is switched on, by VMID.
func (f *Fleet) Machines() []MachineView {
	f.mu.Lock()
	defer f.mu.Unlock()
	var views []MachineView
	for _, m := range f.sortMachines() {
		v := MachineView{VMID: m.guest.VMID, Node: m.guest.Name, Talos: m.image().Version, Schematic: m.image().Schematic, Partition: m.dark}
		if b := m.boot; b != nil {
			v.BootID, v.Medium = b.id, b.medium
			if b.state != nil {
				v.Node, v.Address, v.Stage, v.Ready = b.hostname(), b.address.Addr(), b.stage.String(), b.ready
				v.Configured, v.NodeReady = b.set != nil, b.nodeReady
				v.Control = b.set != nil && b.set.control
			}
		}
		if d := m.disk(); d != nil && d.member != nil && slices.Contains(d.member.of.members, d.member) {
			v.Etcd, v.Learner, v.Healthy, v.Leads = d.member.of.id, d.member.learner, d.member.isHealthy(), d.member.of.leader == d.member
			v.Voters, v.Up = len(d.member.of.voters()), d.member.of.countUp()
		}
		views = append(views, v)
	}
	return views
}

// ConfigsOf returns the machine config that a machine runs, and the one on its disk, which it
// runs from its next boot on; "": there is none.
func (f *Fleet) ConfigsOf(vmid int) (running, saved string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.machines[vmid]
	if m == nil || m.boot == nil || m.boot.set == nil {
		return "", ""
	}
	data, err := m.boot.set.provider.Bytes()
	if err != nil {
		return "", "" // it was read from bytes
	}
	return string(data), string(m.disk().config)
}

// The acts of gods and humans.

// Kill makes a machine hang: its virtual machine runs on, nothing answers any
// more until it is power cycled.
func (f *Fleet) Kill(vmid int) error {
	return f.actOn(vmid, func(m *machine) { m.haltNow() })
}

// Partition cuts a machine off from every network, or brings it back.
func (f *Fleet) Partition(vmid int, cut bool) error {
	return f.actOn(vmid, func(m *machine) { m.setPartitioned(cut) })
}

// Pause implements world.Pauser: nothing of a machine answers while it stands still.
func (f *Fleet) Pause(vmid int, paused bool) { _ = f.Partition(vmid, paused) } // one that is off does not notice

// Reboot restarts a machine from inside, as after a kernel panic.
func (f *Fleet) Reboot(vmid int) error {
	return f.actOn(vmid, func(m *machine) {
		m.haltNow()
		if m.canBoot() {
			m.startBoot(false)
		}
	})
}

// Desync takes the time server away from a machine (true) or gives it back:
// a machine whose time is not in sync refuses to bootstrap.
func (f *Fleet) Desync(vmid int, lost bool) error {
	return f.actOn(vmid, func(m *machine) { m.timeless = lost })
}

func (f *Fleet) actOn(vmid int, do func(*machine)) error {
	err := fmt.Errorf("machine %d is not switched on", vmid)
	f.changeState(func() {
		if m := f.machines[vmid]; m != nil {
			err = nil
			do(m)
			f.markTouched(m.boot)
		}
	})
	return err
}
