package formats

import (
	"net/netip"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
)

// shared are the addresses of carrier-grade NAT (RFC 6598), which Tailscale gives out: an
// address there is on no bridge.
var shared = netip.MustParsePrefix("100.64.0.0/10")

// readNodesJSON reads a nodes.json: names and leases of nodes by role, and where the control
// plane and Headscale answer.
func (r *reading) readNodesJSON(f source) {
	s := newSection(r.d, f.Name, "", f.value)
	if vip := s.text("control_plane_vip"); vip != "" {
		switch a, _, ok := parseIPv4(vip); {
		case !ok:
			s.leave("control_plane_vip", "is no IPv4 address", "write network.vip: a free address of the nodes' network; one that kube-vip has elsewhere is network.endpoint by its name, and one of network.cert_sans")
		case shared.Contains(a):
			s.leave("control_plane_vip", a.String()+" is an address of Tailscale, which Talos cannot move between nodes", "list it in network.cert_sans, and write network.vip, a free address of the nodes' own network")
		default:
			s.put("control_plane_vip", draft.Text(a.String()), "network", "vip")
		}
	}
	if server := s.text("headscale_login_server"); server != "" {
		r.addTailscale(s, server)
	}
	for key, role := range map[string]cluster.Role{"controlplanes": cluster.ControlPlane, "workers": cluster.Worker} {
		for _, n := range s.sections(key) {
			r.addLease(n, n.text("name"), role)
		}
	}
	if nodes := s.value.get("nodes"); nodes != nil && nodes.kind == mapping {
		byName := s.section("nodes")
		for _, e := range byName.value.keys {
			if n := byName.section(e.key); n != nil {
				r.addLease(n, e.key, roleOf(n.text("role"), e.key))
			}
		}
	} else {
		for _, n := range s.sections("nodes") {
			name := n.text("name")
			r.addLease(n, name, roleOf(n.text("role"), name))
		}
	}
	s.rest(nil)
}

// roleOf finds out the role of a node by what is written about it, or by its name.
func roleOf(written, name string) cluster.Role {
	for _, s := range []string{written, name} {
		for _, word := range strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return r == '-' || r == '_' || r == '.' }) {
			switch strings.TrimRight(word, "0123456789") {
			case "cp", "ctrl", "control", "controller", "controlplane", "master":
				return cluster.ControlPlane
			case "wk", "worker", "work", "node":
				return cluster.Worker
			}
		}
	}
	return ""
}

// addLease adds a node with the address that it has, or that its lease has.
func (r *reading) addLease(n *section, name string, role cluster.Role) {
	switch {
	case name == "":
		n.leave("name", "a node without a name", "write it into nodes.yaml")
		return
	case role == "":
		n.leave("name", "a node whose role is not known", "write it under controlplane or workers in nodes.yaml")
		return
	}
	node := draft.Mapping()
	node.Set(draft.Origin{}, draft.Text(name), "name")
	key := "address"
	if n.value.get(key) == nil {
		key = "dhcp"
	}
	if written := n.text(key); written != "" {
		if a, _, ok := parseIPv4(written); ok {
			node.Set(draft.Origin{Name: key, File: n.file}, draft.Text(a.String()), "ip")
		} else {
			n.leave(key, "is no IPv4 address", "write ip: in nodes.yaml")
		}
	}
	if mac := n.text("mac"); mac != "" {
		node.Set(draft.Origin{}, draft.Text(mac), "mac")
	}
	node.Ask("the address of the node", "ip")
	n.taken["dhcp"] = true
	n.rest(nil)
	r.d.AddNode(role, node)
}

// addTailscale adds the extension, and the patch with its settings. Its key is a secret.
func (r *reading) addTailscale(s *section, server string) {
	const key = "headscale_login_server"
	o := s.origin(key)
	if strings.ContainsAny(server, " \t\n$") || !strings.HasPrefix(server, "http") {
		s.leave(key, "is no URL", "write a patch of the kind ExtensionServiceConfig for the extension siderolabs/tailscale")
		return
	}
	v := draft.Mapping()
	v.Set(o, draft.Text("v1alpha1"), "apiVersion")
	v.Set(o, draft.Text("ExtensionServiceConfig"), "kind")
	v.Set(o, draft.Text("tailscale"), "name")
	v.Set(o, draft.Texts("TS_AUTHKEY=${values.tailscale_authkey}", "TS_EXTRA_ARGS=--login-server="+server), "environment")
	s.put(key, draft.Texts("siderolabs/tailscale"), "talos", "schematic", "extensions")
	s.put(key, draft.Texts(r.d.AddPatch(o, "tailscale", v.YAML())), "patches", "all")
	s.leave(key, "became a patch, which needs the key of Tailscale", "put it into the secrets: talos-agent secrets new --value-file tailscale_authkey=FILE")
}
