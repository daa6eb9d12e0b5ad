package capacity

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Need is a storage that is needed for a type of content, by a field of the inventory.
type Need struct{ Name, Content, Field string }

// NeedsOf are the storages that the VM of a node of a cluster needs.
func NeedsOf(s cluster.Spec, n cluster.Node) []Need {
	needs := []Need{{n.Datastore, "images", "proxmox.datastore"}, {n.CloudInitDatastore, "images", "proxmox.cloudinit_datastore"}, {n.ImageDatastore, s.ImageContent(), "proxmox.image_datastore"}}
	for _, d := range n.Disks {
		needs = append(needs, Need{d.Datastore, "images", "datastore of disk " + d.Name})
	}
	return needs
}

// JudgeStores reports what a node does not find on the storages of a host, as far as they are seen: that is waited for, or
// has to be corrected. takes is how much its disks take of each, in bytes.
func JudgeStores(name string, n cluster.Node, host string, h cluster.Host, needs []Need, takes map[string]int64) (waits []cluster.Wait, blocks []cluster.Block) {
	if !h.Storages.Known {
		return []cluster.Wait{{Subject: n.Name, Reason: cluster.StorageUnknown, Message: fmt.Sprintf("cannot see the storages of %s: %s", host, h.Storages.Why)}}, nil
	}
	for _, w := range needs {
		st, found := h.Storages.Value[w.Name]
		switch {
		case takes[w.Name] > 0 && st.Thin && st.Active && !st.Volumes.Known:
			// What is promised on it cannot be counted.
			waits = append(waits, cluster.Wait{Subject: n.Name, Reason: cluster.StorageUnknown, About: host + "/" + w.Name, Message: fmt.Sprintf("cannot see the volumes on storage %s of %s: %s", w.Name, host, st.Volumes.Why),
				Hint: fmt.Sprintf("`pvesm list %s` as root on %s shows whether the storage answers; the agent's token needs Datastore.AllocateSpace on it", w.Name, host)})
		case w.Name == "" || found && st.Active && slices.Contains(st.Content, w.Content):
		case !found:
			blocks = append(blocks, cluster.Block{Subject: name, Reason: cluster.StorageMissing, About: host + "/" + w.Name, Message: fmt.Sprintf("%s: host %s shows no storage %q", w.Field, host, w.Name),
				Hint: "correct the name, or give the agent's token Datastore.Audit and Datastore.AllocateSpace on it"})
		case !st.Active:
			waits = append(waits, cluster.Wait{Subject: name, Reason: cluster.StorageInactive, About: host + "/" + w.Name, Message: fmt.Sprintf("storage %s on %s is not active", w.Name, host)})
		default:
			blocks = append(blocks, cluster.Block{Subject: name, Reason: cluster.StorageContent, About: host + "/" + w.Name, Message: fmt.Sprintf("storage %s on %s does not allow content type %q", w.Name, host, w.Content),
				Hint: fmt.Sprintf("as root on %s: `pvesm set %s --content %s`", host, w.Name, strings.Join(append(slices.Clone(st.Content), w.Content), ","))})
		}
	}
	return waits, blocks
}

// GrowthByStore is what the disks of a VM need more to be those of its node, in bytes, and the fields of those, by storage.
func GrowthByStore(n cluster.Node, has cluster.Hardware) (more map[string]int64, fields map[string][]string) {
	more, fields = map[string]int64{}, map[string][]string{}
	for _, g := range n.Growth(has) {
		more[g.Datastore] += g.Bytes
		fields[g.Datastore] = append(fields[g.Datastore], string(g.Field))
	}
	return more, fields
}
