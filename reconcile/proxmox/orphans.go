package proxmox

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
)

// candidates are the guests in our pools.
func (l *look) candidates() map[int]row {
	pools, out := l.pools(), map[int]row{}
	for vmid, r := range l.guests {
		if r.Type == "qemu" && pools[string(r.Pool)] {
			out[vmid] = r
		}
	}
	return out
}

// provenOthers reports whether a VM provably belongs to another cluster of an
// agent, which stays so until its row changes.
func provenOthers(f facts, clusterID string) bool {
	return f.marked && f.mark.Cluster != clusterID && hardware.UUIDPattern.MatchString(f.mark.Cluster) && f.uuid == cluster.NodeUUID(f.mark.Cluster, f.mark.Node)
}

// disproves reports whether what was read of a VM shows that it is not the one it
// should be. A UUID that is missing shows nothing, and one that was changed by hand
// leaves our mark.
func disproves(f facts, id identity, clusterID string) bool {
	return f.uuid != "" && f.uuid != id.uuid && !(f.marked && f.mark.Cluster == clusterID)
}

// orphanOf returns the name of the node a VM was made for, "" when it is not of
// this cluster. Neither its mark nor its name prove anything; that the UUID
// follows from them does.
func orphanOf(f facts, clusterID string) string {
	names := []string{f.name}
	if f.marked {
		names = append(names, f.mark.Node)
	}
	for _, n := range names {
		if n != "" && f.uuid == cluster.NodeUUID(clusterID, n) {
			return n
		}
	}
	return ""
}

// findOrphans finds the VMs of this cluster that are not where the inventory has
// them.
func (l *look) findOrphans() cluster.Seen[[]cluster.VM] {
	candidates := l.candidates()
	for _, vm := range l.found {
		if vm.Owner == cluster.Ours {
			delete(candidates, vm.VMID)
		}
	}
	if err := errors.Join(l.seesPools(), l.vanished()); err != nil {
		return cluster.Unseen[[]cluster.VM](formatReason(err))
	}
	ids := slices.Sorted(maps.Keys(candidates))
	runEach(len(ids), func(i int) { l.readCandidate(ids[i], candidates[ids[i]]) })

	var out []cluster.VM
	for _, vmid := range ids {
		s := l.vms[vmid]
		if s.err != nil {
			return cluster.Unseen[[]cluster.VM](fmt.Sprintf("vm %d: %s", vmid, formatReason(s.err)))
		}
		if name := orphanOf(s.facts, l.d.Spec.ID); name != "" {
			id := identity{vmid: vmid, pool: string(candidates[vmid].Pool), uuid: s.facts.uuid, node: name}
			out = append(out, l.describe(s.facts, candidates[vmid], id))
		}
	}
	return cluster.Saw(out)
}

// readCandidate makes sure that it is known whose a guest in our pools is, and
// how it is if it is ours.
func (l *look) readCandidate(vmid int, r row) {
	l.mu.Lock()
	s, fresh := l.vms[vmid]
	l.mu.Unlock()
	if fresh && s.err == nil {
		return
	}
	f, ok := l.c.recall(vmid)
	if ok && f.still(r) && orphanOf(f, l.d.Spec.ID) == "" {
		l.keep(vmid, f, nil)
		return
	}
	if f, ok := l.settled(vmid); ok {
		l.keep(vmid, f, nil)
		return
	}
	if _, err := l.readVM(r, vmid); err != nil {
		l.keep(vmid, facts{}, err)
	}
}

// vanished returns an error if a VM of this cluster that is no node's, and was
// there when it was last looked at, is missing from the list and is neither
// deleted nor moved out of our pool.
func (l *look) vanished() error {
	for _, vmid := range l.c.missing(l.guests) {
		f, ok := l.c.recall(vmid)
		if !ok || orphanOf(f, l.d.Spec.ID) == "" || slices.ContainsFunc(l.d.Spec.Nodes, func(n cluster.Node) bool { return n.VMID == vmid }) {
			continue
		}
		free, err := l.c.free(l.ctx, vmid)
		if err == nil && !free {
			var h hidden
			if h, err = l.c.foreign(l.ctx, identity{vmid: vmid, pool: string(f.row.Pool), uuid: f.uuid, node: f.name}, string(f.row.Node)); err == nil && h.is == movedOut {
				err = errors.New(h.why) // the list is older than the answer
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// seesPools returns an error unless the VMs of our pools are seen. A guest
// that shows its pool proves it.
func (l *look) seesPools() error {
	shown := map[string]bool{}
	for _, r := range l.guests {
		shown[string(r.Pool)] = true
	}
	for _, pool := range slices.Sorted(maps.Keys(l.pools())) {
		if shown[pool] {
			continue
		}
		if err := l.c.checkVisibility(l.ctx, pool); err != nil {
			return err
		}
	}
	return nil
}
