package cluster

import (
	"cmp"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster/usage"
)

// Hardware is a VM's configuration in the terms of the inventory, so that what
// is wanted and what is there can be compared field by field, whatever order
// or spelling Proxmox VE uses.
type Hardware struct {
	CPUType      string
	Cores        int // cores times sockets
	MemoryMiB    int64
	Balloon      bool
	Machine      string
	BIOS         string
	SCSIHardware string
	Model        string // of the network card: virtio
	MAC          string
	Bridge       string
	VLAN         int
	LinkDown     bool   `json:",omitempty"` // the network card is disconnected
	Boot         string // what it boots from first: BootSystemDisk, or another device; "" without an order
	System       DiskSeen
	Data         map[string]DiskSeen // by serial
	Medium       string              `json:",omitempty"` // the drive that holds an installation medium of Talos; "": none
	Address      string              // ipconfig0 in canonical form, "" without
	Agent        bool
	OnBoot       bool
	TPM          string `json:",omitempty"` // version of its TPM; "": none. One that is not wanted may be there.
	// Options are further options, by field. Of what is wanted they are those that the inventory
	// has: what it does not have, a VM keeps as it is. Of what is seen they are all.
	Options map[VMField]string `json:",omitempty"`
}

// MediumDrive is the drive of a new VM that holds an installation medium.
const MediumDrive = "ide0"

// BootSystemDisk is the Boot of a VM that boots from its system disk first.
const BootSystemDisk = "the system disk"

// DiskSeen is one disk of a VM. The zero value is none.
type DiskSeen struct {
	Datastore string
	Bytes     int64
}

// VMField names something of a VM that can differ from the inventory, in the words in
// which people read it.
type VMField string

// The fields of a VM, disks apart.
const (
	FieldCPUType VMField = "cpu type"
	FieldCores   VMField = "cores"
	FieldMemory  VMField = "memory (MiB)"
	FieldBalloon VMField = "ballooning"
	FieldMachine VMField = "machine type"
	FieldBIOS    VMField = "bios"
	FieldSCSI    VMField = "scsi controller"
	FieldModel   VMField = "network card"
	FieldMAC     VMField = "mac"
	FieldBridge  VMField = "bridge"
	FieldVLAN    VMField = "vlan"
	FieldLink    VMField = "link down"
	FieldBoot    VMField = "boot order"
	FieldAddress VMField = "address"
	FieldAgent   VMField = "guest agent"
	FieldOnBoot  VMField = "start at boot"
	FieldTags    VMField = "tags"
	FieldMark    VMField = "description"
	FieldTPM     VMField = "tpm"
	FieldMedium  VMField = "installation medium"
)

// FieldSystemSize is the size of the system disk.
const FieldSystemSize VMField = "system disk size"

// FieldDisk is a data disk that is there, or not.
func FieldDisk(serial string) VMField { return VMField("disk " + serial) }

// FieldDiskSize is the size of a data disk.
func FieldDiskSize(serial string) VMField { return FieldDisk(serial) + " size" }

// Further options of a VM, in Hardware.Options.
const (
	FieldCPUFlags   VMField = "cpu flags" // sorted, "+aes;-pcid"
	FieldCPULimit   VMField = "cpu limit" // in cores
	FieldCPUUnits   VMField = "cpu units"
	FieldNUMA       VMField = "numa"
	FieldBalloonMin VMField = "balloon minimum (MiB)"
	FieldMachinePin VMField = "machine version" // the machine type in full
	FieldDisplay    VMField = "display"
	FieldFirewall   VMField = "network card firewall"
	FieldMTU        VMField = "mtu"
)

// DiskOption is an option of a disk, by its name in Proxmox VE.
type DiskOption string

// The options of a disk that an inventory may have. Their values are those of Proxmox VE, and
// OptionOn or OptionOff where they are switches.
const (
	DiskSSD      DiskOption = "ssd"
	DiskDiscard  DiskOption = "discard"
	DiskIOThread DiskOption = "iothread"
	DiskCache    DiskOption = "cache"
	DiskAIO      DiskOption = "aio"
	DiskBackup   DiskOption = "backup"
)

// DiskOptions are all of them.
var DiskOptions = []DiskOption{DiskSSD, DiskDiscard, DiskIOThread, DiskCache, DiskAIO, DiskBackup}

// Values of options.
const (
	OptionOn      = "on"
	OptionOff     = "off"
	OptionDefault = "default" // what Proxmox VE takes by itself
	OptionNone    = "none"
)

// TPMVersion is that of the TPM of a VM that boots by Secure Boot; Talos takes no other.
const TPMVersion = "v2.0"

// SingleController is the SCSI controller that gives each disk one of its own, which a thread of its
// own takes.
const SingleController = "virtio-scsi-single"

// FieldDiskOption is an option of the disk with a serial.
func FieldDiskOption(serial string, o DiskOption) VMField {
	if serial == SystemDiskSerial {
		return VMField("system disk " + o)
	}
	return FieldDisk(serial) + VMField(" "+o)
}

// NewDiskOption is what a new disk has of an option that the inventory does not have, on a SCSI
// controller: the guest trims it, as an SSD, and a backup has it.
func NewDiskOption(o DiskOption, scsi string) string {
	switch o {
	case DiskSSD, DiskDiscard, DiskBackup:
		return OptionOn
	case DiskIOThread:
		if scsi == SingleController {
			return OptionOn
		}
		return OptionOff
	case DiskCache:
		return "none"
	}
	return OptionDefault
}

// DiskOption is what a new disk of a node has of an option.
func (n Node) DiskOption(serial string, o DiskOption) string {
	return cmp.Or(n.Options[FieldDiskOption(serial, o)], NewDiskOption(o, n.SCSIHardware))
}

// DiskProperties are the options of a new disk of a node, as Proxmox VE has them behind its volume.
func (n Node) DiskProperties(serial string) string {
	out := ""
	for _, o := range []DiskOption{DiskAIO, DiskBackup, DiskCache, DiskDiscard, DiskSSD, DiskIOThread} {
		value, fresh := n.DiskOption(serial, o), NewDiskOption(o, n.SCSIHardware)
		switch on := value == OptionOn; {
		case o == DiskAIO && value != OptionDefault, o == DiskCache && value != fresh:
			out += "," + string(o) + "=" + value
		case o == DiskDiscard && on:
			out += ",discard=on"
		case (o == DiskSSD || o == DiskIOThread) && on:
			out += "," + string(o) + "=1"
		case o == DiskBackup && !on:
			out += ",backup=0"
		}
	}
	return out
}

// DiskUse is what a node's disks take, by storage. The drive with its address is too small
// to count.
func (n Node) DiskUse() map[string]int64 {
	out := map[string]int64{n.Datastore: n.DiskBytes}
	for _, d := range n.Disks {
		out[cmp.Or(d.Datastore, n.Datastore)] += d.Bytes
	}
	return out
}

// DiskUse is what the disks of a VM take, by storage.
func (h Hardware) DiskUse() map[string]int64 {
	out := map[string]int64{h.System.Datastore: h.System.Bytes}
	for _, d := range h.Data {
		out[d.Datastore] += d.Bytes
	}
	return out
}

// Growth is a disk that is to be added to a VM, or to become larger.
type Growth struct {
	Field     VMField
	Datastore string
	Bytes     int64 // more than it has
}

// Growth lists what of a node's disks a VM lacks, where it has them; nothing of one that is
// not seen, or has no system disk.
func (n Node) Growth(has Hardware) []Growth {
	if has.System == (DiskSeen{}) {
		return nil
	}
	var out []Growth
	if s := has.System; n.DiskBytes > s.Bytes {
		out = append(out, Growth{FieldSystemSize, s.Datastore, n.DiskBytes - s.Bytes})
	}
	for _, d := range n.Disks {
		switch disk, ok := has.Data[d.Serial]; {
		case !ok:
			out = append(out, Growth{FieldDisk(d.Serial), cmp.Or(d.Datastore, n.Datastore), d.Bytes})
		case d.Bytes > disk.Bytes:
			out = append(out, Growth{FieldDiskSize(d.Serial), disk.Datastore, d.Bytes - disk.Bytes})
		}
	}
	return out
}

// Placement states on which hosts a node's VM may be made.
type Placement struct {
	// Pin is the host. Where Among has any it is chosen from these in every pass, until the VM is there:
	// then it is where that is.
	Pin   string
	Among []string // in the order of the inventory; none: Pin is the inventory's
	Why   string   // why it is that host, for people; "": the inventory has it, or the VM is there
	Full  bool     // none of them has room for it
}

// Hosts are those on which the VM may be.
func (p Placement) Hosts() []string {
	if len(p.Among) > 0 {
		return p.Among
	}
	return []string{p.Pin}
}

// Host is one Proxmox VE machine.
type Host struct {
	Name       string
	Known      bool // a complete answer was read in this pass
	Why        string
	PVE        string     // version of Proxmox VE, "9.2.11"
	Quorate    Seen[bool] // false: /etc/pve is read-only and every write fails
	Maintained bool       // it is in HA's maintenance mode, which moves guests away from it
	Storages   Seen[map[string]Storage]
	Images     Seen[map[string]int64]    // import images on the image datastore: name -> bytes
	Tasks      Seen[[]Task]              // running now
	Offers     map[string]Seen[[]string] // devices by the kind of their mapping, and what else VMs ask for; nil: none do
	// MemoryBytes and Cores are what the machine has.
	MemoryBytes int64
	Cores       int
	// Pressure is looked at where a VM may be made on it or on another host; nil: it was not, or is not known.
	Pressure *usage.Pressure
	// Guests are the VMs and containers on it that the agent's token may see, those of the cluster included.
	Guests []Guest
}

// Guest is a VM or container on a host, whoever made it.
type Guest struct {
	VMID        int
	MemoryBytes int64 // that it is configured with
	Running     bool
	Agent       bool // it has the agent's tag
}

// Storage is one Proxmox VE storage as a host sees it.
type Storage struct {
	Active  bool
	Shared  bool
	Content []string // images, import, iso, ...
	// TotalBytes and FreeBytes are its size and what is free; 0, 0: not known.
	TotalBytes, FreeBytes int64
	// Thin means that a disk takes what was written to it, not its size.
	Thin bool
	// Volumes are the sizes of the disks on it, by VMID, that the agent's token may see.
	// They are looked at only where a VM has to be made, or a disk has to grow.
	Volumes Seen[map[int]int64]
}

// Task is one running Proxmox VE task.
type Task struct {
	UPID    string
	Type    string // qmcreate, imgcopy, ...
	VMID    int    // 0: none
	Started time.Time
	User    string
	Ours    bool // started by the agent's own token
	// Log is the end of its log, of one of ours that takes long.
	Log []string
}
