package rendering

import (
	"encoding/base64"
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

var testNow = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	authKey  = "tskey-auth-k1 \"quoted\"\\"
	password = "p@ss/word"
	pin      = "7&" // too short to be looked for
)

// desire is a small cluster as it should be, with secrets in its patches and addons.
func desire(t *testing.T, contract, talos, kubernetes string) cluster.Desired {
	t.Helper()
	bundle, err := machineconfig.PlaceholderBundle(contract, testNow)
	if err != nil {
		t.Fatal(err)
	}
	environment, err := json.Marshal([]string{"TS_AUTHKEY=" + authKey, "PIN=" + pin, "PLAIN=abc"})
	if err != nil {
		t.Fatal(err)
	}
	patch := cluster.Patch{File: "p.yaml", Document: cluster.SecretString("apiVersion: v1alpha1\nkind: ExtensionServiceConfig\nname: tailscale\nenvironment: " + string(environment) + "\n")}
	values, err := json.Marshal(map[string]any{"auth": map[string]any{"password": password, "url": "https://me:p%40ss%2Fword@example.org"}, "db": map[string]any{"phrase": password}, "list": []any{"x " + authKey, 3, true}, "plain": "abc"})
	if err != nil {
		t.Fatal(err)
	}
	id := cluster.ClusterID("talos-agent", "dev")
	node := func(name string, role cluster.Role, ip string) cluster.Node {
		return cluster.Node{Name: name, Role: role, IP: netip.MustParseAddr(ip), MAC: "BC:24:11:00:00:11", UUID: cluster.NodeUUID(id, name), VMID: 411, Placement: cluster.Placement{Pin: "pve1"},
			Cores: 2, MemoryMiB: 4096, DiskBytes: 40 << 30, Datastore: "local-lvm", Bridge: "vmbr1", Patches: []cluster.Patch{patch}}
	}
	snap := cluster.Snapshot{Revision: "main@sha1:0123456789abcdef0123456789abcdef01234567", Bundle: bundle,
		Confidential: []cluster.Secret{cluster.SecretString(authKey), cluster.SecretString(password), cluster.SecretString(pin), cluster.SecretString("PIN=" + pin), {}},
		Where:        map[string]cluster.Position{"": {File: "inventory/dev/cluster.yaml"}},
		Spec: cluster.Spec{ID: id, Name: "dev", Versions: cluster.Versions{Talos: talos, Kubernetes: kubernetes, Contract: contract}, CNI: cluster.CNICilium,
			Network: cluster.Network{Mode: cluster.AddressReserved, PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12"), Endpoint: "https://10.10.0.11:6443"},
			Nodes:   []cluster.Node{node("dev-cp-1", cluster.ControlPlane, "10.10.0.11"), node("dev-wk-1", cluster.Worker, "10.10.0.21")},
			Addons: []cluster.Addon{
				{Name: "app", Namespace: "app", Chart: cluster.Chart{Repository: "https://charts.example.org", Name: "app", Version: "1.2.3"}, DependsOn: []string{"store"}, Values: cluster.NewSecret(values), Ownership: cluster.Managed},
				{Name: "store", Namespace: "store", Chart: cluster.Chart{OCI: "oci://example.org/store", Version: "2.0.0"}, Values: cluster.SecretString("{}"), Ownership: cluster.BootstrapOnly},
				{Name: "cilium", Namespace: "kube-system", Chart: cluster.Chart{Path: "charts/cilium", Version: "1.0.0"}, Values: cluster.SecretString("{}"), Ownership: cluster.Managed},
			}}}
	var r machineconfig.Renderer
	configs, problems := r.Render(snap, machineconfig.PlaceholderSchematic)
	if problems.HasErrors() || len(configs) != 2 {
		t.Fatal(problems)
	}
	return cluster.Desired{Snapshot: snap, Schematic: machineconfig.PlaceholderSchematic, Configs: configs}
}

func noneRuns(string) bool { return false }

func render(t *testing.T, d cluster.Desired, o Options) cluster.Rendering {
	t.Helper()
	out, err := Render(d, noneRuns, o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// textOf is all that is printed of a rendering.
func textOf(r cluster.Rendering) string {
	var b strings.Builder
	for _, n := range r.Nodes {
		b.WriteString(n.MachineConfig)
	}
	for _, a := range r.Addons {
		b.Write(a.Values)
	}
	return b.String()
}

func TestNoSecretIsShown(t *testing.T) {
	for _, v := range [][3]string{{"v1.10", "v1.13.9", "v1.36.1"}, {"v1.13", "v1.13.9", "v1.36.1"}, {"v1.14", "v1.14.1", "v1.37.0"}} {
		d := desire(t, v[0], v[1], v[2])
		shown := textOf(render(t, d, Options{}))
		bundle, err := machineconfig.OpenBundle(d.Bundle, v[0])
		if err != nil {
			t.Fatal(err)
		}
		secrets, err := bundle.Secrets(false)
		if err != nil {
			t.Fatal(err)
		}
		plain := textOf(render(t, d, Options{ShowSecrets: true}))
		for _, s := range append(secrets, d.Confidential...) {
			raw := s.RevealString()
			if raw == "" {
				continue
			}
			forms := []string{raw, base64.StdEncoding.EncodeToString([]byte(raw)), base64.StdEncoding.EncodeToString([]byte(raw + "\n"))}
			for _, form := range forms {
				if strings.Contains(shown, form) {
					t.Errorf("%s: %q is shown:\n%s", v[0], form, shown)
				}
			}
		}
		for _, form := range []string{"p%40ss", "tskey-auth", "tskey"} {
			if strings.Contains(shown, form) || !strings.Contains(plain, form) {
				t.Errorf("%s: %q is shown, or is not there at all", v[0], form)
			}
		}
		for _, stays := range []string{"TS_AUTHKEY=<secret hmac:", "PLAIN=abc", `"plain":"abc"`, "https://me:<secret hmac:", "10.10.0.11", `"x <secret hmac:`, `3,true`} {
			if !strings.Contains(shown, stays) {
				t.Errorf("%s: %q is not shown:\n%s", v[0], stays, shown)
			}
		}
	}
}

func TestShownSecretsAreWhatIsSent(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	out := render(t, d, Options{ShowSecrets: true})
	for _, n := range out.Nodes {
		if n.MachineConfig != d.Configs[n.Node].Bytes.RevealString() {
			t.Errorf("%s: %s", n.Node, n.MachineConfig)
		}
	}
	for _, a := range out.Addons {
		i := slices.IndexFunc(d.Spec.Addons, func(b cluster.Addon) bool { return b.Name == a.Addon })
		if string(a.Values) != d.Spec.Addons[i].Values.RevealString() {
			t.Errorf("%s: %s", a.Addon, a.Values)
		}
	}
}

// A digest is the same for the same secret, wherever and in whatever form it stands, and
// another for another cluster: it cannot be computed from the secret alone.
func TestDigestsOfSecrets(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	first, again := textOf(render(t, d, Options{})), textOf(render(t, d, Options{}))
	if first != again {
		t.Error("two renderings of one cluster differ")
	}
	token := regexp.MustCompile(`token: (<secret hmac:[0-9a-f]{8}>)`).FindAllStringSubmatch(first, -1)
	if len(token) != 4 || token[0][1] != token[2][1] || token[1][1] != token[3][1] || token[0][1] == token[1][1] {
		t.Errorf("the tokens of two nodes: %v", token)
	}
	key := regexp.MustCompile(`TS_AUTHKEY=(<secret hmac:[0-9a-f]{8}>)`).FindStringSubmatch(first)
	value := regexp.MustCompile(`"x (<secret hmac:[0-9a-f]{8}>)"`).FindStringSubmatch(first)
	if len(key) != 2 || len(value) != 2 || key[1] != value[1] {
		t.Errorf("one value has two digests: %v, %v", key, value)
	}
	other := textOf(render(t, desire(t, "v1.13", "v1.13.9", "v1.36.1"), Options{}))
	if len(key) == 2 && strings.Contains(other, key[1]) {
		t.Error("the digest does not depend on the cluster's secrets")
	}
	mask, err := NewMask(false, d.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := mask.Hide(password), mask.Clean(base64.StdEncoding.EncodeToString([]byte(password))); a != b {
		t.Errorf("%s in base64 is %s", a, b)
	}
}

func TestThrowAwaySecretsLeaveNoTrace(t *testing.T) {
	one := textOf(render(t, desire(t, "v1.13", "v1.13.9", "v1.36.1"), Options{ThrowAway: true}))
	other := textOf(render(t, desire(t, "v1.13", "v1.13.9", "v1.36.1"), Options{ThrowAway: true}))
	if one != other {
		t.Errorf("two renderings with throw-away secrets differ:\n%s\n%s", one, other)
	}
	if !strings.Contains(one, "<secret throw-away>") {
		t.Errorf("there are none:\n%s", one)
	}
}

func TestOneNode(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	out := render(t, d, Options{Node: "dev-wk-1"})
	if len(out.Nodes) != 1 || out.Nodes[0].Node != "dev-wk-1" || len(out.Addons) != 0 {
		t.Errorf("rendered %+v", out)
	}
	vm := out.Nodes[0].VM
	if vm.Cores != 2 || vm.Host != "pve1" || len(vm.Disks) != 1 || vm.Disks[0].Bytes != 40<<30 || vm.Network.Bridge != "vmbr1" || !slices.Equal(vm.Tags, []string{"talos-agent"}) {
		t.Errorf("its vm is %+v", vm)
	}
}

// TestAllThatIsAppliedIsRendered: the Node object, the mark of the VM and what an addon asks of its namespace
// are applied, too; what is secret of them is hidden.
func TestAllThatIsAppliedIsRendered(t *testing.T) {
	d := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	n, a := &d.Spec.Nodes[1], &d.Spec.Addons[0]
	n.Labels, n.Taints, n.Annotations = map[string]string{"zone": "a"}, map[string]string{"gpu": "yes:NoSchedule"}, map[string]string{"note": "by us", "key": authKey}
	n.Replace = "again"
	a.Asks = cluster.NamespaceMeta{Labels: map[string]string{"team": "web"}, Annotations: map[string]string{"key": "x " + authKey}}
	for _, shown := range []bool{false, true} {
		out := render(t, d, Options{ShowSecrets: shown})
		node, app := out.Nodes[1], out.Addons[2]
		if node.Object.Labels["zone"] != "a" || node.Object.Taints["gpu"] != "yes:NoSchedule" || node.Object.Annotations["note"] != "by us" || app.NamespaceLabels["team"] != "web" || !out.Nodes[0].Object.IsZero() {
			t.Errorf("rendered %+v, %+v", node.Object, app)
		}
		for _, value := range []string{node.Object.Annotations["key"], app.NamespaceAnnotations["key"]} {
			if strings.Contains(value, authKey) != shown || value == "" {
				t.Errorf("secrets are shown %v: %q", shown, value)
			}
		}
		if mark, ok := cluster.ParseMark(node.VM.Mark); !ok || mark.Node != "dev-wk-1" || mark.Cluster != d.Spec.ID || mark.Replace != "again" {
			t.Errorf("its mark is %s", node.VM.Mark)
		}
	}
}

func TestAddonsComeBehindWhatTheyNeed(t *testing.T) {
	var names []string
	for _, a := range render(t, desire(t, "v1.13", "v1.13.9", "v1.36.1"), Options{}).Addons {
		names = append(names, a.Addon)
	}
	if want := []string{"cilium", "store", "app"}; !slices.Equal(names, want) {
		t.Errorf("the order is %v", names)
	}
}

// While nodes that run have something else than the repository, a new node gets what they
// have.
func TestANewNodeGetsWhatTheClusterRuns(t *testing.T) {
	asked := desire(t, "v1.13", "v1.13.9", "v1.36.1")
	d := asked
	d.Asked, d.Base = &asked, "main@sha1:fedcba9876543210fedcba9876543210fedcba98"
	d.Configs = map[string]cluster.Config{"dev-cp-1": asked.Configs["dev-wk-1"], "dev-wk-1": asked.Configs["dev-wk-1"]}
	out, err := Render(d, func(node string) bool { return node == "dev-cp-1" }, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := out.Nodes[0]; n.Base != "" || !strings.Contains(n.MachineConfig, "type: controlplane") {
		t.Errorf("a node that runs gets %+v", n)
	}
	if n := out.Nodes[1]; n.Base != d.Base {
		t.Errorf("a new node gets %+v", n)
	}
	d.Configs, asked.Configs = nil, nil
	if out = render(t, d, Options{}); out.Nodes[1].Unrendered == "" {
		t.Errorf("a node without a config: %+v", out.Nodes[1])
	}
}
