package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// TestRedaction: whatever people write where, only what is known to be no secret
// is shown.
func TestRedaction(t *testing.T) {
	dir := t.TempDir()
	must(os.WriteFile(filepath.Join(dir, "proxmox.token"), []byte("x"), 0o600))
	path := filepath.Join(dir, "config.yaml")
	const secret = "s3cr3t-canary-7f"
	must(os.WriteFile(path, []byte(`# `+secret+`
owner: &o talos-agent
repository: {url: "https://user:`+secret+`@git.example.org/infra.git?token=`+secret+`", branch: main, interval: 5m30s, token_file: `+secret+`}
clusters: [dev, *o]
age_key_file: AGE-SECRET-KEY-`+secret+`
proxmox: {url: "https://127.0.0.1:8006", token_file: proxmox.token, ca_file: "credential:ca", token: `+secret+`}
forge: {kind: `+secret+`, repository: org/infra, token_file: [`+secret+`]}
mirrors: {charts: {"https://u:`+secret+`@a.example.org": "https://u:`+secret+`@b.example.org/x#`+secret+`"}, registries: {docker.io: "https://mirror.example.org", "`+secret+`@x": y}}
socket: /nowhere/`+secret+`
history: {keep: 7}
webhook: {listen: `+secret+`}
`+secret+`: {a: b}
`), 0o600))
	b, err := redactFile(path, configFile{})
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if strings.Contains(text, secret) {
		t.Errorf("a secret is shown:\n%s", text)
	}
	for _, want := range []string{"owner: talos-agent", "url: https://git.example.org/infra.git", "branch: main", "interval: 5m30s", "token_file: proxmox.token", "ca_file: credential:ca",
		"https://a.example.org: https://b.example.org/x", "docker.io: https://mirror.example.org", "keep: \"7\"", "repository: org/infra", unknownKey} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not shown:\n%s", want, text)
		}
	}
	must(os.WriteFile(path, []byte("a: [b\n"+secret), 0o600))
	if b, err := redactFile(path, configFile{}); err == nil || strings.Contains(err.Error(), secret) || len(b) > 0 {
		t.Errorf("what is no YAML: %q %v", b, err)
	}
	if got := showAddress("", "git@example.org:infra.git"); got != "git@example.org:infra.git" {
		t.Errorf("a short address of git: %s", got)
	}
	if got := showAddress("", "ssh://git@example.org/infra.git"); got != "ssh://git@example.org/infra.git" {
		t.Errorf("an address of git: %s", got)
	}
}

// TestRedactionKnowsEveryKind: somebody has thought about every kind of text that
// the host's files have.
func TestRedactionKnowsEveryKind(t *testing.T) {
	var walk func(t reflect.Type) []string
	walk = func(rt reflect.Type) (kinds []string) {
		for rt.Kind() == reflect.Slice {
			rt = rt.Elem()
		}
		if rt.Kind() != reflect.Struct {
			return nil
		}
		for _, f := range reflect.VisibleFields(rt) {
			if is := f.Tag.Get("is"); is != "" {
				kinds = append(kinds, is)
			}
			if f.Tag.Get("yaml") != "" {
				kinds = append(kinds, walk(f.Type)...)
			}
		}
		return kinds
	}
	kinds := append(walk(reflect.TypeFor[configFile]()), walk(reflect.TypeFor[policyFile]())...)
	if len(kinds) < 15 {
		t.Fatalf("only %v", kinds)
	}
	// These are texts that may hold a secret, and stay unshown.
	private := []string{}
	for _, is := range kinds {
		if showable[is] == nil && !slices.Contains(private, is) {
			t.Errorf("nobody has said whether a text that is a %s may be shown: see showable", is)
		}
	}
}

// TestRedactionOfNumbers: where a number belongs, only numbers are shown.
func TestRedactionOfNumbers(t *testing.T) {
	dir := t.TempDir()
	show := func(name, text string, of any) string {
		t.Helper()
		path := filepath.Join(dir, name)
		hosttest.Write(t, path, text, 0o600)
		b, err := redactFile(path, of)
		must(err)
		return string(b)
	}
	const secret = "s3cr3t-canary-7f"
	config := show("config.yaml", "repository: {interval: "+secret+"}\nhistory: {keep: "+secret+"}\n", configFile{})
	policy := show("policy.yaml", "networks: [10.10.0.64/26, "+secret+"]\nvmids: [400-599, 7 00, "+secret+"]\nlimits: {nodes: "+secret+", cores: 12, ram: 64GiB, disk: "+secret+"}\n", policyFile{})
	if strings.Contains(config+policy, secret) {
		t.Errorf("a secret is shown:\n%s%s", config, policy)
	}
	for _, want := range []string{"10.10.0.64/26", "- 400-599", `cores: "12"`, "ram: 64GiB"} {
		if !strings.Contains(policy, want) {
			t.Errorf("%q is not shown:\n%s", want, policy)
		}
	}
}

// TestWhatIsShown: each value is shown as far as it can be no secret, and nothing of what
// stands where it does not belong.
func TestWhatIsShown(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	hosttest.Write(t, there, "x", 0o600)
	const secret = "s3cr3t-canary-7f"
	for text, want := range map[string]string{
		// Addresses, without passwords and without users that may be tokens.
		"repository: {url: 'ssh://git@example.org/infra.git'}":                     "repository:\n    url: ssh://git@example.org/infra.git\n",
		"repository: {url: 'ssh://git:" + secret + "@example.org/infra.git'}":      "repository:\n    url: ssh://example.org/infra.git\n",
		"repository: {url: 'https://" + secret + "@example.org/infra.git'}":        "repository:\n    url: https://example.org/infra.git\n",
		"repository: {url: 'https://example.org/a?" + secret + "#" + secret + "'}": "repository:\n    url: https://example.org/a\n",
		"repository: {url: 'git@example.org:infra.git'}":                           "repository:\n    url: git@example.org:infra.git\n",
		"repository: {url: 'git:" + secret + "@example.org:infra.git'}":            "repository:\n    url: (not shown)\n",
		"repository: {url: '" + secret + "/x@example.org'}":                        "repository:\n    url: (not shown)\n",
		"repository: {url: 'https://exa mple.org/" + secret + "'}":                 "repository:\n    url: (not shown)\n",
		"repository: {url: 'https://example.org:port/" + secret + "'}":             "repository:\n    url: (not shown)\n",
		"repository: {url: " + secret + "}":                                        "repository:\n    url: (not shown)\n",
		"repository: {url: " + there + "}":                                         "repository:\n    url: " + there + "\n",
		"repository: {url: /" + secret + "}":                                       "repository:\n    url: '(not shown: no file of this name)'\n",
		// Paths of files that are there.
		"age_key_file: " + there:               "age_key_file: " + there + "\n",
		"age_key_file: there":                  "age_key_file: there\n",
		"age_key_file: " + secret:              "age_key_file: '(not shown: no file of this name)'\n",
		"age_key_file: credential:age.key":     "age_key_file: credential:age.key\n",
		"age_key_file: \"a\\t" + secret + "\"": "age_key_file: (not shown)\n",
		// Keys that no file has, or that stand where none is.
		secret + ": x":                              "unknown-1: '(not shown: no key of this file)'\n",
		"owner: a\n\"\": " + secret:                 "owner: a\nunknown-2: '(not shown: no key of this file)'\n",
		"owner: {x: " + secret + "}":                "owner: (not shown)\n",
		"owner: [" + secret + "]":                   "owner: (not shown)\n",
		"repository: " + secret:                     "repository: (not shown)\n",
		"repository: [" + secret + "]":              "repository: (not shown)\n",
		"clusters: " + secret + "-but-not-a-list":   "clusters: (not shown)\n",
		"clusters: [dev, {a: " + secret + "}]":      "clusters:\n    - dev\n    - (not shown)\n",
		"mirrors: {charts: " + secret + "}":         "mirrors:\n    charts: (not shown)\n",
		"mirrors: {charts: [" + secret + "]}":       "mirrors:\n    charts: (not shown)\n",
		"owner: &a " + secret + "\nsocket: {x: *a}": "owner: " + secret + "\nsocket: (not shown)\n", // a label may be any word
		// Words of a list, numbers and switches.
		"forge: {kind: github}":                           "forge:\n    kind: github\n",
		"proxmox: {fingerprint: {a: " + secret + "}}":     "proxmox:\n    fingerprint: (not shown)\n",
		"forge: {kind: git}":                              "forge:\n    kind: (not shown)\n",
		"forge: {kind: [" + secret + "]}":                 "forge:\n    kind: (not shown)\n",
		"history: {keep: 12}":                             "history:\n    keep: \"12\"\n",
		"history: {keep: 123456789012345678901}":          "history:\n    keep: (not shown)\n",
		"history: {keep: true}":                           "history:\n    keep: \"true\"\n",
		"history: {keep: false}":                          "history:\n    keep: \"false\"\n",
		"history: {keep: " + secret + "}":                 "history:\n    keep: (not shown)\n",
		"repository: {interval: 12345678901234567890m1s}": "repository:\n    interval: (not shown)\n",
		// Mirrors, by an address or the name of a registry.
		"mirrors: {registries: {docker.io: 'https://mirror.example.org'}}":     "mirrors:\n    registries:\n        docker.io: https://mirror.example.org\n",
		"mirrors: {registries: {'a " + secret + "': 'https://b.example.org'}}": "mirrors:\n    registries:\n        (not shown): https://b.example.org\n",
		"mirrors: {registries: {'" + secret + "@a': 'https://b.example.org'}}": "mirrors:\n    registries:\n        (not shown): https://b.example.org\n",
		// Nothing at all.
		"":            "# empty\n",
		"# " + secret: "# empty\n",
	} {
		path := filepath.Join(dir, "config.yaml")
		hosttest.Write(t, path, text+"\n", 0o600)
		got, err := RedactConfig(path)
		if err != nil || string(got) != want {
			t.Errorf("%s\ngot  %q, %v\nwant %q", text, got, err, want)
		}
	}
	if got, err := RedactConfig(filepath.Join(dir, "no.yaml")); err == nil || got != nil {
		t.Errorf("a file that is not there: %q, %v", got, err)
	}
	path := filepath.Join(dir, "policy.yaml")
	hosttest.Write(t, path, "heal: observe\nwindow: {days: [sat], from: \"22:00\", to: \"05:00\", time_zone: Europe/Berlin}\nnetworks: [10.10.0.64/26]\n", 0o600)
	got, err := RedactPolicy(path)
	if want := "heal: observe\nnetworks:\n    - 10.10.0.64/26\nwindow:\n    days:\n        - (not shown)\n    from: '22:00'\n    time_zone: Europe/Berlin\n    to: '05:00'\n"; err != nil || string(got) != want {
		t.Errorf("the policy: %q, %v", got, err)
	}
}

// TestRedactionOfKeysToCome: what a file may hold one day is shown no sooner than somebody has
// thought about it.
func TestRedactionOfKeysToCome(t *testing.T) {
	type inline struct {
		Known string `yaml:"known" is:"label"`
	}
	type file struct {
		inline   `yaml:",inline"`
		Flag     bool   `yaml:"flag"`
		Untagged string `is:"label"`
		Format   string `yaml:"format" is:"a format alone"`
		Show     string `yaml:"show" is:"a way to show it alone"`
		Any      string `yaml:"any" is:"any text"`
	}
	language.Formats["a format alone"], showable["a way to show it alone"] = language.Formats["label"], showText
	language.Formats["any text"], showable["any text"] = yamlschema.Text("any text", "", `^.*$`, 100), showText
	t.Cleanup(func() {
		delete(language.Formats, "a format alone")
		delete(language.Formats, "any text")
		delete(showable, "any text")
		delete(showable, "a way to show it alone")
	})
	path := filepath.Join(t.TempDir(), "file.yaml")
	hosttest.Write(t, path, "known: a\nflag: true\nformat: canary\nshow: canary\n\"\": canary\nuntagged: canary\nany: {canary: canary}\n", 0o600)
	got, err := redactFile(path, file{})
	if want := "any: (not shown)\nflag: \"true\"\nformat: (not shown)\nknown: a\nshow: (not shown)\nunknown-5: '(not shown: no key of this file)'\nunknown-6: '(not shown: no key of this file)'\n"; err != nil || string(got) != want {
		t.Errorf("got  %q, %v\nwant %q", got, err, want)
	}
}
