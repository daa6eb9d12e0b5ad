package doctor

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Wants is what config, policy and inventories ask of the host.
type Wants struct {
	// Token is the name of the agent's token, user@realm!name.
	Token cluster.TokenID `json:"token"`
	// Needs are the privileges that are needed for what is asked, one a path.
	Needs []Need `json:"needs"`
	Pool  string `json:"pool"`
	// Images is the storage that images are uploaded to, for clusters that name
	// none.
	Images string `json:"images"`
	// Datastores and Bridges are those that the policy names: what will be asked
	// for while there is no inventory yet.
	Datastores []string  `json:"datastores"`
	Bridges    []string  `json:"bridges"`
	Mappings   []string  `json:"mappings,omitempty"` // none: none may be used
	HA         bool      `json:"ha,omitempty"`       // VMs may be the HA manager's
	Clusters   []Cluster `json:"clusters"`
	// Chosen is true when the config names the clusters that are this agent's.
	Chosen bool `json:"chosen"`
}

// Cluster is what one cluster asks for.
type Cluster struct {
	Name        string       `json:"name"`
	Mode        string       `json:"mode"` // cluster.AddressMode
	CIDR        netip.Prefix `json:"cidr"`
	Gateway     netip.Addr   `json:"gateway"`
	VIP         netip.Addr   `json:"vip"`
	VLAN        int          `json:"vlan,omitempty"`
	TimeServers []string     `json:"timeServers"`  // empty: Talos' own
	HA          bool         `json:"ha,omitempty"` // its VMs are the HA manager's
	Nodes       []Node       `json:"nodes"`
}

// Node is what one node asks for.
type Node struct {
	Name         string     `json:"name"`
	ControlPlane bool       `json:"controlPlane"`
	Host         string     `json:"host"`
	Hosts        []string   `json:"hosts,omitempty"` // that it may be on; none: Host
	VMID         int        `json:"vmid"`
	IP           netip.Addr `json:"ip"`
	MAC          string     `json:"mac"` // upper case
	Bridge       string     `json:"bridge"`
	Further      []Link     `json:"further,omitempty"`  // network cards, by which it is not reached
	Mappings     []string   `json:"mappings,omitempty"` // of devices: pci/gpu
	Images       string     `json:"images"`
	ISO          bool       `json:"iso,omitempty"` // it is an installation medium that goes there
	CloudInit    string     `json:"cloudInit"`
	Disks        []Disk     `json:"disks"`
}

// Link is where a network card of a node is attached.
type Link struct {
	Bridge string `json:"bridge"`
	VLAN   int    `json:"vlan,omitempty"`
}

// links are where the network cards of a node are attached, the first with the VLAN of its cluster.
func (n Node) links(vlan int) []Link { return append([]Link{{n.Bridge, vlan}}, n.Further...) }

// Disk is one disk of a node.
type Disk struct {
	Datastore string `json:"datastore"`
	Bytes     int64  `json:"bytes"`
}

// ClusterOf takes what is asked for out of a spec.
func ClusterOf(s cluster.Spec) Cluster {
	c := Cluster{
		Name: s.Name, Mode: string(s.Network.Mode), CIDR: s.Network.CIDR, Gateway: s.Network.Gateway, VIP: s.Network.OwnVIP(),
		VLAN: s.Network.VLAN, TimeServers: slices.Clone(s.Network.TimeServers), HA: s.Availability,
	}
	for _, n := range s.Nodes {
		d := Node{Name: n.Name, ControlPlane: n.Role == cluster.ControlPlane, Host: hostOf(n, len(c.Nodes)), Hosts: n.Placement.Among, VMID: n.VMID, IP: n.IP, MAC: n.MAC,
			Bridge: n.Bridge, Images: n.ImageDatastore, ISO: s.ISO, CloudInit: n.CloudInitDatastore, Disks: []Disk{{n.Datastore, n.DiskBytes}}}
		for _, extra := range n.Disks {
			d.Disks = append(d.Disks, Disk{extra.Datastore, extra.Bytes})
		}
		for _, card := range n.Devices.Cards {
			d.Further = append(d.Further, Link{card.Bridge, card.VLAN})
		}
		for _, m := range n.Devices.Mappings() {
			d.Mappings = append(d.Mappings, m.Path())
		}
		c.Nodes = append(c.Nodes, d)
	}
	return c
}

// hosts are those that a node may be on.
func (n Node) hosts() []string {
	if len(n.Hosts) == 0 {
		return []string{n.Host}
	}
	return n.Hosts
}

// hostOf is where the VM of the i-th node of a cluster may be made, for what it takes of a host: those that the agent is to
// spread are taken to have one host after the other.
func hostOf(n cluster.Node, i int) string {
	hosts := n.Placement.Hosts()
	return hosts[i%len(hosts)]
}

// notBridged is why root asks nobody there: who may push to the repository chooses
// addresses, and must not choose on which of the host's networks root asks.
const notBridged = "not on a bridge that the nodes are on and the policy allows"

// bridged reports whether a way leads over a bridge that nodes of a cluster are on
// and the policy allows.
func (w Wants) bridged(c Cluster, to Way) bool {
	return slices.ContainsFunc(c.Nodes, func(n Node) bool {
		return to.over(n.Bridge) && (len(w.Bridges) == 0 || slices.Contains(w.Bridges, n.Bridge))
	})
}

// MayAsk reports whether root may ask who has an address, which lies that way.
func (w Wants) MayAsk(ip netip.Addr, to Way) bool {
	return slices.ContainsFunc(w.Clusters, func(c Cluster) bool {
		asked := ip == c.Gateway || ip == c.VIP || slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.IP == ip })
		return asked && w.bridged(c, to)
	})
}

// Expects reports whether a MAC is at an address where it should be: a node's, a
// control plane's at the VIP, anybody's at the gateway.
func (w Wants) Expects(ip netip.Addr, mac string) bool {
	return slices.ContainsFunc(w.Clusters, func(c Cluster) bool {
		return ip == c.Gateway || slices.ContainsFunc(c.Nodes, func(n Node) bool {
			return n.MAC == mac && (n.IP == ip || n.ControlPlane && c.VIP == ip)
		})
	})
}

// Place is what is asked for on one host.
type Place struct {
	Host       string
	Images     []string // storages for disk images
	Media      []string // storages for installation media
	Datastores []string // storages for disks
	Bridges    []string
	Mappings   []string // of devices: pci/gpu
}

// Places returns what is asked for on each host, by its name. While no cluster
// asks for anything it is what the policy names, on every host there is.
func (w Wants) Places(hosts []string) []Place {
	by := map[string]*Place{}
	add := func(list *[]string, name string) {
		if name != "" && !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	for _, c := range w.Clusters {
		for _, n := range c.Nodes {
			for _, host := range n.hosts() {
				p := by[host]
				if p == nil {
					p = &Place{Host: host}
					by[host] = p
				}
				if n.ISO {
					add(&p.Media, n.Images)
				} else {
					add(&p.Images, n.Images)
				}
				for _, l := range n.links(0) {
					add(&p.Bridges, l.Bridge)
				}
				add(&p.Datastores, n.CloudInit)
				for _, m := range n.Mappings {
					add(&p.Mappings, m)
				}
				for _, d := range n.Disks {
					add(&p.Datastores, d.Datastore)
				}
			}
		}
	}
	var out []Place
	for _, p := range by {
		out = append(out, *p)
	}
	if len(out) == 0 {
		for _, h := range hosts {
			p := Place{Host: h, Bridges: w.Bridges}
			add(&p.Images, w.Images)
			for _, d := range w.Datastores {
				if d != w.Images {
					add(&p.Datastores, d)
				}
			}
			out = append(out, p)
		}
	}
	for i := range out {
		slices.Sort(out[i].Images)
		slices.Sort(out[i].Media)
		slices.Sort(out[i].Datastores)
		out[i].Bridges = slices.Sorted(slices.Values(out[i].Bridges))
	}
	slices.SortFunc(out, func(a, b Place) int { return cmp.Compare(a.Host, b.Host) })
	return out
}
