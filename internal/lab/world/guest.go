package world

import (
	"maps"
	"net/netip"
	"strings"
)

// Image is what a disk image holds.
type Image struct {
	Platform  string // nocloud
	Version   string // v1.13.9
	Schematic string // id
	// Extensions are the official extensions of the schematic, for services
	// that must come up before Talos calls itself ready.
	Extensions []string
	// Signed: it is signed for Secure Boot. Enrolls: and has a firmware without keys take its own.
	Signed, Enrolls bool
	// Medium: it is an installation medium, which a machine boots from a drive and runs in memory.
	Medium bool
}

// KnowImage records in the world what the bytes with this SHA-256 (hex) are. The
// factory calls it for every image it builds, the host looks uploads up.
func (w *World) KnowImage(sha256 string, img Image) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.images[sha256] = img
}

// ImageOf returns what the bytes with this SHA-256 are, if they are anything.
func (w *World) ImageOf(sha256 string) (Image, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	img, ok := w.images[sha256]
	return img, ok
}

// ServeInstallers sets who knows the Talos in the installer images of the Image Factory.
func (w *World) ServeInstallers(find func(schematic, version string) (Image, bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.installers = find
}

// FindInstaller returns the Talos in an installer image of the Image Factory; false: it builds no
// such image. A world without a factory has one of every schematic, without extensions.
func (w *World) FindInstaller(schematic, version string) (Image, bool) {
	w.mu.Lock()
	find := w.installers
	w.mu.Unlock()
	if find == nil {
		return Image{Version: version, Schematic: schematic}, true
	}
	return find(schematic, version)
}

// Disk is a virtual disk. It is a pointer: whoever writes to Contents changes
// what the next boot finds, and a deleted VM's disk is simply forgotten.
type Disk struct {
	Volid  string
	Serial string
	Bytes  int64
	Image  Image // what it was imported from; zero: blank
	// Contents is what the guest keeps on it. Only the guest's service knows its
	// type.
	Contents any
}

// Guest is what a VM presents to the operating system inside while it runs.
type Guest struct {
	VMID int
	Host string
	Name string
	UUID string // SMBIOS, lower case
	MAC  string // lower case
	// Address, Address6, Gateway and Nameservers are those of the cloud-init drive;
	// zero without one.
	Address     netip.Prefix
	Address6    netip.Prefix
	Gateway     netip.Addr
	Nameservers []netip.Addr
	Bridge      string
	Cores       int
	MemoryMiB   int64
	Agent       bool      // the guest agent's device is there
	Firmware    *Firmware // nil: one that verifies nothing
	TPM         bool
	Boot        *Disk // its system disk: the first that holds something to boot, else the first that it boots from; nil: none
	Disks       []*Disk
	// Medium is the installation medium in a drive that it boots from; nil: none. MediumFirst: before its disk.
	Medium      *Image
	MediumFirst bool
	// Fault NeverUp keeps the guest dead.
	Dead bool
	// Off is what the guest calls when its operating system switches the
	// machine off by itself: the host sees it stopped, as after a shutdown. It
	// must not be called from inside a method of Guests.
	Off func()
}

// Guests is what the host reports to the service that simulates operating systems.
type Guests interface {
	// PowerOn is called when the guest's virtual machine runs.
	PowerOn(g Guest)
	// PowerOff is called when it was switched off hard.
	PowerOff(vmid int)
	// Shutdown is called on the ACPI power button; the service calls off when the
	// guest has shut itself down. It returns false when the guest does not
	// react.
	Shutdown(vmid int, off func()) bool
}

// ControlPlane is what a Talos control-plane node knows of the Kubernetes it
// runs, from its machine config.
type ControlPlane struct {
	Node        string
	Address     netip.Addr // its kube-apiserver listens at Address:6443
	VIP         netip.Addr // zero: none; served by the first that runs
	CACert      []byte     // PEM, Kubernetes CA
	CAKey       []byte
	SANs        []string
	Kubernetes  string // v1.36.1
	Talos       string // that deploys what a new cluster has; "": the newest that is known
	CNI         string // flannel | none
	KubeProxy   bool
	NoDNS       bool             // Talos deploys no CoreDNS
	Extra       []map[string]any // objects of the machine config that Talos deploys besides its own
	PodCIDR     string
	ServiceCIDR string
}

// Kubelet is what a node registers with its Kubernetes.
type Kubelet struct {
	Node       string
	Address    netip.Addr
	Address6   netip.Addr // zero: none
	Kubernetes string
	Talos      string
	Control    bool
	// Schedulable keeps a control plane free of the taint that workloads stay
	// away from (allowSchedulingOnControlPlanes).
	Schedulable bool
	Labels      map[string]string
	Taints      []string // key=value:Effect or key:Effect
	VMID        int
	// Cores and MemoryMiB are what the machine has. Zero: 4 and 8192.
	Cores     int
	MemoryMiB int64
	// UUID is the machine's (SMBIOS), BootID that of the run of its kernel: what ran
	// under another one has ended. "" for either is one that nobody else has.
	UUID, BootID string
	// Machine is another one for each virtual machine that is made, also under the same name,
	// VMID and UUID: what was attached to one before is not attached to it.
	Machine string
}

// NodeLabels are the labels that Talos wants on the node.
func (k Kubelet) NodeLabels() map[string]string {
	if !k.Control {
		return k.Labels
	}
	labels := map[string]string{RoleControl: "", "node.kubernetes.io/exclude-from-external-load-balancers": ""}
	maps.Copy(labels, k.Labels)
	return labels
}

// NodeTaints are the taints that Talos wants on the node.
func (k Kubelet) NodeTaints() []string {
	if !k.Control || k.Schedulable {
		return k.Taints
	}
	return append([]string{RoleControl + ":NoSchedule"}, k.Taints...)
}

// StaticPod is a static pod of a control plane as its manifest has it.
type StaticPod struct {
	Name, Image string
	// Versions are the annotations by which Talos has its kubelet see that what the
	// pod is made of has changed.
	Versions map[string]string
	// PullError is why its image cannot be pulled; "": it can, or the machine has it.
	PullError string
}

// RoleControl is the label and the taint of control planes.
const RoleControl = "node-role.kubernetes.io/control-plane"

// Kubernetes is what the Talos service reports to the service that simulates
// Kubernetes.
//
// ca is the fingerprint of the cluster's Kubernetes CA (hex SHA-256 of the
// certificate's DER): what a kubelet knows its cluster by. etcd names the one
// etcd a control plane stores in: founding an etcd makes a new, empty store;
// two founded with one CA are a split brain.
type Kubernetes interface {
	// ServeAPI brings up a kube-apiserver on a control-plane node whose etcd
	// member is healthy: ready after the image pull and the API's own start.
	// It notifies the node through ready, which gates the node's static pods.
	ServeAPI(ca, etcd string, cp ControlPlane, ready func(bool)) (stop func())
	// RunStaticPods gives the kubelet of a control plane the manifests of its static
	// pods, for which it keeps pods in Kubernetes.
	RunStaticPods(ca, etcd, node string, pods []StaticPod)
	// RunKubelet lets a node register as soon as any kube-apiserver with that
	// CA answers. It notifies the node through ready when its Node object is
	// Ready.
	RunKubelet(ca string, k Kubelet, ready func(bool)) (stop func())
	// AwaitEndpoint calls answers once, as soon as a kube-apiserver with that CA
	// answers at an address: its own, or the VIP it holds.
	AwaitEndpoint(ca string, endpoint netip.Addr, answers func()) (stop func())
}

// Pod is a pod that runs on a node, as the machine below sees it.
type Pod struct {
	Namespace, Name, UID string
	Containers           []Container
}

// Container is one container of a pod.
type Container struct{ Name, Image string }

// Containers is what a Kubernetes besides knows of the machine below a node. A
// service that simulates Kubernetes need not implement it: then machines show no
// pods, and every registry answers.
type Containers interface {
	// PodsOn returns the pods that run on a node of the cluster with that CA.
	PodsOn(ca, node string) []Pod
	// CanPull reports whether the registry of an image gives it out.
	CanPull(image string) bool
}

// Drainer is what a Kubernetes besides does for Talos, which empties a node before it goes
// down. A service that simulates Kubernetes need not implement it: then a drain is over at
// once.
type Drainer interface {
	// DrainNode cordons a node of the cluster with that CA and evicts its pods as Talos does, and
	// calls done when it is through or has given up. The cordon is taken back when the kubelet of
	// the node's next boot registers.
	DrainNode(ca, node string, done func()) (stop func())
}

// Registry is what Kubernetes keeps in an etcd, at one moment.
type Registry struct {
	// Revision is that of the last change of any key.
	Revision uint64
	Keys     []RegistryKey
}

// RegistryKey is one key of a registry: /registry/pods/kube-system/etcd-cp1.
type RegistryKey struct {
	Key      string
	Value    []byte // the object as JSON; nil: the key was deleted in this revision
	Revision uint64
}

// Storage is what a Kubernetes besides does for an etcd that is saved as a whole. A service that
// simulates Kubernetes need not implement it: then its etcds are empty.
type Storage interface {
	// ReadRegistry returns what is stored in an etcd of the cluster with that CA.
	ReadRegistry(ca, etcd string) Registry
	// FillRegistry has a new etcd of that cluster hold what another one held: the last revision of
	// each key. No API stores in it yet.
	FillRegistry(ca, etcd string, r Registry)
}

// DiskCopier is what Guests may implement to copy what a guest keeps on a disk, as
// a snapshot of the disk does. Without it disks and their snapshots share it.
type DiskCopier interface {
	CopyContents(*Disk) any
}

// Pauser is what Guests may implement to notice that the processors of a guest stand
// still, or go on.
type Pauser interface {
	Pause(vmid int, paused bool)
}

// MediumChanger is what Guests may implement to notice that the installation medium of a guest that
// runs was changed or removed, which its next boot goes by.
type MediumChanger interface {
	ChangeMedium(vmid int, medium *Image, first bool)
}

// Consoles is what Guests may implement to print on serial ports.
type Consoles interface {
	Console(vmid int) Printed
}

// Printed is what a guest prints on its serial port.
type Printed struct {
	Lines []string // lately, the newest last
	Last  int      // the number of the newest, counted from 1; 0: there is none
	Again []string // what it prints over and over now; none when it is silent
}

// Next is what is read next of it by who has read up to the line of a number: those behind that, as far as they are there,
// or else the i-th of those that are printed over and over; "" for nothing.
func (p Printed) Next(read, i int) string {
	lines := p.Lines[max(0, len(p.Lines)-max(0, p.Last-read)):]
	switch {
	case len(lines) > 0:
		return strings.Join(lines, "\r\n")
	case len(p.Again) == 0:
		return ""
	}
	return p.Again[i%len(p.Again)]
}
