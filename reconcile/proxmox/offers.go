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
		if !h.Known || !l.asksForMachine(name) {
			continue
		}
		if h.Offers = maps.Clone(h.Offers); h.Offers == nil {
			h.Offers = map[string]cluster.Seen[[]string]{}
		}
		versions, err := l.c.machineVersions(l.ctx, name)
		if h.Offers[device.Machine] = cluster.Saw(versions); err != nil {
			h.Offers[device.Machine] = cluster.Unseen[[]string](formatReason(err))
		}
		hosts[name] = h
	}
}

// asksForMachine reports whether a VM on a host is to have a version of its machine type that it does not have yet, or one that is
// to be made may be there. One that has it has started with it.
func (l *look) asksForMachine(host string) bool {
	for i, n := range l.d.Spec.Nodes {
		pin, pinned := n.Options[cluster.FieldMachinePin]
		vm := l.found[i]
		at := vm.Host == host || vm.Host == "" && slices.Contains(n.Placement.Hosts(), host)
		if pinned && at && (vm.Presence != cluster.Present || vm.Hardware.Value.Options[cluster.FieldMachinePin] != pin) {
			return true
		}
	}
	return false
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
