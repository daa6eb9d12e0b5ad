package validation

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// addonExamples are the addon files that people copy into their inventories.
const addonExamples = "../../../examples/addons"

// versions are those of a cluster, and of its machine configs.
type versions struct{ talos, kubernetes, contract string }

// exampleVersions are the versions of Talos that the examples are for, with the newest
// Kubernetes that runs on each.
var exampleVersions = []versions{
	{"v1.11.6", "v1.34.13", "v1.11"},
	{"v1.12.11", "v1.35.10", "v1.12"},
	{"v1.13.9", "v1.36.6", "v1.13"},
	{"v1.14.1", "v1.37.2", "v1.14"},
}

// alternatives are addons of which a cluster has one: they take the same ports of the
// nodes, or both apply what is in Git.
var alternatives = [][]string{
	{"kube-prometheus-stack", "victoria-metrics-k8s-stack"},
	{"argo-cd", "flux"},
}

// example is one of the files, with what the comment on top of it has.
type example struct {
	name    string // without .yaml
	text    string
	comment string   // without #
	values  []string // names of secrets that it needs
	patches []string
	addon   struct {
		Name, Namespace string
		Labels          map[string]string `yaml:"namespace_labels"`
		Chart           struct{ Repository, OCI, Name, Version, SHA256, Digest string }
		DependsOn       []string `yaml:"depends_on"`
	}
}

var (
	secretUsed  = regexp.MustCompile(`\$\{values\.(\w+)\}`)
	secretNamed = regexp.MustCompile(`(?m)^  (\w+)(  .*)?$`)
	patchNamed  = regexp.MustCompile(`patches/([a-z-]+\.yaml)`)
	forRole     = regexp.MustCompile(`^# For (all nodes|control planes|workers)\b`)
)

// readExamples reads the addon files.
func readExamples(t *testing.T) []example {
	t.Helper()
	files, err := filepath.Glob(addonExamples + "/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("there are %d addon files: %v", len(files), err)
	}
	var all []example
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		e := example{name: strings.TrimSuffix(filepath.Base(file), ".yaml"), text: string(text)}
		for line := range strings.Lines(e.text) {
			line, isComment := strings.CutPrefix(line, "#")
			if !isComment {
				break
			}
			e.comment += strings.TrimPrefix(line, " ")
		}
		if err := yaml.Unmarshal(text, &e.addon); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, m := range secretNamed.FindAllStringSubmatch(e.comment, -1) {
			e.values = append(e.values, m[1])
		}
		for _, m := range patchNamed.FindAllStringSubmatch(e.comment, -1) {
			e.patches = append(e.patches, m[1])
		}
		all = append(all, e)
	}
	return all
}

// readPatches returns the patches by the role that they are for. Those of which there is
// one of their own for a contract are that one.
func readPatches(t *testing.T, contract string) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(addonExamples + "/patches/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are %d patches: %v", len(files), err)
	}
	roles := map[string]string{"all nodes": "all", "control planes": "controlplane", "workers": "worker"}
	byRole := map[string][]string{}
	for _, file := range files {
		name := "patches/" + filepath.Base(file)
		own := "patches/" + contract + "/" + filepath.Base(file)
		text, err := os.ReadFile(filepath.Join(addonExamples, own))
		if err == nil {
			name = own
		} else if text, err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
		m := forRole.FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s: its first line does not name the nodes that it is for", name)
		}
		role := roles[string(m[1])]
		byRole[role] = append(byRole[role], name)
	}
	return byRole
}

// writeExamples writes a repository with one cluster that lists these addons and patches,
// and whose secrets have these values. It returns the folder and the age key's file.
func writeExamples(t *testing.T, v versions, addons []string, patches map[string][]string, values []string) (dir, key string) {
	t.Helper()
	dir = t.TempDir()
	home := filepath.Join(dir, "inventory/dev")
	for _, name := range addons {
		copyExample(t, name, filepath.Join(home, "addons", filepath.Base(name)))
	}
	var lists strings.Builder
	for _, role := range []string{"all", "controlplane", "worker"} {
		var names []string
		for _, name := range patches[role] {
			copyExample(t, name, filepath.Join(home, "patches", filepath.Base(name)))
			names = append(names, "patches/"+filepath.Base(name))
		}
		fmt.Fprintf(&lists, "  %s: [%s]\n", role, strings.Join(names, ", "))
	}
	list := ""
	for _, name := range addons {
		list += "  - addons/" + filepath.Base(name) + "\n"
	}
	write(t, filepath.Join(home, "cluster.yaml"), fmt.Sprintf("talos_version: %s\nkubernetes_version: %s\nconfig_contract: %s\n", v.talos, v.kubernetes, v.contract)+`cluster_name: dev
network: {cidr: 10.10.0.0/24, gateway: 10.10.0.1}
proxmox: {node: pve1}
talos: {schematic: {extensions: [siderolabs/iscsi-tools, siderolabs/util-linux-tools]}}
profiles:
  worker: {disks: [{name: longhorn, size: 100G}, {name: local-path, size: 50G}]}
patches:
`+lists.String()+"addons:\n"+list)
	write(t, filepath.Join(home, "nodes.yaml"), `controlplane: [{name: dev-cp-1, ip: 10.10.0.11}]
workers:
  - {name: dev-wk-1, ip: 10.10.0.21}
  - {name: dev-wk-2, ip: 10.10.0.22}
`)
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := os.ReadFile("../../../reconcile/machineconfig/testdata/secrets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(values) > 0 {
		plain = append(plain, "values:\n"...)
	}
	for _, name := range values {
		plain = fmt.Appendf(plain, "  %s: secret of %s\n", name, name)
	}
	sealed, err := secrets.Encrypt(plain, []string{id.Recipient().String()})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(home, "secrets.sops.yaml"), string(sealed))
	key = filepath.Join(t.TempDir(), "age.key")
	if err := os.WriteFile(key, []byte(id.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, key
}

func copyExample(t *testing.T, name, to string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(addonExamples, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, to, string(text))
}

// TestExampleAddons: all addon files at once, with the patches that they name, are valid
// for each version of Talos, with the secrets that their comments name and no others.
// What validate warns of is that a chart whose hash is published nowhere is not pinned.
func TestExampleAddons(t *testing.T) {
	all := readExamples(t)
	for i := range 2 {
		var files, values []string
		pinned := map[string]bool{}
		for _, e := range all {
			if slices.ContainsFunc(alternatives, func(pair []string) bool { return e.name == pair[1-i] }) {
				continue
			}
			files, values = append(files, e.name+".yaml"), append(values, e.values...)
			pinned["inventory/dev/addons/"+e.name+".yaml"] = e.addon.Chart.SHA256 != "" || e.addon.Chart.Digest != ""
		}
		for _, v := range exampleVersions {
			dir, key := writeExamples(t, v, files, readPatches(t, v.contract), values)
			found, err := Validate(t.Context(), dir, Config{Folder: "inventory", Owner: "a", AgeKeys: []string{key}}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			warned := map[string]bool{}
			for _, p := range found.Problems {
				isPin := p.Severity == cluster.Warning && strings.Contains(p.Message, "is remembered on the host")
				if !isPin || pinned[p.File] {
					t.Errorf("Talos %s: %v", v.talos, p)
				}
				warned[p.File] = true
			}
			for file, isPinned := range pinned {
				if !isPinned && !warned[file] {
					t.Errorf("Talos %s: no warning that %s is not pinned", v.talos, file)
				}
			}
			if !found.Valid || len(found.Clusters) != 1 || found.Clusters[0].Rendered != 3 {
				t.Errorf("Talos %s: %+v", v.talos, found.Clusters)
			}
		}
	}
}

// TestExampleComments: the comment on top of an addon file has the version that its
// values were written for, every secret, and only patches and addons that there are; and
// the page that lists the files has the same.
func TestExampleComments(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(addonExamples, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := readExamples(t)
	for _, e := range all {
		var used []string
		for _, m := range secretUsed.FindAllStringSubmatch(e.text, -1) {
			used = append(used, m[1])
		}
		slices.Sort(used)
		named := slices.Clone(e.values)
		slices.Sort(named)
		if used = slices.Compact(used); !slices.Equal(used, named) {
			t.Errorf("%s: its values have the secrets %v, and its comment %v", e.name, used, named)
		}
		// A comment may be broken anywhere between two words.
		flat := strings.Join(strings.Fields(e.comment), " ")
		if !strings.Contains(flat, "alues of chart "+e.addon.Chart.Version) {
			t.Errorf("%s: its comment does not have the version of its chart, %s", e.name, e.addon.Chart.Version)
		}
		for _, name := range e.patches {
			if _, err := os.Stat(filepath.Join(addonExamples, "patches", name)); err != nil {
				t.Errorf("%s: %v", e.name, err)
			}
		}
		for _, name := range e.addon.DependsOn {
			if !strings.Contains(flat, name) {
				t.Errorf("%s: its comment does not have the addon %s, which it needs", e.name, name)
			}
		}
		row := rowOf(string(index), e.name)
		for _, want := range append(slices.Clone(e.patches), e.addon.Chart.Version, e.addon.Namespace) {
			if !strings.Contains(row, want) {
				t.Errorf("README.md: the row of %s does not have %s: %q", e.name, want, row)
			}
		}
	}
	for _, v := range exampleVersions {
		for role, names := range readPatches(t, v.contract) {
			for _, name := range names {
				if !bytes.Contains(index, []byte("]("+name+")")) {
					t.Errorf("README.md does not link to %s, for %s", name, role)
				}
			}
		}
	}
}

// rowOf is the row of a table that links to an addon file.
func rowOf(page, name string) string {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| ["+name+"]("+name+".yaml)") {
			return line
		}
	}
	return ""
}

// TestExampleNamespaces: the charts whose pods use what is the node's have a namespace
// that lets them, and no others do. prometheus-operator-crds shares that of the stack.
func TestExampleNamespaces(t *testing.T) {
	// What their pods use that the level baseline refuses, in the versions of the files.
	privileged := map[string]string{
		"kube-prometheus-stack":      "the node exporter: network, processes and file system of the host",
		"victoria-metrics-k8s-stack": "the node exporter: network, processes and file system of the host",
		"prometheus-operator-crds":   "the namespace of kube-prometheus-stack",
		"local-path-provisioner":     "pods that make volumes: directories of the host",
		"longhorn":                   "privileged pods",
		"proxmox-csi-plugin":         "privileged pods",
		"tailscale-operator":         "privileged pods that the operator makes",
		"traefik":                    "ports of the host",
		"velero":                     "directories of the host",
	}
	found := 0
	for _, e := range readExamples(t) {
		level, why := e.addon.Labels["pod-security.kubernetes.io/enforce"], privileged[e.name]
		if (level == "privileged") != (why != "") || level != "" && level != "privileged" {
			t.Errorf("%s: its namespace has the level %q; what its pods need: %q", e.name, level, why)
		}
		if why != "" {
			found++
		}
	}
	if found != len(privileged) {
		t.Errorf("%d of %d charts are there", found, len(privileged))
	}
}

// TestExamplePatches: each patch alone is rendered for each version of Talos, into the
// configs of the nodes that it is for and no others.
func TestExamplePatches(t *testing.T) {
	wants := map[string][]string{
		"kubelet-serving-certificates.yaml": {`rotate-server-certificates: "true"`},
		"longhorn.yaml":                     {"name: longhorn", `match: disk.serial == "talos-longhorn"`},
		"local-path-provisioner.yaml":       {"name: local-path-provisioner", `match: disk.serial == "talos-local-path"`},
		"external-cloud-provider.yaml":      {"externalCloudProvider:"},
		"control-plane-metrics.yaml":        {"listen-metrics-urls: http://0.0.0.0:2381", "bind-address: 0.0.0.0"},
		"kube-proxy-metrics.yaml":           {"0.0.0.0:10249"},
		"node-logs.yaml":                    {"tcp://10.10.0.1:6050/", "kind: KmsgLogConfig", "url: tcp://10.10.0.1:6051/"},
	}
	for _, v := range exampleVersions {
		for role, names := range readPatches(t, v.contract) {
			for _, name := range names {
				want := wants[filepath.Base(name)]
				if len(want) == 0 {
					t.Errorf("nothing is known of what %s sets", name)
				}
				dir, key := writeExamples(t, v, nil, map[string][]string{role: {name}}, nil)
				out, found, err := Render(t.Context(), dir, Config{Folder: "inventory", Owner: "a", AgeKeys: []string{key}}, "", false, time.Now())
				if err != nil || !found.Valid || len(out.Nodes) != 3 {
					t.Errorf("%s, Talos %s: %v %v", name, v.talos, err, found.Problems)
				}
				for _, n := range out.Nodes {
					has := role == "all" || role == string(n.Role)
					for _, text := range want {
						if strings.Contains(n.MachineConfig, text) != has {
							t.Errorf("%s, Talos %s: whether the config of %s has %q is %v", name, v.talos, n.Node, text, !has)
						}
					}
				}
			}
		}
	}
}
