package inventory

import "github.com/talos-agent/talos-agent/internal/yamlschema"

// The types in this file are a part of the inventory's format, as those of model.go.

// hardware is what a VM is made of.
type hardware struct {
	// Processor cores.
	CPU int `yaml:"cpu" unit:"number of cores" min:"1" max:"512" default:"the role's profile, else 4" example:"4"`
	// The processor the VM shows. Talos needs x86-64-v2 or newer.
	CPUType string `yaml:"cpu_type" is:"cputype" default:"the role's profile, else x86-64-v2-AES" example:"host"`
	// Flags of the processor that the VM has besides those of its type, each with + in front, or has not, with -.
	CPUFlags []string `yaml:"cpu_flags" is:"cpuflag" default:"the role's profile, else none" example:"[+aes, -pcid]"`
	// How much time on cores the VM gets at most, whatever it asks for.
	CPULimit int `yaml:"cpu_limit" unit:"number of cores" min:"1" max:"128" default:"the role's profile, else no limit" example:"2"`
	// The weight of the VM among guests of the host that want the same cores. The host's policy bounds it.
	CPUUnits int `yaml:"cpu_units" unit:"weight" min:"1" max:"10000" default:"the role's profile, else 100" example:"50"`
	// The VM shows its memory by NUMA nodes.
	NUMA bool `yaml:"numa" default:"the role's profile, else false"`
	// Memory in MiB.
	RAM int `yaml:"ram" unit:"number of MiB" min:"1" max:"16777216" default:"the role's profile, else 4096 for a control plane and 8192 for a worker" example:"8192"`
	// How much memory, in MiB, the host leaves the VM at least when its own is short; 0: it takes none of it. Talos
	// and Kubernetes count all of the memory, so that pods may be killed for what the host has taken.
	Balloon int `yaml:"balloon" unit:"number of MiB" min:"0" max:"16777216" default:"the role's profile, else 0" example:"4096"`
	// The machine type: q35, which is what the host has newest at each start, or a version of it, with which the
	// guest's devices stay what they are when the host is upgraded.
	Machine string `yaml:"machine" is:"machine" default:"the role's profile, else q35" example:"pc-q35-9.2"`
	// The display of the VM, in the web interface. With serial0 that shows the serial console, which every VM has
	// besides, and with none nothing.
	VGA string `yaml:"vga" enum:"std,virtio,qxl,serial0,none" default:"the role's profile, else std" example:"serial0"`
	// What the network card of the VM is. A node's replaces that of the profile.
	NIC nic `yaml:"nic" default:"the role's profile" example:"{mtu: 9000}"`
	// More network cards. A node's list replaces the profile's. The first one stays that of network.cidr, by which the
	// agent and the other nodes reach the node.
	NICs []card `yaml:"nics" default:"the role's profile" example:"[{bridge: vmbr2, vlan: 30, address: 10.20.0.21/24}]"`
	// PCI devices of the host that are passed to the VM, by their resource mappings. A node's list replaces the profile's.
	// The host's policy has to allow each mapping. A VM with one stays on its host.
	PCI []pciDevice `yaml:"pci" default:"the role's profile" example:"[{mapping: gpu}]"`
	// USB devices of the host, likewise.
	USB []usbDevice `yaml:"usb" default:"the role's profile" example:"[{mapping: dongle}]"`
	// Size of the system disk. G means GiB, as in Proxmox VE; a plain number
	// counts GiB.
	Disk yamlschema.Size `yaml:"disk" default:"the role's profile, else 40G for a control plane and 60G for a worker" example:"40G"`
	// How the system disk is attached: ssd, discard, iothread, cache, aio and backup as in `disks`. A node's
	// replaces that of the profile.
	DiskOptions diskOptions `yaml:"disk_options" keys:"elsewhere" default:"the role's profile" example:"{cache: writethrough}"`
	// More disks. A node's list replaces the profile's. Of the options of a disk, ssd to backup, one that is not
	// written is what the default has on a new disk, and on one that is there what it has. One that is no longer
	// written becomes the default.
	Disks []disk `yaml:"disks" default:"the role's profile" example:"[{name: longhorn, size: 100G}]"`
}

// nic is a network card of a VM.
type nic struct {
	// The model of the card.
	Model string `yaml:"model" enum:"virtio,e1000,e1000e,vmxnet3" default:"virtio"`
	// The MTU that the card has, and the guest takes; 1 is that of the bridge, which no card may exceed. Only with virtio.
	MTU int `yaml:"mtu" unit:"number of bytes" min:"1" max:"65520" default:"1500" example:"9000"`
	// The firewall of Proxmox VE filters the card, where it is on for the VM, too.
	Firewall bool `yaml:"firewall" default:"false"`
}

// card is a network card of a VM beside its first one.
type card struct {
	// The bridge or SDN VNet it is attached to.
	Bridge string `yaml:"bridge" is:"bridge" required:"true" example:"vmbr2"`
	// Its VLAN tag.
	VLAN int `yaml:"vlan" unit:"VLAN tag" min:"1" max:"4094" default:"no tag" example:"30"`
	// Its address, with the length of its network; in a counted row that of the first node, after which the others
	// count. It is in no network of the cluster, and has no gateway: a patch has routes. Not in profiles.
	Address string `yaml:"address" is:"hostprefix" default:"left to Talos, which asks a DHCP server, or to a patch" example:"10.20.0.21/24"`
	nic
}

// pciDevice is a PCI device of the host.
type pciDevice struct {
	// Its resource mapping in Proxmox VE: Datacenter > Resource Mappings.
	Mapping string `yaml:"mapping" is:"mapping" required:"true" example:"gpu"`
	// The VM sees a device of PCI Express.
	PCIe bool `yaml:"pcie" default:"true"`
	// The VM sees the ROM of the device.
	ROMBar bool `yaml:"rombar" default:"true"`
}

// usbDevice is a USB device of the host.
type usbDevice struct {
	// Its resource mapping in Proxmox VE.
	Mapping string `yaml:"mapping" is:"mapping" required:"true" example:"dongle"`
	// The VM sees it at a controller of USB 3.
	USB3 bool `yaml:"usb3" default:"false"`
}

type disk struct {
	// Name of the disk. Its serial in the VM is talos-NAME, by which patches
	// find it: `disk.serial == "talos-longhorn"`.
	Name string `yaml:"name" is:"diskname" required:"true" example:"longhorn"`
	// Size of the disk.
	Size yamlschema.Size `yaml:"size" required:"true" example:"100G"`
	// The storage of the disk.
	Datastore string `yaml:"datastore" is:"storage" default:"proxmox.datastore" example:"local-lvm"`
	diskOptions
}

// diskOptions are how a disk is attached to a VM.
type diskOptions struct {
	// The guest sees a solid-state disk.
	SSD bool `yaml:"ssd" default:"true"`
	// What the guest frees is freed on the storage.
	Discard bool `yaml:"discard" default:"true"`
	// The disk has a thread of its own. It takes `scsihw: virtio-scsi-single`.
	IOThread bool `yaml:"iothread" default:"true with virtio-scsi-single, else false"`
	// The cache of the host. With writeback and unsafe a host that loses its power may lose what the guest has
	// written: the system disk of a control plane, where etcd is, has neither.
	Cache string `yaml:"cache" enum:"none,directsync,writethrough,writeback,unsafe" default:"none"`
	// How the host reads and writes it. native takes a cache of none or directsync.
	AIO string `yaml:"aio" enum:"io_uring,native,threads" default:"what Proxmox VE takes for the storage"`
	// Backups of the VM have it.
	Backup bool `yaml:"backup" default:"true"`
}
