package machineconfig

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/golden"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var contracts = []string{"v1.8", "v1.9", "v1.10", "v1.11", "v1.12", "v1.13", "v1.14"}

// TestGolden holds the configs of a control plane and a worker at every
// contract whose shape differs, for each network and address mode, against what
// was read and found right.
func TestGolden(t *testing.T) {
	for _, contract := range []string{"v1.8", "v1.10", "v1.12", "v1.13", "v1.14"} {
		for _, cni := range []cluster.CNI{cluster.CNIFlannel, cluster.CNICilium} {
			for _, mode := range []cluster.AddressMode{cluster.AddressStatic, cluster.AddressReserved} {
				name := strings.Join([]string{contract, string(cni), string(mode)}, "-")
				t.Run(name, func(t *testing.T) {
					s := snapshot(t, contract)
					s.Spec.CNI = cni
					if mode == cluster.AddressReserved {
						reservedAddresses(&s)
					}
					configs := mustRender(t, s)
					for _, n := range s.Spec.Nodes {
						golden.Check(t, filepath.Join("testdata", "golden/"+name+"-"+string(n.Role)+".yaml"), []byte(shorten(configs[n.Name].Bytes.RevealString())))
					}
				})
			}
		}
	}
}

// TestFurtherLinks: the addresses of further network cards are in the config by the card's MAC, and nothing else is. A card
// without an address is left alone. The node's own address stays the only one of the kubelet and of etcd.
func TestFurtherLinks(t *testing.T) {
	for _, contract := range []string{"v1.8", "v1.11", "v1.12", "v1.14"} {
		for _, mode := range []cluster.AddressMode{cluster.AddressStatic, cluster.AddressReserved} {
			s := snapshot(t, contract)
			if mode == cluster.AddressReserved {
				reservedAddresses(&s)
			}
			plain := mustRender(t, s)
			s.Spec.Nodes[0].Devices.Cards = []device.Card{
				{Model: "virtio", MAC: "BC:24:11:00:01:11", Bridge: "vmbr2", VLAN: 30, Address: netip.MustParsePrefix("10.20.0.11/24")},
				{Model: "virtio", MAC: "BC:24:11:00:02:11", Bridge: "vmbr3"},
				{Model: "virtio", MAC: "BC:24:11:00:03:11", Bridge: "vmbr4", Address: netip.MustParsePrefix("10.30.0.11/30")},
			}
			s.Spec.Nodes[1].Devices.Cards = []device.Card{{Model: "virtio", MAC: "BC:24:11:00:01:21", Bridge: "vmbr3"}}
			configs := mustRender(t, s)
			if configs["dev-wk-1"].Digest != plain["dev-wk-1"].Digest {
				t.Errorf("%s %s: a card without an address changes a config", contract, mode)
			}
			added := listAdded(plain["dev-cp-1"].Bytes.RevealString(), configs["dev-cp-1"].Bytes.RevealString())
			golden.Check(t, filepath.Join("testdata", "golden", "further-links-"+contract+"-"+string(mode)+".txt"), []byte(strings.Join(added, "\n")+"\n"))
			want := []netip.Addr{netip.MustParseAddr("10.20.0.11"), netip.MustParseAddr("10.30.0.11")}
			for _, a := range want {
				if !slices.Contains(configs["dev-cp-1"].Addresses, a) {
					t.Errorf("%s %s: addresses %v", contract, mode, configs["dev-cp-1"].Addresses)
				}
			}
		}
	}
}

// TestPatchOfFurtherLink: a patch may add to a link, and does not take the inventory's address from it.
func TestPatchOfFurtherLink(t *testing.T) {
	for _, c := range []struct{ patch, want string }{
		{"apiVersion: v1alpha1\nkind: LinkConfig\nname: lan1\nmtu: 1400\nroutes: [{destination: 10.40.0.0/24, gateway: 10.20.0.1}]", ""},
		{"apiVersion: v1alpha1\nkind: LinkConfig\nname: lan1\n$patch: delete", "the patch changes an address of its further network cards"},
	} {
		s := snapshot(t, "v1.13")
		s.Spec.Nodes[1].Devices.Cards = []device.Card{{MAC: "BC:24:11:00:01:21", Address: netip.MustParsePrefix("10.20.0.21/24")}}
		s.Spec.Nodes[1].Patches = []cluster.Patch{{File: "patches/x.yaml", Document: cluster.SecretString(c.patch)}}
		var r Renderer
		_, ps := r.Render(s, testSchematic)
		if c.want == "" && len(ps) > 0 || !strings.Contains(fmt.Sprint(ps), c.want) {
			t.Errorf("%s: %v", c.patch, ps)
		}
	}
}

// listAdded are the lines of a config that another has not, in their order.
func listAdded(other, config string) []string {
	known := map[string]int{}
	for line := range strings.Lines(other) {
		known[line]++
	}
	var out []string
	for line := range strings.Lines(config) {
		if known[line]--; known[line] < 0 {
			out = append(out, strings.TrimSuffix(line, "\n"))
		}
	}
	return out
}

// TestGoldenOfDiscovered holds the config of a worker that has no address in the inventory against what was read and
// found right; it is the same wherever that is found, and the others have theirs as in the mode that follows from the gateway.
func TestGoldenOfDiscovered(t *testing.T) {
	for _, contract := range []string{"v1.8", "v1.13", "v1.14"} {
		t.Run(contract, func(t *testing.T) {
			s := snapshot(t, contract)
			static := mustRender(t, s)
			s.Spec.Network.Mode = cluster.AddressDiscovered
			worker := &s.Spec.Nodes[1]
			worker.Leased, worker.IP = true, netip.Addr{}
			configs := mustRender(t, s)
			golden.Check(t, filepath.Join("testdata", "golden/"+contract+"-discovered-worker.yaml"), []byte(shorten(configs[worker.Name].Bytes.RevealString())))
			if plane := s.Spec.Nodes[0].Name; configs[plane].Digest != static[plane].Digest {
				t.Error("the control plane's is another one")
			}
			worker.IP = netip.MustParseAddr("10.10.0.121")
			if again := mustRender(t, s); again[worker.Name].Digest != configs[worker.Name].Digest {
				t.Error("with an address it is another one")
			}
			s.Spec.Network.Gateway = netip.Addr{}
			if got := mustRender(t, s)[s.Spec.Nodes[0].Name].Bytes.RevealString(); strings.Contains(got, "10.10.0.11/24") || !strings.Contains(got, "10.10.0.11/32") {
				t.Error("without a gateway the control plane has no reservation")
			}
		})
	}
}

// A node refuses a config with a document it does not know, though the library
// accepts it.
func TestNoDocumentBeforeItsVersion(t *testing.T) {
	for i, contract := range contracts {
		for _, cni := range []cluster.CNI{cluster.CNIFlannel, cluster.CNICilium, cluster.CNINone} {
			s := snapshot(t, contract)
			s.Spec.CNI = cni
			for name, c := range mustRender(t, s) {
				p, err := configloader.NewFromBytes(c.Bytes.Reveal())
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range p.Documents() {
					if since := kindSince[d.Kind()]; since > oldestMinor+i {
						t.Errorf("%s at contract %s has a %s, which is known from v1.%d on", name, contract, d.Kind(), since)
					}
				}
			}
		}
	}
}

// An old contract goes with every newer Talos: that is what contracts are for.
func TestOldContractOnNewTalos(t *testing.T) {
	for i, contract := range contracts {
		for _, talos := range contracts[i:] {
			s := snapshot(t, contract)
			s.Spec.Versions.Talos, s.Spec.Versions.Kubernetes = talosFor[talos], kubernetesFor[talos]
			mustRender(t, s)
		}
	}
}

func TestAddressesInTheLoopbackNetwork(t *testing.T) {
	for _, contract := range contracts {
		s := snapshot(t, contract)
		s.Spec.Network.CIDR = netip.MustParsePrefix("127.84.7.0/24")
		s.Spec.Network.Gateway = netip.MustParseAddr("127.84.7.1")
		s.Spec.Network.VIP = netip.MustParseAddr("127.84.7.5")
		s.Spec.Network.Endpoint = "https://127.84.7.5:6443"
		s.Spec.Nodes[0].IP = netip.MustParseAddr("127.84.7.11")
		s.Spec.Nodes[1].IP = netip.MustParseAddr("127.84.7.21")
		mustRender(t, s)
	}
}

// TestClusterDNS: whether Talos deploys it, in the terms of every contract.
func TestClusterDNS(t *testing.T) {
	for _, contract := range contracts {
		s := snapshot(t, contract)
		plane := s.Spec.ControlPlanes()[0].Name
		if !mustRender(t, s)[plane].DNS {
			t.Errorf("%s: no DNS is deployed", contract)
		}
		patch := "cluster: {coreDNS: {disabled: true}}\n"
		if contract == "v1.14" {
			patch = "apiVersion: v1alpha1\nkind: KubeCoreDNSConfig\nenabled: false\n"
		}
		s.Spec.Nodes = s.Spec.ControlPlanes()
		withPatch(&s, "patches/dns.yaml", patch)
		var r Renderer
		configs, ps := r.Render(s, PlaceholderSchematic)
		if c, ok := configs[plane]; !ok || c.DNS {
			t.Errorf("%s: DNS is deployed although a patch switches it off: %v", contract, ps)
		}
	}
}

func TestPlaceholders(t *testing.T) {
	s := snapshot(t, "v1.13")
	b, err := PlaceholderBundle("v1.13", testNow)
	if err != nil {
		t.Fatal(err)
	}
	s.Bundle = b
	var r Renderer
	configs, ps := r.Render(s, PlaceholderSchematic)
	if len(ps) > 0 || len(configs) != 2 {
		t.Fatalf("%d configs, problems %v", len(configs), ps)
	}
}

func TestSameInputSameBytes(t *testing.T) {
	for _, contract := range []string{"v1.11", "v1.12", "v1.14"} {
		s := snapshot(t, contract)
		s.Spec.Nodes[1].Labels = map[string]string{}
		s.Spec.Mirrors = map[string]string{}
		for i := range 12 {
			s.Spec.Nodes[1].Labels[fmt.Sprintf("label-%d", i)] = "x"
			s.Spec.Mirrors[fmt.Sprintf("registry-%d.example.org", i)] = "https://mirror.example.org"
		}
		withPatch(&s, "patches/a.yaml", "machine:\n  sysctls: {vm.max_map_count: \"262144\", fs.inotify.max_user_instances: \"8192\"}\n")
		first := mustRender(t, s)
		for range 3 {
			if again := mustRender(t, s); !sameConfigs(first, again) {
				t.Fatalf("contract %s: rendered twice, two outcomes", contract)
			}
		}
	}
}

func sameConfigs(a, b map[string]cluster.Config) bool {
	return maps.EqualFunc(a, b, func(x, y cluster.Config) bool {
		return x.Digest == y.Digest && x.Bytes.RevealString() == y.Bytes.RevealString()
	})
}

func TestOnlyWhatChangedIsRendered(t *testing.T) {
	s := snapshot(t, "v1.13")
	for i := range 8 {
		s.Spec.Nodes = append(s.Spec.Nodes, cluster.Node{Name: fmt.Sprintf("dev-wk-%d", i+2), Role: cluster.Worker,
			IP: netip.AddrFrom4([4]byte{10, 10, 0, byte(22 + i)}), MAC: fmt.Sprintf("BC:24:11:00:00:%02d", 22+i)})
	}
	all := len(s.Spec.Nodes)
	other := snapshot(t, "v1.12")
	other.Spec.ID, other.Spec.Name = cluster.ClusterID("talos-agent", "other"), "other"

	var r Renderer
	step := func(what string, s cluster.Snapshot, want int) {
		t.Helper()
		before := r.Count()
		configs, ps := r.Render(s, testSchematic)
		if len(ps) > 0 || len(configs) != len(s.Spec.Nodes) {
			t.Fatalf("%s: %d configs, problems %v", what, len(configs), ps)
		}
		if got := r.Count() - before; got != want {
			t.Errorf("%s: %d rendered, want %d", what, got, want)
		}
	}
	step("first time", s, all)
	step("again", s, 0)
	step("another cluster", other, 2)
	step("again after the other cluster", s, 0)

	s.Spec.Nodes = slices.Clone(s.Spec.Nodes)
	s.Spec.Nodes[3].Labels = map[string]string{"zone": "b"}
	step("a label", s, 1)
	s.Spec.Nodes[4].Patches = []cluster.Patch{{File: "patches/one.yaml", Document: cluster.SecretString("machine: {sysctls: {vm.nr_hugepages: \"1024\"}}")}}
	step("a patch", s, 1)
	s.Spec.Nodes[4].DiskBytes, s.Spec.Nodes[4].Cores, s.Spec.Nodes[4].VMID = 1<<40, 8, 999
	step("hardware", s, 0)
	s.Spec.Nodes = slices.Delete(slices.Clone(s.Spec.Nodes), 5, 6)
	step("a node less", s, 0)
	s.Spec.Network.TimeServers = []string{"10.10.0.2"}
	step("a setting of the cluster", s, all-1)
}

// TestEveryChangeReachesTheConfig changes each field of the inventory in turn:
// a renderer with a memory must come to what one without comes to.
func TestEveryChangeReachesTheConfig(t *testing.T) {
	base := func() cluster.Snapshot {
		s := snapshot(t, "v1.12")
		s.Spec.Schematic.Extensions = []string{"siderolabs/iscsi-tools"}
		s.Spec.Addons = []cluster.Addon{{Name: "cilium"}}
		for i := range s.Spec.Nodes {
			s.Spec.Nodes[i].Disks = []cluster.Disk{{Name: "data"}}
			s.Spec.Nodes[i].Tags = []string{"a"}
			s.Spec.Nodes[i].Devices.Cards = []device.Card{{MAC: "BC:24:11:00:01:11", Address: netip.MustParsePrefix("10.20.0.11/24")}}
			s.Spec.Nodes[i].Labels = map[string]string{"zone": "a"}
			s.Spec.Nodes[i].Taints = map[string]string{"dedicated": "gpu:NoSchedule"}
		}
		withPatch(&s, "patches/a.yaml", "machine: {sysctls: {vm.nr_hugepages: \"1024\"}}")
		return s
	}
	fieldsChanged := 0
	for i := 0; ; i++ {
		s := base()
		var warm Renderer
		if _, ps := warm.Render(s, testSchematic); len(ps) > 0 {
			t.Fatal(ps)
		}
		s = base() // nothing shared with what was rendered
		n := 0
		path := changeNth(reflect.ValueOf(&s.Spec).Elem(), "Spec", i, &n)
		if path == "" {
			break
		}
		fieldsChanged++
		if path == "Spec.ID" {
			continue // the memory of another cluster
		}
		var cold Renderer
		want, wantProblems := cold.Render(s, testSchematic)
		got, gotProblems := warm.Render(s, testSchematic)
		if !sameConfigs(want, got) || !reflect.DeepEqual(wantProblems, gotProblems) {
			t.Errorf("after a change of %s the memory gives something else:\n%v\n%v", path, wantProblems, gotProblems)
		}
	}
	if fieldsChanged < 50 {
		t.Errorf("only %d fields were changed", fieldsChanged)
	}
}

// changeNth changes the n-th leaf of a value to something that may be valid,
// and returns its path.
func changeNth(v reflect.Value, path string, want int, n *int) string {
	hit := func(change func()) string {
		*n++
		if *n-1 == want {
			change()
			return path
		}
		return ""
	}
	switch x := v.Addr().Interface().(type) {
	case *netip.Addr:
		return hit(func() { *x = netip.MustParseAddr("10.10.0.77") })
	case *netip.Prefix:
		return hit(func() { *x = netip.MustParsePrefix("10.10.0.0/23") })
	case *cluster.Secret:
		return hit(func() { *x = cluster.SecretString("machine: {sysctls: {vm.swappiness: \"1\"}}") })
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if p := changeNth(v.Field(i), path+"."+v.Type().Field(i).Name, want, n); p != "" {
				return p
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if p := changeNth(v.Index(i), fmt.Sprintf("%s[%d]", path, i), want, n); p != "" {
				return p
			}
		}
	case reflect.Map:
		if v.Type() == reflect.TypeFor[map[string]string]() {
			return hit(func() { v.Set(reflect.ValueOf(map[string]string{"other": "gpu:NoExecute"})) })
		}
	case reflect.String:
		old := v.String()
		return hit(func() {
			switch {
			case strings.HasPrefix(old, "v1.12."):
				v.SetString("v1.13.9")
			case old == "v1.12":
				v.SetString("v1.11")
			case strings.HasPrefix(old, "v1."):
				v.SetString("v1.34.0")
			case strings.HasPrefix(old, "BC:"):
				v.SetString("BC:24:11:FF:FF:FF")
			case strings.HasPrefix(old, "https://"):
				v.SetString("https://10.10.0.99:6443")
			default:
				v.SetString("changed")
			}
		})
	case reflect.Int, reflect.Int64:
		return hit(func() { v.SetInt(v.Int() + 1) })
	case reflect.Bool:
		return hit(func() { v.SetBool(!v.Bool()) })
	}
	return ""
}

func BenchmarkRender1000(b *testing.B) {
	s := snapshot(b, "v1.13")
	for i := range 997 {
		s.Spec.Nodes = append(s.Spec.Nodes, cluster.Node{Name: fmt.Sprintf("wk-%d", i), Role: cluster.Worker,
			IP: netip.AddrFrom4([4]byte{10, 10, byte(i >> 8), byte(i)}), MAC: fmt.Sprintf("BC:24:11:01:%02X:%02X", i>>8, i&255)})
	}
	s.Spec.Network.CIDR = netip.MustParsePrefix("10.10.0.0/16")
	withPatch(&s, "patches/all.yaml", "machine:\n  sysctls:\n    fs.inotify.max_user_instances: \"8192\"\n---\napiVersion: v1alpha1\nkind: UserVolumeConfig\nname: longhorn\nprovisioning:\n  diskSelector:\n    match: disk.serial == \"talos-longhorn\"\n  minSize: 1GiB\n")
	render := func(b *testing.B, r *Renderer) int {
		before := r.Count()
		if _, ps := r.Render(s, testSchematic); len(ps) > 0 {
			b.Fatal(ps)
		}
		return r.Count() - before
	}
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			var r Renderer
			b.ReportMetric(float64(render(b, &r)), "renders")
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		var r Renderer
		render(b, &r)
		for b.Loop() {
			b.ReportMetric(float64(render(b, &r)), "renders")
		}
	})
	b.Run("one-changed", func(b *testing.B) {
		var r Renderer
		render(b, &r)
		i := 0
		for b.Loop() {
			i++
			s.Spec.Nodes[500].Labels = map[string]string{"generation": fmt.Sprint(i)}
			b.ReportMetric(float64(render(b, &r)), "renders")
		}
	})
}

// TestVIPOfOthers: an address that kube-vip or a load balancer has is in no machine config but as a name of certificates.
func TestVIPOfOthers(t *testing.T) {
	for _, contract := range contracts {
		s := snapshot(t, contract)
		talos := mustRender(t, s)["dev-cp-1"].Bytes.RevealString()
		if !strings.Contains(talos, "Layer2VIPConfig") && !strings.Contains(talos, "vip:") {
			t.Fatalf("%s: Talos has none", contract)
		}
		for _, by := range []cluster.VIPHolder{cluster.VIPByKubeVIP, cluster.VIPByExternal} {
			s.Spec.Network.VIPBy = by
			got := mustRender(t, s)["dev-cp-1"].Bytes.RevealString()
			if strings.Contains(got, "Layer2VIPConfig") || strings.Contains(got, "vip:") {
				t.Errorf("%s, %s: Talos has it, too", contract, by)
			}
			if strings.Count(got, "- 10.10.0.5\n") != strings.Count(talos, "- 10.10.0.5\n") || !strings.Contains(got, "https://10.10.0.5:6443") {
				t.Errorf("%s, %s: the certificates or the endpoint are others", contract, by)
			}
		}
	}
}
