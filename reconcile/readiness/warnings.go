package readiness

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// Warnings report what differs from the inventory and does not matter to the cluster,
// which is Ready all the same.
func Warnings(d cluster.Desired, o cluster.Observed) cluster.Problems {
	var out cluster.Problems
	for _, n := range d.Spec.Nodes {
		vm := o.VMs[n.Name]
		if vm.Presence != cluster.Present || vm.Owner != cluster.Ours {
			continue
		}
		if len(n.Placement.Among) == 0 && vm.Carrier(n) != n.Placement.Pin {
			out = append(out, reportElsewhere(d, o, n, vm))
		}
		if among := n.Placement.Among; len(among) > 0 && !slices.Contains(among, vm.Carrier(n)) {
			out = append(out, d.At(cluster.Warning, "nodes."+n.Name, fmt.Sprintf("vm %d is on %s, which is not among the hosts of the inventory", vm.VMID, vm.Host), "add it to proxmox.nodes, or migrate the vm to one of "+strings.Join(among, ", ")))
		}
		if vm.Seedless && vm.Lock == "" {
			out = append(out, d.At(cluster.Warning, "nodes."+n.Name, fmt.Sprintf("somebody removed the cloud-init drive of vm %d, from which its machine takes its address before it has a config", vm.VMID),
				fmt.Sprintf("as root on %s: `qm set %d --ide2 %s:cloudinit`", vm.Carrier(n), vm.VMID, cmp.Or(n.CloudInitDatastore, n.Datastore))))
		}
		if vm.Untaggable && len(drift.WithTags(vm, n)) > len(vm.Tags) { // else somebody has tagged it
			out = append(out, d.At(cluster.Warning, "nodes."+n.Name, fmt.Sprintf("vm %d is without tags of the agent, because Proxmox VE does not let it tag its VMs", vm.VMID),
				fmt.Sprintf("`qm set %d --tags '%s'` as root on %s; or allow it, `user-tag-access` in Datacenter > Options, and then `talos-agent reconcile %s`",
					vm.VMID, strings.Join(drift.WithTags(vm, n), ";"), vm.Carrier(n), d.Spec.Name)))
		}
	}
	if mode := o.Availability.Value.Disarmed; d.Spec.Availability && o.Availability.Known && mode != "" {
		out = append(out, d.At(cluster.Warning, "ha", fmt.Sprintf("somebody has disarmed Proxmox VE's HA manager (%s): it starts no VM again, here or on another host", mode), "`ha-manager crm-command arm-ha` on a host arms it again, when the work on the hosts is done"))
	}
	out = append(out, reportShared(d, o)...)
	out = append(out, reportUnjudged(d, o)...)
	out = append(out, reportAltered(d, o)...)
	out = append(out, reportKept(d, o)...)
	return append(out, reportLeft(d, o)...)
}

// reportAltered reports what was put back of releases and changed again: something in the
// cluster wants it so, and would not stop.
func reportAltered(d cluster.Desired, o cluster.Observed) cluster.Problems {
	var out cluster.Problems
	for _, a := range d.Spec.Addons {
		if rel := o.Releases.Value[a.Name]; o.Releases.Known && rel.AlteredAgain != "" && rel.Namespace == a.Namespace && a.Ownership == cluster.Managed {
			out = append(out, d.At(cluster.Warning, "addons", fmt.Sprintf("an object of addon %s was put back and is changed again, and is left so: %s", a.Name, rel.AlteredAgain),
				fmt.Sprintf("have the values in %s ask for the same, or find out what changes it; after the next upgrade it is put back once more", a.File)))
		}
	}
	return out
}

// reportKept reports what Talos deployed, renders differently now, and somebody else keeps.
func reportKept(d cluster.Desired, o cluster.Observed) cluster.Problems {
	var out cluster.Problems
	for _, left := range o.Manifests.Value.Left {
		out = append(out, d.At(cluster.Warning, "talos_version", "what Talos has deployed is not as it renders it now, and is left: "+left,
			"to give an object back to Talos, undo the change with the manager that is named; what Helm keeps, Talos need not render: switch it off in a patch; what nothing renders, delete by hand, or have Talos render all that its config names"))
	}
	return out
}

// reportShared reports hosts that have more than one of the control planes that were to be spread.
func reportShared(d cluster.Desired, o cluster.Observed) cluster.Problems {
	on, among := map[string][]string{}, []string(nil)
	for _, n := range d.Spec.Nodes {
		vm := o.VMs[n.Name]
		if n.Role == cluster.ControlPlane && vm.Presence == cluster.Present && vm.Owner == cluster.Ours && vm.Host != "" {
			on[vm.Host] = append(on[vm.Host], n.Name)
			if len(n.Placement.Among) > len(among) {
				among = n.Placement.Among
			}
		}
	}
	var out cluster.Problems
	for _, host := range slices.Sorted(maps.Keys(on)) {
		if len(among) < 2 || len(on[host]) < 2 {
			continue
		}
		hint := "give the cluster more hosts, proxmox.nodes in cluster.yaml, as many as it has control planes"
		if free := slices.DeleteFunc(slices.Clone(among), func(h string) bool { return len(on[h]) > 0 }); len(free) > 0 {
			name := on[host][len(on[host])-1]
			hint = fmt.Sprintf("migrate one to a host that has none, once there is room: `qm migrate %d %s --online --with-local-disks` as root on %s", o.VMs[name].VMID, free[0], host)
		}
		out = append(out, d.At(cluster.Warning, "placement", fmt.Sprintf("the control planes %s are on one host, %s, which takes them all down when it goes down", strings.Join(on[host], " and "), host), hint))
	}
	return out
}

// reportUnjudged reports hosts of which it is not known whether they have the memory for
// the VMs that are still to be made.
func reportUnjudged(d cluster.Desired, o cluster.Observed) cluster.Problems {
	var out cluster.Problems
	seen := map[string]bool{}
	for _, n := range d.Spec.Nodes {
		host := n.Placement.Pin
		h := o.Hosts[host]
		if o.VMs[n.Name].Presence != cluster.Absent || !h.Known || h.MemoryBytes > 0 || d.Spec.Capacity[host].MemoryMiB > 0 || seen[host] {
			continue
		}
		seen[host] = true
		out = append(out, d.At(cluster.Warning, "nodes."+n.Name, fmt.Sprintf("how much memory %s has is not known, so that VMs are made whether they fit or not", host),
			fmt.Sprintf("give the agent's token Sys.Audit on /nodes/%s, or bound the host with pve_capacity in cluster.yaml", host)))
	}
	return out
}

// reportLeft reports the releases of ours that no addon has and that stay.
func reportLeft(d cluster.Desired, o cluster.Observed) cluster.Problems {
	var out cluster.Problems
	for _, r := range ListLeft(d, o) {
		message := fmt.Sprintf("the release %s in namespace %s stays: no addon of the inventory has it", r.Name, r.Namespace)
		hint := fmt.Sprintf("put the addon back, or remove the release by hand: `helm -n %s uninstall %s`", r.Namespace, r.Name)
		switch {
		case r.Kept != "":
			message += ", and it " + r.Kept
		case d.Spec.Prune:
			continue // it is uninstalled
		default:
			hint += "; `prune: true` in cluster.yaml has such releases uninstalled"
		}
		out = append(out, d.At(cluster.Warning, "addons", message, hint))
	}
	return out
}

// reportElsewhere reports a VM that is on another host than in the inventory: somebody
// migrated it. It is managed where it is; but a VM that is made again is made where
// the inventory has it.
func reportElsewhere(d cluster.Desired, o cluster.Observed, n cluster.Node, vm cluster.VM) cluster.Problem {
	message := fmt.Sprintf("vm %d is on %s, and the inventory has %s", vm.VMID, vm.Host, n.Placement.Pin)
	hint := fmt.Sprintf("write `node: %s` for %s in nodes.yaml", vm.Host, n.Name)
	switch h := o.Hosts[n.Placement.Pin]; {
	case h.Known:
		hint += fmt.Sprintf(", or migrate it back: `qm migrate %d %s --online --with-local-disks` as root on %s", vm.VMID, n.Placement.Pin, vm.Host)
	case h.Why != "":
		message += ": " + h.Why
	}
	return d.At(cluster.Warning, "nodes."+n.Name, message, hint)
}

// ListLeft lists the releases of ours that no addon of d has: those that were seen to
// be, and those of addons that were asked for when the world was observed.
func ListLeft(d cluster.Desired, o cluster.Observed) []cluster.LeftRelease {
	if o.Facts.Destroying() {
		return nil // they go with everything else
	}
	var out []cluster.LeftRelease
	add := func(r cluster.LeftRelease) {
		has := slices.ContainsFunc(d.Spec.Addons, func(a cluster.Addon) bool { return a.Namespace == r.Namespace && a.Name == r.Name })
		if has || slices.ContainsFunc(out, func(l cluster.LeftRelease) bool { return l.ReleaseName == r.ReleaseName }) {
			return
		}
		if r.Name == string(cluster.CNICilium) {
			r.Kept = cmp.Or(r.Kept, "is the container network")
		}
		out = append(out, r)
	}
	for _, r := range o.Left {
		add(r)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Releases.Value)) {
		if rel := o.Releases.Value[name]; rel.Digest != "" {
			add(cluster.LeftRelease{ReleaseName: cluster.ReleaseName{Namespace: rel.Namespace, Name: name}, Status: rel.Status, Kept: rel.Kept})
		}
	}
	return out
}
