package validation

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/repo/repotest"
)

// TestValidateIsRepeatable: the same repository gives the same, whatever order
// the machine configs are rendered in.
func TestValidateIsRepeatable(t *testing.T) {
	dir := repotest.LargeRepository(t, "../../../examples/repo", 20)
	write(t, filepath.Join(dir, "inventory/prod/patches/controlplane.yaml"), "cluster: {nonsense: 1}\n")
	var first string
	for range 3 {
		v, err := Validate(t.Context(), dir, Config{Folder: "inventory", Owner: "a"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if v.Valid || !v.Problems.HasErrors() {
			t.Fatal("the patch is taken for valid")
		}
		v.files = nil
		text := fmt.Sprintf("%+v", v)
		if first == "" {
			first = text
		}
		if text != first {
			t.Errorf("got  %s\nwant %s", text, first)
		}
	}
}

// TestPatchProblemsHaveAPlace: what Talos' library cannot take of a patch is
// reported at its line in the file, whatever the agent writes the patch as, and in
// words that are not Go's.
func TestPatchProblemsHaveAPlace(t *testing.T) {
	dir := repotest.LargeRepository(t, "../../../examples/repo", 4)
	file := filepath.Join(dir, "inventory/prod/patches/controlplane.yaml")
	const first = "# Two documents, with comments.\n\nmachine:\n  # One.\n  sysctls: {a.b: c}\n---\n"
	for _, c := range []struct{ text, want string }{
		{first + "machine:\n\n  netwerk: {a: b}\n", "9:13: there is no setting machine.netwerk.a"},
		{first + "machine: {kubelet: {defaultRuntimeSeccompProfileEnabled: maybe}}\n", "7:58: machine.kubelet.defaultRuntimeSeccompProfileEnabled: is a text, and Talos wants true or false"},
		{first + "machine:\n  # A list.\n  sysctls:\n    - a\n", "9:3: machine.sysctls: is a list, and Talos wants a mapping with keys of its own"},
		{first + "machine:\n  install:\n    disk: [x]\n", "9:5: machine.install.disk: is a list, and Talos wants a text"},
		{first + "machine:\n  time: {bootTimeout: 5x}\n", "8:23: machine.time.bootTimeout: is a text, and Talos wants a duration like 30s"},
		{first + "\n\napiVersion: v1alpha1\nkind: UserVolumConfig\nname: x\n", "10:7: UserVolumConfig (v1alpha1) is no document of a machine config"},
		{first + "machine:\n  kubelet:\n    extraArgs: {a: {b: c}}\n", "9:24: machine.kubelet.extraArgs.a.b: arg value must be a string or list of strings"},
	} {
		write(t, file, c.text)
		v, err := Validate(t.Context(), dir, Config{Folder: "inventory", Owner: "a"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range v.Problems {
			p.Hint = ""
			if got := strings.TrimPrefix(p.String(), "inventory/prod/patches/controlplane.yaml:"); p.Severity == cluster.Error && got != c.want {
				t.Errorf("%s\ngot  %s\nwant %s", c.text, got, c.want)
			}
		}
		if v.Valid {
			t.Errorf("%s\nis taken for valid", c.text)
		}
	}
}

// TestExcerpt: the line of a problem is shown with its place in it, and nothing
// that could be a secret.
func TestExcerpt(t *testing.T) {
	long := strings.Repeat("x", 300)
	r := Result{files: fstest.MapFS{
		"a.yaml":            {Data: []byte("a: 1\r\n\tb: ä\n" + long + "\nurl: https://u:s3cret@h\n\n")},
		"secrets.sops.yaml": {Data: []byte("s3cret")},
	}}
	for _, c := range []struct {
		file         string
		line, column int
		want         string
		at           int
	}{
		{"a.yaml", 1, 4, "a: 1", 4},
		{"a.yaml", 2, 1, " b: ä", 1},
		{"a.yaml", 3, 1, long[:100] + "...", 1},
		{"a.yaml", 3, 290, "..." + long[:85], 78},
		{"a.yaml", 1, 99, "a: 1", 5},
		{"a.yaml", 4, 1, "", 0},
		{"a.yaml", 5, 1, "", 0},
		{"a.yaml", 9, 1, "", 0},
		{"a.yaml", 0, 0, "", 0},
		{"secrets.sops.yaml", 1, 1, "", 0},
		{"none.yaml", 1, 1, "", 0},
	} {
		got, at, ok := r.Excerpt(cluster.Problem{File: c.file, Line: c.line, Column: c.column})
		if ok != (c.want != "") || ok && (got != c.want || at != c.at) {
			t.Errorf("%s:%d:%d: %q at %d, %v", c.file, c.line, c.column, got, at, ok)
		}
	}
}

// TestValidateReportsAMissingWindow: upgrades that are allowed in a window only need one, in
// cluster.yaml or in the host's policy.
func TestValidateReportsAMissingWindow(t *testing.T) {
	const window = "window: {from: \"22:00\", to: \"05:00\"}\n"
	for _, c := range []struct{ spec, policy, want string }{
		{"", "", ""}, {"upgrade: approve\n", "upgrade: window\n", ""},
		{"upgrade: window\n", window, ""}, {window, "upgrade: window\n", ""},
		{"upgrade: window\n", "", "inventory/prod/cluster.yaml: upgrade is window, and neither cluster.yaml nor the host's policy has a window"},
		{"", "upgrade: window\n", "inventory/prod/cluster.yaml: upgrade is window, and neither cluster.yaml nor the host's policy has a window"},
	} {
		dir := repotest.LargeRepository(t, "../../../examples/repo", 4)
		file := filepath.Join(dir, "inventory/prod/cluster.yaml")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		write(t, file, string(text)+c.spec)
		policy := filepath.Join(t.TempDir(), "policy.yaml")
		write(t, policy, "pool: talos\nvmids: [1000-1999]\n"+c.policy)
		v, err := Validate(t.Context(), dir, Config{Folder: "inventory", Owner: "a", Policy: policy}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range v.Problems {
			if p.Severity == cluster.Error && strings.Contains(p.Message, "upgrade") {
				got = append(got, p.File+": "+p.Message)
			}
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%q, policy %q: %q", c.spec, c.policy, got)
		}
	}
}

// TestValidateReportsPorts: a port of the host is the policy's to allow; by itself an
// inventory may have any.
func TestValidateReportsPorts(t *testing.T) {
	dir := repotest.LargeRepository(t, "../../../examples/repo", 4)
	file := filepath.Join(dir, "inventory/prod/cluster.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, string(text)+"port_forwards: [{port: 443}]\n")
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	for ports, want := range map[string]string{
		"-": "", "port_forwards: [443]\n": "", "": "wants port 443 of the host, and the host allows none", "port_forwards: [80]\n": "wants port 443 of the host, and the host allows 80",
	} {
		c := Config{Folder: "inventory", Owner: "a", Policy: policy}
		if ports == "-" {
			c.Policy = ""
		} else {
			write(t, policy, "pool: talos\nvmids: [1000-1999]\n"+ports)
		}
		v, err := Validate(t.Context(), dir, c, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range v.Problems {
			if p.Severity == cluster.Error && strings.Contains(p.Message, "port") {
				got += p.Message
			}
		}
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q", ports, got)
		}
	}
}

// TestValidateReportsPolicyBlocksOnly: what the planner would block anyway, as for
// missing secrets, is not the policy's.
func TestValidateReportsPolicyBlocksOnly(t *testing.T) {
	dir := repotest.LargeRepository(t, "../../../examples/repo", 4)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, policy, "pool: talos\nvmids: [1000-1002]\nbridges: [vmbr9]\n")
	if err := os.Remove(filepath.Join(dir, "inventory/prod/secrets.sops.yaml")); err != nil {
		t.Fatal(err)
	}
	v, err := Validate(t.Context(), dir, Config{Folder: "inventory", Owner: "a", Policy: policy}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range v.Problems {
		if p.Severity == cluster.Error {
			got = append(got, fmt.Sprintf("%s:%d %s", p.File, p.Line, p.Message))
		}
	}
	want := []string{
		`inventory/prod/nodes.yaml:2 it wants bridge "vmbr2", and the host allows vmbr9 (host policy, ` + policy + `:3: bridges)`,
		`inventory/prod/nodes.yaml:3 it wants bridge "vmbr2", and the host allows vmbr9 (host policy, ` + policy + `:3: bridges)`,
		`inventory/prod/nodes.yaml:4 it wants bridge "vmbr2", and the host allows vmbr9 (host policy, ` + policy + `:3: bridges)`,
		`inventory/prod/nodes.yaml:6 it wants bridge "vmbr2", and the host allows vmbr9 (host policy, ` + policy + `:3: bridges)`,
		`inventory/prod/nodes.yaml:6 its vmid 1003 lies outside 1000-1002 (host policy, ` + policy + `:2: vmids)`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestCarriageReturns: Git for Windows ends lines with CRLF in a checkout, and the
// files mean the same.
func TestCarriageReturns(t *testing.T) {
	const patch = "# Two documents.\nmachine:\n  files:\n    - path: /var/a\n      op: create\n      content: |\n        one\n        two\n---\napiVersion: v1alpha1\nkind: KmsgLogConfig\nname: remote\nurl: tcp://192.0.2.1:514\n"
	for _, c := range []struct{ what, patch string }{
		{"valid", patch},
		{"with an error", patch + "---\nmachine:\n  netwerk: {a: b}\n"},
	} {
		t.Run(c.what, func(t *testing.T) {
			var first string
			for _, end := range []string{"\n", "\r\n"} {
				dir := t.TempDir()
				if err := os.CopyFS(dir, os.DirFS("../../../examples/repo")); err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(dir, "inventory/prod/patches/controlplane.yaml"), c.patch)
				endLines(t, dir, end)
				v, err := Validate(t.Context(), dir, Config{Folder: "inventory", Owner: "a", AgeKeys: []string{filepath.Join(dir, "lab-age-key.txt")}}, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				if v.Valid != (c.what == "valid") {
					t.Errorf("with %q: valid is %v: %v", end, v.Valid, v.Problems)
				}
				v.files, v.Revision = nil, ""
				if text := fmt.Sprintf("%+v", v); first == "" {
					first = text
				} else if text != first {
					t.Errorf("with %q: %s\nwant %s", end, text, first)
				}
			}
		})
	}
}

// endLines gives the lines of every file below a directory another end.
func endLines(t *testing.T, dir, end string) {
	t.Helper()
	files := os.DirFS(dir)
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, name)
		if err == nil {
			write(t, filepath.Join(dir, name), strings.ReplaceAll(string(text), "\n", end))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
