package bounds

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/cluster/forward"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// TestNetworks: every address that machines of a cluster take lies in a network of the policy.
func TestNetworks(t *testing.T) {
	spec := cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "cp-1", IP: netip.MustParseAddr("10.10.0.11")}, {Name: "wk-1", IP: netip.MustParseAddr("10.10.0.80")}}}
	spec.Network.VIP = netip.MustParseAddr("10.10.0.10")
	for _, c := range []struct {
		networks []string
		refused  []string
	}{
		{nil, nil},
		{[]string{"10.10.0.0/24"}, nil},
		{[]string{"10.10.0.8/29", "10.10.0.64/26"}, nil},
		{[]string{"10.10.0.64/26"}, []string{"cp-1", "dev"}},
		{[]string{"10.10.0.11/32", "10.10.0.80/32"}, []string{"dev"}},
		{[]string{"10.10.0.8/29"}, []string{"wk-1"}},
	} {
		var p cluster.Policy
		for _, n := range c.networks {
			p.Networks = append(p.Networks, netip.MustParsePrefix(n))
		}
		var refused []string
		for _, b := range OfSpec(spec, p) {
			if b.Reason != cluster.PolicyViolation || b.About != "networks" {
				t.Errorf("%v: %+v", c.networks, b)
			}
			refused = append(refused, b.Subject)
		}
		if !slices.Equal(refused, c.refused) {
			t.Errorf("%v: refused %q, want %q", c.networks, refused, c.refused)
		}
	}
}

// TestNetworksOfIPv6: an address of IPv6 lies in a network of the policy as one of IPv4 does, is not the host's, and where it is
// allowed it is so in the machine config, too.
func TestNetworksOfIPv6(t *testing.T) {
	six := netip.MustParseAddr("fd00:10:10::b")
	spec := cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "cp-1", IP: netip.MustParseAddr("10.10.0.11"), IP6: six}}}
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: spec}, Configs: map[string]cluster.Config{"cp-1": {Addresses: []netip.Addr{spec.Nodes[0].IP, six}}}}
	for _, c := range []struct {
		networks []string
		taken    string
		patched  string
		want     string
	}{
		{},
		{networks: []string{"10.10.0.0/24", "fd00:10:10::/64"}},
		{networks: []string{"10.10.0.0/24"}, want: "networks: its IPv6 address fd00:10:10::b lies outside 10.10.0.0/24 (host policy, policy.yaml: networks)"},
		{networks: []string{"10.10.0.0/24", "fd00:10:11::/64"}, want: "networks: its IPv6 address fd00:10:10::b lies outside 10.10.0.0/24, fd00:10:11::/64 (host policy, policy.yaml: networks)"},
		{taken: "fd00:10:10::b", want: "taken: its IPv6 address fd00:10:10::b is that of this host or of one of its routers"},
		{taken: "fd00:10:10::1"},
		{patched: "fe80::1", want: "taken: its machine config has the address fe80::1, which is that of its router"},
		{patched: "fe80::2"},
	} {
		var p cluster.Policy
		d := d
		if c.patched != "" {
			d.Spec.Network.IPv6.Gateway = netip.MustParseAddr("fe80::1")
			d.Configs = map[string]cluster.Config{"cp-1": {Addresses: []netip.Addr{netip.MustParseAddr(c.patched)}}}
		}
		for _, n := range c.networks {
			p.Networks = append(p.Networks, netip.MustParsePrefix(n))
		}
		if c.taken != "" {
			p.Taken = []netip.Addr{netip.MustParseAddr(c.taken)}
		}
		var got []string
		for _, b := range Violations(d, p) {
			got = append(got, b.About+": "+b.Message)
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%v, taken %q: %q, want %q", c.networks, c.taken, got, c.want)
		}
	}
}

// TestTaken: no machine of a cluster has an address of the host or of a router.
func TestTaken(t *testing.T) {
	spec := cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "cp-1", IP: netip.MustParseAddr("10.10.0.11")}, {Name: "wk-1", IP: netip.MustParseAddr("10.10.0.80")}}}
	for _, c := range []struct{ vip, taken, refused string }{
		{"", "10.10.0.1", ""},
		{"10.10.0.10", "10.10.0.1", ""},
		{"", "10.10.0.80", "wk-1: its address 10.10.0.80 is that of this host or of one of its routers"},
		{"10.10.0.1", "10.10.0.1", "dev: its vip 10.10.0.1 is that of this host or of one of its routers"},
	} {
		spec.Network.VIP = netip.Addr{}
		if c.vip != "" {
			spec.Network.VIP = netip.MustParseAddr(c.vip)
		}
		var refused []string
		for _, b := range OfSpec(spec, cluster.Policy{Taken: []netip.Addr{netip.MustParseAddr(c.taken)}}) {
			if b.Reason != cluster.PolicyViolation || b.Hint == "" {
				t.Errorf("%+v", b)
			}
			refused = append(refused, b.Subject+": "+b.Message)
		}
		if got := strings.Join(refused, "; "); got != c.refused {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestAddressesOfConfigs: what a machine config gives to a node, the policy judges as what the
// inventory gives it, and names an address once.
func TestAddressesOfConfigs(t *testing.T) {
	at := netip.MustParseAddr
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Network: cluster.Network{VIP: at("10.10.0.5")}, Nodes: []cluster.Node{{Name: "cp-1", IP: at("10.10.0.11")}}}}}
	for _, c := range []struct{ has, taken, networks, refused string }{
		{has: "10.99.0.1"},
		{has: "10.99.0.1", taken: "10.99.0.2"},
		{has: "10.99.0.2", taken: "10.99.0.2", refused: "taken: its machine config has an address that it must not have: 10.99.0.2 is that of this host or of one of its routers"},
		{has: "10.99.0.1", networks: "10.10.0.0/24", refused: "networks: its machine config has the address 10.99.0.1, which lies outside 10.10.0.0/24 (host policy, policy.yaml: networks)"},
		{has: "10.10.0.12", networks: "10.10.0.0/24"},
		{has: "fe80::1", networks: "10.10.0.0/24"},
		{has: "127.0.0.9", networks: "10.10.0.0/24"},
		{has: "10.10.0.11", taken: "10.10.0.11", refused: "taken: its address 10.10.0.11 is that of this host or of one of its routers"},
		{has: "10.10.0.5", taken: "10.10.0.5", refused: "taken: its vip 10.10.0.5 is that of this host or of one of its routers"},
	} {
		d.Configs = map[string]cluster.Config{"cp-1": {Addresses: []netip.Addr{at(c.has)}}}
		var p cluster.Policy
		if c.taken != "" {
			p.Taken = []netip.Addr{at(c.taken)}
		}
		if c.networks != "" {
			p.Networks = []netip.Prefix{netip.MustParsePrefix(c.networks)}
		}
		var refused []string
		for _, b := range Violations(d, p) {
			refused = append(refused, b.About+": "+b.Message)
		}
		if got := strings.Join(refused, "; "); got != c.refused {
			t.Errorf("%+v: %s", c, got)
		}
		// What runs is not what the repository has: another push ends it.
		asked := d
		asked.Configs = nil
		running := d
		running.Asked = &asked
		if c.has != d.Spec.Nodes[0].IP.String() && c.has != d.Spec.Network.VIP.String() && len(Violations(running, p)) > 0 {
			t.Errorf("%+v: what runs is refused", c)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		src, allowed string
		want         bool
	}{
		{"https://charts.example.org", "https://charts.example.org", true},
		{"https://charts.example.org/a/b", "https://charts.example.org/a", true},
		{"https://charts.example.org/ab", "https://charts.example.org/a", false},
		{"https://charts.example.org.evil.net", "https://charts.example.org", false},
		{"http://charts.example.org", "https://charts.example.org", false},
		{"https://user@charts.example.org", "https://charts.example.org", false},
		{"https://charts.example.org/a/../b", "https://charts.example.org/a", false},
		{"https://charts.example.org/a/%2e%2e/b", "https://charts.example.org/a", false},
		{"https://charts.example.org/a%2eb", "https://charts.example.org", false},
		{"https://charts.example.org/a%2Eb", "https://charts.example.org", false},
		{"://", "://", false},
		{"https://charts.example.org", "://", false},
		{"://", "https://charts.example.org", false},
		{"oci://ghcr.io/org/chart", "oci://ghcr.io/org", true},
		{"https://CHARTS.example.org", "https://charts.example.org", true},
	} {
		if got := below(c.src, c.allowed); got != c.want {
			t.Errorf("below(%q, %q) = %v", c.src, c.allowed, got)
		}
	}
}

// TestEveryRule: each rule refuses what is outside it, names itself, and bounds nothing when
// it is not written. What is inside all of them is allowed.
func TestEveryRule(t *testing.T) {
	all := func() (cluster.Spec, cluster.Policy) {
		return cluster.Spec{Name: "dev", InstallerRegistry: "factory.talos.dev",
				Addons: []cluster.Addon{{Name: "app", Chart: cluster.Chart{Repository: "https://charts.example.org/a"}}, {Name: "own", Chart: cluster.Chart{Path: "chart"}}, {Name: "image", Chart: cluster.Chart{OCI: "oci://ghcr.io/org/chart"}}},
				Nodes: []cluster.Node{{Name: "cp-1", VMID: 401, Pool: "talos", Bridge: "vmbr1", Datastore: "local-lvm", CloudInitDatastore: "local-lvm", ImageDatastore: "local", Cores: 4, MemoryMiB: 8192, DiskBytes: 40 << 30,
					Disks: []cluster.Disk{{Name: "data", Datastore: "local-lvm", Bytes: 10 << 30}}}}},
			cluster.Policy{Pool: "talos", VMIDs: []cluster.Range{{First: 400, Last: 499}}, Datastores: []string{"local", "local-lvm"}, Bridges: []string{"vmbr1"}, Mappings: map[string][]string{device.PCIMapping: {"gpu"}, device.USBMapping: {"dongle"}},
				Factories: []string{"https://factory.talos.dev"}, Charts: []string{"https://charts.example.org", "oci://ghcr.io/org", "repository"},
				Limits: cluster.Limits{Nodes: 1, Cores: 4, MemoryMiB: 8192, DiskBytes: 50 << 30}}
	}
	node := func(change func(*cluster.Node)) func(*cluster.Spec, *cluster.Policy) {
		return func(s *cluster.Spec, _ *cluster.Policy) { change(&s.Nodes[0]) }
	}
	for name, c := range map[string]struct {
		change func(*cluster.Spec, *cluster.Policy)
		want   string
	}{
		"HA":                 {func(s *cluster.Spec, _ *cluster.Policy) { s.Availability = true }, "ha"},
		"HA that is allowed": {func(s *cluster.Spec, p *cluster.Policy) { s.Availability, p.HA = true, true }, ""},
		"no firewall":        {func(_ *cluster.Spec, p *cluster.Policy) { p.Firewall = true }, "firewall"},
		"a firewall that is off": {func(s *cluster.Spec, p *cluster.Policy) {
			p.Firewall, s.Nodes[0].Options = true, map[cluster.VMField]string{cluster.FieldFirewall: "off"}
		}, "firewall"},
		"the MAC of a further network card": {func(s *cluster.Spec, p *cluster.Policy) {
			p.MACs, s.Nodes[0].MAC = []string{"BC:24:11"}, "BC:24:11:00:00:01"
			s.Nodes[0].Devices.Cards = []device.Card{{Bridge: "vmbr1", MAC: "BC:24:11:00:00:02"}, {Bridge: "vmbr1", MAC: "52:54:00:00:00:01"}}
		}, "macs"},
		"a firewall": {func(s *cluster.Spec, p *cluster.Policy) {
			p.Firewall, s.Nodes[0].Options = true, map[cluster.VMField]string{cluster.FieldFirewall: "on"}
			s.Nodes[0].Devices.Cards = []device.Card{{Bridge: "vmbr1", Firewall: true}}
		}, ""},
		"a further network card without one": {func(s *cluster.Spec, p *cluster.Policy) {
			p.Firewall, s.Nodes[0].Options = true, map[cluster.VMField]string{cluster.FieldFirewall: "on"}
			s.Nodes[0].Devices.Cards = []device.Card{{Bridge: "vmbr1", Firewall: true}, {Bridge: "vmbr1"}}
		}, "firewall"},
		"a PCI device": {node(func(n *cluster.Node) { n.Devices.PCI = []device.PCI{{Mapping: "gpu"}, {Mapping: "other"}} }), "pci_mappings"},
		"a USB device": {node(func(n *cluster.Node) { n.Devices.USB = []device.USB{{Mapping: "gpu"}} }), "usb_mappings"},
		"devices that are allowed": {node(func(n *cluster.Node) {
			n.Devices.PCI, n.Devices.USB = []device.PCI{{Mapping: "gpu"}}, []device.USB{{Mapping: "dongle"}}
		}), ""},
		"no device is allowed": {func(s *cluster.Spec, p *cluster.Policy) {
			p.Mappings, s.Nodes[0].Devices.PCI = nil, []device.PCI{{Mapping: "gpu"}}
		}, "pci_mappings"},
		"inside":                           {func(*cluster.Spec, *cluster.Policy) {}, ""},
		"pool":                             {node(func(n *cluster.Node) { n.Pool = "other" }), "pool"},
		"any pool":                         {func(_ *cluster.Spec, p *cluster.Policy) { p.Pool = "" }, ""},
		"vmid":                             {node(func(n *cluster.Node) { n.VMID = 500 }), "vmids"},
		"any vmid":                         {func(s *cluster.Spec, p *cluster.Policy) { p.VMIDs, s.Nodes[0].VMID = nil, 900 }, ""},
		"datastore":                        {node(func(n *cluster.Node) { n.Datastore = "nfs" }), "datastores"},
		"cloud-init datastore":             {node(func(n *cluster.Node) { n.CloudInitDatastore = "nfs" }), "datastores"},
		"image datastore":                  {node(func(n *cluster.Node) { n.ImageDatastore = "nfs" }), "datastores"},
		"datastore of a disk":              {node(func(n *cluster.Node) { n.Disks[0].Datastore = "nfs" }), "datastores"},
		"no cloud-init drive":              {node(func(n *cluster.Node) { n.CloudInitDatastore = "" }), ""},
		"any datastore":                    {func(s *cluster.Spec, p *cluster.Policy) { p.Datastores, s.Nodes[0].Datastore = nil, "nfs" }, ""},
		"bridge of a further network card": {node(func(n *cluster.Node) { n.Devices.Cards = []device.Card{{Bridge: "vmbr0"}} }), "bridges"},
		"bridge":                           {node(func(n *cluster.Node) { n.Bridge = "vmbr0" }), "bridges"},
		"any bridge":                       {func(s *cluster.Spec, p *cluster.Policy) { p.Bridges, s.Nodes[0].Bridge = nil, "vmbr0" }, ""},
		"factory":                          {func(s *cluster.Spec, _ *cluster.Policy) { s.InstallerRegistry = "factory.evil.example" }, "sources.factory"},
		"factory not known":                {func(s *cluster.Spec, _ *cluster.Policy) { s.InstallerRegistry = "" }, ""},
		"any factory": {func(s *cluster.Spec, p *cluster.Policy) {
			p.Factories, s.InstallerRegistry = nil, "factory.evil.example"
		}, ""},
		"chart":                   {func(s *cluster.Spec, _ *cluster.Policy) { s.Addons[0].Chart.Repository = "https://evil.example" }, "sources.charts"},
		"chart of a registry":     {func(s *cluster.Spec, _ *cluster.Policy) { s.Addons[2].Chart.OCI = "oci://ghcr.io/evil/chart" }, "sources.charts"},
		"chart in the repository": {func(_ *cluster.Spec, p *cluster.Policy) { p.Charts = p.Charts[:2] }, "sources.charts"},
		"any chart": {func(s *cluster.Spec, p *cluster.Policy) {
			p.Charts, s.Addons[0].Chart.Repository = nil, "https://evil.example"
		}, ""},
		"a node more": {func(_ *cluster.Spec, p *cluster.Policy) { p.Limits.Nodes = 0; p.Limits.Cores = 3 }, "limits.cores"},
		"memory":      {func(_ *cluster.Spec, p *cluster.Policy) { p.Limits.MemoryMiB-- }, "limits.ram"},
		"disks":       {func(_ *cluster.Spec, p *cluster.Policy) { p.Limits.DiskBytes-- }, "limits.disk"},
		"nodes": {func(s *cluster.Spec, p *cluster.Policy) {
			s.Nodes, p.Limits = append(s.Nodes, s.Nodes[0]), cluster.Limits{Nodes: 1}
		}, "limits.nodes"},
		"no limits":                 {func(_ *cluster.Spec, p *cluster.Policy) { p.Limits = cluster.Limits{} }, ""},
		"a factory below a path":    {func(_ *cluster.Spec, p *cluster.Policy) { p.Factories = []string{"https://factory.talos.dev/sub"} }, ""},
		"a factory that is no URL":  {func(_ *cluster.Spec, p *cluster.Policy) { p.Factories = []string{"://"} }, "sources.factory"},
		"a chart rule that is none": {func(_ *cluster.Spec, p *cluster.Policy) { p.Charts = []string{"://", "oci://ghcr.io", "repository"} }, "sources.charts"},
		"a chart that is no URL":    {func(s *cluster.Spec, _ *cluster.Policy) { s.Addons[0].Chart.Repository = "://" }, "sources.charts"},
	} {
		s, p := all()
		c.change(&s, &p)
		var got []string
		for _, b := range OfSpec(s, p) {
			got = append(got, b.About)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: refused for %q, want %q", name, got, c.want)
		}
	}
}

// TestNoVIP: a cluster without a VIP has no address of one.
func TestNoVIP(t *testing.T) {
	spec := cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "cp-1", IP: netip.MustParseAddr("10.10.0.11")}}}
	if refused := OfSpec(spec, cluster.Policy{Networks: []netip.Prefix{netip.MustParsePrefix("10.10.0.0/24")}}); len(refused) != 0 {
		t.Errorf("refused for %+v", refused)
	}
}

// TestUnknownPolicy: what the host allows is known or it is not.
func TestUnknownPolicy(t *testing.T) {
	if b := BlockUnknown("dev", cluster.Policy{}); len(b) != 0 {
		t.Errorf("blocked for %+v", b)
	}
	b := BlockUnknown("dev", cluster.Policy{Problems: cluster.Problems{{Severity: cluster.Error, File: "policy.yaml", Message: "unreadable", Hint: "make it readable"}}})
	if len(b) != 1 || b[0].Reason != cluster.PolicyUnknown || b[0].Hint != "make it readable; the agent goes on by itself when root of the host has fixed it" {
		t.Errorf("%+v", b)
	}
}

// TestManyViolations: thousands of nodes outside what the host allows are some blocks, and how
// many more there are.
func TestManyViolations(t *testing.T) {
	spec := cluster.Spec{Name: "dev"}
	for i := range 5000 {
		spec.Nodes = append(spec.Nodes, cluster.Node{Name: fmt.Sprint("wk-", i), VMID: 1000 + i, Bridge: "vmbr9"})
	}
	blocks := OfSpec(spec, cluster.Policy{Bridges: []string{"vmbr1"}, VMIDs: []cluster.Range{{First: 400, Last: 499}}})
	last := blocks[len(blocks)-1]
	if len(blocks) != maxViolations+1 || last.Subject != "dev" || last.Reason != cluster.PolicyViolation || last.Hint == "" || last.Message != "9950 more violations of the host's policy are not shown" {
		t.Errorf("%d blocks, the last being %+v", len(blocks), last)
	}
}

// TestViolationsOnce: what a node asks for several times is refused once.
func TestViolationsOnce(t *testing.T) {
	n := cluster.Node{Name: "wk-1", Datastore: "other", CloudInitDatastore: "other", Disks: []cluster.Disk{{Name: "data", Datastore: "other"}}}
	got := OfSpec(cluster.Spec{Name: "dev", Nodes: []cluster.Node{n}}, cluster.Policy{Datastores: []string{"local-lvm"}})
	if len(got) != 1 || got[0].About != "datastores" {
		t.Errorf("%+v", got)
	}
}

// TestOfDeletion: the VM of a node that goes is kept where its VMID, or the storage of one of its
// disks, is none that the host allows.
func TestOfDeletion(t *testing.T) {
	p := cluster.Policy{File: "policy.yaml", VMIDs: []cluster.Range{{First: 400, Last: 499}}, Datastores: []string{"local-lvm", "tank"}, Lines: map[string]int{"vmids": 2, "datastores": 3}}
	vm := func(vmid int, system, data string) cluster.VM {
		return cluster.VM{VMID: vmid, Node: "wk-1", Host: "pve1", Hardware: cluster.Saw(cluster.Hardware{System: cluster.DiskSeen{Datastore: system}, Data: map[string]cluster.DiskSeen{"data": {Datastore: data}}})}
	}
	for _, c := range []struct {
		vm          cluster.VM
		p           cluster.Policy
		about, want string
	}{
		{vm(450, "local-lvm", "tank"), p, "", ""},
		{vm(450, "", ""), p, "", ""}, // it has no system disk any more
		{vm(550, "old", "old"), cluster.Policy{}, "", ""},
		{vm(550, "local-lvm", "tank"), p, "vmids", "vm 550 is kept: its vmid lies outside 400-499 (host policy, policy.yaml:2: vmids)"},
		{vm(450, "old", "tank"), p, "datastores", `vm 450 is kept: a disk of it is on storage "old", and the host allows local-lvm, tank (host policy, policy.yaml:3: datastores)`},
		{vm(450, "local-lvm", "old"), p, "datastores", `vm 450 is kept: a disk of it is on storage "old", and the host allows local-lvm, tank (host policy, policy.yaml:3: datastores)`},
	} {
		b := OfDeletion("wk-1", c.vm, c.p, nil)
		if b.About != c.about || b.Message != c.want {
			t.Errorf("%+v:\nis   %q %q\nwant %q %q", c.vm, b.About, b.Message, c.about, c.want)
		}
		if c.want != "" && (b.Subject != "wk-1" || b.Reason != cluster.PolicyViolation || !strings.Contains(b.Hint, fmt.Sprintf("qm destroy %d --purge` on pve1", c.vm.VMID))) {
			t.Errorf("%+v: %+v", c.vm, b)
		}
	}
}

// TestCPUUnits: no VM weighs more than the policy allows, and without a word there none more than other guests.
func TestCPUUnits(t *testing.T) {
	for _, c := range []struct {
		wants   string
		allows  int
		refused string
	}{
		{"", 0, ""}, {"100", 0, ""}, {"1", 0, ""}, {"200", 200, ""}, {"", 50, ""},
		{"101", 0, "it wants cpu_units 101, and the host allows 100 (host policy, policy.yaml: cpu_units)"},
		{"201", 200, "it wants cpu_units 201, and the host allows 200 (host policy, policy.yaml: cpu_units)"},
		{"99999999999999999999", 50, "it wants cpu_units 9223372036854775807, and the host allows 50 (host policy, policy.yaml: cpu_units)"},
		{"100", 50, "it wants cpu_units 100, and the host allows 50 (host policy, policy.yaml: cpu_units)"},
	} {
		n := cluster.Node{Name: "cp-1"}
		if c.wants != "" {
			n.Options = map[cluster.VMField]string{cluster.FieldCPUUnits: c.wants}
		}
		got := ""
		for _, b := range OfSpec(cluster.Spec{Name: "dev", Nodes: []cluster.Node{n}}, cluster.Policy{CPUUnits: c.allows}) {
			got += b.Message
			if b.Subject != "cp-1" || b.About != "cpu_units" || b.Hint == "" {
				t.Errorf("%+v", b)
			}
		}
		if got != c.refused {
			t.Errorf("%s of %d: %s", c.wants, c.allows, got)
		}
	}
}

// TestFurtherCards: each network card is on a bridge that the host allows, at an address that it allows; one that is also in
// the machine config, as an address of the inventory is, is named once.
func TestFurtherCards(t *testing.T) {
	at := netip.MustParsePrefix
	for _, c := range []struct {
		cards   []device.Card
		policy  cluster.Policy
		refused string
	}{
		{[]device.Card{{Bridge: "vmbr1"}, {Bridge: "vmbr2", Address: at("10.20.0.9/24")}}, cluster.Policy{}, ""},
		{[]device.Card{{Bridge: "vmbr1"}, {Bridge: "vmbr2"}}, cluster.Policy{Bridges: []string{"vmbr1"}}, `it wants bridge "vmbr2", and the host allows vmbr1 (host policy, policy.yaml: bridges)`},
		{[]device.Card{{Bridge: "vmbr2"}}, cluster.Policy{Bridges: []string{"vmbr1", "vmbr2"}}, ""},
		{[]device.Card{{Address: at("10.20.0.9/24")}}, cluster.Policy{Networks: []netip.Prefix{at("10.10.0.0/24")}}, "the address 10.20.0.9 of a further network card lies outside 10.10.0.0/24 (host policy, policy.yaml: networks)"},
		{[]device.Card{{Address: at("10.20.0.9/24")}, {}}, cluster.Policy{Networks: []netip.Prefix{at("10.10.0.0/24"), at("10.20.0.0/28")}}, ""},
		{[]device.Card{{}, {Address: at("10.20.0.9/24")}}, cluster.Policy{Taken: []netip.Addr{netip.MustParseAddr("10.20.0.9")}}, "the address of a further network card 10.20.0.9 is that of this host or of one of its routers"},
		{[]device.Card{{Address: at("10.20.0.9/24")}}, cluster.Policy{Taken: []netip.Addr{netip.MustParseAddr("10.20.0.1")}}, ""},
	} {
		n := cluster.Node{Name: "wk-1", IP: netip.MustParseAddr("10.10.0.11"), Bridge: "vmbr1", Devices: device.Set{Cards: c.cards}}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Name: "dev", Nodes: []cluster.Node{n}}}, Configs: map[string]cluster.Config{"wk-1": {}}}
		for _, card := range c.cards {
			if card.Address.IsValid() {
				d.Configs["wk-1"] = cluster.Config{Addresses: []netip.Addr{n.IP, card.Address.Addr()}}
			}
		}
		var refused []string
		for _, b := range Violations(d, c.policy) {
			refused = append(refused, b.Message)
		}
		if got := strings.Join(refused, "; "); got != c.refused {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestPortForwards: a port of the host leads to nodes where the policy has it. Where there
// is no policy, as in a check of the repository by itself, any does.
func TestPortForwards(t *testing.T) {
	for _, c := range []struct {
		wants, allows []int
		refused       string
	}{
		{nil, nil, ""}, {nil, []int{}, ""}, {nil, []int{443}, ""}, {[]int{443}, []int{80, 443}, ""}, {[]int{443}, nil, ""},
		{[]int{443}, []int{}, "it wants port 443 of the host, and the host allows none (host policy, policy.yaml: port_forwards)"},
		{[]int{443, 80, 81}, []int{80, 82}, "it wants port 443 of the host, and the host allows 80 82 (host policy, policy.yaml: port_forwards)" +
			"it wants port 81 of the host, and the host allows 80 82 (host policy, policy.yaml: port_forwards)"},
	} {
		spec := cluster.Spec{Name: "dev"}
		for _, port := range c.wants {
			spec.Forwards = append(spec.Forwards, forward.Forward{Port: port, Protocol: forward.TCP, To: port})
		}
		got := ""
		for _, b := range OfSpec(spec, cluster.Policy{Forwards: c.allows}) {
			got += b.Message
			if b.Subject != "dev" || b.About != "port_forwards" || b.Hint == "" {
				t.Errorf("%+v", b)
			}
		}
		if got != c.refused {
			t.Errorf("%v of %v: %s", c.wants, c.allows, got)
		}
	}
}

// TestMACs: nodes have the MAC addresses that the policy allows, and without a word there any.
func TestMACs(t *testing.T) {
	for _, c := range []struct {
		mac     string
		allows  []string
		refused string
	}{
		{"", nil, ""}, {"", []string{"BC:24:11"}, ""}, {"52:54:00:00:00:01", nil, ""}, {"BC:24:11:00:00:01", []string{"BC:24:11"}, ""}, {"bc:24:11:00:00:01", []string{"BC:24:11"}, ""},
		{"52:54:00:00:00:01", []string{"BC:24:11", "52:54:00:00:00:01"}, ""},
		{"52:54:00:00:00:02", []string{"BC:24:11", "52:54:00:00:00:01"}, "its MAC address 52:54:00:00:00:02 does not begin with BC:24:11 or 52:54:00:00:00:01 (host policy, policy.yaml: macs)"},
		{"00:BC:24:11:00:00", []string{"BC:24:11"}, "its MAC address 00:BC:24:11:00:00 does not begin with BC:24:11 (host policy, policy.yaml: macs)"},
	} {
		got := ""
		for _, b := range OfSpec(cluster.Spec{Name: "dev", Nodes: []cluster.Node{{Name: "cp-1", MAC: c.mac}}}, cluster.Policy{MACs: c.allows}) {
			got += b.Message
			if b.Subject != "cp-1" || b.About != "macs" || b.Hint == "" {
				t.Errorf("%+v", b)
			}
		}
		if got != c.refused {
			t.Errorf("%q of %q: %s", c.mac, c.allows, got)
		}
	}
}

// TestOfReservation: without a word in the policy only what Proxmox VE gives its guests is reserved.
func TestOfReservation(t *testing.T) {
	for _, c := range []struct {
		mac     string
		allows  []string
		refused bool
	}{
		{"", nil, false}, {"BC:24:11:00:00:01", nil, false}, {"bc:24:11:00:00:01", nil, false}, {"BC:24:12:00:00:01", nil, true}, {"52:54:00:00:00:01", nil, true},
		{"52:54:00:00:00:01", []string{"52:54:00"}, false},
		{"52:54:00:00:00:01", []string{"52:54:01"}, false}, // nothing of such a cluster is done
	} {
		err := OfReservation("cp-1", c.mac, cluster.Policy{MACs: c.allows})
		if (err != nil) != c.refused {
			t.Errorf("%q of %q: %v", c.mac, c.allows, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "reservation of cp-1 is not written: its MAC address "+c.mac+" may be another machine's") || !strings.Contains(fault.HintOf(err), fmt.Sprintf("macs: [%q, %q]", "BC:24:11", c.mac))) {
			t.Errorf("%v (%s)", err, fault.HintOf(err))
		}
	}
}

// TestVIPOfALoadBalancer: an address that no machine of the cluster takes is not bounded, and one that kube-vip takes is.
func TestVIPOfALoadBalancer(t *testing.T) {
	vip := netip.MustParseAddr("192.0.2.7")
	for by, want := range map[cluster.VIPHolder]int{"": 2, cluster.VIPByKubeVIP: 2, cluster.VIPByExternal: 0} {
		s := cluster.Spec{Name: "dev", Network: cluster.Network{VIP: vip, VIPBy: by}}
		got := OfSpec(s, cluster.Policy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Taken: []netip.Addr{vip}})
		if len(got) != want {
			t.Errorf("%q: %v", by, got)
		}
		// A machine config that has the address all the same takes it.
		s.Nodes = []cluster.Node{{Name: "cp-1", IP: netip.MustParseAddr("10.0.0.1")}}
		d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: s}, Configs: map[string]cluster.Config{"cp-1": {Addresses: []netip.Addr{vip}}}}
		if got := Violations(d, cluster.Policy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}); len(got) != 1 {
			t.Errorf("%q, in a config: %v", by, got)
		}
	}
}

// TestLeasedAddress: a node whose address is not in the inventory is not refused for that: none is taken for it that the
// host does not allow.
func TestLeasedAddress(t *testing.T) {
	p := cluster.Policy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
	for _, c := range []struct {
		node    cluster.Node
		refused bool
	}{
		{cluster.Node{Name: "wk-1", Leased: true}, false},
		{cluster.Node{Name: "wk-1"}, true},
		{cluster.Node{Name: "wk-1", IP: netip.MustParseAddr("10.0.1.1")}, true},
		{cluster.Node{Name: "wk-1", IP: netip.MustParseAddr("10.0.0.1")}, false},
	} {
		if got := OfSpec(cluster.Spec{Nodes: []cluster.Node{c.node}}, p); (len(got) > 0) != c.refused {
			t.Errorf("%+v: %v", c.node, got)
		}
	}
}

// TestMostCPUUnits: without a word in the policy no VM weighs more than a guest does by itself.
func TestMostCPUUnits(t *testing.T) {
	if a, b := mostCPUUnits(cluster.Policy{}), mostCPUUnits(cluster.Policy{CPUUnits: 7}); a != 100 || b != 7 {
		t.Errorf("%d, %d", a, b)
	}
}
