package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/yamlschema/schematest"
)

const unitFile = "../../packaging/systemd/talos-agent.service"

// TestUnit: systemd understands the unit, and the program what the unit starts.
func TestUnit(t *testing.T) {
	b, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	start := regexp.MustCompile(`(?m)^ExecStart=(\S+)(.*)$`).FindStringSubmatch(string(b))
	if start == nil || start[1] != "/usr/bin/talos-agent" {
		t.Fatalf("the unit starts %v", start)
	}
	if err := parses(strings.Fields(start[2])); err != nil {
		t.Errorf("ExecStart: %v", err)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze")
	}
	// What it starts must be there, or systemd complains of that.
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "talos-agent.service")
	hosttest.Write(t, file, strings.ReplaceAll(string(b), start[1], program), 0o644)
	if out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	// In tenths: what is left is that the agent has the host's network and sees
	// its files.
	out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=13", "--no-pager", file).CombinedOutput()
	if err != nil {
		t.Errorf("the unit is more exposed than it may be: %v\n%s", err, out)
	}
}

// TestUnitCredentials: the unit hands over every credential that a config may
// take, each from the place where keys of this agent lie, and each once: of two
// lines of one name systemd heeds the last one only.
func TestUnitCredentials(t *testing.T) {
	b, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	var handed []string
	for _, m := range regexp.MustCompile(`(?m)^LoadCredential(?:Encrypted)?=([^:\n]+):?(.*)$`).FindAllStringSubmatch(string(b), -1) {
		if m[2] != "talos-agent."+m[1] {
			t.Errorf("the credential %s is taken from %q", m[1], m[2])
		}
		handed = append(handed, m[1])
	}
	slices.Sort(handed)
	if want := []string{"age.key", "forge.token", "git.token", "proxmox.token", "ssh.key", "vault.token", "webhook.secret"}; !slices.Equal(handed, want) {
		t.Errorf("the unit hands over %v, want %v", handed, want)
	}
	// What may be missing is an empty line then, and no complaint of systemd.
	var empty []string
	for _, m := range regexp.MustCompile(`(?m)^SetCredential=([^:\n]+):(.*)$`).FindAllStringSubmatch(string(b), -1) {
		if m[2] != `\n` {
			t.Errorf("the credential %s is %q by default", m[1], m[2])
		}
		empty = append(empty, m[1])
	}
	slices.Sort(empty)
	if want := []string{"forge.token", "git.token", "ssh.key", "vault.token", "webhook.secret"}; !slices.Equal(empty, want) {
		t.Errorf("the unit has defaults for %v, want %v", empty, want)
	}
}

// TestDocsFiles: the files, and parts of files, that pages show have the keys
// and values that the program takes.
func TestDocsFiles(t *testing.T) {
	shown := map[string]int{}
	for _, p := range readPages(t) {
		for _, b := range p.blocks {
			if b.language != "yaml" || comments.MatchString(b.text) {
				continue
			}
			content, ok := schematest.Instance(t, []byte(b.text)).(map[string]any)
			if !ok {
				t.Errorf("%s: is no mapping", b.at())
				continue
			}
			which := kindOfFile(content)
			shown[which]++
			switch which {
			case "":
				t.Errorf("%s: nobody knows what file this is part of", b.at())
				continue
			case "other":
				continue
			case "cluster":
				for key, value := range schematest.Instance(t, []byte(wholeCluster)).(map[string]any) {
					if _, ok := content[key]; !ok {
						content[key] = value
					}
				}
			}
			schema, err := writeSchema(which)
			if err != nil {
				t.Fatal(err)
			}
			if err := schematest.Compile(t, which, schema).Validate(content); err != nil {
				t.Errorf("%s: as %s: %v", b.at(), which, err)
			}
		}
	}
	for which, least := range map[string]int{"config": 3, "policy": 3, "cluster": 4, "nodes": 4, "addon": 5} {
		if shown[which] < least {
			t.Errorf("only %d files of kind %s found", shown[which], which)
		}
	}
}

// wholeCluster is what parts of a cluster.yaml are put into.
const wholeCluster = `cluster_name: dev
talos_version: v1.13.9
kubernetes_version: v1.36.1
proxmox: {node: pve1}
`

var comments = regexp.MustCompile(`^(#.*\n)*$`)

// kindOfFile tells by its keys which file a text is part of: "other" is what
// other programs read.
func kindOfFile(content map[string]any) string {
	for _, k := range []struct{ key, kind string }{
		{"apiVersion", "other"}, {"creation_rules", "other"}, {"scrape_configs", "other"}, {"rule_files", "other"}, {"ipam", "other"}, {"jobs", "other"}, {"talos-agent", "other"}, {"repository", "config"}, {"snapshots", "config"}, {"leader_election", "config"}, {"pool", "policy"}, {"chart", "addon"},
		{"controlplane", "nodes"}, {"workers", "nodes"}, {"counted", "nodes"},
		{"cluster_name", "cluster"}, {"port_forwards", "cluster"}, {"ha", "cluster"}, {"network", "cluster"}, {"talos", "cluster"}, {"addons", "cluster"}, {"patches", "cluster"}, {"apply", "cluster"}, {"window", "cluster"}, {"gates", "cluster"}, {"talos_version", "cluster"},
	} {
		if _, ok := content[k.key]; ok {
			return k.kind
		}
	}
	if _, ok := content["values"]; ok && len(content) == 1 {
		return "other" // of the secrets, which have no schema
	}
	return ""
}
