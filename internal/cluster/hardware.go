package cluster

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
	Boot         string // what it boots from first: BootSystemDisk, or the name of another device
	System       DiskSeen
	Data         map[string]DiskSeen // by serial
	Address      string              // ipconfig0 in canonical form, "" without
	Agent        bool
	OnBoot       bool
}

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
	FieldBoot    VMField = "boot order"
	FieldAddress VMField = "address"
	FieldAgent   VMField = "guest agent"
	FieldOnBoot  VMField = "start at boot"
	FieldTags    VMField = "tags"
	FieldMark    VMField = "description"
)

// FieldSystemSize is the size of the system disk.
const FieldSystemSize VMField = "system disk size"

// FieldDisk is a data disk that is there, or not.
func FieldDisk(serial string) VMField { return VMField("disk " + serial) }

// FieldDiskSize is the size of a data disk.
func FieldDiskSize(serial string) VMField { return FieldDisk(serial) + " size" }
