package machineconfig

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
)

// link is our name for the network interface by which a node is reached, and furtherLink
// with a number that of another one with an address of the inventory. They must not look
// like names the kernel gives, or the aliases could collide with one.
const (
	link        = "lan0"
	furtherLink = "lan"
)

// shared is what the configs of all nodes of a cluster depend on.
type shared struct {
	Cluster    string
	Talos      int // minor of the version that runs
	Contract   string
	Minor      int    // of the contract
	Kubernetes string // with its "v"
	Installer  string // image reference
	ISO        bool   `json:",omitempty"` // a machine installs itself first
	Network    cluster.Network
	CNI        cluster.CNI
	Mirrors    map[string]string
	Bundle     string
}

// input is everything one node's config depends on. Rendering gets nothing
// else, so that its digest decides whether a node must be rendered again.
type input struct {
	*shared `json:"-"` // digested once for all nodes

	Name    string
	Role    cluster.Role
	IP      netip.Addr // invalid of one that is Leased
	IP6     netip.Addr `json:",omitzero"` // invalid: none
	Leased  bool       `json:",omitempty"`
	MAC     string
	Labels  map[string]string
	Taints  map[string]string
	Patches []patch

	Components cluster.Components

	Devices device.Set `json:",omitzero"`
}

// patch is a user's patch, revealed.
type patch struct{ File, Text string }

func (in *input) controlPlane() bool { return in.Role == cluster.ControlPlane }

// own are the prefixes that hold the node's own address of each family and nothing else; of one whose address is not in
// the inventory the nodes' network, so that its config does not depend on which one it has.
func (in *input) own() []string {
	if in.Leased {
		return []string{in.Network.CIDR.String()}
	}
	out := []string{netip.PrefixFrom(in.IP, in.IP.BitLen()).String()}
	if in.IP6.IsValid() {
		out = append(out, netip.PrefixFrom(in.IP6, in.IP6.BitLen()).String())
	}
	return out
}

// setting is one thing the agent asks of a machine, and the places the machine
// config has had for it.
type setting struct {
	name   string
	wanted func(*input) bool // nil: always
	places []place           // oldest first
}

// place is where a setting goes from a contract's minor on.
type place struct {
	from int
	put  func(*draft, *input)
}

// settings is the one table of what goes where. A document is only ever
// written from the version that has it: the library accepts it at any contract,
// but a node that does not know it refuses the whole config.
//
// What is not here is left as the generator writes it for the contract:
// KubePrism and host DNS on, kubelet, API server and CoreDNS defaults.
var settings = []setting{
	{name: "installer image and disk", places: []place{
		// Ignored by a machine that booted an installed disk image, but
		// upgrades by hand and people read it.
		{from: 8, put: func(d *draft, in *input) {
			d.set(in.Installer, "machine", "install", "image")
			d.set(cluster.SystemDiskSerial, "machine", "install", "diskSelector", "serial")
		}},
		{from: 14, put: func(d *draft, in *input) {
			d.doc("UnattendedInstallConfig", fields{
				"installer":    fields{"image": in.Installer},
				"provisioning": fields{"diskSelector": fields{"match": fmt.Sprintf("disk.serial == %q", cluster.SystemDiskSerial)}, "wipe": false},
			})
		}},
	}},
	{name: "hostname", places: []place{
		{from: 8, put: func(d *draft, in *input) { d.set(in.Name, "machine", "network", "hostname") }},
		// The generator writes the same document with auto: stable, which a
		// hostname would contradict.
		{from: 12, put: func(d *draft, in *input) {
			d.doc("HostnameConfig", fields{"auto": "off", "hostname": in.Name})
		}},
	}},
	{name: "link with a static address", wanted: isStatic, places: []place{
		{from: 8, put: func(d *draft, in *input) {
			d.legacyLink(in)["addresses"] = in.addresses()
			var routes []fields
			for _, g := range in.gateways() {
				routes = append(routes, fields{"network": anywhere(g), "gateway": g.String()})
			}
			if len(routes) > 0 {
				d.legacyLink(in)["routes"] = routes
			}
		}},
		{from: 12, put: func(d *draft, in *input) {
			d.alias(in)
			var addresses, routes []fields
			for _, a := range in.addresses() {
				addresses = append(addresses, fields{"address": a})
			}
			for _, g := range in.gateways() {
				routes = append(routes, fields{"gateway": g.String()})
			}
			l := fields{"name": link, "addresses": addresses}
			if len(routes) > 0 {
				l["routes"] = routes
			}
			d.doc("LinkConfig", l)
		}},
	}},
	{name: "link with an address by DHCP", wanted: isLeased, places: []place{
		{from: 8, put: func(d *draft, in *input) { d.legacyLink(in)["dhcp"] = true }},
		{from: 12, put: func(d *draft, in *input) {
			d.alias(in)
			d.doc("DHCPv4Config", fields{"name": link})
		}},
	}},
	{name: "links with further addresses", wanted: func(in *input) bool { return in.Devices.HasAddress() }, places: []place{
		{from: 8, put: func(d *draft, in *input) {
			d.legacyLink(in) // the first, as without them
			for _, c := range in.Devices.Cards {
				if c.Address.IsValid() {
					d.addLink(c.MAC)["addresses"] = []string{c.Address.String()}
				}
			}
		}},
		{from: 12, put: func(d *draft, in *input) {
			for i, c := range in.Devices.Cards {
				if c.Address.IsValid() {
					name := fmt.Sprintf("%s%d", furtherLink, i+1)
					d.addDoc("LinkAliasConfig", fields{"name": name, "selector": selectMAC(c.MAC)})
					d.addDoc("LinkConfig", fields{"name": name, "addresses": []fields{{"address": c.Address.String()}}})
				}
			}
		}},
	}},
	{name: "virtual IP", wanted: func(in *input) bool { return in.controlPlane() && in.Network.VIP.IsValid() && in.Network.VIPBy == "" }, places: []place{
		{from: 8, put: func(d *draft, in *input) { d.legacyLink(in)["vip"] = fields{"ip": in.Network.VIP.String()} }},
		{from: 12, put: func(d *draft, in *input) {
			d.doc("Layer2VIPConfig", fields{"name": in.Network.VIP.String(), "link": link})
		}},
	}},
	{name: "nameservers", wanted: func(in *input) bool { return len(in.Network.Nameservers) > 0 }, places: []place{
		{from: 8, put: func(d *draft, in *input) {
			d.set(formatAddresses(in.Network.Nameservers), "machine", "network", "nameservers")
		}},
		{from: 12, put: func(d *draft, in *input) {
			var ns []fields
			for _, a := range formatAddresses(in.Network.Nameservers) {
				ns = append(ns, fields{"address": a})
			}
			d.doc("ResolverConfig", fields{"nameservers": ns})
		}},
	}},
	{name: "time servers", wanted: func(in *input) bool { return len(in.Network.TimeServers) > 0 }, places: []place{
		{from: 8, put: func(d *draft, in *input) { d.set(in.Network.TimeServers, "machine", "time", "servers") }},
		{from: 12, put: func(d *draft, in *input) {
			d.doc("TimeSyncConfig", fields{"ntp": fields{"servers": in.Network.TimeServers}})
		}},
	}},
	// The kubelet and etcd must never take the virtual IP, a VPN's or a second
	// interface's address for the node's own: only the inventory's will do, or where it has none, one of the
	// nodes' network.
	{name: "node IP", places: []place{
		{from: 8, put: func(d *draft, in *input) { d.set(in.own(), "machine", "kubelet", "nodeIP", "validSubnets") }},
		{from: 14, put: func(d *draft, in *input) {
			d.doc("KubeNodeConfig", fields{"nodeIP": fields{"validSubnets": in.own()}})
		}},
	}},
	// A member of etcd has one address, by which the agent knows it.
	{name: "etcd address", wanted: (*input).controlPlane, places: []place{
		{from: 8, put: func(d *draft, in *input) { d.set(in.own()[:1], "cluster", "etcd", "advertisedSubnets") }},
	}},
	{name: "labels", wanted: func(in *input) bool { return len(in.Labels) > 0 }, places: []place{
		{from: 8, put: func(d *draft, in *input) { d.set(in.Labels, "machine", "nodeLabels") }},
		{from: 14, put: func(d *draft, in *input) { d.doc("KubeNodeConfig", fields{"labels": in.Labels}) }},
	}},
	{name: "taints", wanted: func(in *input) bool { return len(in.Taints) > 0 }, places: []place{
		{from: 8, put: func(d *draft, in *input) { d.set(in.Taints, "machine", "nodeTaints") }},
		{from: 14, put: func(d *draft, in *input) { d.doc("KubeNodeConfig", fields{"taints": in.Taints}) }},
	}},
	{name: "no network from Talos", wanted: func(in *input) bool { return in.controlPlane() && in.CNI != cluster.CNIFlannel }, places: []place{
		{from: 8, put: func(d *draft, in *input) { d.set("none", "cluster", "network", "cni", "name") }},
		{from: 14, put: func(d *draft, in *input) { d.doc("KubeFlannelCNIConfig", fields{"$patch": "delete"}) }},
	}},
	// Cilium takes over kube-proxy's work; another network of the user's own
	// may not.
	{name: "no kube-proxy", wanted: func(in *input) bool { return in.controlPlane() && in.CNI == cluster.CNICilium }, places: []place{
		{from: 8, put: func(d *draft, in *input) { d.set(true, "cluster", "proxy", "disabled") }},
		{from: 14, put: func(d *draft, in *input) { d.doc("KubeProxyConfig", fields{"enabled": false}) }},
	}},
}

func isStatic(in *input) bool { return in.mode() == cluster.AddressStatic }
func isLeased(in *input) bool { return !isStatic(in) }

// mode is how the node comes by its address.
func (in *input) mode() cluster.AddressMode {
	return in.Network.ModeOf(cluster.Node{Leased: in.Leased})
}

// addresses are the node's static addresses, each with the length of its network, IPv4 first.
func (in *input) addresses() []string {
	out := []string{netip.PrefixFrom(in.IP, in.Network.CIDR.Bits()).String()}
	if in.IP6.IsValid() {
		out = append(out, netip.PrefixFrom(in.IP6, in.Network.IPv6.CIDR.Bits()).String())
	}
	return out
}

// gateways are the routers of its networks.
func (in *input) gateways() []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{in.Network.Gateway, in.Network.IPv6.Gateway}, func(a netip.Addr) bool { return !a.IsValid() })
}

// anywhere is the destination of the default route over a router.
func anywhere(over netip.Addr) string {
	if over.Is6() {
		return "::/0"
	}
	return "0.0.0.0/0"
}

func formatAddresses(as []netip.Addr) []string {
	out := make([]string, len(as))
	for i, a := range as {
		out[i] = a.String()
	}
	return out
}

// fields is a part of a document.
type fields = map[string]any

// draft collects settings as one strategic-merge patch over the generator's
// config: the v1alpha1 document, and the others in the order of the table.
type draft struct {
	legacy fields
	link   fields // of the v1alpha1 document, for the node's own address
	links  []fields
	docs   []fields
}

// set puts a value into the v1alpha1 document.
func (d *draft) set(value any, path ...string) {
	if d.legacy == nil {
		d.legacy = fields{}
	}
	at := d.legacy
	for _, key := range path[:len(path)-1] {
		next, ok := at[key].(fields)
		if !ok {
			next = fields{}
			at[key] = next
		}
		at = next
	}
	at[path[len(path)-1]] = value
}

// doc puts fields into the document of a kind. There is one document of a kind
// at most, which later calls add to.
func (d *draft) doc(kind string, f fields) {
	at := slices.IndexFunc(d.docs, func(have fields) bool { return have["kind"] == kind })
	if at < 0 {
		d.docs = append(d.docs, fields{"apiVersion": "v1alpha1", "kind": kind})
		at = len(d.docs) - 1
	}
	maps.Copy(d.docs[at], f)
}

// addDoc adds a document of a kind of which there may be others.
func (d *draft) addDoc(kind string, f fields) {
	doc := fields{"apiVersion": "v1alpha1", "kind": kind}
	maps.Copy(doc, f)
	d.docs = append(d.docs, doc)
}

// alias names the interface that has the node's MAC.
func (d *draft) alias(in *input) {
	d.doc("LinkAliasConfig", fields{"name": link, "selector": selectMAC(in.MAC)})
}

// selectMAC selects the interface that has a MAC.
func selectMAC(mac string) fields {
	return fields{"match": fmt.Sprintf("mac(link.permanent_addr) == %q", strings.ToLower(mac))}
}

// legacyLink is the entry of the interface that has the node's MAC, in the
// v1alpha1 document.
func (d *draft) legacyLink(in *input) fields {
	if d.link == nil {
		d.link = d.addLink(in.MAC)
	}
	return d.link
}

// addLink adds the entry of the interface that has a MAC to the v1alpha1 document.
func (d *draft) addLink(mac string) fields {
	l := fields{"deviceSelector": fields{"hardwareAddr": strings.ToLower(mac)}}
	d.links = append(d.links, l)
	d.set(d.links, "machine", "network", "interfaces")
	return l
}

// writeDraft drafts all settings of a node.
func writeDraft(in *input) *draft {
	d := &draft{}
	for _, s := range settings {
		if s.wanted != nil && !s.wanted(in) {
			continue
		}
		for _, p := range slices.Backward(s.places) {
			if p.from <= in.Minor {
				p.put(d, in)
				break
			}
		}
	}
	return d
}

// encode writes the draft as YAML, keys sorted.
func (d *draft) encode() ([]byte, error) {
	docs := d.docs
	if d.legacy != nil {
		docs = append([]fields{d.legacy}, docs...)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	for _, doc := range docs {
		if err := enc.Encode(doc); err != nil {
			return nil, err
		}
	}
	if err := enc.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
