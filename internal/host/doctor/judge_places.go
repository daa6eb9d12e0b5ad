package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// places judges storages and bridges, as far as the inventories, or else the
// policy, ask for them.
func (a Agent) places() []Check {
	var hosts []string
	for _, h := range a.Hosts {
		hosts = append(hosts, h.Name)
	}
	places := a.Wants.Places(hosts)
	if len(places) == 0 {
		why := Fact[bool]{Why: "it is unknown which hosts there are"}
		if !a.API.Door.Known {
			why.Why = "the API of Proxmox VE was not reached"
		}
		return []Check{skipCheck("storage", "", why), skipCheck("space", "", why), skipCheck("bridge", "", why), skipCheck("vlan", "", why)}
	}
	var out []Check
	for _, p := range places {
		i := slices.IndexFunc(a.Hosts, func(h Machine) bool { return h.Name == p.Host })
		if i < 0 {
			out = append(out, a.unknownHost(p)...)
			continue
		}
		out = append(out, a.storages(p, a.Hosts[i])...)
		out = append(out, a.bridges(p, a.Hosts[i])...)
	}
	return out
}

// unknownHost is reported for a host that the inventory names and the API does not.
func (a Agent) unknownHost(p Place) []Check {
	if !a.API.Door.Known {
		why := Fact[bool]{Why: "the API of Proxmox VE was not reached"}
		return []Check{skipCheck("storage", p.Host, why), skipCheck("space", p.Host, why), skipCheck("bridge", p.Host, why), skipCheck("vlan", p.Host, why)}
	}
	var names []string
	for _, h := range a.Hosts {
		names = append(names, h.Name)
	}
	return []Check{{Name: "storage", Subject: p.Host, Level: Fail, Message: "Proxmox VE knows no host " + p.Host,
		Hint: "correct proxmox.node in cluster.yaml; the hosts are " + strings.Join(names, ", ")}}
}

func (a Agent) storages(p Place, m Machine) []Check {
	var out []Check
	if !m.Storages.Known {
		return []Check{skipCheck("storage", p.Host, m.Storages), skipCheck("space", p.Host, m.Storages)}
	}
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.Images, p.Media, p.Datastores))))
	for _, name := range all {
		var needs []string
		if slices.Contains(p.Images, name) {
			needs = append(needs, "import")
		}
		if slices.Contains(p.Media, name) {
			needs = append(needs, "iso")
		}
		if slices.Contains(p.Datastores, name) {
			needs = append(needs, "images")
		}
		st, ok := m.Storages.Value[name]
		c := a.storage(p.Host, name, st, ok, needs)
		out = append(out, c)
		if ok && st.Active {
			out = append(out, a.space(p.Host, name, st))
		}
	}
	return out
}

// storage judges whether a storage takes what is to be put there.
func (a Agent) storage(host, name string, st Storage, ok bool, needs []string) Check {
	c := Check{Name: "storage", Subject: host + "/" + name, Level: Pass}
	lacks := subtractNames(needs, st.Content)
	audit := a.Held["/storage/"+name]
	switch {
	case !ok && audit.Known && !slices.Contains(audit.Value, "Datastore.Audit") && !slices.Contains(audit.Value, "Datastore.AllocateSpace"):
		return Check{Name: c.Name, Subject: c.Subject, Level: Skipped, Message: "the token may not see it: Datastore.Audit on /storage/" + name + " is missing", Hint: "give the privileges that are listed above"}
	case !ok:
		c.Level, c.Message, c.Hint = Fail, "there is no such storage on this host", "`pvesm status` lists them; correct the datastore in cluster.yaml, or proxmox.image_datastore in the config"
	case !st.Active:
		c.Level, c.Message, c.Hint = Fail, "it is not active", "`pvesm status` and the journal of the host show why; is its disk or its server there?"
	case len(lacks) > 0:
		c.Level = Fail
		c.Message = fmt.Sprintf("its content types are %s, and %s is needed: %s", strings.Join(st.Content, ", "), strings.Join(lacks, " and "), describeTypes(lacks))
		c.Hint = fmt.Sprintf("`pvesm set %s --content %s`", name, strings.Join(append(slices.Clone(st.Content), lacks...), ","))
		if (slices.Contains(lacks, "import") || slices.Contains(lacks, "iso")) && !fileBased(st.Type) {
			c.Hint = fmt.Sprintf("a storage of type %s holds no files: name one of type dir, nfs or cifs as image_datastore", st.Type)
		}
	default:
		c.Message = fmt.Sprintf("%s, active, takes %s", st.Type, strings.Join(needs, " and "))
	}
	return c
}

// describeTypes describes what content types are for.
func describeTypes(types []string) string {
	var out []string
	for _, t := range types {
		switch t {
		case "import":
			out = append(out, "Talos images are uploaded there")
		case "iso":
			out = append(out, "installation media of Talos are uploaded there")
		default:
			out = append(out, "the disks of VMs are made there")
		}
	}
	return strings.Join(out, ", ")
}

// fileBased reports whether a type of storage can hold files to import.
// Source: the content types that PVE::Storage's plugins offer.
func fileBased(kind string) bool {
	return slices.Contains([]string{"dir", "nfs", "cifs", "cephfs", "btrfs", "glusterfs"}, kind)
}

// thick are the types of storage whose volumes take all their space when they
// are made, so that one that does not fit is refused at once.
var thick = []string{"lvm", "iscsi", "iscsidirect"}

// fullAt is the share of a storage, in percent, from which on it is nearly full.
const fullAt = 90

func (a Agent) space(host, name string, st Storage) Check {
	c := Check{Name: "space", Subject: host + "/" + name, Level: Pass}
	want, count := a.asked(host, name)
	used := int64(0)
	if st.Total > 0 {
		used = 100 * (st.Total - st.Free) / st.Total
	}
	switch {
	case want > st.Free && slices.Contains(thick, st.Type):
		c.Level = Fail
		c.Message = fmt.Sprintf("%s free, and the %s still to be made ask for %s", Size(st.Free), countVMs(count), Size(want))
		c.Hint = "make room, ask for smaller disks, or use another datastore"
	case want > st.Free:
		c.Level = Warn
		c.Message = fmt.Sprintf("%s free, and the %s still to be made may grow to %s: when it is full, their VMs stop with I/O errors", Size(st.Free), countVMs(count), Size(want))
		c.Hint = "make room, ask for smaller disks, or use another datastore"
	case used >= fullAt:
		c.Level, c.Message = Warn, fmt.Sprintf("%d%% are in use, %s free: when it is full, VMs on it stop with I/O errors", used, Size(st.Free))
		c.Hint = "make room"
	case want > 0:
		c.Message = fmt.Sprintf("%s free of %s; the %s still to be made ask for %s", Size(st.Free), Size(st.Total), countVMs(count), Size(want))
	default:
		c.Message = fmt.Sprintf("%s free of %s", Size(st.Free), Size(st.Total))
	}
	return c
}

func countVMs(n int) string {
	if n == 1 {
		return "1 VM"
	}
	return fmt.Sprintf("%d VMs", n)
}

// asked is what the VMs that do not exist yet ask of a storage. VMs that nobody
// can see count as there: they are not to be made.
func (a Agent) asked(host, name string) (bytes int64, count int) {
	if !a.VMs.Known {
		return 0, 0
	}
	for _, c := range a.Wants.Clusters {
		for _, n := range c.Nodes {
			if _, there := a.VMs.Value[n.VMID]; there || n.Host != host {
				continue
			}
			before := bytes
			for _, d := range n.Disks {
				if d.Datastore == name {
					bytes += d.Bytes
				}
			}
			if bytes > before {
				count++
			}
		}
	}
	return bytes, count
}

// Size prints bytes the way people read them.
func Size(n int64) string {
	switch {
	case n >= 1<<40:
		return fmt.Sprintf("%.1f TiB", float64(n)/(1<<40))
	case n >= 1<<30:
		return fmt.Sprintf("%.0f GiB", float64(n)/(1<<30))
	default:
		return fmt.Sprintf("%.0f MiB", float64(max(n, 0))/(1<<20))
	}
}

func (a Agent) bridges(p Place, m Machine) []Check {
	if !m.Bridges.Known {
		return []Check{skipCheck("bridge", p.Host, m.Bridges), skipCheck("vlan", p.Host, m.Bridges)}
	}
	var out []Check
	for _, name := range p.Bridges {
		b, ok := m.Bridges.Value[name]
		out = append(out, a.bridge(p.Host, name, b, ok))
		if ok {
			out = append(out, a.vlans(p.Host, name, b)...)
		}
	}
	return out
}

func (a Agent) bridge(host, name string, b Bridge, ok bool) Check {
	c := Check{Name: "bridge", Subject: host + "/" + name, Level: Pass}
	path := "/sdn/zones/localnetwork/" + name
	use := a.Held[path]
	switch {
	case !ok && use.Known && !slices.Contains(use.Value, "SDN.Use"):
		return Check{Name: c.Name, Subject: c.Subject, Level: Skipped, Message: "the token may not see it: SDN.Use on " + path + " is missing", Hint: "give the privileges that are listed above"}
	case !ok:
		c.Level, c.Message, c.Hint = Fail, "there is no such bridge on this host", "`ip -br link show type bridge` lists them; correct proxmox.bridge in cluster.yaml, or make the bridge"
	case !b.Active && !b.Vnet:
		c.Level, c.Message, c.Hint = Fail, "it is not up", "`ifreload -a`, or `ifup "+name+"`"
	case b.Vnet:
		c.Message = "is a vnet; whether the host has an address there is looked at from the host"
	case b.Address == "" && !a.Wants.reachOver(name):
		c.Message = "up; no node is reached over it"
	case b.Address == "":
		c.Level = Warn
		c.Message = "the host has no address on it: the agent, which speaks to the nodes itself, reaches them over a router at best"
		c.Hint = "give it one in /etc/network/interfaces (address ...), then `ifreload -a`"
	default:
		c.Message = "up, the host is " + b.Address
	}
	return c
}

// vlans judges the clusters with a VLAN on a bridge. A VM with a tag on a bridge
// that has no port and knows no VLANs is made, and then does not start.
func (a Agent) vlans(host, name string, b Bridge) []Check {
	var out []Check
	for _, cl := range a.Wants.Clusters {
		for _, vlan := range cl.vlansOn(host, name) {
			c := Check{Name: "vlan", Subject: host + "/" + name, Level: Pass, Message: fmt.Sprintf("VLAN %d of %s", vlan, cl.Name)}
			if b.Ports == "" && !b.VLANAware && !b.Vnet {
				c.Level = Fail
				c.Message = fmt.Sprintf("%s asks for VLAN %d on a bridge that has no port and is not VLAN-aware: its VMs are made and do not start", cl.Name, vlan)
				c.Hint = "`bridge-vlan-aware yes` for " + name + " in /etc/network/interfaces, then `ifreload -a`; or leave network.vlan out, or that of `nics`"
			}
			out = append(out, c)
		}
	}
	return out
}

// vlansOn are the VLANs that a cluster asks for on a bridge of a host.
func (c Cluster) vlansOn(host, bridge string) []int {
	var out []int
	for _, n := range c.Nodes {
		for _, l := range n.links(c.VLAN) {
			if l.Bridge == bridge && l.VLAN != 0 && slices.Contains(n.hosts(), host) {
				out = append(out, l.VLAN)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// reachOver reports whether nodes are to be reached over a bridge, or it is not known who will be on it.
func (w Wants) reachOver(bridge string) bool {
	return len(w.Clusters) == 0 || slices.ContainsFunc(w.Clusters, func(c Cluster) bool {
		return slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.Bridge == bridge })
	})
}

// sources judges the repository, the forge and what images and charts come
// from.
func (a Agent) sources() []Check {
	c := Check{Name: "repository", Level: Pass, Message: "at " + a.Repository.Value}
	if !a.Repository.Known {
		c = Check{Name: "repository", Level: Fail, Message: a.Repository.Why, Hint: a.Repository.Hint}
		if a.Vacant {
			c.Level = Warn // every host begins so
		}
	}
	out := []Check{c}
	for _, i := range a.Inventories {
		c := Check{Name: "inventory", Subject: i.Cluster, Level: Pass, Message: "valid"}
		if i.Problem != "" {
			c.Level, c.Message, c.Hint = Fail, i.Problem, i.Hint
		}
		out = append(out, c)
	}
	if a.Forge != nil {
		out = append(out, a.forge())
	}
	for _, s := range a.Sources {
		c := Check{Name: "source", Subject: s.Address, Level: Pass, Message: s.What + ": " + s.Seen.Value}
		switch {
		case s.Seen.Known:
		case s.Guests:
			c.Level, c.Message = Warn, fmt.Sprintf("%s: %s; it is the nodes that need it, and they may have another way", s.What, s.Seen.Why)
			c.Hint = s.Seen.Hint
		default:
			c.Level, c.Message, c.Hint = Fail, s.What+": "+s.Seen.Why, s.Seen.Hint
		}
		out = append(out, c)
	}
	return out
}

func (a Agent) forge() Check {
	if f := *a.Forge; !f.Known {
		return Check{Name: "forge", Level: Fail, Message: f.Why, Hint: f.Hint}
	}
	return Check{Name: "forge", Subject: a.Forge.Value, Level: Pass, Message: "takes commit statuses from the token"}
}
