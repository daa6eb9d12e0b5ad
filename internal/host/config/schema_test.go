package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/internal/yamlschema/schematest"
)

const reference = "../../../docs/reference"

func TestSchemasAreCurrent(t *testing.T) {
	for _, s := range hostSchemas {
		b, err := Schema(s.name)
		if err != nil {
			t.Fatal(err)
		}
		golden.Check(t, filepath.Join(reference, "schema", s.name+".schema.json"), b)
	}
}

// TestReferenceIsCurrent writes the tables of the reference between their
// markers.
func TestReferenceIsCurrent(t *testing.T) {
	for _, s := range hostSchemas {
		file := filepath.Join(reference, s.name+".md")
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		table, err := language.Table(s.typ)
		if err != nil {
			t.Fatal(err)
		}
		filled, err := yamlschema.FillTable(string(page), s.name, table)
		if err != nil {
			t.Fatal(err)
		}
		golden.Check(t, file, []byte(filled))
	}
}

// TestHostLanguage: every key has a meaning and a rule, and every example
// decodes.
func TestHostLanguage(t *testing.T) {
	for _, s := range hostSchemas {
		for _, wrong := range language.Verify(s.typ) {
			t.Error(wrong)
		}
	}
}

// TestSchemasAgreeWithTheDecoder: what is accepted is valid under the schema,
// and mistakes that a schema can know are found by it too.
func TestSchemasAgreeWithTheDecoder(t *testing.T) {
	packaged := func(name string) string {
		b, err := os.ReadFile("../../../packaging/deb/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for which, c := range map[string]struct{ right, wrong []string }{
		"config": {[]string{sshConfig, fullConfig, packaged("config.yaml"), "repository: {directory: /srv/infra}"},
			[]string{"{}", sshConfig + "x: 1", sshConfig + "socket: x", sshConfig + "forge: {kind: cvs, repository: a/b}", sshConfig + "factory: {url: \"ftp://x\"}", "repository: {interval: 5}"}},
		"policy": {[]string{"pool: talos\nvmids: [400-599]\nlimits: {ram: 64GiB}\nsources: {charts: [oci://a.b/c]}", packaged("policy.yaml")},
			[]string{"pool: talos", "pool: talos\nvmids: [a]", "pool: talos\nvmids: [400-599]\nlimits: {ram: 64}", "pool: talos\nvmids: [400-599]\nlimits: {nodes: 0}"}},
	} {
		text, err := Schema(which)
		if err != nil {
			t.Fatal(err)
		}
		s := schematest.Compile(t, which, text)
		for _, text := range c.right {
			if err := s.Validate(schematest.Instance(t, []byte(text))); err != nil {
				t.Errorf("%s: %s: %v", which, text, err)
			}
		}
		for _, text := range c.wrong {
			if err := s.Validate(schematest.Instance(t, []byte(text))); err == nil {
				t.Errorf("the schema of %s accepts %s", which, text)
			}
		}
	}
}

// TestPackagedFiles: the files of the package are valid as they lie there, once
// the files they name exist, and what they show in comments is, too.
func TestPackagedFiles(t *testing.T) {
	shown := func(text string) string {
		var b strings.Builder
		for line := range strings.Lines(text) {
			// What is commented out begins with "# key:" or is below such a line.
			if rest, ok := strings.CutPrefix(line, "# "); ok && (strings.HasPrefix(rest, " ") || !strings.Contains(rest, " ") || strings.Contains(rest, ": [")) && strings.Contains(rest, ":") {
				line = rest
			}
			b.WriteString(line)
		}
		return b.String()
	}
	for _, uncomment := range []func(string) string{func(s string) string { return s }, shown} {
		files := hosttest.Files(t)
		files["pve-root-ca.pem"] = files["ca.pem"]
		files["known_hosts"] = strings.ReplaceAll(files["known_hosts"], "example.org", "git.example.org")
		for _, name := range []string{"config.yaml", "policy.yaml"} {
			b, err := os.ReadFile("../../../packaging/deb/" + name)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = uncomment(string(b))
		}
		files["phone.url"], files["webhook.secret"] = "ntfy://ntfy.sh/topic", strings.Repeat("0123456789abcdef", 4)
		dir, store := hosttest.New(t, files), hosttest.New(t)
		for credential, file := range map[string]string{"age.key": "age.key", "proxmox.token": "proxmox.token", "ssh.key": "deploy.key", "forge.token": "forge.token", "webhook.secret": "webhook.secret", "vault.token": "git.token"} {
			hosttest.Write(t, filepath.Join(store, "talos-agent."+credential), files[file], 0o600)
		}
		s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), FromStore(store))
		if len(problems) > 0 {
			t.Errorf("%v\n%s", problems, files["config.yaml"])
		}
		if uncomment("# clusters: [dev]\n") == "clusters: [dev]\n" && (s.Forge == nil || s.Vault == nil || len(s.Clusters) != 1 || len(s.Charts) != 1 || s.Policy.Limits.Nodes != 10 || len(s.Policy.Charts) != 1) {
			t.Errorf("what is commented out was not tried: %s\n%s", files["config.yaml"], files["policy.yaml"])
		}
	}
}

// TestCredentialsAreListed: the reference lists every credential that a key of the
// config says it has.
func TestCredentialsAreListed(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(page), "| credential |")
	list, _, _ = strings.Cut(list, "\n\n")
	said := regexp.MustCompile(`Credential:\s+(?://\s+)?([\w.-]+)\.\s`).FindAllStringSubmatch(configSource, -1)
	if len(said) < 9 {
		t.Fatalf("the comments name %d credentials only: %q", len(said), said)
	}
	for _, m := range said {
		if !strings.Contains(list, "`"+m[1]+"`") {
			t.Errorf("the credential %s is not listed", m[1])
		}
	}
}
