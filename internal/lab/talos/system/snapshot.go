package system

import (
	"context"
	"fmt"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Snapshot is a machine at one moment.
type Snapshot struct {
	Talos     string // v1.13.9
	Platform  string // nocloud
	Hostname  string
	BootID    string
	Link, MAC string // of its network card
	Cores     int
	MemoryMiB int64
	Booted    time.Time
	Now       time.Time // by the machine's own clock, as Booted
	Disks     []Disk    // in the order of their names
	// Configured machines have mounted their STATE and EPHEMERAL partitions.
	Configured bool
	// Services are those of the machine's stage, by id.
	Services []*machineapi.ServiceInfo
	// CRI: the containerd that runs images answers.
	CRI bool
	// Kubernetes is the version of the kubelet, with v; "" : none.
	Kubernetes string
	Images     []Image
	Pods       []world.Pod
	TimeServer string
	Timeless   bool // the time server does not answer
	Bare       bool // it runs from an installation medium, and nothing is installed
}

// Disk is a disk as the machine found it when it was switched on.
type Disk struct {
	Bytes  int64
	Serial string
}

// OrderDisks returns the disks of a guest in the order of their names: the one it boots from first.
func OrderDisks(g world.Guest) (disks []*world.Disk) {
	for _, d := range append([]*world.Disk{g.Boot}, g.Disks...) {
		if d != nil && (d != g.Boot || len(disks) == 0) {
			disks = append(disks, d)
		}
	}
	return disks
}

// ListDisks describes disks in that order.
func ListDisks(order []*world.Disk) (disks []Disk) {
	for _, d := range order {
		disks = append(disks, Disk{Bytes: d.Bytes, Serial: d.Serial})
	}
	return disks
}

// FindDisk returns the disk of a path in that order; nil: none has it.
func FindDisk(order []*world.Disk, path string) *world.Disk {
	for i, d := range order {
		if path == "/dev/"+diskName(i) {
			return d
		}
	}
	return nil
}

// Machine is what answers are made of.
type Machine interface {
	// Look returns the machine as it is, or why it cannot answer.
	Look() (Snapshot, error)
	// Wait waits for a time of the simulated world.
	Wait(context.Context, time.Duration) error
	// Pull keeps an image on the machine. It fails with ErrNoRegistry where its registry does
	// not answer, and with ErrNotPublished where that does not have it.
	Pull(context.Context, Image) error
	// OperateService starts, stops or restarts ("start", "stop", "restart") a service, or refuses to.
	OperateService(id, operation string) error
	// Events are those of this run of the machine.
	Events() *Events
}

// uptime is how long the kernel runs, in seconds.
func (s Snapshot) uptime() float64 { return max(s.Now.Sub(s.Booted).Seconds(), 0) }

// Kernel is the version of the kernel of every machine of the lab.
const Kernel = "6.18.9-talos"

// memoryTotal is what the kernel leaves of the machine's memory, in bytes: it takes a
// page descriptor for each page, and some for itself.
func (s Snapshot) memoryTotal() uint64 {
	all := uint64(max(s.MemoryMiB, 64)) << 20
	return (all - all/64 - 24<<20) &^ 4095
}

// commandLine is the kernel's, as the image of the platform carries it.
func (s Snapshot) commandLine() string {
	return fmt.Sprintf("talos.platform=%s console=tty1 console=ttyS0 init_on_alloc=1 slab_nomerge= pti=on consoleblank=0 "+
		"nvme_core.io_timeout=4294967295 printk.devkmsg=on selinux=1 module.sig_enforce=1", s.Platform)
}

// diskName is what the kernel calls a machine's disk: its drives are SCSI.
func diskName(i int) string { return "sd" + string(rune('a'+i)) }
