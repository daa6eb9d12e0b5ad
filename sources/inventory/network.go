package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/forward"
	"github.com/talos-agent/talos-agent/internal/cluster/window"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// The defaults of the network that Talos and Kubernetes use themselves.
var (
	defaultPods     = netip.MustParsePrefix("10.244.0.0/16")
	defaultServices = netip.MustParsePrefix("10.96.0.0/12")
)

const kubernetesPort = 6443

// resolveCluster fills in what cluster.yaml has about the cluster as a whole.
func (l *loader) resolveCluster() {
	c := &l.cluster
	l.spec = cluster.Spec{
		Name:         c.ClusterName,
		Environment:  c.Environment,
		Versions:     cluster.Versions{Talos: c.TalosVersion, Kubernetes: c.KubernetesVersion, Contract: c.ConfigContract},
		HA:           c.HAEnabled,
		Availability: c.HA.Enabled, HAGroup: c.HA.Group,
		CNI:       cluster.CNI(orDefault(c.CNI, string(cluster.CNIFlannel))),
		Schematic: cluster.Schematic{Extensions: slices.Sorted(slices.Values(c.Talos.Schematic.Extensions)), ExtraKernelArgs: c.Talos.Schematic.ExtraKernelArgs},

		Switches:       cluster.Switches{ObserveOnly: c.Heal == "observe", ApplyOff: c.Apply == "off", ApplyApproved: c.Apply == "approve"},
		Canary:         c.Canary,
		Soak:           c.Soak,
		MaxUnavailable: c.MaxUnavailable,
		AllowEven:      c.AllowEven,
		Prune:          c.Prune,
		Drain:          cluster.Drain{Timeout: c.Drain.Timeout, Delete: c.Drain.OnTimeout == "delete"},

		SecureBoot:        c.Talos.SecureBoot,
		ISO:               c.Talos.Boot == "iso",
		InstallerRegistry: orDefault(c.Talos.InstallerRegistry, "factory.talos.dev"),
		Mirrors:           maps.Clone(l.opts.Mirrors),
	}
	l.spec.ReplaceDead = cluster.ReplaceDead{ControlPlane: l.deadAfter("controlplane", c.ReplaceDead.ControlPlane), Worker: l.deadAfter("worker", c.ReplaceDead.Worker)}
	l.spec.Window = c.Window.Resolve("window", l.Report)
	l.resolveUpgrade()
	l.checkSecureBoot()
	l.resolveGates()
	if c.ClusterName != "" {
		l.spec.ID = cluster.ClusterID(l.opts.Owner, c.ClusterName)
	}
	if l.spec.Versions.Contract == "" && c.TalosVersion != "" {
		l.spec.Versions.Contract = c.TalosVersion[:strings.LastIndex(strings.SplitN(c.TalosVersion, "-", 2)[0], ".")]
	}
	for i, e := range c.Talos.Schematic.Extensions {
		if first := slices.Index(c.Talos.Schematic.Extensions, e); first < i && e != "" {
			l.Wrong(yamlschema.Element("talos.schematic.extensions", i), "remove one", "%s is listed twice", e)
		}
	}
}

// enrollingMinor is the first minor version of Talos whose disk image for Secure Boot has a firmware take its keys. Older
// ones boot from it as well, unverified. (siderolabs/talos: pull request 13214; siderolabs/docs: pull request 603.)
const enrollingMinor = 14

// checkSecureBoot refuses Secure Boot with an image that does not bring it.
func (l *loader) checkSecureBoot() {
	var minor int
	if _, err := fmt.Sscanf(l.cluster.TalosVersion, "v1.%d.", &minor); err == nil && l.cluster.Talos.SecureBoot && minor < enrollingMinor {
		l.Wrong("talos.secureboot", fmt.Sprintf("write talos_version: v1.%d.0 or newer, or remove it", enrollingMinor),
			"the disk image of Talos %s does not give the firmware its keys, so that nothing would be verified", l.cluster.TalosVersion)
	}
}

// resolveForwards fills in which ports of the host lead to which nodes.
func (l *loader) resolveForwards() {
	workers := slices.ContainsFunc(l.spec.Nodes, func(n cluster.Node) bool { return n.Role == cluster.Worker })
	for i, f := range l.cluster.PortForwards {
		field := yamlschema.Element("port_forwards", i)
		out := forward.Forward{Port: f.Port, To: cmp.Or(f.NodePort, f.Port), Protocol: orDefault(f.Protocol, forward.TCP), ControlPlanes: f.Nodes == "controlplanes" || f.Nodes == "" && !workers}
		switch {
		case f.Port == 0: // it is missing or wrong, which is reported
			continue
		case slices.ContainsFunc(l.spec.Forwards, func(other forward.Forward) bool { return other.String() == out.String() }):
			l.Wrong(field, "remove one", "%s is listed twice", out)
		case f.Nodes == "workers" && !workers && l.nodesRead:
			l.Wrong(field, "add a worker, or write nodes: controlplanes", "leads to workers, and there are none")
		}
		l.spec.Forwards = append(l.spec.Forwards, out)
	}
}

// shortestDead is how long a node may at least be away: to boot again takes minutes.
const shortestDead = 10 * time.Minute

// deadAfter checks for how long nodes of a role must be dead.
func (l *loader) deadAfter(role string, d time.Duration) time.Duration {
	if field := "replace_dead." + role; d > 0 && d < shortestDead {
		l.Wrong(field, "write 10m or more, or remove the line", "%s is too short: a node that boots again may take minutes", d)
	}
	return d
}

// Resolve returns what is written in a field, and reports all that is wrong with it. Of what
// is not there, or not known, which is reported already, it is no window.
func (w Window) Resolve(field string, r *yamlschema.Report) window.Window {
	zone, err := window.FindZone(w.TimeZone)
	if err != nil {
		r.Wrong(field+".time_zone", "write a name of the IANA database, like Europe/Berlin", "%v", err)
	}
	if w.From == "" || w.To == "" {
		return window.Window{}
	}
	known := slices.DeleteFunc(slices.Clone(w.Days), func(day string) bool { return day == "" })
	out, err := window.New(known, w.From, w.To, "")
	if err != nil {
		r.Wrong(field, `write one like {days: [sat, sun], from: "22:00", to: "05:00", time_zone: Europe/Berlin}`, "is no window: %v", err)
	}
	if err != nil || zone == nil || len(known) < len(w.Days) {
		return window.Window{}
	}
	out.Zone = zone
	return out
}

// orDefault returns s, or the fallback where s is empty.
func orDefault(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// resolveNetwork fills in and checks the network, except for the endpoint,
// which needs the nodes.
func (l *loader) resolveNetwork() {
	n := &l.cluster.Network
	out := &l.spec.Network
	*out = cluster.Network{CIDR: n.CIDR, Gateway: n.Gateway, Nameservers: n.Nameservers, TimeServers: n.TimeServers,
		PodCIDR: n.PodCIDR, ServiceCIDR: n.ServiceCIDR, VIP: n.VIP.Address, CertSANs: n.CertSANs, VLAN: n.VLAN}
	if l.clusterRead && !l.Has("network.pod_cidr") {
		out.PodCIDR = defaultPods
	}
	if l.clusterRead && !l.Has("network.svc_cidr") {
		out.ServiceCIDR = defaultServices
	}
	l.addressMode()
	l.resolveIPv6()
	l.checkCIDRs()
	if n.Gateway.IsValid() {
		l.inNetwork("network.gateway", n.Gateway)
	}
	if by := cluster.VIPHolder(n.VIP.By); by != cluster.VIPByTalos {
		out.VIPBy = by
	}
	l.checkVIP(*out)
	for i, s := range n.TimeServers {
		l.checkHost(yamlschema.Element("network.time_servers", i), s)
	}
	for i, s := range n.CertSANs {
		l.checkHost(yamlschema.Element("network.cert_sans", i), s)
	}
}

// checkVIP checks the address of the control planes together. A load balancer may be anywhere, the gateway included.
func (l *loader) checkVIP(n cluster.Network) {
	field := "network.vip"
	if l.Has("network.vip.address") {
		field = "network.vip.address"
	}
	switch {
	case !n.VIP.IsValid():
	case n.VIPBy != cluster.VIPByExternal:
		l.inNetwork(field, n.VIP)
		if n.VIP == n.Gateway {
			l.Wrong(field, "give the control planes an address of their own", "%s is the gateway", n.VIP)
		}
	case !n.VIP.IsGlobalUnicast() && !n.VIP.IsLoopback():
		l.Wrong(field, "write the address of the load balancer", "%s cannot be the address of a machine", n.VIP)
	}
}

// addressMode decides how nodes come by their addresses.
func (l *loader) addressMode() {
	n := &l.cluster.Network
	cidr, gateway := l.Has("network.cidr"), l.Has("network.gateway")
	mode := cluster.AddressMode(n.AddressMode)
	if mode == "" {
		mode = cluster.AddressReserved
		if cidr && gateway {
			mode = cluster.AddressStatic
		}
	}
	l.spec.Network.Mode = mode
	switch {
	case mode == cluster.AddressStatic && !cidr:
		l.Wrong("network.cidr", "write the network of the nodes, like cidr: 10.10.0.0/24", "is missing: static addresses need it")
	case mode == cluster.AddressDiscovered && !cidr:
		l.Wrong("network.cidr", "write the network of the nodes, like cidr: 10.10.0.0/24", "is missing: with dhcp-discover it shows which addresses nodes may have")
	case mode == cluster.AddressStatic && !gateway:
		l.Wrong("network.gateway", "write the router of the nodes, like gateway: 10.10.0.1", "is missing: static addresses need it")
	case n.AddressMode == "" && cidr != gateway:
		missing := "network.cidr"
		if cidr {
			missing = "network.gateway"
		}
		l.Wrong(missing, "write cidr and gateway for static addresses, or address_mode: dhcp-reservation", "is missing")
	}
}

// checkCIDRs compares the networks with each other.
func (l *loader) checkCIDRs() {
	n := l.spec.Network
	// An invalid network is zero and overlaps with nothing.
	if overlapPrefixes(n.PodCIDR, n.ServiceCIDR) {
		l.Wrong("network.svc_cidr", "choose networks that share no address", "services %s overlap with pods %s", n.ServiceCIDR, n.PodCIDR)
	}
	for _, other := range l.inner() {
		if overlapPrefixes(n.CIDR, other.prefix) {
			l.Wrong("network.cidr", "move the nodes or write another "+other.field,
				"the nodes' network %s overlaps with the %s %s: a node takes its own address for one of theirs and never comes up", n.CIDR, other.what, other.prefix)
		}
	}
	if n.CIDR.IsValid() && n.CIDR.Bits() > 30 {
		l.Wrong("network.cidr", "write a /30 or larger", "%s has no room for nodes", n.CIDR)
	}
	if n.ServiceCIDR.IsValid() && (n.ServiceCIDR.Bits() < 12 || n.ServiceCIDR.Bits() > 28) {
		l.Wrong("network.svc_cidr", "write something between /12 and /28", "Kubernetes does not take services in a /%d", n.ServiceCIDR.Bits())
	}
	if n.PodCIDR.IsValid() && n.PodCIDR.Bits() > 24 {
		l.Wrong("network.pod_cidr", "write a /24 or larger", "%s has no room: every node gets a /24 of it", n.PodCIDR)
	}
}

// innerNetwork is a network inside the cluster.
type innerNetwork struct {
	what, field string
	prefix      netip.Prefix
}

func (l *loader) inner() []innerNetwork {
	return []innerNetwork{
		{"pods' network", "network.pod_cidr", l.spec.Network.PodCIDR},
		{"services' network", "network.svc_cidr", l.spec.Network.ServiceCIDR},
	}
}

func overlapPrefixes(a, b netip.Prefix) bool { return a.IsValid() && b.IsValid() && a.Overlaps(b) }

// inNetwork reports an address that cannot be a machine's in the nodes' network.
func (l *loader) inNetwork(field string, a netip.Addr) {
	if message, hint := l.misplaced(a); message != "" {
		l.Wrong(field, hint, "%s", message)
	}
}

// checkHost checks a name or an address of the outside.
func (l *loader) checkHost(field, s string) {
	if s == "" {
		return
	}
	if _, err := netip.ParseAddr(s); err == nil || isDNSName(s) {
		return
	}
	l.Wrong(field, "write a name like ntp.example.org or an address", "%s is neither a DNS name nor an address", yamlschema.Quote(s))
}

// isDNSName reports whether s is a fully written host name.
func isDNSName(s string) bool {
	if len(s) > 253 {
		return false
	}
	labels := strings.Split(s, ".")
	for _, label := range labels {
		if !formats["label"].Pattern.MatchString(strings.ToLower(label)) || len(label) > 63 {
			return false
		}
	}
	// A last label of digits is a mistyped address, not a name.
	return strings.Trim(labels[len(labels)-1], "0123456789") != ""
}

// resolveEndpoint fills in and checks the URL of the Kubernetes API.
func (l *loader) resolveEndpoint() {
	n := &l.spec.Network
	planes := l.spec.ControlPlanes()
	if written := l.cluster.Network.Endpoint; written != "" {
		n.Endpoint = written
		l.checkEndpoint(written, planes)
	} else if n.VIP.IsValid() {
		n.Endpoint = endpointOf(n.VIP)
	} else if len(planes) > 0 && planes[0].IP.IsValid() {
		n.Endpoint = endpointOf(planes[0].IP)
	}
	if !l.clusterRead || l.vipUnread() || l.unread("network.endpoint") {
		return // there may be one that leads to all of them
	}
	alone := slices.ContainsFunc(planes, func(p cluster.Node) bool { return p.IP.IsValid() && n.Endpoint == endpointOf(p.IP) })
	if alone && len(planes) > 1 {
		l.Warn("network.endpoint", "write a vip, or an endpoint that leads to all control planes",
			"the Kubernetes API is reached through one control plane only: the others cannot stand in for it, and it cannot be replaced")
	}
}

// unread reports whether the value of a field is not known although it may be
// written: it, or something around it, is wrong or misspelt.
func (l *loader) unread(field string) bool {
	return l.Misspelt(field) || slices.ContainsFunc(l.Problems, func(p cluster.Problem) bool {
		return p.Severity == cluster.Error && p.Field != "" && (p.Field == field || strings.HasPrefix(field, p.Field+"."))
	})
}

// vipUnread reports whether there may be a VIP that is not known.
func (l *loader) vipUnread() bool {
	return !l.cluster.Network.VIP.Address.IsValid() && (l.unread("network.vip") || l.unread("network.vip.address"))
}

func endpointOf(a netip.Addr) string {
	return "https://" + netip.AddrPortFrom(a, kubernetesPort).String()
}

func (l *loader) checkEndpoint(written string, planes []cluster.Node) {
	const field = "network.endpoint"
	u, err := url.Parse(written)
	if err != nil {
		l.Wrong(field, "write one like "+formats["endpoint"].Write, "%s is not a URL", yamlschema.Quote(written))
		return
	}
	if port, err := strconv.Atoi(u.Port()); err != nil || port < 1 || port > 65535 {
		l.Wrong(field, "write a port, like :6443", "port %s is none", yamlschema.Quote(u.Port()))
	}
	addr, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		if !isDNSName(u.Hostname()) {
			l.Wrong(field, "write one like "+formats["endpoint"].Write, "%s is neither a DNS name nor an address", yamlschema.Quote(u.Hostname()))
		}
		return
	}
	if !l.nodesRead || l.vipUnread() || addr == l.spec.Network.VIP || slices.ContainsFunc(planes, func(p cluster.Node) bool { return p.IP == addr }) {
		return
	}
	l.Wrong(field, "write the VIP, the address of a control plane, or a DNS name",
		"%s is no address of this cluster's control plane", addr)
}
