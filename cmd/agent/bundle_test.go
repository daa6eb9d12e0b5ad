package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab"
)

// unpack reads a bundle.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(err)
	zip, err := gzip.NewReader(bytes.NewReader(b))
	must(err)
	out := map[string]string{}
	for tr := tar.NewReader(zip); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		must(err)
		text, err := io.ReadAll(tr)
		must(err)
		name, ok := strings.CutPrefix(h.Name, "talos-agent-support/")
		if !ok || h.Mode != 0o600 {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
		out[name] = string(text)
	}
}

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
	b, err := redacted(path, configFile{})
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
	if b, err := redacted(path, configFile{}); err == nil || strings.Contains(err.Error(), secret) || len(b) > 0 {
		t.Errorf("what is no YAML: %q %v", b, err)
	}
	if got := addressOnly("", "git@example.org:infra.git"); got != "git@example.org:infra.git" {
		t.Errorf("a short address of git: %s", got)
	}
	if got := addressOnly("", "ssh://git@example.org/infra.git"); got != "ssh://git@example.org/infra.git" {
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

func TestSupportBundle(t *testing.T) {
	r := newRig(t, lab.Config{})
	config := filepath.Join(r.dir, "config.yaml")
	bundled := func(name string) map[string]string {
		t.Helper()
		path := filepath.Join(r.work, name)
		a := r.run(exitOK, do("support-bundle", "--config", config, "--file", path), "look at it before you send it", "looking at doctor")
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info, err)
		}
		parts := unpack(t, path)
		for _, line := range strings.Split(a.out, "\n")[1:] {
			if what := strings.TrimPrefix(strings.TrimSpace(line), "without "); what != "" && !strings.Contains(parts["README.txt"], what) {
				t.Errorf("%q is missing, and README.txt does not say so:\n%s", what, parts["README.txt"])
			}
		}
		return parts
	}
	has := func(parts map[string]string, name string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if !strings.Contains(parts[name], text) {
				t.Errorf("%s has no %q:\n%.2000s", name, text, parts[name])
			}
		}
		var v any
		if strings.HasSuffix(name, ".json") && json.Unmarshal([]byte(parts[name]), &v) != nil {
			t.Errorf("%s is no JSON", name)
		}
	}
	// A daemon that is down is what bundles are for.
	parts := bundled("down.tar.gz")
	has(parts, "README.txt", "daemon: cannot reach", "status.json: cannot reach")
	has(parts, "config.yaml", "owner: rig")
	has(parts, "policy.yaml", "pool: talos")
	has(parts, "doctor.json", `"kind": "Doctor"`)
	has(parts, "files.txt", "-rw------- ", "config.yaml")

	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	parts = bundled("up.tar.gz")
	has(parts, "versions.json", `"daemon"`)
	has(parts, "status.json", `"condition": "Ready"`)
	has(parts, "status.txt", "dev  Ready")
	has(parts, "events.json", "create vm 412 (dev-cp-1)")
	has(parts, "clusters/dev/plan.json", `"steps": []`)
	has(parts, "clusters/dev/history.json", `"result": "Ready"`)
	has(parts, "daemon/goroutines.txt", "goroutine profile", "reconcile.(*Reconciler).Run")
	has(parts, "daemon/metrics.txt", "talos_agent_", "go_goroutines")
	has(parts, "daemon/memory.json", "heapInUse")
	has(parts, "files.txt", "state/dev.json", "state/history-dev.jsonl")
	if strings.Contains(parts["files.txt"], "BEGIN") {
		t.Error("contents of files are listed")
	}
	r.run(exitFailed, do("support-bundle", "--config", config, "--file", filepath.Join(r.work, "up.tar.gz")), "file exists")
}

// TestRedactionOfNumbers: where a number belongs, only numbers are shown.
func TestRedactionOfNumbers(t *testing.T) {
	dir := t.TempDir()
	show := func(name, text string, of any) string {
		t.Helper()
		path := filepath.Join(dir, name)
		write(t, path, text, 0o600)
		b, err := redacted(path, of)
		must(err)
		return string(b)
	}
	const secret = "s3cr3t-canary-7f"
	config := show("config.yaml", "repository: {interval: "+secret+"}\nhistory: {keep: "+secret+"}\n", configFile{})
	policy := show("policy.yaml", "vmids: [400-599, 7 00, "+secret+"]\nlimits: {nodes: "+secret+", cores: 12, ram: 64GiB, disk: "+secret+"}\n", policyFile{})
	if strings.Contains(config+policy, secret) {
		t.Errorf("a secret is shown:\n%s%s", config, policy)
	}
	for _, want := range []string{"- 400-599", `cores: "12"`, "ram: 64GiB"} {
		if !strings.Contains(policy, want) {
			t.Errorf("%q is not shown:\n%s", want, policy)
		}
	}
}

// TestBundleSaysWhatSystemdSaid: why the unit could not be asked for is what
// systemctl says, and not that it failed.
func TestBundleSaysWhatSystemdSaid(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "systemctl"), "#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n", 0o755)
	write(t, filepath.Join(dir, "journalctl"), "#!/bin/sh\necho a line\n", 0o755)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	b := &bundle{ctx: t.Context()}
	b.systemd()
	if want := []string{"unit.txt: systemctl: Failed to connect to bus"}; !slices.Equal(b.missing, want) {
		t.Errorf("%q, want %q", b.missing, want)
	}
	if len(b.parts) != 1 || b.parts[0].name != "journal.txt" || string(b.parts[0].data) != "a line\n" {
		t.Errorf("%+v", b.parts)
	}
}
