package scaffold

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// The versions that a cluster begins with: those that the agent is tested with.
const (
	Talos      = "v1.13.9"
	Kubernetes = "v1.36.1"
	Contract   = "v1.13"
	Cilium     = "1.19.3"
	// ciliumSHA256 is that of cilium-1.19.3.tgz, as the index of the repository lists it.
	ciliumSHA256 = "c8e05df9eabf9019e62f5103e1f35814b4f1b43916f88519e5ae4e36c69aa42b"
)

// CiliumRepository is where Cilium's chart comes from.
const CiliumRepository = "https://helm.cilium.io"

// Folder is the folder that clusters' folders lie in, unless another is set.
const Folder = "inventory"

// The most nodes that a cluster begins with.
const (
	maxControlPlanes = 9
	maxWorkers       = 200
)

// Wishes is what is wanted of a repository.
type Wishes struct {
	Cluster       string // its name
	Folder        string // of the repository, that holds the clusters' folders
	Host          string // the Proxmox VE machine
	Bridge        string
	Datastore     string // for disks
	Images        string // for Talos images; "" : the host config's
	Network       netip.Prefix
	Gateway       netip.Addr
	First         netip.Addr // of the first control plane; zero: the eleventh of the network
	VIP           netip.Addr // zero: none
	Nameservers   []string   // empty: Talos' own
	TimeServers   []string   // empty: Talos' own
	ControlPlanes int
	Workers       int
	CNI           string // cilium or flannel
	// VMIDs are those that the host's policy allows.
	VMIDs      []cluster.Range
	Recipients []string // age, of those who can read the secrets
	CI         []string // github, gitlab, gitea
	// Version is that of the program, for CI.
	Version string
	// Remote is where the repository will be pushed to; "" : it is unknown.
	Remote, Branch string
	// Followed is the directory that the agent follows, if the repository is that; ""
	// for a Git repository.
	Followed string
	// ChartMirrored is true where the host gets Cilium's chart from a mirror, which may
	// have packed it again.
	ChartMirrored bool
	// Schemas are the JSON schemas of the inventory's files, by name.
	Schemas map[string][]byte
	// Offer is what the host is known to have, and its policy to allow.
	Offer Offer
}

// Offer is what VMs may use on a host. Of other hosts nothing is known.
type Offer struct {
	Host                string // "": none is known
	Bridges, Datastores []string
	// What is left of it for VMs; 0: not known.
	Cores     int              // that one VM may have
	MemoryMiB int64            // that is promised to no other
	DiskGiB   map[string]int64 // by storage
}

// WithDefaults fills in what was left out and can be known.
func (w Wishes) WithDefaults() Wishes {
	set := func(s *string, to string) {
		if *s == "" {
			*s = to
		}
	}
	set(&w.Cluster, "dev")
	set(&w.Folder, Folder)
	set(&w.Datastore, "local-lvm")
	set(&w.CNI, "cilium")
	set(&w.Branch, "main")
	if len(w.VMIDs) == 0 {
		w.VMIDs = []cluster.Range{{First: 400, Last: 599}}
	}
	if w.Network.IsValid() {
		w.Network = w.Network.Masked()
		if !w.First.IsValid() && w.Network.Addr().Is4() {
			w.First = offsetAddress(w.Network.Addr(), 11)
		}
	}
	return w
}

// PathFlag is what a command needs besides the repository, with a space
// before it; "" where nothing is.
func (w Wishes) PathFlag() string {
	if w.Folder == Folder {
		return ""
	}
	return " --path " + w.Folder
}

var (
	label  = pattern.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	forges = []string{"github", "gitlab", "gitea"}
)

// Wrong is a wish that cannot be fulfilled, by the flag that sets it, with what to
// write instead.
type Wrong struct {
	Flag, Text, Hint string
}

// Error implements error.
func (w *Wrong) Error() string { return fmt.Sprintf("--%s: %s (%s)", w.Flag, w.Text, w.Hint) }

// Check reports everything that is wrong with the wishes.
func (w Wishes) Check() []*Wrong {
	var all []*Wrong
	refuse := func(flag, hint, format string, args ...any) {
		all = append(all, &Wrong{flag, fmt.Sprintf(format, args...), hint})
	}
	if !label.MatchString(w.Cluster) {
		refuse("cluster", "lower case, digits and dashes, like dev", "%q is no name of a cluster", w.Cluster)
	}
	for _, f := range []struct{ flag, value, what string }{{"host", w.Host, "the name of the Proxmox VE machine, like pve1"}, {"bridge", w.Bridge, "the bridge for the VMs, like vmbr1"}} {
		if f.value == "" {
			refuse(f.flag, f.what, "is missing")
		}
	}
	if o := w.Offer; o.Host != "" && o.Host == w.Host {
		if w.Bridge != "" && !slices.Contains(o.Bridges, w.Bridge) {
			refuse("bridge", "choose of "+formatList(o.Bridges)+", or have the policy of the host allow another", "%s has no bridge %q that VMs may use", o.Host, w.Bridge)
		}
		if !slices.Contains(o.Datastores, w.Datastore) {
			refuse("datastore", "choose of "+formatList(o.Datastores)+", or have the policy of the host allow another", "%s has no storage %q that takes disks of VMs", o.Host, w.Datastore)
		}
	}
	switch {
	case !w.Network.IsValid() || !w.Network.Addr().Is4():
		refuse("network", "the network of the bridge, like 10.10.0.0/24", "is missing, or is no IPv4 network")
	case !w.Gateway.IsValid():
		refuse("gateway", w.describeRouter(), "is missing")
	case !w.Network.Contains(w.Gateway):
		refuse("gateway", w.describeRouter(), "%s is not in %s", w.Gateway, w.Network)
	case w.VIP.IsValid() && !w.Network.Contains(w.VIP):
		refuse("vip", "a free address of the network", "%s is not in %s", w.VIP, w.Network)
	case w.ControlPlanes <= maxControlPlanes && w.Workers <= maxWorkers: // what is refused below is not counted here
		all = append(all, w.addresses()...)
	}
	switch {
	case w.ControlPlanes < 1 || w.ControlPlanes%2 == 0 || w.ControlPlanes > maxControlPlanes:
		refuse("control-planes", "etcd wants an odd number: 1, 3 or 5", "%d", w.ControlPlanes)
	case w.ControlPlanes > 1 && !w.VIP.IsValid():
		refuse("vip", "a free address of the nodes' network that moves between them", "%d control planes need one", w.ControlPlanes)
	}
	switch {
	case w.Workers < 0 || w.Workers > maxWorkers:
		refuse("workers", fmt.Sprintf("0 to %d", maxWorkers), "%d", w.Workers)
	case w.ControlPlanes > 0 && w.ControlPlanes <= maxControlPlanes:
		all = append(all, w.checkRoom()...)
	}
	if w.CNI != "cilium" && w.CNI != "flannel" {
		refuse("cni", "cilium or flannel", "%q is no network that is offered here", w.CNI)
	}
	if len(w.Recipients) == 0 {
		refuse("recipient", "`talos-agent init` printed it on the host; `age-keygen -y FILE` prints that of a key", "is missing: nobody could read the secrets")
	}
	for _, ci := range w.CI {
		if !slices.Contains(forges, ci) {
			refuse("ci", "github, gitlab, gitea (Forgejo, too) or none", "%q is none that is offered here", ci)
		}
	}
	return all
}

func formatList(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// addresses checks that the nodes' addresses lie in the network, beside each
// other, the gateway and the VIP.
func (w Wishes) addresses() []*Wrong {
	var errs []*Wrong
	seen := map[netip.Addr]string{w.Gateway: "the gateway", w.Network.Addr(): "the network itself", lastAddress(w.Network): "its broadcast address"}
	if w.VIP.IsValid() {
		if other := seen[w.VIP]; other != "" {
			errs = append(errs, &Wrong{"vip", fmt.Sprintf("%s is %s", w.VIP, other), "choose another"})
		}
		seen[w.VIP] = "the VIP"
	}
	for _, n := range w.places() {
		switch other := seen[n.ip]; {
		case !w.Network.Contains(n.ip):
			return append(errs, &Wrong{"first-address", fmt.Sprintf("%s would be %s, which is not in %s", n.name, n.ip, w.Network), "begin lower, ask for fewer nodes, or use a larger network"})
		case other != "":
			return append(errs, &Wrong{"first-address", fmt.Sprintf("%s would be %s, which is %s", n.name, n.ip, other), "begin elsewhere, or ask for fewer nodes"})
		}
		seen[n.ip] = n.name
	}
	return errs
}

// describeRouter is what to write as the gateway.
func (w Wishes) describeRouter() string {
	return "the router of the nodes, like " + offsetAddress(w.Network.Addr(), 1).String()
}

// offsetAddress is the address n after another.
func offsetAddress(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// lastAddress is the last address of a network.
func lastAddress(p netip.Prefix) netip.Addr {
	return offsetAddress(p.Masked().Addr(), 1<<(32-p.Bits())-1)
}

// place is a node before it has a VMID.
type place struct {
	name    string
	control bool
	ip      netip.Addr
}

// places are the nodes with their addresses: workers begin at the next ten.
func (w Wishes) places() []place {
	var out []place
	for i := range w.ControlPlanes {
		out = append(out, place{fmt.Sprintf("%s-cp-%d", w.Cluster, i+1), true, offsetAddress(w.First, i)})
	}
	for i := range w.Workers {
		out = append(out, place{fmt.Sprintf("%s-wk-%d", w.Cluster, i+1), false, offsetAddress(w.First, 10*(1+(w.ControlPlanes-1)/10)+i)})
	}
	return out
}

// Node is a node of the inventory.
type Node struct {
	Name         string
	ControlPlane bool
	IP           netip.Addr
	// VMID is written down where the one that follows from the address is not to
	// be had; else it is 0.
	VMID int
}

// Ranges are the VMIDs of control planes and of workers: the policy's largest
// range, in two.
func (w Wishes) Ranges() (control, worker cluster.Range) {
	largest := slices.MaxFunc(w.VMIDs, func(a, b cluster.Range) int { return (a.Last - a.First) - (b.Last - b.First) })
	half := largest.First + (largest.Last-largest.First+1)/2
	return cluster.Range{First: largest.First, Last: max(half-1, largest.First)}, cluster.Range{First: min(half, largest.Last), Last: largest.Last}
}

// Nodes gives every node a VMID that is free: the one that follows from its
// address and the range of its role, else the next that is.
func (w Wishes) Nodes(free func(vmid int) (bool, error)) ([]Node, error) {
	control, worker := w.Ranges()
	used := map[int]bool{}
	has := func(id int, r cluster.Range) (bool, error) {
		if !r.Contains(id) || used[id] {
			return false, nil
		}
		return free(id)
	}
	var out []Node
	for _, p := range w.places() {
		ids := worker
		if p.control {
			ids = control
		}
		n := Node{Name: p.name, ControlPlane: p.control, IP: p.ip}
		id := ids.First + hostPart(p.ip, w.Network)
		ok, err := has(id, ids)
		for next := ids.First; err == nil && !ok; next++ {
			if next > ids.Last {
				return nil, &Wrong{"vmids", fmt.Sprintf("no VMID from %s is free for %s", ids, p.name), "let the policy allow more, or ask for fewer nodes"}
			}
			id, n.VMID = next, next
			ok, err = has(id, ids)
		}
		if err != nil {
			return nil, fmt.Errorf("ask whether VMID %d is free: %w", id, err)
		}
		used[id] = true
		out = append(out, n)
	}
	return out, nil
}

// hostPart is an address without its network.
func hostPart(ip netip.Addr, p netip.Prefix) int {
	b, n := ip.As4(), p.Masked().Addr().As4()
	v := 0
	for i := range b {
		v = v<<8 | int(b[i]-n[i])
	}
	return v
}
