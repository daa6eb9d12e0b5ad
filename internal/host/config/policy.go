package config

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// The types in this file are the format of the host's policy, as those of
// config.go are that of its config.

// policyFile is policy.yaml: what the repository may ask of this host. It
// outranks the repository, so only root can change it. Whoever may push can
// choose inside it; a cluster that asks for more is refused before anything is
// touched, with the line of the rule.
//
// pool and vmids are required, because they are what keeps the agent apart from
// everything else on the host. A list or limit that is not written limits
// nothing: most hosts have one storage and one bridge, and the privileges of
// the agent's token bound the rest.
type policyFile struct {
	// The resource pool of the agent's VMs. Nothing outside it is ever changed.
	Pool string `yaml:"pool" is:"pool" required:"true" example:"talos"`
	// The VMIDs that nodes may have, from the first to the last.
	VMIDs []cluster.Range `yaml:"vmids" required:"true" example:"[400-599]"`
	// The storages that clusters may use, for disks, images and cloud-init
	// drives.
	Datastores []string `yaml:"datastores" is:"storage" default:"any" example:"[local, local-lvm]"`
	// The bridges that nodes may be attached to.
	Bridges []string `yaml:"bridges" is:"bridge" default:"any" example:"[vmbr1]"`
	// The greatest weight that a node's VM may have among guests of the host that want the same cores.
	CPUUnits int `yaml:"cpu_units" unit:"weight" min:"1" max:"10000" default:"100, which is what a guest has by itself" example:"200"`
	// true: clusters may have `ha`, with which Proxmox VE's HA manager starts their VMs again, on other hosts too. The agent's
	// token needs Sys.Console on / for that.
	HA bool `yaml:"ha" default:"false"`
	// true: every network card of a node has `firewall: true`, so that the firewall of Proxmox VE filters it where it is on for
	// the VM; a cluster with another one is refused.
	Firewall bool `yaml:"firewall" default:"false"`
	// The resource mappings of PCI devices of the host that may be passed to VMs.
	PCIMappings []string `yaml:"pci_mappings" is:"mapping" default:"none" example:"[gpu]"`
	// The resource mappings of USB devices of the host that may be passed to VMs.
	USBMappings []string `yaml:"usb_mappings" is:"mapping" default:"none" example:"[dongle]"`
	// The ports of the host that `port_forwards` of clusters may lead to nodes.
	PortForwards []int `yaml:"port_forwards" unit:"port" min:"1" max:"65535" default:"none" example:"[80, 443]"`
	// What MAC addresses of nodes must begin with, or whole ones. Without it a node may have any, and
	// the agent writes DHCP reservations of those that begin with BC:24:11 alone, which are Proxmox VE's.
	MACs []string `yaml:"macs" is:"macs" default:"any, and BC:24:11 for reservations" example:"[\"BC:24:11\"]"`
	// The networks that addresses of nodes, of IPv4 and of IPv6, and VIPs, must lie in, those that patches add to a
	// machine config included. Without it a node may have any address of its network that is
	// not this host's or of one of the routers it sends to.
	Networks []anyPrefix `yaml:"networks" default:"any" example:"[10.10.0.64/26, \"fd00:10:10::/64\"]"`
	// The most that all clusters of this agent may have together.
	Limits limitsFile `yaml:"limits"`
	// How far hosts and storages may be filled by new VMs, and by those that get more memory
	// or larger disks. A VM that is there is never touched because of it.
	Capacity capacityFile `yaml:"capacity"`
	// observe: whatever the repository has, nodes that somebody changed or stopped stay
	// as they are, objects of addons that somebody deleted or edited are not put back, and
	// the labels and annotations of their namespaces stay; all of it is reported.
	Heal string `yaml:"heal" enum:"heal,observe" default:"what the repository has" example:"observe"`
	// off: whatever the repository has, nodes that are there are not changed, and no addon
	// is uninstalled; approve: that is done when root has approved it.
	Apply string `yaml:"apply" enum:"auto,approve,off" default:"what the repository has" example:"off"`
	// When nodes get other versions of Talos or Kubernetes; of this and what a cluster has
	// itself the stricter holds: off, then approve, then window, then auto.
	Upgrade string `yaml:"upgrade" enum:"auto,window,approve,off" default:"what the repository has" example:"approve"`
	// When nodes that run may be taken out of service, besides the window that a cluster
	// has itself: both must be open.
	Window windowFile `yaml:"window" default:"always"`
	// How many workers of a cluster may be out of service at once, however many it asks for
	// with its own `max_unavailable`. Of control planes it is always one.
	MaxUnavailable int `yaml:"max_unavailable" unit:"number of workers" min:"1" max:"1000" default:"what the repository has" example:"2"`
	// How nodes are drained, whatever a cluster has in its own `drain`.
	Drain policyDrain `yaml:"drain"`
	// How many nodes of a cluster may leave the inventory at once and are removed without
	// approval. When more do, each waits for `talos-agent approve`.
	Removals int `yaml:"removals" unit:"number of nodes" min:"0" max:"1000" default:"1" example:"2"`
	// Where images and charts may come from.
	Sources sourcesFile `yaml:"sources"`
}

// windowFile has the fields of inventory.Window; the reference is made from this file.
type windowFile struct {
	// On which days it opens. It may close on the day after.
	Days []string `yaml:"days" enum:"mon,tue,wed,thu,fri,sat,sun" default:"every day" example:"[sat, sun]"`
	// When it opens, by the clock of the time zone.
	From string `yaml:"from" is:"clock" required:"true" example:"\"22:00\""`
	// When it closes; on the next day if that is not later than it opens.
	To string `yaml:"to" is:"clock" required:"true" example:"\"05:00\""`
	// The time zone of the days and times, by its name in the IANA database.
	TimeZone string `yaml:"time_zone" is:"timezone" default:"UTC" example:"Europe/Berlin"`
}

type policyDrain struct {
	// stop: whatever the repository has, pods that are left when a drain ends because of
	// disruption budgets are never deleted; the node returns to service.
	OnTimeout string `yaml:"on_timeout" enum:"stop,delete" default:"what the repository has" example:"stop"`
	// How long a node is drained at most, however long the `drain.timeout` of the repository
	// is, or its default of 5 minutes. With `on_timeout: delete` pods that are left are deleted
	// then.
	Timeout time.Duration `yaml:"timeout" default:"what the repository has" example:"10m"`
}

type capacityFile struct {
	// Memory of each host that no VM gets: for Proxmox VE itself, for the cache of ZFS,
	// and for guests that the agent's token does not see. It wants a unit.
	MemoryReserve amount `yaml:"memory_reserve" default:"2GiB" example:"8GiB"`
	// How much the disks on a thin storage may promise together, in percent of its
	// size. Above 100 it can become full, which stops every VM on it.
	ThinOvercommit int `yaml:"thin_overcommit" unit:"percent" min:"1" max:"10000" default:"100" example:"150"`
	// How many new VMs at once may have their disks copied onto one storage of a host, by this agent. With more,
	// a large cluster is there sooner, and what runs on the storage waits longer for its disks. A VM with data disks is made alone.
	CopiesPerStorage int `yaml:"copies_per_storage" unit:"number of copies" min:"1" max:"100" default:"2" example:"4"`
}

type limitsFile struct {
	// Nodes.
	Nodes int `yaml:"nodes" unit:"number of nodes" min:"1" max:"100000" default:"no limit" example:"10"`
	// Processor cores of all nodes.
	Cores int `yaml:"cores" unit:"number of cores" min:"1" max:"1000000" default:"no limit" example:"32"`
	// Memory of all nodes. It wants a unit.
	RAM amount `yaml:"ram" default:"no limit" example:"64GiB"`
	// Disks of all nodes, the system disks included. It wants a unit.
	Disk amount `yaml:"disk" default:"no limit" example:"1TiB"`
}

type sourcesFile struct {
	// Image factories. It bounds the factory of config.yaml and the registry
	// that nodes install Talos from.
	Factory []string `yaml:"factory" is:"weburl" default:"any" example:"[\"https://factory.talos.dev\"]"`
	// Chart repositories and registries, by the beginning of their addresses, and
	// `repository` for charts that lie in the repository itself.
	Charts []string `yaml:"charts" is:"chartorigin" default:"any" example:"[\"https://helm.cilium.io\"]"`
}
