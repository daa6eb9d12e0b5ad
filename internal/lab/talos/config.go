package talos

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"

	"github.com/talos-agent/talos-agent/internal/lab/talos/access"
	"github.com/talos-agent/talos-agent/internal/lab/talos/ingress"
	"github.com/talos-agent/talos-agent/internal/lab/talos/manifests"
	"github.com/talos-agent/talos-agent/internal/lab/talos/network"
	"github.com/talos-agent/talos-agent/internal/lab/talos/rules"
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
	etcdImage  string   // that the config names; "" : that of Talos
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
		s.etcdImage = cfg.RawV1Alpha1().ClusterConfig.EtcdConfig.ContainerImage
	}
	s.readKubernetes(m)
	return s, nil
}

// readNetwork finds what the config sets for the machine's one link.
func (s *settings) readNetwork(m *machine) error {
	n, err := network.Read(s.provider, linkName, m.guest.MAC)
	if err != nil {
		return fmt.Errorf("read machine config of %s: %w", m.name(), err)
	}
	s.address, s.others, s.alias, s.vip = n.Address, n.Others, n.Alias, n.VIP
	address := s.address
	if !address.IsValid() {
		address = m.platformAddress()
	}
	s.shut = ingress.DropsAPI(s.provider.NetworkRules(), address)
	return nil
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
	manifests.ReadNode(&s.kubelet, cfg, m.guest, m.image(), s.others)
	if s.control {
		s.readPlane(node, address.Addr())
		s.plane.PodCIDR, s.plane.ServiceCIDR, s.plane.Talos = strings.Join(pods, ","), strings.Join(services, ","), s.kubelet.Talos
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
