package proxmox

import (
	"context"
	"maps"

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
