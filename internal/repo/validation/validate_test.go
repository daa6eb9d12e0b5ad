package validation

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		text := fmt.Sprintf("%+v", v)
		if first == "" {
			first = text
		}
		if text != first {
			t.Errorf("got  %s\nwant %s", text, first)
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
