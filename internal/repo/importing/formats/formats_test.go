package formats

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
)

// TestTargetsAreKeys: what a variable becomes is a key of the inventory.
func TestTargetsAreKeys(t *testing.T) {
	for name, to := range targets {
		if to.form == asHosts {
			continue // proxmox.node or proxmox.nodes
		}
		l := readLanguage("cluster")
		path := to.key
		if inner, ok := strings.CutPrefix(path, "profiles."); ok {
			_, key, _ := strings.Cut(inner, ".")
			if l = readLanguage("nodes").Properties["workers"].Items; l.Properties[key] == nil {
				t.Errorf("%s becomes %s, which no node has", name, to.key)
			}
			continue
		}
		for key := range strings.SplitSeq(path, ".") {
			if l = l.Properties[key]; l == nil {
				t.Errorf("%s becomes %s, which is no key of cluster.yaml", name, to.key)
				break
			}
		}
	}
	for name := range elsewhere {
		if _, both := targets[name]; both {
			t.Errorf("%s is taken over, and has no place", name)
		}
	}
}

// TestBounds: what would take long, or much memory, is refused, with its line where there is
// one, and before a parser meets it.
func TestBounds(t *testing.T) {
	bomb := "clusterName: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 8 {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	many := func(format string) string {
		var b strings.Builder
		for i := range maxKeys + 2 {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, tc := range map[string]struct{ file, data, want string }{
		"large":               {"a.tfvars", "a = 1\n" + strings.Repeat("#", MaxFileBytes), "a.tfvars: larger than 256 KiB"},
		"nested HCL":          {"a.tfvars", "a = 1\nb = " + strings.Repeat("[", 100_000), "a.tfvars:2: nested too deep"},
		"nested parentheses":  {"a.tfvars", "b = " + strings.Repeat("(", 100_000), "a.tfvars:1: nested too deep"},
		"nested templates":    {"a.tfvars", "b = " + strings.Repeat(`"${`, 50_000), "a.tfvars:1: nested too deep"},
		"many operators":      {"a.tfvars", "b = " + strings.Repeat("-", 200_000) + "1", "a.tfvars:1: nested too deep, or too many expressions"},
		"conditions":          {"a.tfvars", "b = " + strings.Repeat("a?b:", 50_000) + "1", "a.tfvars:1: nested too deep, or too many expressions"},
		"nested JSON":         {"a.tfvars.json", `{"a":` + strings.Repeat("[", 100_000), "a.tfvars.json:1: too many values, or nested too deep"},
		"many values":         {"a.tfvars.json", `{"a":[` + strings.Repeat("1,", 60_000) + "1]}", "a.tfvars.json:1: too many values"},
		"nested YAML":         {"a.yaml", "clusterName: " + strings.Repeat("[", 100_000), "a.yaml:"},
		"an alias bomb":       {"a.yaml", bomb, "too many values, with those that aliases repeat"},
		"an alias of itself":  {"a.yaml", "clusterName: &a [*a]\n", "a.yaml:"},
		"many keys of YAML":   {"a.yaml", "clusterName: a\n" + many("k%d: 1\n"), "more than 2000 keys in one mapping"},
		"many keys of JSON":   {"nodes.json", "{" + many("\"k%d\": 1,\n") + `"a": 1}`, "more than 2000 keys in one mapping"},
		"no UTF-8":            {"a.tfvars", "a = 1\nb = \"\xff\"", "a.tfvars:2: a byte that is not UTF-8"},
		"a control character": {"a.yaml", "clusterName: a\nb: \x00", "a.yaml:2: control character U+0000"},
		"twice in YAML":       {"a.yaml", "clusterName: a\nclusterName: b\n", "a.yaml:2: a key that stands here twice"},
		"twice in JSON":       {"nodes.json", "{\"nodes\": [],\n\"nodes\": []}", "nodes.json:2: a key that stands here twice"},
		"twice in HCL":        {"a.tfvars", "a = 1\na = 2\n", "a.tfvars:2: not valid HCL: Attribute redefined"},
		"no HCL":              {"a.tfvars", "a = 1\nb = ]\n", "a.tfvars:2: not valid HCL"},
		"no JSON":             {"nodes.json", "{\"nodes\": []\n]", "nodes.json:2: not valid JSON"},
		"more than JSON":      {"nodes.json", "{\"nodes\": []}\n{}", "nodes.json:2: text behind the end"},
		"a list of JSON":      {"a.tfvars.json", "[1]", "is a list, and not a mapping"},
		"no YAML":             {"a.yaml", "clusterName: a\n b: c\n", "a.yaml:2: not valid YAML"},
		"a program":           {"main.tf", "", "is a program of Terraform"},
		"nothing known":       {"a.tfvars", "region = \"eu\"\n", "nothing in the files is known to import"},
		"a lone patch":        {"a.yaml", "machine: {}\n", "there are only patches"},
		"no ending":           {"inventory", "", "its name ends in none of"},
		"other JSON":          {"package.json", "{}", "it has none of controlplanes, workers and nodes"},
		"other YAML":          {"a.yaml", "a: b\n", "it has neither cluster_name nor clusterName"},
		"two documents":       {"a.yaml", "a: b\n---\nc: d\n", "it is not one mapping"},
		"empty":               {"a.yaml", "", "it is not one mapping"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read([]File{{Name: tc.file, Data: []byte(tc.data)}}, Options{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestNoSecretIsCopied: nothing of what is a secret in the examples is in what is written, or
// reported.
func TestNoSecretIsCopied(t *testing.T) {
	secrets := []string{"hunter2", "tskey-auth-clear", "uuid-secret", "my-token", "topsecret"}
	found := map[string]bool{}
	examples, err := filepath.Glob("../testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range examples {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range txtar.Parse(b).Files {
			for _, s := range secrets {
				switch in := strings.HasPrefix(f.Name, "in/"); {
				case !strings.Contains(string(f.Data), s):
				case in:
					found[s] = true
				default:
					t.Errorf("%s: %s has the secret %s", file, f.Name, s)
				}
			}
		}
	}
	if len(found) != len(secrets) {
		t.Errorf("only %v are in the examples, of %v", found, secrets)
	}
}

// TestFindSecret: a text is a secret by its key or by how it begins, unless it is what
// settings have whose names sound alike.
func TestFindSecret(t *testing.T) {
	for body, want := range map[string]string{
		"machine: {registries: {config: {r: {auth: {password: x1}}}}}":               "password",
		"machine: {registries: {config: {r: {auth: {password: '${values.x}'}}}}}":    "",
		"machine: {kubelet: {extraArgs: {authentication-token-webhook: 'true'}}}":    "",
		"cluster: {apiServer: {extraArgs: {token-ttl: 24h, tokenFile: /etc/token}}}": "",
		"machine: {files: [{content: 'AGE-SECRET-KEY-1ABC'}]}":                       "content",
		"machine: {files: [{content: \"-----BEGIN EC PRIVATE KEY-----\"}]}":          "content",
		"machine: {files: [{content: 'MONITOR ups 1 remote pass hunter3'}]}":         "content",
		"machine: {files: [{content: 'compass bypassed'}]}":                          "",
		"encryption: {keys: [{static: {passphrase: x}}]}":                            "passphrase",
		"machine: {registries: {config: {ghcr.io: {auth: {auth: dTpw}}}}}":           "auth",
		"machine: {registries: {config: {ghcr.io: {auth: {auth: '${values.x}'}}}}}":  "",
		"{kind: RegistryAuthConfig, auth: dTpw}":                                     "auth",
		"machine: {env: {HTTP_PROXY: 'http://u:pw@proxy:3128'}}":                     "HTTP_PROXY",
		"machine: {env: {HTTP_PROXY: 'http://u:${values.pw}@proxy:3128'}}":           "",
		"machine: {env: {HTTP_PROXY: 'http://proxy:3128'}}":                          "",
		"machine: {env: {GH: ghp_abc}}":                                              "GH",
		"cluster: {secretboxEncryptionSecret: abc=}":                                 "secretboxEncryptionSecret",
		"machine: {env: {https_proxy: 'http://proxy:3128'}}":                         "",
		"a: {api_token: 5}": "",
	} {
		docs, err := readYAML([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := findSecret(docs[0], ""); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

// TestIsSecret: files that hold secrets are known by their names.
func TestIsSecret(t *testing.T) {
	for name, want := range map[string]bool{"talsecret.sops.yaml": true, "a/secrets.sops.yaml": true, "talsecret.yaml": true, "talenv.yaml": true, "secrets.yaml": true,
		`c:\x\TalSecret.yaml`: true, "credentials.auto.tfvars": true, "terraform.tfstate": true, "talconfig.yaml": false, "a.sops.d/cluster.yaml": false, "terraform.tfvars": false} {
		if got := IsSecret(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestRoleOf: a role is what is written, or what the name has as a word.
func TestRoleOf(t *testing.T) {
	for _, tc := range []struct {
		written, name string
		want          cluster.Role
	}{
		{"", "talos-cp-01", cluster.ControlPlane}, {"", "talos-worker-01", cluster.Worker}, {"worker", "talos-cp-01", cluster.Worker}, {"control-plane", "pi", cluster.ControlPlane},
		{"", "k8s_master_1", cluster.ControlPlane}, {"", "node1", cluster.Worker}, {"", "pi", ""}, {"", "cpu-box", ""}, {"", "workstation", ""},
	} {
		if got := roleOf(tc.written, tc.name); got != tc.want {
			t.Errorf("%q %q: %q, want %q", tc.written, tc.name, got, tc.want)
		}
	}
}

// TestOffsetAddress: addresses are counted within a network, and not beyond it.
func TestOffsetAddress(t *testing.T) {
	for _, tc := range []struct {
		start string
		n     int
		want  string
	}{
		{"10.0.0.0/24", 10, "10.0.0.10"}, {"10.0.0.7/24", 10, "10.0.0.10"}, {"10.0.0.0/16", 256, "10.0.1.0"}, {"10.0.0.0/24", 256, ""}, {"10.0.0.0/24", -1, ""},
		{"255.255.255.0/24", 255, "255.255.255.255"}, {"0.0.0.0/0", 1 << 32, ""},
	} {
		d := draft.New()
		d.Cluster.Set(draft.Origin{}, draft.Text(tc.start), "network", "cidr")
		p, ok := (&reading{d: d}).cidrOf()
		a, inside := offsetAddress(p, tc.n)
		if !ok || inside != (tc.want != "") || inside && a.String() != tc.want {
			t.Errorf("%s + %d: %v %v, want %q", tc.start, tc.n, a, inside, tc.want)
		}
	}
}

// TestSetWins: what a person sets stays, and what the file has is reported.
func TestSetWins(t *testing.T) {
	d, err := Read([]File{{"a.tfvars", []byte("cluster_name = \"a\"\nha_enabled = true\nbridge = \"vmbr0\"\n")}}, Options{Set: map[string]string{
		"cluster_name": "b", "ha_enabled": "true", "network.vlan": "7", "network.nameservers": "1.1.1.1,9.9.9.9", "environment": "007"}})
	if err != nil {
		t.Fatal(err)
	}
	text := d.Files()["cluster.yaml"]
	for _, want := range []string{"\ncluster_name: b\n", "\nha_enabled: true\n", "\n  vlan: 7\n", "\n  nameservers: [1.1.1.1, 9.9.9.9]\n", "\nenvironment: \"007\"\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if left := d.Left(); len(left) != 1 || left[0].String() != "a.tfvars:1: cluster_name: cluster_name is set already by --set cluster_name (keep the one that is right)" {
		t.Errorf("%v", left)
	}
}

// TestErrorsHaveHints: a file of no format is answered with those there are.
func TestErrorsHaveHints(t *testing.T) {
	_, err := Read([]File{{"x.toml", nil}, {"main.tf", nil}}, Options{})
	problems, ok := err.(cluster.Problems)
	if !ok || len(problems) != 2 {
		t.Fatalf("%v", err)
	}
	hints := []string{problems[0].Hint, problems[1].Hint}
	slices.Sort(hints)
	if !strings.Contains(hints[0], "talhelper's talconfig.yaml") || !strings.Contains(hints[1], "*.auto.tfvars") {
		t.Errorf("%q, and %q", hints, fault.HintOf(err))
	}
}

// TestPatchesOfArguments: a patch that is named as an argument is read, whatever the path to
// it is, and one that nothing names is reported.
func TestPatchesOfArguments(t *testing.T) {
	config := "clusterName: a\npatches: ['@./p/one.yaml', '@p/../p/one.yaml', '@p/three.yaml']\n"
	d, err := Read([]File{{"x/talconfig.yaml", []byte(config)}, {"./x/p/one.yaml", []byte("machine: {type: worker}\n")}, {"x/two.yaml", []byte("cluster: {}\n")}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	files := d.Files()
	if names := slices.Sorted(maps.Keys(files)); !slices.Equal(names, []string{"cluster.yaml", "nodes.yaml", "patches/one.yaml"}) {
		t.Errorf("%q", names)
	}
	var left []string
	for _, p := range d.Left() {
		left = append(left, p.File+" "+p.Field)
	}
	if !slices.Equal(left, []string{"x/talconfig.yaml patches[2]", "x/two.yaml "}) {
		t.Errorf("%q", left)
	}
}

// TestRefusePatch: a patch with a secret in it, in whatever place, is not copied.
func TestRefusePatch(t *testing.T) {
	for body, refused := range map[string]bool{
		"machine:\n  sysctls:\n    a: b\n":                                           false,
		"# the token of the registry is in the secrets\nmachine: {}\n":               false,
		"# token: ${values.token}\nmachine: {}\n":                                    false,
		"machine:\n  # registry_password: hunter2\n  install: {}\n":                  true,
		"machine: {} # authkey = \"abc\"\n":                                          true,
		"# tskey-auth-k1\nmachine: {}\n":                                             true,
		"# https://ann:pw@example.org\nmachine: {}\n":                                true,
		"machine:\n  files:\n    - content: |\n        credential = abc\n":           true,
		"machine:\n  files:\n    - content: |\n        [credentials]\n        a=b\n": true,
		"machine:\n  files:\n    - content: |\n        [plugins]\n":                  false,
	} {
		if why, hint := refusePatch(body); (why != "") != refused || (hint != "") != refused {
			t.Errorf("%q: %q, %q", body, why, hint)
		}
	}
}
