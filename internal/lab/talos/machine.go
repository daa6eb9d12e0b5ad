package talos

import (
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/talos/access"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/talos/manifests"
	"github.com/talos-agent/talos-agent/internal/lab/talos/reports"
	"github.com/talos-agent/talos-agent/internal/lab/talos/rules"
	"github.com/talos-agent/talos-agent/internal/lab/talos/services"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// machine is a guest that is switched on.
type machine struct {
	f     *Fleet
	guest world.Guest
	// drives are its disks, and disks what they were when it was switched on; they may grow since.
	drives []*world.Disk
	disks  []system.Disk
	kept   *disk // while no disk has it
	boot   *boot // nil: nothing runs (hung, or nothing bootable)

	dark     bool   // partitioned from the network
	darkened string // the address it had then
	timeless bool   // without a time server
}

// disk is what a machine keeps on its system disk beyond the image. It is the
// Contents of the world's disk, so that it lives and dies with it.
type disk struct {
	id     string         // another one for each disk that is made
	config []byte         // the saved machine config; nil: none
	member *member        // the etcd data directory; nil: empty
	debris bool           // or what a failed recovery left in it
	upload []byte         // a snapshot of etcd; nil: none
	wiped  bool           // Talos itself was wiped: nothing to boot
	images []system.Image // pulled by a caller of the API to CRI
	slots  installer.Slots
	staged string // the image of an upgrade that is carried out at the next boot; "": none
	// partial: an installer has begun, and has not ended well.
	partial bool
}

// disk returns what the machine keeps: in memory as long as its disk is empty, which its firmware passes by.
func (m *machine) disk() *disk {
	if d, ok := m.guest.Boot.Contents.(*disk); ok {
		return d
	}
	if m.kept == nil {
		m.kept = &disk{id: system.NewUUID()}
	}
	if m.guest.Boot.Image.Version != "" {
		m.guest.Boot.Contents = m.kept
	}
	return m.kept
}

// hasNoEtcd reports whether the etcd data directory is empty.
func (d *disk) hasNoEtcd() bool { return d.member == nil && !d.debris }

// canBoot reports whether there is a Talos image to boot and a guest that is
// able to.
func (m *machine) canBoot() bool {
	_, _, ok := m.pickBoot(false)
	return !m.guest.Dead && (m.boot != nil || ok)
}

// image is what runs, or boots next, or would if the firmware let it.
func (m *machine) image() world.Image {
	if m.boot != nil {
		return m.boot.image
	}
	if image, _, ok := m.pickBoot(false); ok {
		return image
	}
	return m.disk().slots.Next(m.guest.Boot.Image)
}

// minor is the minor of the version that runs: 13 of v1.13.9.
func (b *boot) minor() int {
	if minor := installer.MinorOf(b.image.Version); minor >= 0 {
		return minor
	}
	return rules.NewestMinor
}

// isPlane reports whether the machine has to do with an etcd.
func (m *machine) isPlane() bool {
	d := m.disk()
	return d != nil && d.member != nil || m.boot != nil && m.boot.set != nil && m.boot.set.control
}

// name is what the world calls the machine: its VM's name.
func (m *machine) name() string {
	if m.guest.Name != "" {
		return m.guest.Name
	}
	return m.subject()
}

// subject names the machine in spans before it is a node.
func (m *machine) subject() string { return strconv.Itoa(m.guest.VMID) }

// platformAddress is the address the machine has before any machine config:
// from the cloud-init drive, which only a nocloud image reads, else from DHCP.
func (m *machine) platformAddress() netip.Prefix {
	if m.guest.Address.IsValid() && m.image().Platform == "nocloud" {
		return m.guest.Address
	}
	p, reserved := m.f.reservations[m.guest.MAC]
	if !reserved && m.f.lease != nil {
		p = m.f.lease(m.guest.MAC)
	}
	return p
}

// startBoot boots the machine from its disk or its medium.
func (m *machine) startBoot(kexec bool) {
	image, medium, _ := m.pickBoot(kexec)
	m.print(system.PrintKernel(image.Version)...)
	if m.f.flaws[image.Version] == installer.HangsOnBoot {
		m.f.world.Report(m.name(), "hangs while Talos %s boots", image.Version)
		return
	}
	b := &boot{m: m, f: m.f, image: image, medium: medium, bare: medium, verified: m.guest.VerifyBoot(image), id: system.NewUUID(), started: m.f.world.GuestNow(), services: map[string]*services.Service{}, ended: make(chan struct{})}
	b.events = system.NewEvents(b.id)
	m.boot = b
	b.publishSequence("initialize", machineapi.SequenceEvent_START)
	d := m.f.world.Latency.Boot + m.f.flaws[image.Version].Delay()
	m.f.world.Spend("boot", m.subject(), d, "start/"+m.subject(), "install/"+m.subject())
	b.runAfter(d, b.finishStart)
}

// haltNow stops whatever runs, at once and without a goodbye.
func (m *machine) haltNow() {
	b := m.boot
	if b == nil {
		return
	}
	m.boot = nil
	close(b.ended)
	for _, cancel := range b.timers {
		cancel()
	}
	b.withdrawBoot()
}

// switchOff takes the machine out of the world, at once.
func (m *machine) switchOff() {
	m.haltNow()
	m.setPartitioned(false)
	delete(m.f.machines, m.guest.VMID)
}

// setPartitioned cuts the machine off from the network, or brings it back.
func (m *machine) setPartitioned(cut bool) {
	m.dark = cut
	b := m.boot
	n, ok := m.f.world.Net.(darkener)
	switch {
	case ok && m.darkened != "" && !cut:
		n.Darken(m.darkened, false)
		m.darkened = ""
	case ok && cut && b != nil && b.address.IsValid():
		m.darkened = b.address.Addr().String()
		n.Darken(m.darkened, true)
	case ok || b == nil:
	// A real network is not ours to cut: the API is closed instead.
	case cut:
		b.closeAPI()
	default:
		b.reopenAPI()
	}
}

// darkener is a network that can cut a host off.
type darkener interface{ Darken(host string, dark bool) }

// boot is one run of a machine, from power on to power off or reboot.
type boot struct {
	m        *machine
	f        *Fleet
	image    world.Image
	medium   bool      // it runs from its installation medium, in memory
	bare     bool      // and nothing is installed
	held     []byte    // the machine config of one that is bare
	verified bool      // by the firmware
	id       string    // boot id
	started  time.Time // by its own clock
	events   *system.Events
	actor    string // the id of the call that takes it down, if one does
	timers   []func()

	ended      chan struct{}  // closed when this run ends
	pulled     []system.Image // to the containerd of the system
	installing sync.Mutex     // locked while LifecycleService runs an installer

	// Set once Talos has come up.
	state        state.State // its resources; nil: still booting
	address      netip.Prefix
	others       []netip.Prefix // that it shows besides
	api          *apiServer
	apiKey       string
	stage        runtime.MachineStage
	ready        bool
	lastReported string // the status last written
	services     map[string]*services.Service

	set               *settings // what the active machine config means; nil: maintenance
	awaitsInstall     bool      // it has a config and is no node before it is installed
	installs          bool      // which is under way
	applying          bool      // the first config was taken, mTLS is not up yet
	rebooting         bool      // a config was applied that needs the reboot under way
	stopping          bool
	sequence          *sequence // how it goes down; nil: it does not
	sequenced         bool      // the boot sequence finished
	confirmed         bool      // it was running and ready
	founded           bool      // Bootstrap was called in this boot
	criUp             bool
	joinable          bool // criUp for long enough to have looked for an etcd
	revert            func()
	queries           int       // of the member list, see reached
	resumed           time.Time // when it came up with a saved config; zero: it was given one
	sought            bool      // see seeksPlanes
	seeks             bool
	kubelet           reports.Report[kubelet]
	plane             reports.Report[plane]
	endpoint          reports.Report[endpoint]
	drain             reports.Report[drain]
	reached           bool // the endpoint has answered
	nodeSeen          bool
	nodeReady         bool
	apiSeen           bool // its own API has ever been ready
	apiReady          bool
	lastNode          string // what was last written of the node
	schedulers        bool   // the scheduler's static pod is having its moment
	manifests         manifests.StaticPods
	pods, seen        []world.StaticPod // that the config has, and that the kubelet has seen
	noticed, noticing *plane            // what the kubelet has seen of them, and will have soon
}

// The other small delays of a machine, before Speed.
const (
	silence  = 200 * time.Millisecond // from the decision to go down until the API is closed
	joinWait = 300 * time.Millisecond // an etcd that starts looks so long for one to join
	restart  = time.Second            // an etcd member that was there before comes back
	appraise = 900 * time.Millisecond // until a service's first health check
)

// runAfter runs do once d (before Speed) has passed, if this boot still runs.
func (b *boot) runAfter(d time.Duration, do func()) {
	b.runAfterReal(b.f.world.Scale(d), do)
}

// runAfterReal is runAfter for a duration that no speed shortens.
func (b *boot) runAfterReal(d time.Duration, do func()) (cancel func()) {
	cancel = b.f.world.AfterReal(d, func() {
		b.f.changeState(func() {
			if b.m.boot == b {
				do()
				b.f.markTouched(b)
			}
		})
	})
	b.timers = append(b.timers, cancel)
	return cancel
}

// finishStart is reached when the kernel, containerd and machined run.
func (b *boot) finishStart() {
	switch {
	case b.failBoot():
		return
	case b.medium && b.m.findsTalos():
		b.haltInstalled()
		return
	case !b.medium && b.installStaged():
		return
	}
	b.moveAddress(b.m.platformAddress())
	b.stage = runtime.MachineStageBooting
	b.openState()
	b.startSystemServices()
	if saved := b.m.disk().config; saved != nil && !b.medium {
		cfg, err := configloader.NewFromBytes(saved)
		if err == nil && cfg.CompleteForBoot() {
			b.resumed = time.Now()
			b.configureMachine(cfg)
			return
		}
	}
	b.stage = runtime.MachineStageMaintenance
	b.writeMaintenance()
	if !b.address.IsValid() {
		b.f.world.Report(b.m.name(), "in maintenance mode without an address: no cloud-init drive it reads, no DHCP reservation for %s", b.m.guest.MAC)
		return
	}
	b.f.world.Report(b.m.name(), "in maintenance mode at %s", b.address.Addr())
	b.reopenAPI()
}

// configureMachine is reached when a machine config is active, at boot or some time
// after it was applied in maintenance mode.
func (b *boot) configureMachine(cfg config.Provider) {
	set := b.readConfig(cfg)
	if set == nil {
		return
	}
	b.stage = runtime.MachineStageBooting
	b.publishSequence("initialize", machineapi.SequenceEvent_STOP)
	b.publishSequence("boot", machineapi.SequenceEvent_START)
	b.adoptSettings(set)
	b.startNode()
}

// readConfig works out what the first config of this run means; nil: it cannot be used.
func (b *boot) readConfig(cfg config.Provider) *settings {
	b.applying = false
	set, err := b.m.readSettings(cfg)
	if err == nil {
		err = rules.RefuseVolumes(cfg, b.m.guest.TPM)
	}
	if err != nil {
		b.f.world.Report(b.m.name(), "machine config is not usable: %v", err)
		return nil
	}
	return set
}

// startNode has the machine become the node of its config.
func (b *boot) startNode() {
	b.f.world.Spend("node", b.hostname(), 0, "boot/"+b.m.subject(), "apply/"+b.m.subject())
	b.f.world.Report(b.hostname(), "configured, at %s", b.address.Addr())
	b.startNodeServices()
	b.limitBoot()
}

// learnAuthority remembers the machine CA of a control plane's config. In life
// trustd on a control plane signs the certificates of workers, whose configs
// carry no key. Here a worker waits until any config with the key was seen;
// which node it was on and whether that node still runs is not looked at.
func (f *Fleet) learnAuthority(cfg config.Provider) {
	ca := cfg.Machine().Security().IssuingCA()
	if ca == nil || len(ca.Key) == 0 {
		return
	}
	a, err := access.ParseAuthority(ca.Crt, ca.Key)
	if err != nil {
		f.world.Report("fleet", "%v", err)
		return
	}
	f.authorities[access.HashCertificate(ca.Crt)] = a
}

// adoptSettings makes a machine config the active one.
func (b *boot) adoptSettings(set *settings) {
	b.set = set
	b.f.learnAuthority(set.provider)
	to := set.address
	if !to.IsValid() {
		to = b.m.platformAddress()
	}
	if to.IsValid() && to != b.address {
		b.moveAddress(to)
	}
	b.writeConfigured()
	b.reopenAPI()
	// A worker's certificate waits for the authority of a control plane, and
	// this may be the one.
	for _, other := range b.f.sortMachines() {
		if o := other.boot; o != nil && o != b && o.set != nil && o.api == nil {
			o.reopenAPI()
		}
	}
}

// moveAddress gives the machine an address. Where it is partitioned, it is so
// there too.
func (b *boot) moveAddress(to netip.Prefix) {
	dark := b.m.dark
	b.m.setPartitioned(false)
	b.address = to
	if dark {
		b.m.setPartitioned(true)
	}
}

// hostname is the machine's name for itself.
func (b *boot) hostname() string {
	if b.set != nil && b.set.hostname != "" {
		return b.set.hostname
	}
	return b.m.name()
}

// withdrawBoot ends everything that others can see of this boot.
func (b *boot) withdrawBoot() {
	b.closeAPI()
	b.stopEtcd()
	b.kubelet.Withdraw(b)
	b.plane.Withdraw(b)
	b.endpoint.Withdraw(b)
	b.drain.Withdraw(b)
}
