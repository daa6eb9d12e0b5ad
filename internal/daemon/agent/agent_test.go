package agent

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/reporting"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/notify"
)

// memFiles is a state directory in memory.
type memFiles map[string][]byte

func (m memFiles) Read(name string) ([]byte, error) {
	if b, ok := m[name]; ok {
		return b, nil
	}
	return nil, fs.ErrNotExist
}

func (m memFiles) Write(name string, data []byte) error { m[name] = data; return nil }

func (memFiles) Sync(string) error { return nil }

func (m memFiles) Remove(name string) error { delete(m, name); return nil }

func (m memFiles) Rename(from, to string) error {
	m[to] = m[from]
	delete(m, from)
	return nil
}

// newConfig is an agent's that asks nobody until it is started.
func newConfig(t *testing.T) Config {
	log := slog.New(slog.DiscardHandler)
	return Config{
		Owner: "talos-agent", Interval: time.Minute, Policy: func() cluster.Policy { return cluster.Policy{} }, Files: memFiles{}, CacheDir: t.TempDir(), Log: log,
		Sources: sources.Config{Store: drip{new(int)}},
		Proxmox: proxmox.Config{URL: "https://127.0.0.1:8006", Token: cluster.SecretString("agent@pve!agent=secret"), Log: log},
		Factory: factory.Config{URL: "https://factory.example.org", CacheDir: t.TempDir()},
		Sent:    reporting.OpenSentNotices(nil, nil, log),
	}
}

// TestRefusedClusterLeavesNothingBehind: a cluster that cannot be managed is tried
// again and again.
func TestRefusedClusterLeavesNothingBehind(t *testing.T) {
	c := newConfig(t)
	if err := os.WriteFile(filepath.Join(c.CacheDir, "charts"), nil, 0o600); err != nil { // where a folder is wanted
		t.Fatal(err)
	}
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Stop()
	before := goleak.IgnoreCurrent()
	for range 3 {
		a.manage("dev")
	}
	if s, err := a.Status("dev"); err != nil || !strings.Contains(s.Message, "make chart cache") {
		t.Errorf("%+v %v", s, err)
	}
	goleak.VerifyNone(t, before)
}

// TestStoppedAgentIsSilent: with an agent end its notifiers; those of the next
// one would say everything twice.
func TestStoppedAgentIsSilent(t *testing.T) {
	c := newConfig(t)
	c.Notify = []reporting.Target{{Name: "a", To: notify.Config{Kind: notify.Webhook, URL: "https://hook.example.org/a"}}}
	before := goleak.IgnoreCurrent()
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if goleak.Find(before) == nil {
		t.Error("no notifier is started")
	}
	a.Stop()
	goleak.VerifyNone(t, before)
}
