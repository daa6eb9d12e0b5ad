package proxmox

import (
	"context"
	"maps"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// mappingPaths are where the resource mappings are listed, by kind.
var mappingPaths = map[string]string{device.PCIMapping: "/cluster/mapping/pci", device.USBMapping: "/cluster/mapping/usb"}

// seeOffers looks at what hosts have for VMs beside storages, as far as nodes of the cluster ask for it.
func (l *look) seeOffers(hosts map[string]cluster.Host) {
	for kind := range mappingPaths {
		if !l.asksFor(kind) {
			continue
		}
		devices, err := l.c.mappedDevices(l.ctx, kind)
		for name, h := range hosts {
			h.Offers = maps.Clone(h.Offers)
			if h.Offers == nil {
				h.Offers = map[string]cluster.Seen[[]string]{}
			}
			h.Offers[kind] = cluster.Saw(devices[name])
			if err != nil {
				h.Offers[kind] = cluster.Unseen[[]string](formatReason(err))
			}
			hosts[name] = h
		}
	}
	for name, h := range hosts {
		offers := maps.Clone(h.Offers)
		if offers == nil {
			offers = map[string]cluster.Seen[[]string]{}
		}
		for kind, o := range map[string]struct {
			isAsked func(cluster.Node, cluster.VMField) bool
			list    func(context.Context, string) ([]string, error)
		}{
			device.Machine:   {func(_ cluster.Node, f cluster.VMField) bool { return f == cluster.FieldMachinePin }, l.c.machineVersions},
			device.BridgeMTU: {func(n cluster.Node, f cluster.VMField) bool { return hasMTU(n, f) }, l.c.bridgeMTUs},
		} {
			if !h.Known || !l.asksOf(name, o.isAsked) {
				continue
			}
			list, err := o.list(l.ctx, name)
			if offers[kind] = cluster.Saw(list); err != nil {
				offers[kind] = cluster.Unseen[[]string](formatReason(err))
			}
		}
		if len(offers) > 0 {
			h.Offers = offers
			hosts[name] = h
		}
	}
}

// hasMTU reports whether an option of a node is a network card with an MTU, or that of its first one.
func hasMTU(n cluster.Node, field cluster.VMField) bool {
	_, mtu := device.MTUOf(string(field), n.Options[field])
	return field == cluster.FieldMTU || mtu > 0
}

// asksOf reports whether a VM on a host is to have an option that it does not have yet, or one that is to be made may be there.
// One that has it has started with it, which answers nothing for the one that is made in its place: maybe later, on another host.
func (l *look) asksOf(host string, isAsked func(cluster.Node, cluster.VMField) bool) bool {
	for i, n := range l.d.Spec.Nodes {
		vm, next := l.found[i], l.mayBeMade(i)
		if vm.Host != host && (vm.Host != "" && !next || !slices.Contains(n.Placement.Hosts(), host)) {
			continue
		}
		for field, value := range n.Options {
			if isAsked(n, field) && (next || vm.Hardware.Value.Options[field] != value) {
				return true
			}
		}
	}
	return false
}

// mayBeMade reports whether the VM of a node is to be made, or may be: it has none that is known to be its own, or one that is
// replaced, or that is dead, for which the host's policy may want another.
func (l *look) mayBeMade(i int) bool {
	n, vm := l.d.Spec.Nodes[i], l.found[i]
	return vm.Presence != cluster.Present || vm.Owner != cluster.Ours || n.Replace != "" && n.Replace != vm.Replace || !l.dead[n.Name].IsZero()
}

// bridgeMTUs lists the bridges of a host that the token may see, each with the MTU that is written for it. One without is left out,
// for it is not known: a Linux bridge takes the least MTU of its ports, and a vnet that of its zone.
func (c *Client) bridgeMTUs(ctx context.Context, host string) ([]string, error) {
	bridges, err := c.Bridges(ctx, host)
	if err != nil {
		return nil, err
	}
	var out []string
	for name, b := range bridges {
		if b.MTU > 0 {
			out = append(out, device.DescribeMTU(name, b.MTU))
		}
	}
	slices.Sort(out)
	return out, nil
}

// machineVersions lists the versions of machine types that the QEMU of a host has.
func (c *Client) machineVersions(ctx context.Context, host string) ([]string, error) {
	var rows []struct{ ID pveconf.Scalar }
	if err := c.get(ctx, hostPath(host, "capabilities", "qemu", "machines"), nil, &rows); err != nil {
		return nil, err
	}
	var out []string
	for _, r := range rows {
		out = append(out, string(r.ID))
	}
	return out, nil
}

// asksFor reports whether a node has a device of a kind.
func (l *look) asksFor(kind string) bool {
	for _, n := range l.d.Spec.Nodes {
		for _, m := range n.Devices.Mappings() {
			if m.Kind == kind {
				return true
			}
		}
	}
	return false
}

// mappedDevices lists the mappings of a kind that a host has a device of, by host, once for each device. Those that the token
// may not use are not among them.
func (c *Client) mappedDevices(ctx context.Context, kind string) (map[string][]string, error) {
	var rows []struct {
		ID  pveconf.Scalar
		Map []string
	}
	if err := c.get(ctx, mappingPaths[kind], nil, &rows); err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, r := range rows {
		for _, text := range r.Map {
			if host := pveconf.ParseProperties(text)["node"]; host != "" {
				out[host] = append(out[host], string(r.ID))
			}
		}
	}
	return out, nil
}
