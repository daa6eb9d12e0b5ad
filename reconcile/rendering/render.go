package rendering

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

// Options are what is rendered, and how.
type Options struct {
	Node string // only this one, without addons; "": all
	// ShowSecrets leaves everything as it would be sent.
	ShowSecrets bool
	// ThrowAway: the bundle of the secrets is made for this rendering only.
	ThrowAway bool
}

// Render returns what a cluster would be given. A node of which runs reports that its
// machine has a config is given what the repository has, a new one what the others run.
func Render(d cluster.Desired, runs func(node string) bool, o Options) (cluster.Rendering, error) {
	asked := d.Repository()
	out := cluster.Rendering{Cluster: asked.Spec.Name, Revision: asked.Revision, Notes: []string{}, Nodes: []cluster.RenderedNode{}, Addons: []cluster.RenderedAddon{}}
	mask, err := NewMask(o.ThrowAway, d.Snapshot, asked.Snapshot)
	if err != nil {
		return out, err
	}
	if o.ShowSecrets {
		mask = nil
	}
	for _, n := range asked.Spec.Nodes {
		if o.Node != "" && o.Node != n.Name {
			continue
		}
		of := d
		if runs(n.Name) {
			of = asked
		}
		node, err := renderNode(of, n, mask)
		if err != nil {
			return out, fmt.Errorf("node %s: %w", n.Name, err)
		}
		out.Nodes = append(out.Nodes, node)
	}
	if o.Node == "" {
		out.Addons, err = renderAddons(asked.Spec, mask)
	}
	return out, err
}

func renderNode(d cluster.Desired, n cluster.Node, mask *Mask) (cluster.RenderedNode, error) {
	meta := n.Meta()
	out := cluster.RenderedNode{Node: n.Name, Role: n.Role, VM: renderVM(d, n), Object: cluster.NodeMeta{Labels: cleanPairs(meta.Labels, mask), Taints: cleanPairs(meta.Taints, mask), Annotations: cleanPairs(meta.Annotations, mask)}}
	config, ok := d.Configs[n.Name]
	switch {
	case ok && mask == nil:
		out.MachineConfig, out.Base = config.Bytes.RevealString(), d.Base
	case ok:
		docs, err := machineconfig.Rewrite(config.Bytes.Reveal(), mask.cleanScalar)
		if err != nil {
			return out, err
		}
		out.MachineConfig, out.Base = joinDocuments(docs), d.Base
	case d.Bundle.IsZero():
		out.Unrendered = "the cluster has no secrets"
	case d.Schematic == "":
		out.Unrendered = "the image factory has not returned the id of its image yet"
	default:
		out.Unrendered = "it cannot be rendered: the inventory has problems"
	}
	return out, nil
}

// cleanPairs are labels, taints or annotations with the secrets in their values hidden; nil where there
// are none.
func cleanPairs(pairs map[string]string, mask *Mask) map[string]string {
	if len(pairs) == 0 {
		return nil
	}
	out := maps.Clone(pairs)
	for key, value := range out {
		if mask != nil {
			out[key] = mask.Clean(value)
		}
	}
	return out
}

// joinDocuments is the text of documents in one file.
func joinDocuments(docs []machineconfig.Document) string {
	var texts []string
	for _, d := range docs {
		texts = append(texts, d.Text)
	}
	return strings.Join(texts, "---\n")
}

// renderVM is the VM of a node as the planner compares it.
func renderVM(d cluster.Desired, n cluster.Node) cluster.RenderedVM {
	hw := drift.WantHardware(d.Spec, n)
	out := cluster.RenderedVM{
		VMID: n.VMID, Name: n.Name, UUID: n.UUID, Host: n.Placement.Pin, Pool: n.Pool, Tags: n.VMTags(),
		Mark:    cluster.Mark{Version: 1, Cluster: d.Spec.ID, Node: n.Name, Replace: n.Replace}.String(),
		CPUType: hw.CPUType, Cores: hw.Cores, MemoryMiB: hw.MemoryMiB, Ballooning: hw.Balloon, Machine: hw.Machine, BIOS: hw.BIOS, SCSI: hw.SCSIHardware,
		Image:   d.Image.Name,
		Disks:   []cluster.RenderedDisk{{Serial: cluster.SystemDiskSerial, Datastore: hw.System.Datastore, Bytes: hw.System.Bytes}},
		Network: cluster.RenderedNetwork{Model: hw.Model, MAC: hw.MAC, Bridge: hw.Bridge, VLAN: hw.VLAN, Address: hw.Address},
		Boot:    hw.Boot, GuestAgent: hw.Agent, StartAtBoot: hw.OnBoot, Protect: n.Protect, Options: hw.Options,
	}
	for _, serial := range slices.Sorted(maps.Keys(hw.Data)) {
		out.Disks = append(out.Disks, cluster.RenderedDisk{Serial: serial, Datastore: hw.Data[serial].Datastore, Bytes: hw.Data[serial].Bytes})
	}
	return out
}

// renderAddons are the addons in an order in which they can be installed: what another
// needs comes first, and else they stand as the inventory has them.
func renderAddons(s cluster.Spec, mask *Mask) ([]cluster.RenderedAddon, error) {
	out := []cluster.RenderedAddon{}
	for _, a := range orderAddons(s) {
		values := a.Values.Reveal()
		if mask != nil {
			var err error
			if values, err = mask.cleanJSON(values); err != nil {
				return nil, fmt.Errorf("addon %s: %w", a.Name, err)
			}
		}
		out = append(out, cluster.RenderedAddon{Addon: a.Name, Namespace: a.Namespace, Order: len(out) + 1, After: s.Dependencies(a),
			Chart: a.Chart.Ref(), Version: a.Chart.Version, Digest: a.Chart.Digest, Ownership: a.Ownership, Values: values,
			NamespaceLabels: cleanPairs(a.Asks.Labels, mask), NamespaceAnnotations: cleanPairs(a.Asks.Annotations, mask)})
	}
	return out, nil
}

// orderAddons puts every addon behind those that it needs. Those that need each other,
// which no valid inventory has, come last.
func orderAddons(s cluster.Spec) []cluster.Addon {
	placed := map[string]bool{}
	var out []cluster.Addon
	left := slices.Clone(s.Addons)
	for len(left) > 0 {
		next := slices.IndexFunc(left, func(a cluster.Addon) bool {
			return !slices.ContainsFunc(s.Dependencies(a), func(d string) bool { return !placed[d] })
		})
		next = max(next, 0)
		placed[left[next].Name] = true
		out = append(out, left[next])
		left = slices.Delete(left, next, next+1)
	}
	return out
}
