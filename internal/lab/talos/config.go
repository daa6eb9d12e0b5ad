package talos

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"

	networkpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/network"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config"
	cfgconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/proto"

	"github.com/talos-agent/talos-agent/internal/lab/talos/access"
	"github.com/talos-agent/talos-agent/internal/lab/talos/ingress"
	"github.com/talos-agent/talos-agent/internal/lab/talos/manifests"
	"github.com/talos-agent/talos-agent/internal/lab/talos/rules"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// settings is what a machine config means for the machine that has it.
type settings struct {
	provider config.Provider
	control  bool
	hostname string         // "" : the platform's
	address  netip.Prefix   // zero: the platform's
	others   []netip.Prefix // further ones of the same link, which the API does not listen on
	shut     bool           // its firewall drops new connections to the Talos API
	alias    string         // of the machine's one link
	vip      netip.Addr
	endpoint netip.Addr // of the Kubernetes API; zero: a name
	// discovers: a discovery service has the addresses of the other machines.
	discovers bool
	// homeless: the node's address lies inside the pod or the service network,
	// and Talos never takes such an address for the node's own.
	homeless bool

	machineCA  string   // fingerprint of the CA of the Talos API
	acceptedCA [][]byte // PEM, of clients
	sans       []string // of the Talos API
	etcdCA     string   // fingerprint; "" : none
	kubeCA     string   // fingerprint

	kubelet world.Kubelet
	plane   world.ControlPlane
	// files stands for the configs that the pod of the kube-apiserver is made of besides its
	// own, as Talos joins their versions in an annotation of it: the scheduler's is one (recorded).
	files string
	crash string // why its kube-apiserver ends as soon as it has started
	// services are the extension services that have been given their config.
	services map[string]bool
}

// readSettings works out what a config means for this machine.
func (m *machine) readSettings(cfg config.Provider) (*settings, error) {
	if cfg.Machine() == nil || cfg.Cluster() == nil {
		return nil, fmt.Errorf("read machine config of %s: no machine or cluster section", m.name())
	}
	s := &settings{provider: cfg, control: cfg.Machine().Type().IsControlPlane(), services: map[string]bool{}}
	if h := cfg.NetworkHostnameConfig(); h != nil {
		s.hostname = h.Hostname()
	}
	if c := cfg.K8sClusterConfig(); c != nil && c.ClusterEndpoint() != nil {
		// A name is resolved somewhere else: the zero address.
		s.endpoint, _ = netip.ParseAddr(c.ClusterEndpoint().Hostname())
	}
	s.discovers = len(cfg.DiscoveryServiceConfigs()) > 0
	for _, e := range cfg.ExtensionServiceConfigs() {
		s.services[e.Name()] = true
	}
	if err := s.readNetwork(m); err != nil {
		return nil, err
	}
	security := cfg.Machine().Security()
	if ca := security.IssuingCA(); ca != nil {
		s.machineCA = access.HashCertificate(ca.Crt)
		s.acceptedCA = append(s.acceptedCA, ca.Crt)
	}
	for _, ca := range security.AcceptedCAs() {
		if s.machineCA == "" {
			s.machineCA = access.HashCertificate(ca.Crt)
		}
		s.acceptedCA = append(s.acceptedCA, ca.Crt)
	}
	s.sans = security.CertSANs()
	if etcd := cfg.Cluster().Etcd(); s.control && etcd != nil && etcd.CA() != nil {
		s.etcdCA = access.HashCertificate(etcd.CA().Crt)
	}
	s.readKubernetes(m)
	return s, nil
}

// readNetwork finds what the config sets for the machine's one link: its
// address, its alias and the virtual address it may carry.
func (s *settings) readNetwork(m *machine) error {
	cfg := s.provider
	link := system.NewLink(linkName, m.guest.MAC)
	var spec networkpb.LinkStatusSpec
	if err := proto.ResourceSpecToProto(link, &spec); err != nil {
		return fmt.Errorf("describe link of %s: %w", m.name(), err)
	}
	for _, a := range cfg.NetworkLinkAliasConfigs() {
		selector := a.LinkSelector()
		matches, err := selector.EvalBool(celenv.LinkLocator(), map[string]any{"link": &spec})
		if err != nil {
			return fmt.Errorf("evaluate link selector of %s: %w", a.Name(), err)
		}
		if matches && s.alias == "" {
			s.alias = strings.Replace(a.Name(), "%d", "0", 1)
		}
	}
	ours := func(name string) bool { return name == linkName || s.alias != "" && name == s.alias }

	for _, l := range cfg.NetworkCommonLinkConfigs() {
		on := ours(l.Name())
		if v, ok := l.(cfgconfig.NetworkVLANConfig); ok {
			on = ours(v.ParentLink())
		}
		for _, a := range l.Addresses() {
			s.acceptAddress(on, a.Address())
		}
	}
	for _, v := range cfg.NetworkVirtualIPConfigs() {
		if ours(v.Link()) {
			s.vip = v.VIP()
		}
	}
	if err := s.readLegacyNetwork(m, ours); err != nil {
		return err
	}
	address := s.address
	if !address.IsValid() {
		address = m.platformAddress()
	}
	s.shut = ingress.DropsAPI(cfg.NetworkRules(), address)
	return nil
}

// readLegacyNetwork finds the same in what versions up to v1.11 are given.
func (s *settings) readLegacyNetwork(m *machine, ours func(link string) bool) error {
	if s.provider.Machine().Network() == nil {
		return nil
	}
	for _, d := range s.provider.Machine().Network().Devices() {
		on := ours(d.Interface())
		if sel := d.Selector(); sel != nil {
			on = sameMAC(sel.HardwareAddress(), m.guest.MAC) || sameMAC(sel.PermanentAddress(), m.guest.MAC)
		}
		for _, a := range d.Addresses() {
			p, err := netip.ParsePrefix(a)
			if err != nil {
				return fmt.Errorf("read address of %s: %w", d.Interface(), err)
			}
			s.acceptAddress(on && !d.Ignore(), p)
		}
		if v := d.VIPConfig(); v != nil && on {
			if ip, err := netip.ParseAddr(v.IP()); err == nil {
				s.vip = ip
			}
		}
	}
	return nil
}

// acceptAddress accepts an address of the machine's link. The first is the node's.
func (s *settings) acceptAddress(ours bool, p netip.Prefix) {
	switch {
	case !ours || p == s.address:
	case !s.address.IsValid():
		s.address = p
	default:
		s.others = append(s.others, p)
	}
}

// sameMAC compares hardware addresses in any spelling; an empty one equals
// nothing.
func sameMAC(a, b string) bool {
	x, errX := net.ParseMAC(a)
	y, errY := net.ParseMAC(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func (s *settings) readKubernetes(m *machine) {
	cfg := s.provider
	address := s.address
	if !address.IsValid() {
		address = m.platformAddress()
	}
	node := s.hostname
	if node == "" {
		node = m.name()
	}
	if ca := cfg.K8sAPIServerCAConfig(); ca != nil {
		if accepted := ca.AcceptedCAs(); len(accepted) > 0 {
			s.kubeCA = access.HashCertificate(accepted[0].Crt)
		}
		if issuing := ca.IssuingCA(); issuing != nil {
			s.plane.CACert, s.plane.CAKey = issuing.Crt, issuing.Key
		}
	}
	var pods, services []string
	if n := cfg.K8sNetworkConfig(); n != nil {
		for _, p := range n.PodCIDRs() {
			pods = append(pods, p.String())
			s.homeless = s.homeless || p.Contains(address.Addr())
		}
		for _, p := range n.ServiceCIDRs() {
			services = append(services, p.String())
			s.homeless = s.homeless || p.Contains(address.Addr())
		}
	}
	s.kubelet = world.Kubelet{
		Node: node, Address: address.Addr(), Talos: m.image().Version, Control: s.control,
		VMID: m.guest.VMID, UUID: m.guest.UUID, Cores: m.guest.Cores, MemoryMiB: m.guest.MemoryMiB,
	}
	manifests.ReadNode(&s.kubelet, cfg)
	if s.control {
		s.readPlane(node, address.Addr())
		s.plane.PodCIDR, s.plane.ServiceCIDR = strings.Join(pods, ","), strings.Join(services, ",")
	}
}

// readPlane finds what the node's kube-apiserver is given.
func (s *settings) readPlane(node string, address netip.Addr) {
	cfg, p := s.provider, &s.plane
	p.Node, p.Address, p.VIP = node, address, s.vip
	manifests.ReadPlane(p, cfg)
	if scheduler := cfg.K8sSchedulerConfig(); scheduler != nil {
		s.files = fmt.Sprint(scheduler.Image(), scheduler.Enabled(), scheduler.ExtraArgs(), scheduler.Config())
	}
	if api := cfg.K8sAPIServerConfig(); api != nil {
		s.files += fmt.Sprint(api.ExtraArgs())
		s.crash = rules.CheckAPIServer(api.ExtraArgs())
	}
}
