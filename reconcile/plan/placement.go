package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// placeNode answers on which host a node's VM is made: where it is pinned.
func (m *planner) placeNode(n cluster.Node) string { return n.Placement.Pin }

// bootNode answers what a node's new VM boots from: the Talos image.
func (m *planner) bootNode(cluster.Node) cluster.Boot {
	return cluster.Boot{Medium: cluster.BootImage, Image: m.d.Image}
}

// hostUsable reports whether a host can be acted on, and waits with the reason if not, and with what would
// be corrected on it.
func (m *planner) hostUsable(subject string, h cluster.Host, name string, corrects ...cluster.FieldDifference) bool {
	switch {
	case !h.Known:
		m.wait(cluster.Wait{Subject: subject, Reason: cluster.HostUnknown, About: name, Message: fmt.Sprintf("cannot see host %s: %s", name, cmp.Or(h.Why, "it has not answered yet")), Within: seeWithin, Drift: corrects})
		return false
	case h.Quorate.Known && !h.Quorate.Value:
		m.wait(cluster.Wait{Subject: subject, Reason: cluster.HostNoQuorum, About: name, Message: fmt.Sprintf("the Proxmox VE cluster of %s has no quorum, so nothing can be changed", name), Within: seeWithin, Drift: corrects,
			Hint: "bring the other hosts back; `pvecm status` shows who is missing"})
		return false
	}
	return true
}

// storageUsable checks the three storages a VM needs, as far as they are seen.
func (m *planner) storageUsable(n cluster.Node, host string, h cluster.Host) bool {
	needs := []need{{n.Datastore, "images", "proxmox.datastore"}, {n.CloudInitDatastore, "images", "proxmox.cloudinit_datastore"}, {n.ImageDatastore, "import", "proxmox.image_datastore"}}
	for _, d := range n.Disks {
		needs = append(needs, need{d.Datastore, "images", "datastore of disk " + d.Name})
	}
	return m.storesUsable(n, host, h, needs, n.DiskUse())
}

// need is a storage that is needed for a type of content, by a field of the inventory.
type need struct{ name, content, field string }

// storesUsable is storageUsable for some storages, of which disks take so much.
func (m *planner) storesUsable(n cluster.Node, host string, h cluster.Host, needs []need, takes map[string]int64) bool {
	if !h.Storages.Known {
		m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.StorageUnknown, Message: fmt.Sprintf("cannot see the storages of %s: %s", host, h.Storages.Why), Within: seeWithin})
		return false
	}
	ok := true
	for _, w := range needs {
		st, found := h.Storages.Value[w.name]
		switch {
		case takes[w.name] > 0 && st.Thin && st.Active && !st.Volumes.Known:
			// What is promised on it cannot be counted.
			ok = false
			m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.StorageUnknown, About: host + "/" + w.name, Message: fmt.Sprintf("cannot see the volumes on storage %s of %s: %s", w.name, host, st.Volumes.Why), Within: seeWithin,
				Hint: fmt.Sprintf("`pvesm list %s` as root on %s shows whether the storage answers; the agent's token needs Datastore.AllocateSpace on it", w.name, host)})
		case w.name == "" || found && st.Active && slices.Contains(st.Content, w.content):
		case !found:
			ok = false
			m.block(cluster.Block{Subject: m.d.Spec.Name, Reason: cluster.StorageMissing, About: host + "/" + w.name, Message: fmt.Sprintf("%s: host %s shows no storage %q", w.field, host, w.name),
				Hint: "correct the name, or give the agent's token Datastore.Audit and Datastore.AllocateSpace on it"})
		case !st.Active:
			ok = false
			m.wait(cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.StorageInactive, About: host + "/" + w.name, Message: fmt.Sprintf("storage %s on %s is not active", w.name, host), Within: seeWithin})
		default:
			ok = false
			m.block(cluster.Block{Subject: m.d.Spec.Name, Reason: cluster.StorageContent, About: host + "/" + w.name, Message: fmt.Sprintf("storage %s on %s does not allow content type %q", w.name, host, w.content),
				Hint: fmt.Sprintf("as root on %s: `pvesm set %s --content %s`", host, w.name, strings.Join(append(slices.Clone(st.Content), w.content), ","))})
		}
	}
	return ok
}
