package inventory

import (
	"net/netip"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/dualstack"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// The types in this file are the inventory's format: the decoder, the JSON
// Schemas and the reference read names, rules, defaults and examples from the
// tags, which yamlschema.Language lists, and the meaning from the comments.

// clusterFile is cluster.yaml: one cluster, its versions, its network and
// what it takes from the host.
type clusterFile struct {
	// Name of the cluster. With the owner in the host's config it is the
	// cluster's identity: another name is another cluster. It also names the
	// commit status.
	ClusterName string `yaml:"cluster_name" is:"label" required:"true" example:"dev"`
	// A word for people. Nothing depends on it.
	Environment string `yaml:"environment" is:"label" example:"lab"`
	// The Talos version of every node.
	TalosVersion string `yaml:"talos_version" is:"version" required:"true" example:"v1.13.9"`
	// The Kubernetes version of every node.
	KubernetesVersion string `yaml:"kubernetes_version" is:"version" required:"true" example:"v1.36.1"`
	// The Talos minor version whose shape of machine config is generated. The
	// cluster keeps what it was when its first config was sent, also when
	// talos_version moves on; another one that is written is refused.
	ConfigContract string `yaml:"config_contract" is:"contract" default:"the minor version of talos_version when the cluster is made" example:"v1.13"`
	// Demands a control plane that survives the loss of a node: at least
	// three control planes and an odd number of them.
	HAEnabled bool `yaml:"ha_enabled" default:"false"`
	// High availability of the VMs by Proxmox VE's own HA manager, where the host's policy allows it.
	HA highAvailability `yaml:"ha"`
	// Addresses and names.
	Network network `yaml:"network"`
	// Where the VMs live on Proxmox VE.
	Proxmox proxmox `yaml:"proxmox" required:"true" example:"{node: pve1}"`
	// How nodes are spread over hosts. A word is the strategy.
	Placement placement `yaml:"placement" short:"strategy" example:"spread"`
	// What VMs may take of a host, by its name. It bounds what the host has, and what
	// its policy allows, and never adds to it.
	PVECapacity map[string]hostCapacity `yaml:"pve_capacity" example:"{pve1: {cpu: 16, ram: 65536}}"`
	// What becomes of a node that is no longer as the inventory has it, because somebody
	// changed or stopped it, and of objects and namespaces of addons that somebody deleted or
	// edited: heal corrects it, observe only reports it.
	Heal string `yaml:"heal" enum:"heal,observe" default:"heal"`
	// What becomes of a change of the inventory: auto has nodes that are there changed,
	// approve has that wait until root of the host approves what `talos-agent plan` shows,
	// off only reports what would be. New nodes are made either way.
	Apply string `yaml:"apply" enum:"auto,approve,off" default:"auto"`
	// When nodes get other versions of Talos or Kubernetes: auto as with any other change,
	// window only in a `window`, which is required then, here or in the host's policy,
	// approve when root of the host approves what `talos-agent plan` shows, off only
	// reports what would be. What `apply` and `window` have holds besides.
	Upgrade string `yaml:"upgrade" enum:"auto,window,approve,off" default:"auto"`
	// The node that is upgraded before all others: one of nodes.yaml that is not locked.
	Canary string `yaml:"canary" is:"label" default:"none" example:"dev-wk-1"`
	// How long a node must have been healthy after its upgrade before the next one is
	// upgraded: 1s to 24h. That it is healthy is waited for in any case; this is more time,
	// for storage that copies its replicas, or for you to look.
	Soak time.Duration `yaml:"soak" default:"none" example:"5m"`
	// What must hold besides before each node is upgraded: conditions about Kubernetes objects
	// and the status of the cluster, and Jobs that the agent starts and that have to succeed.
	// All of them must.
	Gates []gateOf `yaml:"gates" example:"[{name: volumes, objects: {api_version: longhorn.io/v1beta2, kind: Volume}, condition: 'objects.all(o, o.status.robustness == \"healthy\")'}]"`
	// How many workers may be out of service at once while nodes are changed. Of control
	// planes it is one.
	MaxUnavailable int `yaml:"max_unavailable" unit:"number of workers" min:"1" max:"1000" default:"1"`
	// How a node is drained before it is taken down.
	Drain drain `yaml:"drain"`
	// When nodes that run may be taken out of service: to be changed, removed or replaced.
	// What has begun is finished, and nodes that are down are healed at any time.
	Window Window `yaml:"window" default:"always"`
	// When a node that worked and does not answer any more gets a new machine. The disks
	// of the old one are deleted with it. One node an hour, and none while more than a
	// third are not Ready or it may be the host. A duration is that of workers.
	ReplaceDead replaceDead `yaml:"replace_dead" short:"worker" default:"never"`
	// A control plane is removed although an even number of them is left, which survives
	// the loss of no more of them than one less would.
	AllowEven bool `yaml:"allow_even" default:"false"`
	// Ports of the agent's host that lead to nodes, of those that the host's policy allows. The
	// host has to load what the agent writes for them.
	PortForwards []portForward `yaml:"port_forwards" example:"[{port: 443}, {port: 80}]"`
	// The container network: Talos' own Flannel, Cilium as an addon of that
	// name (without kube-proxy), or none, which leaves it to an addon of yours.
	CNI string `yaml:"cni" enum:"flannel,cilium,none" default:"flannel"`
	// The Talos image.
	Talos talos `yaml:"talos"`
	// What nodes get that do not say it themselves, by role.
	Profiles profiles `yaml:"profiles"`
	// Strategic-merge patches of the machine config: files, relative to the
	// cluster's folder, with any number of documents each. `${values.name}`
	// in a value stands for that entry of `values` in secrets.sops.yaml, `$${`
	// for a literal `${`. They apply in the order all, role, node.
	Patches patches `yaml:"patches"`
	// Helm releases: files, relative to the cluster's folder.
	Addons []string `yaml:"addons" is:"file" example:"[addons/cilium.yaml]"`
	// What becomes of a release that the agent manages when its addon is taken out of
	// addons: true uninstalls it, false leaves it. The container network stays in any
	// case, and so do namespaces, custom resource definitions and bootstrap-only releases.
	Prune bool `yaml:"prune" default:"false"`
}

type highAvailability struct {
	// Every VM is a resource of Proxmox VE's HA manager, which starts it again when it stops, and on another host where its
	// own is lost; on Proxmox VE 9 a rule keeps control planes on hosts of their own. All disks have to be on shared storage.
	Enabled bool `yaml:"enabled" default:"false"`
	// The group of hosts among which it does so. Proxmox VE 8 has groups; on 9 node affinity rules of yours are in their place.
	Group string `yaml:"group" is:"hagroup" default:"none" example:"racks"`
}

type portForward struct {
	// The port of the host.
	Port int `yaml:"port" unit:"port" min:"1" max:"65535" required:"true" example:"443"`
	// The port of the nodes.
	NodePort int `yaml:"node_port" unit:"port" min:"1" max:"65535" default:"the same" example:"30443"`
	// The protocol.
	Protocol string `yaml:"protocol" enum:"tcp,udp" default:"tcp"`
	// Which nodes it leads to: to those of a role that are Ready.
	Nodes string `yaml:"nodes" enum:"workers,controlplanes" default:"workers, or control planes where there are no workers"`
}

type gateOf struct {
	// What the status calls it.
	Name string `yaml:"name" is:"label" required:"true" example:"volumes"`
	// The Kubernetes objects that it is about: `objects` in the condition.
	Objects gateObjects `yaml:"objects" default:"none" example:"{api_version: longhorn.io/v1beta2, kind: Volume}"`
	// When it holds: an expression in CEL that is true or false, about `objects`, `status` and `now`.
	// A gate has this or `job`.
	Condition string `yaml:"condition" is:"condition" example:"objects.all(o, o.status.robustness == \"healthy\")"`
	// Instead of a condition: a file with the manifest of one Job (batch/v1), relative to the
	// cluster's folder. The agent starts it before each node is upgraded, and the gate holds
	// when it has succeeded.
	Job string `yaml:"job" is:"file" example:"gates/smoke.yaml"`
}

type gateObjects struct {
	// Their API version, as in a manifest.
	APIVersion string `yaml:"api_version" is:"apiversion" required:"true" example:"apps/v1"`
	// Their kind, as in a manifest.
	Kind string `yaml:"kind" is:"kind" required:"true" example:"Deployment"`
	// Their namespace.
	Namespace string `yaml:"namespace" is:"label" default:"all" example:"longhorn-system"`
	// The name of one.
	Name string `yaml:"name" is:"objectname" default:"all" example:"longhorn-manager"`
	// Which labels they have, as kubectl takes it.
	Labels string `yaml:"labels" is:"selector" default:"any" example:"app=ceph"`
}

type drain struct {
	// How long pods may take to leave, where a disruption budget holds them.
	Timeout time.Duration `yaml:"timeout" default:"5m" example:"10m"`
	// What follows then: stop puts the node back into service, and it is tried again
	// later; delete deletes the pods that are left.
	OnTimeout string `yaml:"on_timeout" enum:"stop,delete" default:"stop"`
}

type replaceDead struct {
	// For how long a worker must be dead: 10m to 24h.
	Worker time.Duration `yaml:"worker" default:"never" example:"15m"`
	// For how long a control plane must be dead: 10m to 24h. Its member of etcd is removed first.
	ControlPlane time.Duration `yaml:"controlplane" default:"never" example:"30m"`
}

// Window is how a window is written, here and in the policy of a host.
type Window struct {
	// On which days it opens. It may close on the day after.
	Days []string `yaml:"days" enum:"mon,tue,wed,thu,fri,sat,sun" default:"every day" example:"[sat, sun]"`
	// When it opens, by the clock of the time zone.
	From string `yaml:"from" is:"clock" required:"true" example:"\"22:00\""`
	// When it closes; on the next day if that is not later than it opens.
	To string `yaml:"to" is:"clock" required:"true" example:"\"05:00\""`
	// The time zone of the days and times, by its name in the IANA database.
	TimeZone string `yaml:"time_zone" is:"timezone" default:"UTC" example:"Europe/Berlin"`
}

type network struct {
	// The network of the nodes. With `gateway` the nodes get static addresses;
	// without both they get theirs from a DHCP server that knows their MACs.
	CIDR netip.Prefix `yaml:"cidr" example:"10.10.0.0/24"`
	// The router of the nodes' network.
	Gateway netip.Addr `yaml:"gateway" example:"10.10.0.1"`
	// The IPv6 network of the nodes, /32 to /112: with it the cluster is dual stack, with IPv4 first. It needs static addresses,
	// and is for the cluster's life.
	CIDR6 dualstack.Prefix `yaml:"cidr6" default:"IPv4 alone" example:"fd00:10:10::/64"`
	// The IPv6 router of the nodes' network: in cidr6, or by its link-local address.
	Gateway6 dualstack.Address `yaml:"gateway6" default:"no route to other IPv6 networks" example:"fe80::1"`
	// How a fresh VM comes by its address: from its cloud-init drive, or from
	// a DHCP reservation (validate prints the lines for dnsmasq; where the host's
	// config has `dhcp.directory`, the agent writes them). dhcp-discover: workers without an address
	// here have what a DHCP server gives them, and the agent finds it by their MAC; all others have theirs as
	// in static where there is a `gateway`, and else as in dhcp-reservation. It needs `cidr`.
	AddressMode string `yaml:"address_mode" enum:"static,dhcp-reservation,dhcp-discover" later:"meta" default:"static with cidr and gateway, else dhcp-reservation"`
	// DNS servers of the nodes.
	Nameservers []netip.Addr `yaml:"nameservers" default:"what Talos itself uses" example:"[10.10.0.1]"`
	// NTP servers of the nodes, addresses or names. A node whose clock is not
	// in sync never joins: on a network without internet this is needed.
	TimeServers []string `yaml:"time_servers" is:"host" default:"what Talos itself uses" example:"[10.10.0.1]"`
	// Addresses of pods. It must not overlap the nodes' network: a node whose
	// own address lies in it never finds that address.
	PodCIDR netip.Prefix `yaml:"pod_cidr" default:"10.244.0.0/16"`
	// Addresses of services. The same holds.
	ServiceCIDR netip.Prefix `yaml:"svc_cidr" default:"10.96.0.0/12"`
	// IPv6 addresses of pods, with cidr6: /48 to /64, of which every node gets a /64.
	PodCIDR6 dualstack.Prefix `yaml:"pod_cidr6" default:"a /56 of unique local addresses that follows from the cluster's identity" example:"fd00:10:244::/56"`
	// IPv6 addresses of services, with cidr6: /108 to /124.
	ServiceCIDR6 dualstack.Prefix `yaml:"svc_cidr6" default:"a /108 likewise" example:"fd00:10:96::/112"`
	// An address that leads to the control planes, for the Kubernetes API: one that moves between
	// them, or that of a load balancer. An address alone is moved by Talos.
	VIP vip `yaml:"vip" short:"address" example:"10.10.0.5"`
	// The URL of the Kubernetes API: the VIP, an address of a control plane,
	// or a name that leads there.
	Endpoint string `yaml:"endpoint" is:"endpoint" default:"the VIP, else the first control plane, at port 6443" example:"https://k8s.example.org:6443"`
	// More names and addresses for the certificates of the Talos and
	// Kubernetes APIs.
	CertSANs []string `yaml:"cert_sans" is:"host" example:"[k8s.example.org]"`
	// The VLAN tag of the VMs' network interfaces.
	VLAN int `yaml:"vlan" unit:"VLAN tag" min:"1" max:"4094" default:"no tag at all" example:"20"`
	// The first three bytes of derived MAC addresses.
	MACPrefix string `yaml:"mac_prefix" is:"macprefix" default:"BC:24:11" example:"\"BC:24:11\""`
}

type vip struct {
	// The address. It lies in the nodes' network, but for an external one, and no node has it.
	Address netip.Addr `yaml:"address" required:"true" example:"10.10.0.5"`
	// Who has it: talos, which gives it to one of the control planes; kube-vip, which does so as an addon or a manifest of
	// yours; or external, a load balancer that you run, which forwards port 6443 to the control planes.
	By string `yaml:"by" enum:"talos,kube-vip,external" default:"talos"`
}

type proxmox struct {
	// The Proxmox VE host that carries the VMs.
	Node string `yaml:"node" is:"pvenode" example:"pve1"`
	// Instead of `node`: several hosts of one Proxmox VE cluster. Every node then names
	// one, with its own `node`, or `placement` spreads them.
	Nodes []string `yaml:"nodes" is:"pvenode" example:"[pve1, pve2]"`
	// The storage of the VMs' disks.
	Datastore string `yaml:"datastore" is:"storage" default:"local-lvm"`
	// The storage the Talos image is uploaded to. Its content types must
	// include `import`, with `boot: iso` `iso`.
	ImageDatastore string `yaml:"image_datastore" is:"storage" default:"the host config's, else local"`
	// The storage of the cloud-init drives.
	CloudInitDatastore string `yaml:"cloudinit_datastore" is:"storage" default:"that of the disks"`
	// The bridge or SDN VNet the VMs are attached to.
	Bridge string `yaml:"bridge" is:"bridge" default:"vmbr0"`
	// The resource pool of the VMs.
	Pool string `yaml:"pool" is:"pool" default:"the host policy's" example:"talos-dev"`
	// The SCSI controller. `virtio-scsi-pci` is the way out where disks stall
	// on the default.
	SCSIHardware string `yaml:"scsihw" enum:"virtio-scsi-single,virtio-scsi-pci" default:"virtio-scsi-single"`
	// More tags for the VMs, besides talos-agent, the cluster's name and the
	// role. Proxmox VE tags are lower case; anything else is rewritten.
	Tags []string `yaml:"tags" is:"tag" example:"[team-a]"`
	// The VMIDs of nodes that do not name one. A listed node gets the first
	// VMID plus the host part of its address, which begins again at the first
	// one where the range ends, a counted one the first VMID plus its ordinal.
	VMIDRanges vmidRanges `yaml:"vmid_ranges"`
}

type hostCapacity struct {
	// Processor cores of all nodes of the cluster on this host together.
	CPU int `yaml:"cpu" unit:"number of cores" min:"1" max:"1000000" default:"no bound" example:"16"`
	// Memory, in MiB, of all nodes of the cluster on this host together, and of the
	// host's other guests.
	RAM int `yaml:"ram" unit:"number of MiB" min:"1" max:"1073741824" default:"no bound" example:"65536"`
}

type vmidRanges struct {
	// For control planes.
	ControlPlane cluster.Range `yaml:"controlplane" default:"401-499"`
	// For workers.
	Worker cluster.Range `yaml:"worker" default:"501-599"`
}

type placement struct {
	// pin: a node lives on the host it names. spread: a node that names none is made on one of
	// proxmox.nodes that has room for it: control planes first, no two on one host while that can be
	// avoided, then workers, so that each host has its first before any has its second. A VM
	// that is there stays where it is, and where you or Proxmox VE migrate it.
	Strategy string `yaml:"strategy" enum:"pin,spread" default:"pin"`
	// The strategy of control planes.
	ControlPlane string `yaml:"controlplane" enum:"pin,spread" default:"strategy"`
	// The strategy of workers.
	Worker string `yaml:"worker" enum:"pin,spread" default:"strategy"`
	// Hosts of nodes, by the name of the node, whatever the strategy: the same as `node`
	// under it, also for one of a counted row.
	Pinned map[string]string `yaml:"pinned" example:"{dev-wk-1: pve1}"`
}

type talos struct {
	// What the image factory builds into the image.
	Schematic schematic `yaml:"schematic"`
	// How VMs get their system disk: `image` copies the factory's disk image; `iso` boots its installation medium, and the node pulls an installer.
	Boot string `yaml:"boot" enum:"image,iso" later:"template" default:"image"`
	// The firmware of every VM boots nothing but Talos as the image factory has signed it: VMs are made from its image for
	// Secure Boot, whose keys their firmware takes at the first boot, with a TPM, in which patches may keep the keys of
	// encrypted disks. It takes Talos v1.14 or newer. A node that is there changes it with a new machine alone: `replace`.
	SecureBoot bool `yaml:"secureboot" default:"false"`
	// The processor architecture of the nodes.
	Arch string `yaml:"arch" enum:"amd64" later:"arm64" default:"amd64"`
	// The registry that serves the Talos installer to the nodes.
	InstallerRegistry string `yaml:"installer_registry" is:"registry" default:"factory.talos.dev"`
}

type schematic struct {
	// System extensions.
	Extensions []string `yaml:"extensions" is:"extension" example:"[siderolabs/iscsi-tools, siderolabs/util-linux-tools]"`
	// Arguments of the kernel, one each.
	ExtraKernelArgs []string `yaml:"extra_kernel_args" is:"kernelarg" example:"[console=ttyS0]"`
}

type profiles struct {
	// Control planes: cpu, cpu_type, ram, disk and disks as in nodes.yaml.
	// Where nothing is said: 4 cores, 4096 MiB and 40G.
	ControlPlane hardware `yaml:"controlplane" keys:"elsewhere" example:"{cpu: 4, ram: 8192, disk: 40G}"`
	// Workers likewise. Where nothing is said: 4 cores, 8192 MiB and 60G.
	Worker hardware `yaml:"worker" keys:"elsewhere" example:"{cpu: 4, ram: 8192, disk: 60G, disks: [{name: longhorn, size: 100G}]}"`
}

type patches struct {
	// For every node.
	All []string `yaml:"all" is:"file" example:"[patches/common.yaml]"`
	// For control planes.
	ControlPlane []string `yaml:"controlplane" is:"file"`
	// For workers.
	Worker []string `yaml:"worker" is:"file" example:"[patches/longhorn.yaml]"`
}

// nodesFile is nodes.yaml: the machines of the cluster.
type nodesFile struct {
	// The control planes.
	ControlPlane []listed `yaml:"controlplane"`
	// The workers.
	Workers []listedWorker `yaml:"workers"`
	// Rows of equal nodes.
	Counted []counted `yaml:"counted"`
}

// listed is one node.
type listed struct {
	// Name of the node: in Kubernetes, in Talos and of the VM. Another name is
	// another node.
	Name string `yaml:"name" is:"label" required:"true" example:"dev-wk-1"`
	// Address of the node.
	IP netip.Addr `yaml:"ip" required:"true" or:"offset" example:"10.0.10.21"`
	// IPv6 address of the node, where the cluster has network.cidr6.
	IP6 dualstack.Address `yaml:"ip6" default:"in network.cidr6, at the number that its IPv4 address has in network.cidr" example:"fd00:10:10::21"`
	// Instead of ip: the host part of the node's address in network.cidr. 21 in
	// 10.0.10.0/24 is 10.0.10.21.
	Offset int `yaml:"offset" unit:"number of addresses" min:"1" max:"16777214" example:"21"`
	// VMID of the node's VM.
	VMID int `yaml:"vmid" unit:"VMID" min:"100" max:"999999999" default:"from the role's range, by the host part of the node's address" example:"520"`
	// Hardware address of the node's network interface.
	MAC string `yaml:"mac" is:"mac" default:"derived from cluster and name" example:"\"BC:24:11:00:00:21\""`
	hardware
	scheduling
}

// listedWorker is one worker: a listed that may be without an address.
type listedWorker struct {
	// Name of the node: in Kubernetes, in Talos and of the VM. Another name is
	// another node.
	Name string `yaml:"name" is:"label" required:"true" example:"dev-wk-1"`
	// Address of the node.
	IP netip.Addr `yaml:"ip" or:"offset" default:"what a DHCP server gives it, with address_mode: dhcp-discover; else required" example:"10.0.10.21"`
	// IPv6 address of the node, where the cluster has network.cidr6.
	IP6 dualstack.Address `yaml:"ip6" default:"in network.cidr6, at the number that its IPv4 address has in network.cidr" example:"fd00:10:10::21"`
	// Instead of ip: the host part of the node's address in network.cidr. 21 in
	// 10.0.10.0/24 is 10.0.10.21.
	Offset int `yaml:"offset" unit:"number of addresses" min:"1" max:"16777214" example:"21"`
	// VMID of the node's VM. A listed worker without an address needs one.
	VMID int `yaml:"vmid" unit:"VMID" min:"100" max:"999999999" default:"from the role's range, by the host part of the node's address" example:"520"`
	// Hardware address of the node's network interface.
	MAC string `yaml:"mac" is:"mac" default:"derived from cluster and name" example:"\"BC:24:11:00:00:21\""`
	hardware
	scheduling
}

// counted is a row of equal nodes. The n-th (n counts from 1) is named after
// the pattern, has the address n-1 after the first one and the VMID n-1 after
// the first one, whatever other rows and nodes there are.
type counted struct {
	// Role of the nodes.
	Role string `yaml:"role" enum:"controlplane,worker" required:"true" example:"worker"`
	// How many. To scale, change it; the nodes that stay keep everything.
	Count int `yaml:"count" unit:"number of nodes" min:"0" max:"1000" required:"true" example:"3"`
	// Pattern of the names; {n} stands for the number of the node.
	Name string `yaml:"name" is:"pattern" required:"true" example:"\"dev-wk-{n}\""`
	// Address of the first node.
	FirstIP netip.Addr `yaml:"first_ip" or:"offset" default:"the address of network.cidr plus offset; none for workers with dhcp-discover" example:"10.0.10.31"`
	// Instead of first_ip: the host part of the first node's address in network.cidr. 30 in
	// 10.0.10.0/24 is 10.0.10.30.
	Offset int `yaml:"offset" unit:"number of addresses" min:"1" max:"16777214" default:"10 for control planes, 20 for workers" example:"30"`
	// VMID of the first node.
	FirstVMID int `yaml:"first_vmid" unit:"VMID" min:"100" max:"999999999" default:"first of the role's range" example:"540"`
	hardware
	scheduling
}

// scheduling is where a node's VM runs and what runs on the node.
type scheduling struct {
	// The Proxmox VE host that carries the VM.
	Node string `yaml:"node" is:"pvenode" default:"proxmox.node" example:"pve1"`
	// More tags for the VM.
	Tags []string `yaml:"tags" is:"tag" example:"[gpu]"`
	// Kubernetes labels.
	Labels map[string]string `yaml:"labels" example:"{zone: a}"`
	// Kubernetes taints: key, then value:Effect, or the effect alone. Effects
	// are NoSchedule, PreferNoSchedule and NoExecute.
	Taints map[string]string `yaml:"taints" example:"{dedicated: \"gpu:NoSchedule\"}"`
	// Annotations of the Node object: at most 16 KiB each, and 64 KiB together. Not
	// those that Kubernetes, Talos, the CNI or the agent write themselves.
	Annotations map[string]string `yaml:"annotations" example:"{cluster-autoscaler.kubernetes.io/scale-down-disabled: \"true\"}"`
	// More patches, applied last.
	Patches []string `yaml:"patches" is:"file" example:"[patches/dev-wk-1.yaml]"`
	// Any word or date. A node that is there with another one, or with none, gets a new
	// machine, once: it is drained and leaves etcd first. Its name, address and VMID stay,
	// and nothing that is on its disks.
	Replace string `yaml:"replace" is:"token" example:"\"2026-11-23\""`
	// Never destroyed, whatever the plan says.
	Protect bool `yaml:"protect" default:"false"`
	// Never touched at all.
	Locked bool `yaml:"locked" default:"false"`
}

// addonFile is a file under addons/: one Helm release.
type addonFile struct {
	// Name of the release.
	Name string `yaml:"name" is:"release" required:"true" example:"cilium"`
	// Namespace of the release.
	Namespace string `yaml:"namespace" is:"label" default:"kube-system for cilium, else the name" example:"kube-system"`
	// Labels of the namespace, such as how secure its pods must be. The agent sets
	// these when it makes the namespace and keeps them; it touches no others. One
	// that is taken out here is removed, unless somebody else has set it too. With
	// bootstrap-only they are set once. Not for the namespaces of Kubernetes:
	// default, kube-node-lease, kube-public and kube-system.
	NamespaceLabels map[string]string `yaml:"namespace_labels" example:"{pod-security.kubernetes.io/enforce: privileged}"`
	// Annotations of the namespace, as with namespace_labels.
	NamespaceAnnotations map[string]string `yaml:"namespace_annotations" example:"{example.org/team: storage}"`
	// Where the chart comes from: exactly one of repository, oci and path.
	Chart chart `yaml:"chart" required:"true" example:"{repository: https://helm.cilium.io, name: cilium, version: 1.19.3}"`
	// Values of the chart. They win over values_files, and those over the
	// defaults that the agent has for Cilium. `${values.name}` works as in
	// patches.
	Values yamlschema.Tree `yaml:"values" example:"{hubble: {enabled: false}}"`
	// Files with values, relative to the cluster's folder; later ones win.
	ValuesFiles []string `yaml:"values_files" is:"file" example:"[addons/cilium-values.yaml]"`
	// Addons that must be ready first.
	DependsOn []string `yaml:"depends_on" is:"release" example:"[cilium]"`
	// managed: kept as written here. bootstrap-only: installed if it is
	// absent and never touched again, for charts that Argo CD or Flux takes over.
	Ownership string `yaml:"ownership" enum:"managed,bootstrap-only" default:"managed"`
	// When the release counts as ready.
	Ready ready `yaml:"ready"`
	// What becomes of an upgrade that fails, or is not ready after ready.timeout.
	// stop: it stays as it is, and is reported. rollback: the release goes back to the
	// newest revision that was ready, until the chart or the values change again. Not
	// with bootstrap-only.
	OnFailure string `yaml:"on_failure" enum:"stop,rollback" default:"stop" example:"rollback"`
	// Not needed: this file is deleted when its release goes, so that prune in
	// cluster.yaml decides.
	Prune bool `yaml:"prune" later:"true" default:"false"`
}

type chart struct {
	// A chart repository.
	Repository string `yaml:"repository" is:"https" example:"https://helm.cilium.io"`
	// An OCI registry and the path of the chart in it.
	OCI string `yaml:"oci" is:"oci" example:"oci://ghcr.io/org/charts/name"`
	// A folder with the chart itself, relative to the cluster's folder.
	Path string `yaml:"path" is:"file" example:"charts/name"`
	// Name of the chart in the repository. Only with repository.
	Name string `yaml:"name" is:"chartname" example:"cilium"`
	// Exact version of the chart. With repository and oci.
	Version string `yaml:"version" is:"chartversion" example:"1.19.3"`
	// SHA-256 of the chart's archive. Without it the first one fetched is
	// remembered on the host. Only with repository.
	SHA256 string `yaml:"sha256" is:"sha256"`
	// Digest of the chart's manifest. Without it the first one fetched is
	// remembered on the host. Only with oci.
	Digest string `yaml:"digest" is:"digest"`
}

type ready struct {
	// How long becoming ready may take before it is reported as a problem.
	Timeout time.Duration `yaml:"timeout" default:"15m" example:"15m"`
}
