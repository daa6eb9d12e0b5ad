package scaffold

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func usual() Wishes {
	return Wishes{Host: "pve1", Bridge: "vmbr1", Network: netip.MustParsePrefix("10.10.0.0/24"), Gateway: netip.MustParseAddr("10.10.0.1"),
		ControlPlanes: 1, Workers: 2, Recipients: []string{"age1x", "age1y"}, CI: forges, Version: "v1.2.3"}.WithDefaults()
}

func anyVMID(int) (bool, error) { return true, nil }

// TestNodes: VMIDs follow from the addresses; what is taken, or does not fit the
// policy, is reported apart and written down.
func TestNodes(t *testing.T) {
	ids := func(w Wishes, taken ...int) (string, error) {
		nodes, err := w.Nodes(func(id int) (bool, error) {
			for _, n := range taken {
				if n == id {
					return false, nil
				}
			}
			return true, nil
		})
		var out []string
		for _, n := range nodes {
			out = append(out, strings.TrimPrefix(n.Name, "dev-")+" "+n.IP.String()+" "+strings.Repeat("*", min(1, n.VMID)))
			if n.VMID > 0 {
				out[len(out)-1] += strings.TrimSpace(itoa(n.VMID))
			}
		}
		return strings.Join(out, "; "), err
	}
	small := usual()
	small.VMIDs = []cluster.Range{{First: 100, Last: 101}, {First: 200, Last: 205}}
	for _, tc := range []struct {
		w     Wishes
		taken []int
		want  string
	}{
		{usual(), nil, "cp-1 10.10.0.11 ; wk-1 10.10.0.21 ; wk-2 10.10.0.22 "},
		{usual(), []int{411, 400, 521}, "cp-1 10.10.0.11 *401; wk-1 10.10.0.21 *500; wk-2 10.10.0.22 "},
		{small, []int{200}, "cp-1 10.10.0.11 *201; wk-1 10.10.0.21 *203; wk-2 10.10.0.22 *204"},
	} {
		if got, err := ids(tc.w, tc.taken...); err != nil || got != tc.want {
			t.Errorf("%q, %v, want %q", got, err, tc.want)
		}
	}
	if _, err := ids(small, 200, 201, 202); err == nil || !strings.Contains(err.Error(), "no VMID from 200-202 is free for dev-cp-1") {
		t.Errorf("all VMIDs are taken: %v", err)
	}
	broken := errors.New("nobody knows")
	if _, err := usual().Nodes(func(int) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("nobody knows whether one is free: %v", err)
	}
}

func itoa(n int) string { return cluster.Range{First: n, Last: n}.String() }

// TestCheck: what cannot be is refused by the flag that says it.
func TestCheck(t *testing.T) {
	offered := usual()
	offered.Offer = Offer{Host: offered.Host, Bridges: []string{"vmbr0", offered.Bridge}, Datastores: []string{offered.Datastore}}
	elsewhere := usual()
	elsewhere.Offer = Offer{Host: "pve9"}
	for _, w := range []Wishes{usual(), offered, elsewhere} {
		if wrong := w.Check(); len(wrong) > 0 {
			t.Errorf("usual wishes: %v", wrong)
		}
	}
	for flag, change := range map[string]func(*Wishes){
		"--cluster": func(w *Wishes) { w.Cluster = "a b" },
		"--host":    func(w *Wishes) { w.Host = "" },
		"--bridge":  func(w *Wishes) { w.Bridge = "" },
		"--network": func(w *Wishes) {
			w.Network, w.First = netip.MustParsePrefix("fd00::/64"), netip.Addr{}
			*w = w.WithDefaults()
		},
		"--gateway":        func(w *Wishes) { w.Gateway = netip.MustParseAddr("10.11.0.1") },
		"--vip":            func(w *Wishes) { w.VIP = w.Gateway },
		"--first-address":  func(w *Wishes) { w.First = netip.MustParseAddr("10.10.0.250") },
		"--control-planes": func(w *Wishes) { w.ControlPlanes = 2 },
		"--workers":        func(w *Wishes) { w.Workers = -1 },
		"--cni":            func(w *Wishes) { w.CNI = "none" },
		"--recipient":      func(w *Wishes) { w.Recipients = nil },
		"--ci":             func(w *Wishes) { w.CI = []string{"jenkins"} },
	} {
		w := usual()
		change(&w)
		if wrong := w.Check(); len(wrong) == 0 || !strings.HasPrefix(wrong[0].Error(), flag+": ") {
			t.Errorf("%s: %v", flag, wrong)
		}
	}
	offered.Bridge, offered.Datastore = "vmbr9", "local"
	want := []string{`--bridge: pve1 has no bridge "vmbr9" that VMs may use (choose of vmbr0, vmbr1, or have the policy of the host allow another)`,
		`--datastore: pve1 has no storage "local" that takes disks of VMs (choose of local-lvm, or have the policy of the host allow another)`}
	var got []string
	for _, w := range offered.Check() {
		got = append(got, w.Error())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLikeTheExample: what a repository begins with is what examples/repo shows.
func TestLikeTheExample(t *testing.T) {
	nodes, err := usual().Nodes(anyVMID)
	if err != nil {
		t.Fatal(err)
	}
	files, err := Files(usual(), nodes)
	if err != nil {
		t.Fatal(err)
	}
	example := func(name string) string {
		b, err := os.ReadFile(filepath.Join("../../../examples/repo", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got, want := files["inventory/dev/addons/cilium.yaml"], example("inventory/lab/addons/cilium.yaml"); got != want {
		t.Errorf("Cilium: %s, and in the example %s", got, want)
	}
	type rules struct {
		Rules []struct {
			Path string `yaml:"path_regex"`
			Age  string `yaml:"age"`
		} `yaml:"creation_rules"`
	}
	var mine, theirs rules
	read := func(text string, into any) {
		t.Helper()
		if err := yaml.Unmarshal([]byte(text), into); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	read(files[".sops.yaml"], &mine)
	read(example(".sops.yaml"), &theirs)
	if len(mine.Rules) != 1 || mine.Rules[0].Path != theirs.Rules[0].Path || mine.Rules[0].Age != "age1x,age1y" {
		t.Errorf("who can read: %+v, and in the example %+v", mine, theirs)
	}
	for _, name := range []string{"lab", "dev", "prod"} {
		var mine, theirs map[string]any
		read(files["inventory/dev/cluster.yaml"], &mine)
		read(example("inventory/"+name+"/cluster.yaml"), &theirs)
		for _, key := range []string{"talos_version", "kubernetes_version", "config_contract"} {
			if mine[key] != theirs[key] {
				t.Errorf("%s: %v, and in the example %s %v", key, mine[key], name, theirs[key])
			}
		}
	}
	for name, text := range files {
		if strings.Contains(text, "<<") || strings.Contains(text, ">>\n") || strings.Contains(text, "<no value>") {
			t.Errorf("%s is not filled in:\n%s", name, text)
		}
		if strings.HasSuffix(name, "yaml") || strings.HasSuffix(name, "yml") {
			read(text, new(any))
		}
	}
	if !strings.Contains(files[".github/workflows/talos-agent.yaml"], `TALOS_AGENT: "1.2.3"`) {
		t.Error("CI does not take the version of the program")
	}
}
