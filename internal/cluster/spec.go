package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster/forward"
	"github.com/talos-agent/talos-agent/internal/cluster/window"

	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/cluster/dualstack"
)

// Role is what a node does in its cluster.
type Role string

// The roles, in the words of Talos and Kubernetes.
const (
	ControlPlane Role = "controlplane"
	Worker       Role = "worker"
)

// AddressMode states how a fresh VM comes by the address the inventory gives it.
type AddressMode string

// The address modes that are built.
const (
	// AddressStatic puts the address into the VM's cloud-init drive, which the
	// nocloud image of Talos reads before any configuration.
	AddressStatic AddressMode = "static"
	// AddressReserved leaves it to a DHCP server on the bridge that knows the VM's MAC.
	AddressReserved AddressMode = "dhcp-reservation"
	// AddressDiscovered leaves it to a DHCP server which address that is, and the agent finds it by the VM's
	// MAC; of a cluster, nodes that have an address written have that one.
	AddressDiscovered AddressMode = "dhcp-discover"
)

// VIPHolder is who has the address that leads to the control planes.
type VIPHolder string

// Those who may have it: Talos on one of the control planes, kube-vip on one of them, or a load balancer of others.
const (
	VIPByTalos    VIPHolder = "talos"
	VIPByKubeVIP  VIPHolder = "kube-vip"
	VIPByExternal VIPHolder = "external"
)

// CNI is which container network a cluster gets.
type CNI string

// The container networks: Talos' own Flannel with kube-proxy, Cilium as an addon without kube-proxy, or none from us at all.
const (
	CNIFlannel CNI = "flannel"
	CNICilium  CNI = "cilium"
	CNINone    CNI = "none"
)

// Spec is one cluster as its inventory describes it, with every default and derived value filled in: two Specs are equal exactly
// when they ask for the same world.
type Spec struct {
	ID          string // ClusterID(owner, Name)
	Name        string // cluster_name
	Environment string // label only
	Versions    Versions
	HA          bool // it survives the loss of a control plane
	// Availability: Proxmox VE's HA manager keeps its VMs running.
	Availability bool
	HAGroup      string // of hosts, on Proxmox VE 8; "" : none
	Network      Network
	CNI          CNI
	Schematic    Schematic
	// SecureBoot: the firmware of every VM boots nothing but the Talos that the image factory has signed.
	SecureBoot bool
	// ISO: new VMs boot an installation medium, from which Talos installs itself.
	ISO bool
	// InstallerRegistry is the registry host that serves Talos installer
	// images to the nodes, for example "factory.talos.dev".
	InstallerRegistry string
	// Mirrors maps a registry host to the mirror the nodes pull from; it comes
	// from the host's config, not from the repository.
	Mirrors map[string]string
	// Nodes holds control planes in inventory order, then workers in
	// inventory order.
	Nodes  []Node
	Addons []Addon
	// Prune means that a release of ours which no addon has is uninstalled.
	Prune bool
	Switches
	// ReplaceDead is when nodes that do not answer get new machines.
	ReplaceDead ReplaceDead
	// MaxUnavailable is how many workers may be out of service at once; 0: one.
	Window         window.Window // when nodes that run may be taken out of service
	MaxUnavailable int
	Drain          Drain
	// AllowEven: a control plane may be removed although an even number of them is left.
	AllowEven bool
	// Canary is the node that is upgraded first, before the control planes; "": none.
	Canary string
	// Soak is how long after the upgrade of a node the next one begins at the earliest, counted
	// from when it was healthy again; 0: at once.
	Soak time.Duration
	// Gates are what must hold besides before a node is upgraded.
	Gates []Gate
	// Capacity is the most that VMs may take on a host, by its name, where the
	// inventory bounds it.
	Capacity map[string]HostCapacity
	Forwards []forward.Forward // ports of the agent's host that lead to nodes
}

// ReplaceDead is for how long a node must be dead before it gets a new machine, by role; 0:
// it never does.
type ReplaceDead struct{ ControlPlane, Worker time.Duration }

// Of is the time for a role.
func (r ReplaceDead) Of(role Role) time.Duration {
	if role == ControlPlane {
		return r.ControlPlane
	}
	return r.Worker
}

// HostCapacity is what the inventory gives of a host. Zero means all of it.
type HostCapacity struct {
	Cores     int
	MemoryMiB int64
}

// Versions are the versions a cluster asks for, all with a leading "v".
type Versions struct {
	Talos      string `json:"talos,omitempty"`      // v1.13.9
	Kubernetes string `json:"kubernetes,omitempty"` // v1.36.1
	// Contract is the Talos minor whose shape of machine config is generated
	// (v1.13). It stays what it was when the cluster was made.
	Contract string `json:"contract,omitempty"`
}

// Network is a cluster's network, resolved.
type Network struct {
	Mode        AddressMode
	CIDR        netip.Prefix // zero in mode dhcp-reservation without a cidr
	Gateway     netip.Addr
	Nameservers []netip.Addr
	TimeServers []string
	PodCIDR     netip.Prefix
	ServiceCIDR netip.Prefix
	VIP         netip.Addr // zero: none
	VIPBy       VIPHolder  `json:",omitempty"` // "" with Talos, too: it is what clusters have had always
	Endpoint    string     // https://host:port of the Kubernetes API
	CertSANs    []string
	VLAN        int // 0: untagged
	// IPv6 is what it has beside all that.
	IPv6 dualstack.Networks `json:",omitzero"`
}

// OwnVIP is the VIP that a machine of the cluster has; invalid: none has, or there is none.
func (n Network) OwnVIP() netip.Addr {
	if n.VIPBy == VIPByExternal {
		return netip.Addr{}
	}
	return n.VIP
}

// ModeOf is how a node comes by its address.
func (n Network) ModeOf(node Node) AddressMode {
	switch {
	case node.Leased:
		return AddressDiscovered
	case n.Mode == AddressDiscovered && n.Gateway.IsValid():
		return AddressStatic
	case n.Mode == AddressDiscovered:
		return AddressReserved
	}
	return n.Mode
}

// Schematic is what the image factory builds into the Talos image.
type Schematic struct {
	Extensions      []string // sorted
	ExtraKernelArgs []string
}

// Digest identifies what the schematic asks for. It is not the factory's id,
// which only the factory knows.
func (s Schematic) Digest() string {
	h := sha256.New()
	for _, e := range s.Extensions {
		fmt.Fprintf(h, "extension %s\n", e)
	}
	for _, a := range s.ExtraKernelArgs {
		fmt.Fprintf(h, "arg %s\n", a)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// GuestAgent reports whether the image carries the QEMU guest agent. The VM's
// agent device must be there exactly then, or Talos never finishes its boot.
func (s Schematic) GuestAgent() bool {
	for _, e := range s.Extensions {
		if e == "siderolabs/qemu-guest-agent" {
			return true
		}
	}
	return false
}

// Node is one entry of nodes.yaml: one Talos machine, one Kubernetes node.
type Node struct {
	Name string
	Role Role
	IP   netip.Addr // invalid: not known, of one that is Leased
	IP6  netip.Addr `json:",omitzero"` // invalid: none
	VMID int
	UUID string // NodeUUID(Spec.ID, Name)
	MAC  string // upper case
	// Leased: the inventory has no address of it. IP is the one that a DHCP server was seen to give it.
	Leased bool

	Placement          Placement
	Pool               string // "" : none
	Bridge             string
	NetworkCard        string // its model; "": virtio
	Datastore          string // VM disks
	ImageDatastore     string // where the Talos image is imported from
	CloudInitDatastore string
	SCSIHardware       string // virtio-scsi-single | virtio-scsi-pci

	CPUType   string
	Cores     int
	MemoryMiB int64
	DiskBytes int64
	Disks     []Disk
	Options   map[VMField]string // further options of its VM, as in Hardware; its devices among them
	Devices   device.Set

	Tags   []string
	Labels map[string]string
	Taints map[string]string // key -> value:Effect
	// Annotations of the Node object. Talos has no part in them: they are in no machine
	// config.
	Annotations map[string]string

	Patches []Patch // all that apply, in order: all, role, node
	// Components are what an upgrade under way has it run now. No inventory has them.
	Components Components
	// Replace is a token: a VM that was made for another one is replaced. "" : none is.
	Replace string
	Protect bool // never destroyed
	Locked  bool // never touched
}

// Address is the address of a node, "" while it is not known.
func (n Node) Address() string {
	if !n.IP.IsValid() {
		return ""
	}
	return n.IP.String()
}

// Disk is an extra disk of a node. Talos finds it by its serial.
type Disk struct {
	Name      string
	Bytes     int64
	Datastore string
	Serial    string // talos-<name>, at most 20 bytes
}

// SystemDiskSerial is the serial of the disk Talos is installed on.
const SystemDiskSerial = "talos-sys"

// Patch is one strategic-merge patch file with its values filled in, which is
// why its text is a secret.
type Patch struct {
	File     string
	Document Secret
	Places   []PatchPlace // in the order of Document
}

// PatchPlace is where a line and a column of a patch's document are in its file.
type PatchPlace struct {
	Line, Column int
	At           Position
}

// PlaceOf returns where something at a line and a column of the document stands in
// the file, or else the nearest before it; zero is the whole file.
func (p Patch) PlaceOf(line, column int) Position {
	var at Position
	for _, place := range p.Places {
		if place.Line > line || place.Line == line && place.Column > column {
			break
		}
		at = place.At
	}
	return at
}

// Namespace is what all addons together ask of a namespace. No two of them ask for
// different values: an inventory in which they do is not valid.
func (s Spec) Namespace(name string) NamespaceMeta {
	out := NamespaceMeta{Labels: map[string]string{}, Annotations: map[string]string{}}
	for _, a := range s.Addons {
		if a.Namespace == name {
			maps.Copy(out.Labels, a.Asks.Labels)
			maps.Copy(out.Annotations, a.Asks.Annotations)
		}
	}
	return out
}

// Position is where something stands in a file of the repository.
type Position struct {
	File         string
	Line, Column int
}

// Snapshot is an inventory with its secrets at one revision, checked.
type Snapshot struct {
	Revision Revision
	Spec     Spec
	// Bundle is the Talos secrets bundle, in the shape of `talosctl gen
	// secrets`, as YAML. It is empty when the cluster has no secrets file.
	Bundle Secret
	// Authorities are hashes of the private keys of the bundle's authorities, by name:
	// no two clusters may have one.
	Authorities map[string][sha256.Size]byte
	// Where maps a field path of the inventory to its place, so that checks
	// made after parsing can still point at a line.
	Where map[string]Position
	// Files are the files and folders that the inventory names, beside its own.
	Files []string
	// Content identifies the files that it is made from, whatever else a commit changes; "" : unknown.
	Content string
	// Confidential are the values of the secrets file that patches and addons may have in
	// them, and the texts that have one which is too short to be found by itself.
	Confidential []Secret
	// Warnings are the problems that did not make the inventory invalid.
	Warnings Problems
	// Siblings are the other clusters of this agent at the same revision; the
	// host's limits count them all.
	Siblings []Usage
}

// At makes a problem that points at the place of a field, or at the file when
// the field is a default that stands nowhere.
func (s Snapshot) At(sev Severity, field, message, hint string) Problem {
	p := s.Where[field]
	if p.File == "" {
		p.File = s.Where[""].File
	}
	return Problem{Severity: sev, File: p.File, Line: p.Line, Column: p.Column, Field: field, Message: message, Hint: hint}
}

// Usage is what one cluster asks of the host.
type Usage struct {
	Cluster   string
	Nodes     int
	Cores     int
	MemoryMiB int64
	DiskBytes int64
}

// Usage adds up what the spec asks of the host.
func (s Spec) Usage() Usage {
	u := Usage{Cluster: s.Name, Nodes: len(s.Nodes)}
	for _, n := range s.Nodes {
		u.Cores += n.Cores
		u.MemoryMiB += n.MemoryMiB
		u.DiskBytes += n.DiskBytes
		for _, d := range n.Disks {
			u.DiskBytes += d.Bytes
		}
	}
	return u
}

// ControlPlanes returns the control-plane nodes in inventory order.
func (s Spec) ControlPlanes() []Node {
	var out []Node
	for i := range s.Nodes { // most are others, and copies of them
		if s.Nodes[i].Role == ControlPlane {
			out = append(out, s.Nodes[i])
		}
	}
	return out
}

// IsOnlyPlane reports whether a node is the only control plane: what its etcd holds would be
// lost with its machine.
func (s Spec) IsOnlyPlane(n Node) bool { return n.Role == ControlPlane && len(s.ControlPlanes()) == 1 }

// Node returns the node of that name.
func (s Spec) Node(name string) (Node, bool) {
	for i := range s.Nodes { // a copy of each would cost more than the comparison
		if s.Nodes[i].Name == name {
			return s.Nodes[i], true
		}
	}
	return Node{}, false
}

// Desired is what should be: a snapshot, the image its nodes boot, the machine
// config of every node and the credentials that open the cluster.
type Desired struct {
	Snapshot
	// Schematic is the image factory's id of Spec.Schematic, or "" while the
	// factory has not returned it; Configs is empty then.
	Schematic string
	Image     Image
	Configs   map[string]Config // by node name
	Access    Access
	// Fingerprint identifies the secrets bundle without revealing it.
	Fingerprint string

	// Asked is what the repository has, where a new node gets what the cluster runs
	// instead, because nodes that run are not changed; nil: it gets what the
	// repository has.
	Asked *Desired
	// Base is the revision whose machine configs the cluster runs, where it is not
	// the snapshot's.
	Base Revision
	// Removed are the nodes that the inventory no longer has and of which a VM or a
	// member of etcd is left, as they were seen before: they are watched until nothing
	// is left.
	Removed []Node
	// Silent are the nodes whose machines did not answer in the pass before: their VMs
	// are looked at themselves, because no list shows a VM that stands still.
	Silent []string
	// Hold is why no node may be added: what the cluster runs is not known.
	Hold string
	Way  // to the versions that its inventory asks for
	// OtherContract is the config_contract that the repository has, where the cluster
	// was made with another one and keeps it.
	OtherContract string
}

// AllNodes are the nodes of the inventory, and behind them those that are being removed.
// One that was put back since is there once, as the inventory has it.
func (d Desired) AllNodes() []Node { return slices.Concat(d.Spec.Nodes, d.StillRemoved()) }

// StillRemoved are Removed without those that the inventory has again.
func (d Desired) StillRemoved() []Node {
	return slices.DeleteFunc(slices.Clone(d.Removed), func(n Node) bool { _, back := d.Spec.Node(n.Name); return back })
}

// AllControlPlanes are the control planes among AllNodes, in the same order.
func (d Desired) AllControlPlanes() []Node {
	return slices.DeleteFunc(d.AllNodes(), func(n Node) bool { return n.Role != ControlPlane })
}

// Repository is what the repository has, whatever the cluster runs.
func (d Desired) Repository() Desired {
	if d.Asked != nil {
		return *d.Asked
	}
	return d
}

// Image is what the nodes of a cluster are made from: a disk image of Talos, or a medium that installs it.
type Image struct {
	Name      string // talos-v1.13.9-376567988ad3-nocloud-amd64.qcow2
	Version   string
	Schematic string
	// SecureBoot: it is signed, and has a firmware without keys take those that it is signed with.
	SecureBoot bool
	// ISO: it is an installation medium.
	ISO bool
}

// Config is the machine config of one node.
type Config struct {
	Bytes  Secret
	Digest string // of its meaning: equal configs in another spelling have equal digests
	// DNS: Talos deploys the cluster's DNS, if it is a control plane's.
	DNS bool
	// Summary is what of it is known without its text.
	Summary ConfigSummary
	// Final are the images of Kubernetes that it has at the end of a hop, when its node has all components in the version of its cluster.
	Final Images
	// Addresses are those that it gives to links of the node, virtual ones included.
	Addresses []netip.Addr
}
