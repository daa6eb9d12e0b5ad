package effect

import (
	"cmp"
	"maps"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// changeVM gives a VM what it should have of the fields of an action.
func changeVM(d *cluster.Desired, o *cluster.Observed, a action.ChangeVM) {
	vm := o.VMs[a.Node.Name]
	before := vm.Hardware.Value.DiskUse()
	drift.Take(d.Spec, a.Node, &vm, a.Fields())
	grown := vm.Hardware.Value.DiskUse()
	for name, bytes := range before {
		grown[name] -= bytes
	}
	takeDisks(o, vm.Carrier(a.Node), grown)
	o.VMs[a.Node.Name] = vm
}

// EditNode changes a Node object.
func EditNode(o *cluster.Observed, name string, edit func(*cluster.KubeNode)) {
	nodes := maps.Clone(o.Nodes.Value)
	kn := nodes[name]
	edit(&kn)
	if nodes == nil {
		nodes = map[string]cluster.KubeNode{}
	}
	nodes[name] = kn
	o.Nodes.Value = nodes
}

// labelByTalos gives a Node object what Talos brings to it of a new config.
func labelByTalos(o *cluster.Observed, n cluster.Node) {
	EditNode(o, n.Name, func(kn *cluster.KubeNode) {
		kn.Meta.Labels = n.Labels
		if n.Role == cluster.ControlPlane {
			kn.Meta.Taints = n.Meta().Taints
		}
	})
}

// bootAgain has a machine boot again, with another config if one was staged.
func bootAgain(o *cluster.Observed, name string, config cluster.Config, reach cluster.Reach) {
	m := o.Machines[name]
	m.Reach, m.Stage, m.Ready = reach, "booting", false
	m.BootID += "+"
	m.ConfigSince = o.Now
	m.ConfigDigest = cmp.Or(config.Digest, m.Staged, m.ConfigDigest)
	o.Machines[name] = withoutStaged(m)
}

// noteInstall notes what was installed last on a machine.
func noteInstall(o *cluster.Observed, name string, in cluster.Install) {
	all := maps.Clone(o.Facts.Installs)
	if all == nil {
		all = map[string]cluster.Install{}
	}
	all[name] = in
	o.Facts.Installs = all
}

// bootInstalled has a machine run the Talos that was installed on it; "" : none was. What a control plane with another one renders of
// what Talos deploys once is not known before.
func bootInstalled(d cluster.Desired, o *cluster.Observed, name, version string) {
	if version == "" {
		return
	}
	m := o.Machines[name]
	if n, _ := d.Spec.Node(name); n.Role == cluster.ControlPlane && m.Talos != version {
		o.Manifests = cluster.Seen[cluster.Manifests]{}
	}
	m.Talos, m.Installer = version, ""
	if m.Schematic != "" {
		m.Schematic = d.Repository().Schematic
	}
	o.Machines[name] = m
}

// resetVM has the machine of a node that does not answer run what was installed on it, with the config of the inventory.
func resetVM(d cluster.Desired, o *cluster.Observed, n cluster.Node) {
	r := o.Facts.Restarts[n.Name]
	r.Reset = cluster.Reset{At: o.Now, Revision: drift.Attempt(d, o.Facts)}
	o.Facts.Restarts = maps.Clone(o.Facts.Restarts)
	if o.Facts.Restarts == nil {
		o.Facts.Restarts = map[string]cluster.Restart{}
	}
	o.Facts.Restarts[n.Name] = r
	bootAgain(o, n.Name, d.Repository().Configs[n.Name], cluster.Configured)
	bootInstalled(d, o, n.Name, d.Repository().Spec.Versions.Talos)
}

// takeDisks takes disks from those storages of a host that are not thin.
func takeDisks(o *cluster.Observed, host string, disks map[string]int64) {
	h := o.Hosts[host]
	storages := maps.Clone(h.Storages.Value)
	for name, bytes := range disks {
		if st, seen := storages[name]; seen && !st.Thin {
			st.FreeBytes -= bytes
			storages[name] = st
		}
	}
	h.Storages.Value = storages
	o.Hosts[host] = h
}

// lookForMaking has the hosts looked at on which a VM is to be made now, as those are only then:
// their storages are taken to hold nothing, and the image to be there if it was verified before,
// as what an earlier VM was made from. What was looked at and not seen stays so.
func lookForMaking(d cluster.Desired, o *cluster.Observed) {
	for _, n := range d.Spec.Nodes {
		if o.VMs[n.Name].Presence != cluster.Absent {
			continue
		}
		for _, host := range n.Placement.Hosts() {
			lookForMakingOn(d, o, host)
		}
	}
}

// lookForMakingOn has one host looked at on which a VM may be made now.
func lookForMakingOn(d cluster.Desired, o *cluster.Observed, host string) {
	h, there := o.Hosts[host]
	if !there {
		return
	}
	if !h.Images.Known && h.Images.Why == "" {
		images := map[string]int64{}
		if pin, verified := o.Facts.Images[d.Image.Name]; verified {
			images[d.Image.Name] = pin.Bytes
		}
		h.Images = cluster.Saw(images)
	}
	storages := maps.Clone(h.Storages.Value)
	for name, st := range storages {
		if st.Volumes.Why == "" {
			st.Volumes.Known = true
			storages[name] = st
		}
	}
	h.Storages.Value = storages
	o.Hosts[host] = h
}

// Clone copies the parts of an Observed that this room writes to.
func Clone(o cluster.Observed) cluster.Observed {
	o.Hosts = cloneMap(o.Hosts)
	o.VMs = cloneMap(o.VMs)
	o.Machines = cloneMap(o.Machines)
	o.APIs = cloneMap(o.APIs)
	o.Charts = cloneMap(o.Charts)
	o.Namespaces = cloneMap(o.Namespaces)
	o.LostSince = cloneMap(o.LostSince)
	return o
}

func cloneMap[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return maps.Clone(m)
}

// takeVIP has a control plane that is given the config of the inventory serve the VIP, unless another
// machine has that address.
func takeVIP(o *cluster.Observed, n cluster.Node) {
	if n.Role == cluster.ControlPlane && o.VIP.Known && o.VIP.Value.MAC == "" {
		o.VIP = cluster.Saw(cluster.VirtualIP{Served: true})
	}
}

// withoutStaged is a machine when no config waits for its next boot.
func withoutStaged(m cluster.Machine) cluster.Machine {
	m.Staged, m.StagedSince, m.StagedAuthorities = "", time.Time{}, cluster.Authorities{}
	return m
}

// withImages is the change of a machine that lacks no image; nil stays nil.
func withImages(c *cluster.Change) *cluster.Change {
	if c == nil || c.Lacks == "" {
		return c
	}
	out := *c
	out.Lacks = ""
	return &out
}
