// Package usage holds what of the hosts and the VMs of a cluster is in use, as values:
// what is not known is absent, and never zero.
//
// It is pure: it must not know who measures, nor how it is shown.
package usage

import "time"

// Report is what of a cluster's hosts and VMs is in use.
type Report struct {
	Cluster string    `json:"cluster"`
	At      time.Time `json:"at"` // when it was asked for
	Hosts   []Host    `json:"hosts"`
	VMs     []VM      `json:"vms"` // of the nodes, in the order of the inventory
}

// Host is one machine of Proxmox VE. Without Sys.Audit on it a token sees its name and
// its storages only.
type Host struct {
	Name   string   `json:"name"`
	Status string   `json:"status"` // online, offline, or unknown
	Cores  int      `json:"cores,omitempty"`
	CPU    *float64 `json:"cpu,omitempty"` // the share of all its cores that is in use, 0 to 1
	Memory *Amount  `json:"memory,omitempty"`
	Disk   *Amount  `json:"disk,omitempty"` // of its root file system
	// Storages are those that the token may see, by name.
	Storages []Storage `json:"storages"`
	// Pressure is how long tasks wait for what there is too little of; nil on Proxmox
	// VE 8, which does not measure it.
	Pressure *Pressure `json:"pressure,omitempty"`
	// Unanswered is why the pressure is not known, where it was asked for and there was no answer.
	Unanswered string `json:"unanswered,omitempty"`
}

// Storage is a storage of a host.
type Storage struct {
	Name string `json:"name"`
	Amount
}

// VM is the VM of a node.
type VM struct {
	Node   string   `json:"node"`
	VMID   int      `json:"vmid"`
	Host   string   `json:"host,omitempty"`
	Status string   `json:"status"` // running, stopped, or unknown, as of one that is absent
	Cores  int      `json:"cores,omitempty"`
	CPU    *float64 `json:"cpu,omitempty"`    // the share of its cores that is in use, 0 to 1
	Memory *Amount  `json:"memory,omitempty"` // as the guest counts it where that is known
	// HostMemory is what it takes of its host's memory, in bytes; nil on Proxmox VE 8.
	HostMemory *int64 `json:"hostMemory,omitempty"`
}

// Amount is how much of something is in use, in bytes.
type Amount struct {
	Used  int64 `json:"used"`
	Total int64 `json:"total"`
}

// Pressure is the pressure stall information of the kernel: in which share of the last
// seconds some tasks waited for a resource, in percent.
type Pressure struct {
	CPU    float64   `json:"cpu"`
	IO     float64   `json:"io"`
	Memory float64   `json:"memory"`
	At     time.Time `json:"at"` // of the minute that it is the average of
}
