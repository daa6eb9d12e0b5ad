package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

var update = flag.Bool("update", false, "rewrite what the tests expect; commit only the changes you understand")

const reference = "../../docs/reference"

// current compares a generated file with what is written in docs, or rewrites it.
func current(t *testing.T, file string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(file)
	if bytes.Equal(got, want) {
		return
	}
	if !*update {
		t.Errorf("%s is not what the types say (%v): make docs writes it", file, err)
		return
	}
	if err := os.WriteFile(file, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSchemasAreCurrent(t *testing.T) {
	for _, s := range hostSchemas {
		b, err := schema(s.name)
		if err != nil {
			t.Fatal(err)
		}
		current(t, filepath.Join(reference, "schema", s.name+".schema.json"), b)
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
		table, err := hostLanguage.Table(s.typ)
		if err != nil {
			t.Fatal(err)
		}
		filled, err := yamlschema.FillTable(string(page), s.name, table)
		if err != nil {
			t.Fatal(err)
		}
		current(t, file, []byte(filled))
	}
}

// TestHostLanguage: every key has a meaning and a rule, and every example
// decodes.
func TestHostLanguage(t *testing.T) {
	for _, s := range hostSchemas {
		for _, wrong := range hostLanguage.Verify(s.typ) {
			t.Error(wrong)
		}
	}
}

// TestSchemasAgreeWithTheDecoder: what is accepted is valid under the schema,
// and mistakes that a schema can know are found by it too.
func TestSchemasAgreeWithTheDecoder(t *testing.T) {
	packaged := func(name string) string {
		b, err := os.ReadFile("../../packaging/deb/" + name)
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
		s := compileSchema(t, which)
		for _, text := range c.right {
			if err := s.Validate(instance(t, text)); err != nil {
				t.Errorf("%s: %s: %v", which, text, err)
			}
		}
		for _, text := range c.wrong {
			if err := s.Validate(instance(t, text)); err == nil {
				t.Errorf("the schema of %s accepts %s", which, text)
			}
		}
	}
}

func compileSchema(t *testing.T, which string) *jsonschema.Schema {
	t.Helper()
	b, err := schema(which)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(which+".json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(which + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance reads YAML the way an editor does.
func instance(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Load([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
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
		files := hostFiles(t)
		files["pve-root-ca.pem"] = files["ca.pem"]
		files["known_hosts"] = strings.ReplaceAll(files["known_hosts"], "example.org", "git.example.org")
		for _, name := range []string{"config.yaml", "policy.yaml"} {
			b, err := os.ReadFile("../../packaging/deb/" + name)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = uncomment(string(b))
		}
		files["phone.url"], files["webhook.secret"] = "ntfy://ntfy.sh/topic", strings.Repeat("0123456789abcdef", 4)
		dir, store := newHost(t, files), newHost(t)
		for credential, file := range map[string]string{"age.key": "age.key", "proxmox.token": "proxmox.token", "ssh.key": "deploy.key", "forge.token": "forge.token", "webhook.secret": "webhook.secret"} {
			write(t, filepath.Join(store, "talos-agent."+credential), files[file], 0o600)
		}
		s, problems := loadConfigFrom(filepath.Join(dir, "config.yaml"), inStore(store))
		if len(problems) > 0 {
			t.Errorf("%v\n%s", problems, files["config.yaml"])
		}
		if uncomment("# clusters: [dev]\n") == "clusters: [dev]\n" && (s.forge == nil || len(s.clusters) != 1 || len(s.charts) != 1 || s.policy.Limits.Nodes != 10 || len(s.policy.Charts) != 1) {
			t.Errorf("what is commented out was not tried: %s\n%s", files["config.yaml"], files["policy.yaml"])
		}
	}
}
