package talosagent

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is the module path every room begins with.
const module = "github.com/talos-agent/talos-agent/"

// room is one folder of the house: which of our rooms it may import, and which
// packages from outside it must never import.
type room struct {
	may   []string
	never []string
	tests []string // what its tests may import besides
}

// Clients that talk to the outside world, by import path prefix.
var clients = []string{
	"github.com/luthermonson/go-proxmox", "github.com/siderolabs/talos", "k8s.io", "helm.sh",
	"github.com/go-git", "github.com/getsops", "google.golang.org/grpc",
}

// rooms is the import law: whatever is not listed is forbidden. Arrows point
// one way only; the two doors, sources and reconcile, never know each other.
var rooms = map[string]room{
	"":                 {},
	"internal/cluster": {never: append([]string{"os", "net/http", "go.yaml.in"}, clients...)},

	"internal/yamlschema": {may: []string{"internal/cluster", "internal/text"}, never: append([]string{"os", "net", "net/http", "math/rand"}, clients...)},

	"sources": {may: []string{"sources/git", "sources/secrets", "sources/inventory", "internal/cluster", "internal/fault"},
		never: []string{"github.com/getsops", "github.com/luthermonson/go-proxmox", "k8s.io", "helm.sh"}},
	"sources/git":       {may: []string{"internal/certpool", "internal/fault"}, never: []string{"github.com/getsops", "k8s.io", "helm.sh", "os/exec"}},
	"sources/secrets":   {may: []string{"internal/fault", "internal/text"}, never: []string{"os", "os/exec", "net/http", "github.com/getsops/sops/v3/decrypt"}},
	"sources/forge":     {may: []string{"internal/certpool", "internal/fault", "internal/text"}, never: clients},
	"sources/notify":    {may: []string{"internal/certpool", "internal/fault", "internal/text"}, never: append([]string{"os"}, clients...)},
	"sources/webhook":   {never: append([]string{"os"}, clients...)},
	"sources/inventory": {may: []string{"internal/cluster", "internal/yamlschema", "internal/fault"}, never: append([]string{"os", "net", "net/http", "math/rand"}, clients...)},

	"reconcile": {may: []string{"internal/cluster", "reconcile/plan", "internal/fault", "internal/text"}, never: append([]string{"net", "net/http"}, clients...)},
	"reconcile/plan": {may: []string{"internal/cluster"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/machineconfig": {may: []string{"internal/cluster", "internal/fault"}, never: []string{"os", "net", "net/http", "helm.sh", "k8s.io", "github.com/siderolabs/talos/pkg/machinery/client"}},
	"reconcile/factory":       {may: []string{"internal/cluster", "internal/text", "internal/certpool", "internal/fault"}, never: clients},
	"reconcile/proxmox":       {may: []string{"internal/cluster", "internal/text", "internal/fault"}, never: []string{"github.com/siderolabs/talos", "k8s.io", "helm.sh", "os/exec"}},
	"reconcile/talos":         {may: []string{"internal/cluster", "internal/text", "internal/fault"}, never: []string{"github.com/luthermonson/go-proxmox", "k8s.io", "helm.sh"}},
	"reconcile/kube":          {may: []string{"internal/cluster", "internal/kubeapi"}, never: []string{"github.com/luthermonson/go-proxmox", "helm.sh"}},
	"reconcile/helm":          {may: []string{"internal/cluster", "internal/kubeapi", "internal/text", "internal/certpool", "internal/fault"}, never: []string{"helm.sh/helm/v3/pkg/cli", "helm.sh/helm/v3/pkg/getter", "os/exec"}},

	// config reads the host's files into the Config of every room that has one:
	// it asks forge, git, notify and secrets whether they could work with what it
	// read, so that a mistake is found with its line, before anything starts.
	// inventory and yamlschema are the language, history and doctor give a default
	// and the kinds of files.
	"internal/host/config": {may: []string{"internal/cluster", "internal/fault", "internal/yamlschema", "internal/history", "internal/host/doctor", "reconcile/proxmox",
		"sources/forge", "sources/git", "sources/inventory", "sources/notify", "sources/secrets"},
		never: append([]string{"os/exec", "net", "net/http"}, clients...)},
	// state is the file system of the reconciler's journal, and gives its hint
	// where it cannot be written.
	"internal/host/state": {may: []string{"internal/fault", "reconcile"}, never: append([]string{"os/exec", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/host/setup": {may: []string{"internal/cluster"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand"}, clients...)},
	"internal/callgate":   {never: clients[:len(clients)-1]},
	"internal/fault":      {never: append([]string{"os", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/text":       {never: append([]string{"net/http", "log", "log/slog"}, clients...)},
	"internal/certpool":   {never: append([]string{"os", "net", "net/http"}, clients...)},
	"internal/kubeapi": {may: []string{"internal/cluster", "internal/text"},
		never: []string{"github.com/siderolabs/talos", "github.com/luthermonson/go-proxmox", "helm.sh", "os/exec"}},

	"internal/host/doctor": {may: []string{"internal/cluster", "internal/fault"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand"}, clients...)},

	"internal/repo/scaffold": {may: []string{"internal/cluster"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand"}, clients...)},

	"internal/api":        {may: []string{"internal/cluster", "internal/host/doctor", "internal/httpserver", "internal/fault"}, never: clients},
	"internal/httpserver": {never: clients},
	"internal/metrics":    {may: []string{"internal/cluster"}, never: append([]string{"os", "log/slog"}, clients...)},
	"internal/history": {may: []string{"internal/cluster"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},

	// What was reported and what waits to be sent know neither who reports nor
	// who gets it; reconcile lends eventlog and reporting its durable writes.
	"internal/daemon/outbox": {never: append([]string{"os", "net", "net/http", "log/slog"}, clients...)},
	"internal/daemon/eventlog": {may: []string{"internal/cluster", "internal/history", "internal/host/state", "reconcile"},
		never: append([]string{"os", "net", "net/http"}, clients...)},
	// Reports leave by the two rooms that send them, through the gate that counts;
	// of git only the error is known that means an empty repository.
	"internal/daemon/reporting": {may: []string{"internal/callgate", "internal/cluster", "internal/daemon/outbox", "internal/fault", "internal/text", "reconcile",
		"sources/forge", "sources/git", "sources/notify"}, never: append([]string{"os", "net", "net/http"}, clients...)},

	// The service around an agent turns the host's config into an agent and serves
	// it: it meets every room that has a Config, and no rule about clusters.
	"internal/daemon": {may: []string{"internal/api", "internal/callgate", "internal/cluster", "internal/daemon/agent", "internal/daemon/eventlog",
		"internal/daemon/outbox", "internal/daemon/reporting", "internal/fault", "internal/history", "internal/host/config", "internal/host/doctor",
		"internal/host/state", "internal/httpserver", "internal/metrics", "internal/text", "reconcile/factory", "reconcile/helm",
		"sources", "sources/git", "sources/inventory", "sources/secrets", "sources/webhook"},
		never: append([]string{"os/exec"}, clients...)},
	// Here sources and reconcile meet: the agent joins the repository with every
	// adapter. doctor and setup say what it examines of its host for the socket,
	// whose interface it is.
	"internal/daemon/agent": {may: []string{"internal/api", "internal/callgate", "internal/cluster", "internal/daemon/eventlog", "internal/daemon/outbox",
		"internal/daemon/reporting", "internal/fault", "internal/history", "internal/host/doctor", "internal/host/setup", "internal/text",
		"reconcile", "reconcile/factory", "reconcile/helm", "reconcile/kube", "reconcile/machineconfig", "reconcile/plan", "reconcile/proxmox", "reconcile/talos",
		"sources", "sources/forge", "sources/git"},
		never: append([]string{"os", "os/exec", "net/http"}, clients...), tests: []string{"internal/daemon/daemontest", "sources/notify"}},
	// For tests only: an agent on the lab, wired by hand.
	"internal/daemon/daemontest": {may: []string{"internal/api", "internal/cluster", "internal/daemon/agent", "internal/daemon/reporting", "internal/lab", "internal/lab/world",
		"reconcile/factory", "reconcile/helm", "reconcile/machineconfig", "reconcile/proxmox", "sources", "sources/forge", "sources/git", "sources/inventory", "sources/secrets"},
		never: append([]string{"os/exec"}, clients...)},

	"internal/lab":       {may: []string{"internal/cluster", "internal/lab/world", "internal/lab/pve", "internal/lab/talos", "internal/lab/kube", "internal/lab/web"}},
	"internal/lab/world": {},
	"internal/lab/pve":   {may: []string{"internal/lab/world"}, never: []string{"github.com/luthermonson/go-proxmox"}},
	"internal/lab/talos": {may: []string{"internal/lab/world"}},
	"internal/lab/kube":  {may: []string{"internal/lab/world"}},
	"internal/lab/web":   {may: []string{"internal/lab/world"}},

	"packaging/deb": {never: append([]string{"os", "net", "net/http"}, clients...)},

	"cmd/agent": {may: []string{"*"}},
}

// testsMay lists what tests may import besides what their room may: adapters
// are tested against the lab over the real protocol.
var testsMay = []string{"internal/lab", "internal/lab/world", "internal/lab/pve", "internal/lab/talos", "internal/lab/kube", "internal/lab/web", "internal/cluster"}

// skipped are folders that hold no rooms: other modules and test data.
func skipped(dir string) bool {
	base := path.Base(dir)
	if base == "testdata" || strings.HasPrefix(base, ".") && base != "." {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil && dir != "."
}

func TestRoomsKeepTheImportLaw(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipped(p) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		dir := filepath.ToSlash(filepath.Dir(p))
		if dir == "." {
			dir = ""
		}
		r, ok := rooms[dir]
		if !ok {
			t.Errorf("%s: folder %q is not a room: give it a rule in rooms_test.go", p, dir)
			return nil
		}
		seen[dir] = true
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imp := range f.Imports {
			name, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				return err
			}
			checkImport(t, p, dir, r, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := range rooms {
		if !seen[dir] && dir != "" {
			t.Errorf("rooms_test.go has a rule for %q, which holds no Go files", dir)
		}
	}
}

func checkImport(t *testing.T, file, dir string, r room, name string) {
	t.Helper()
	test := strings.HasSuffix(file, "_test.go")
	if ours, ok := strings.CutPrefix(name, module); ok {
		if ours == "cmd/agent" {
			t.Errorf("%s imports cmd/agent: the wiring is imported by nobody", file)
			return
		}
		if ours == dir || slices.Contains(r.may, ours) || slices.Contains(r.may, "*") || test && (slices.Contains(testsMay, ours) || slices.Contains(r.tests, ours)) {
			return
		}
		t.Errorf("%s: room %q may not import %q", file, dir, ours)
		return
	}
	if test {
		return
	}
	for _, n := range r.never {
		if name == n || strings.HasPrefix(name, n+"/") {
			// "net" forbids the package, not net/netip and net/url, which are pure.
			if n == "net" && (name == "net/netip" || name == "net/url") {
				continue
			}
			t.Errorf("%s: room %q must never import %q", file, dir, name)
		}
	}
}

// TestPlanIsPure keeps the clock and chance out of the planner: they would make
// the same input give another plan.
func TestPlanIsPure(t *testing.T) {
	files, err := filepath.Glob("reconcile/plan/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After"} {
			if strings.Contains(string(src), bad) {
				t.Errorf("%s uses %s: now is a field of Observed", file, bad)
			}
		}
	}
}
