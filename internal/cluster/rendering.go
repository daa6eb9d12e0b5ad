package cluster

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster/values"
)

// Rendering is what a cluster would be given: the VM and the machine config of each
// node, and its addons.
type Rendering struct {
	Cluster  string   `json:"cluster"`
	Revision Revision `json:"revision,omitempty"`
	// Notes are what of it is not as it would be sent.
	Notes  []string        `json:"notes"`
	Nodes  []RenderedNode  `json:"nodes"`
	Addons []RenderedAddon `json:"addons"`
}

// RenderedNode is what a node would be given.
type RenderedNode struct {
	Node string     `json:"node"`
	Role Role       `json:"role"`
	VM   RenderedVM `json:"vm"`
	// Object is what the inventory has of its Node object. Labels and taints are in its machine
	// config, too.
	Object NodeMeta `json:"object,omitzero"`
	// MachineConfig are its documents as they are sent to the machine, or, where
	// secrets are hidden, in the same spelling.
	MachineConfig string `json:"machineConfig,omitempty"`
	// Unrendered is why there is no machine config.
	Unrendered string `json:"unrendered,omitempty"`
	// Base is the revision that its machine config is of, where it is another than the
	// rendering's: a new node is given what the cluster runs.
	Base Revision `json:"base,omitempty"`
}

// RenderedVM is a VM as it should be.
type RenderedVM struct {
	VMID        int             `json:"vmid"`
	Name        string          `json:"name"`
	UUID        string          `json:"uuid"`
	Host        string          `json:"host"`
	Pool        string          `json:"pool,omitempty"`
	Tags        []string        `json:"tags"`
	Mark        string          `json:"mark"` // the first line of its description
	CPUType     string          `json:"cpuType"`
	Cores       int             `json:"cores"`
	MemoryMiB   int64           `json:"memoryMiB"`
	Ballooning  bool            `json:"ballooning"`
	Machine     string          `json:"machine"`
	BIOS        string          `json:"bios"`
	SCSI        string          `json:"scsi"`
	Image       string          `json:"image,omitempty"` // that the system disk is made from
	Disks       []RenderedDisk  `json:"disks"`           // the system disk is the first
	Network     RenderedNetwork `json:"network"`
	Boot        string          `json:"boot"`
	GuestAgent  bool            `json:"guestAgent"`
	StartAtBoot bool            `json:"startAtBoot"`
	Protect     bool            `json:"protect,omitempty"` // the inventory's: it is never destroyed
	// Options are further options that the inventory has, by their names in drifts.
	Options map[VMField]string `json:"options,omitempty"`
}

// RenderedDisk is a disk of a VM.
type RenderedDisk struct {
	Serial    string `json:"serial"`
	Datastore string `json:"datastore"`
	Bytes     int64  `json:"bytes"`
}

// RenderedNetwork is the network card of a VM, and the address on its cloud-init drive.
type RenderedNetwork struct {
	Model   string `json:"model"`
	MAC     string `json:"mac"`
	Bridge  string `json:"bridge"`
	VLAN    int    `json:"vlan,omitempty"`
	Address string `json:"address,omitempty"`
}

// RenderedAddon is a Helm release that a cluster would be given.
type RenderedAddon struct {
	Addon     string `json:"addon"` // the name of its release
	Namespace string `json:"namespace"`
	// Order is its place among the addons: one that another needs has a smaller number.
	Order     int       `json:"order"`
	After     []string  `json:"after,omitempty"` // the addons that must be ready before
	Chart     string    `json:"chart"`           // the reference, with the version
	Version   string    `json:"version,omitempty"`
	Digest    string    `json:"digest,omitempty"` // that the inventory pins
	Ownership Ownership `json:"ownership"`
	// NamespaceLabels and NamespaceAnnotations are what it asks of its namespace.
	NamespaceLabels      map[string]string `json:"namespaceLabels,omitempty"`
	NamespaceAnnotations map[string]string `json:"namespaceAnnotations,omitempty"`
	// Values are those of the inventory, merged; the chart's own lie below them.
	Values json.RawMessage `json:"values"`
}

// Difference is how a cluster differs from what it should be. What is the same is not in
// it; what cannot be seen is.
type Difference struct {
	Cluster  string            `json:"cluster"`
	Revision Revision          `json:"revision,omitempty"`
	Differs  bool              `json:"differs"`
	Nodes    []NodeDifference  `json:"nodes"`
	Addons   []AddonDifference `json:"addons"`
	// Unknown is what could not be compared, by the part that it is of.
	Unknown []UnknownPart `json:"unknown"`
}

// NodeDifference is how a node differs.
type NodeDifference struct {
	Node string `json:"node"`
	// VM, Machine and Object are fields of its VM, its machine and its Node object.
	VM      []FieldDifference `json:"vm,omitempty"`
	Machine []FieldDifference `json:"machine,omitempty"`
	Object  []FieldDifference `json:"object,omitempty"`
	// Etcd is what etcd has of it that it should not.
	Etcd []FieldDifference `json:"etcd,omitempty"`
	// MachineConfig leads from the config that runs to the one that should, as a unified
	// diff; every document begins with a comment that names it.
	MachineConfig string `json:"machineConfig,omitempty"`
	// MachineConfigBy is who made the one that runs what it is, where that is known, and
	// MachineConfigSince since when it differs.
	MachineConfigBy    string    `json:"machineConfigBy,omitempty"`
	MachineConfigSince time.Time `json:"machineConfigSince,omitzero"`
}

// FieldSchematic is the field of the extensions and kernel arguments of Talos, whose values are ids of the image factory.
const FieldSchematic = "image schematic"

// FieldDifference is something that is not what it should be.
type FieldDifference struct {
	Field string `json:"field"`
	Has   string `json:"has"`
	Wants string `json:"wants"`
	// How is what it takes to correct it, where that is known.
	How string `json:"how,omitempty"`
	// By is who has set it as it is, and when, where that is known.
	By string `json:"by,omitempty"`
	// Since is when it became so, where the world shows that, and else since when it was
	// seen in every look.
	Since time.Time `json:"since,omitzero"`
}

// Part is what of a node, an addon or a cluster differs.
type Part string

// The parts that are seen apart from each other.
const (
	PartVM      Part = "vm"
	PartMachine Part = "machine"
	PartObject  Part = "node object"
	PartMember  Part = "etcd member"
	PartRelease Part = "release"
)

// DriftKey identifies something that is not what it should be, whatever it is instead.
type DriftKey struct {
	Subject string // node, member of etcd, addon
	Part    Part
	Field   string
}

// DriftNote is what was noted of something that is not what it should be.
type DriftNote struct {
	// Since is since when it is not, as far as that was seen.
	Since time.Time
	// By is, of a VM, who made it so, for people; "": it is not known.
	By string
	// Has is, of a VM, a digest of what it has: By is who made it that.
	Has string
}

// DriftRecord is a DriftNote as the journal has it.
type DriftRecord struct {
	Subject string    `json:"subject"`
	Part    Part      `json:"part"`
	Field   string    `json:"field"`
	Since   time.Time `json:"since"`
	By      string    `json:"by,omitempty"`
	Has     string    `json:"has,omitempty"`
}

// Equal reports whether two records are the same.
func (r DriftRecord) Equal(s DriftRecord) bool {
	same := r.Since.Equal(s.Since)
	r.Since, s.Since = time.Time{}, time.Time{}
	return same && r == s
}

// AddonDifference is how an addon differs.
type AddonDifference struct {
	Addon  string            `json:"addon"`
	Fields []FieldDifference `json:"fields,omitempty"`
	// Values leads from the values that are installed to those that should be, as a
	// unified diff.
	Values  string   `json:"values,omitempty"`
	Missing []string `json:"missing,omitempty"` // objects of it
	// Altered is what somebody changed of its objects, with who and when.
	Altered []string `json:"altered,omitempty"`
}

// UnknownPart is something that could not be compared.
type UnknownPart struct {
	Subject string `json:"subject"` // node, addon or cluster
	Part    string `json:"part"`
	Why     string `json:"why"`
}

// Dependencies are the names of the addons that must be ready before an addon is
// installed, sorted: those that it names, and the container network, without which no pod
// runs.
func (s Spec) Dependencies(a Addon) []string {
	deps, cni := slices.Clone(a.DependsOn), string(CNICilium)
	if s.CNI == CNICilium && a.Name != cni && !slices.Contains(deps, cni) && slices.ContainsFunc(s.Addons, func(o Addon) bool { return o.Name == cni }) && !s.needs(cni, a.Name, map[string]bool{}) {
		deps = append(deps, cni)
	}
	slices.Sort(deps)
	return deps
}

// needs reports whether an addon names another as needed, directly or not.
func (s Spec) needs(addon, other string, seen map[string]bool) bool {
	i := slices.IndexFunc(s.Addons, func(o Addon) bool { return strings.EqualFold(o.Name, addon) })
	if i < 0 || seen[addon] {
		return false
	}
	seen[addon] = true
	return slices.ContainsFunc(s.Addons[i].DependsOn, func(d string) bool { return d == other || s.needs(d, other, seen) })
}

// OtherPaths are the paths at which the values of a release are not those that are wanted, with
// commas between, as values.OtherPaths has them.
func (i Installed) OtherPaths(wants Secret) string {
	return values.OtherPaths(i.Values.Reveal(), wants.Reveal())
}
