package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
)

// another is a second host with the same config, token and keys, and a daemon of its own.
func (r *rig) another() *rig {
	r.t.Helper()
	b := *r
	b.dir, b.log, b.proc = r.t.TempDir(), &output{}, nil
	b.config = maps.Clone(r.config)
	b.config["socket"], b.config["state_dir"], b.config["cache_dir"] = b.socket(), filepath.Join(b.dir, "state"), filepath.Join(b.dir, "cache")
	for _, name := range []string{"policy.yaml", "age.key", "proxmox.token", "git.token", "forge.token", "ca.pem"} {
		text, err := os.ReadFile(filepath.Join(r.dir, name))
		must(err)
		b.file(name, string(text))
	}
	b.write()
	r.t.Cleanup(func() {
		b.kill()
		if r.t.Failed() {
			r.t.Logf("log of the second daemon:\n%s", b.log)
		}
	})
	return &b
}

func (r *rig) leads() bool { return r.try("status", "dev").code != exitFailed && !r.standsBy() }

func (r *rig) standsBy() bool { return r.try("status").has("this agent stands by: ") }

// TestOneOfTwoActs: of two agents one acts, and the other says so; when it dies the other one takes over, with what was suspended, and
// when it is stopped, at once.
func TestOneOfTwoActs(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	const pool = "talos-agent-leader"
	r.config["leader_election"] = map[string]any{"pool": pool, "lease": "15s"}
	r.write()
	b := r.another()
	commit := r.push(r.inventory(1))

	// A pool that is not there is named.
	r.launch()
	r.until("the pool is missed", func() bool { return r.try("status").has("resource pool talos-agent-leader is not there") })
	root := administrator{t: t, lab: r.lab, token: r.lab.PVE.AdminToken()}
	for _, c := range pveumCommands(t, "TestOneOfTwoActs") {
		root.pveum(c)
	}
	pve, err := proxmox.New(proxmox.Config{URL: r.lab.PVE.URL(), Token: cluster.SecretString(r.lab.Token), CA: r.lab.CA()})
	must(err)
	defer pve.Close()

	r.until("the first one leads", func() bool { return r.leads() })
	r.untilReady(commit)
	b.launch()
	b.until("the second one stands by", func() bool { return b.try("status").has(" leads, in term ") })
	if a := b.try("suspend", "dev"); a.code == exitOK || !a.has("this agent stands by: ") || !a.has("run the command on ") {
		t.Errorf("a command to it: %v", a)
	}

	r.run(exitOK, do("suspend", "dev"))
	r.until("that is noted for the other one", func() bool {
		terms, err := pve.ListPools(t.Context(), pool)
		return err == nil && len(terms) == 1 && strings.Contains(terms[0].Comment, `"suspended":["dev"]`)
	})
	r.kill()
	b.until("the second one leads", b.leads)
	b.until("it is suspended", func() bool { return b.status().Condition == cluster.Suspended })
	b.run(exitOK, do("resume", "dev"))
	next := b.push(b.inventory(2))
	b.run(exitOK, do("reconcile", "dev"))
	b.untilReady(next)

	r.launch()
	r.until("the first one stands by", r.standsBy)
	b.stop()
	r.until("it leads again", r.leads)
	r.untilReady(next)
	if _, err := os.Stat(filepath.Join(r.dir, "state", "dev.json.old")); err != nil {
		t.Errorf("what it remembered from before is not set aside: %v", err)
	}
	made := r.calls(func(c world.CallRecord) bool {
		return c.System == "pve" && c.Op == "POST /nodes/{node}/qemu" || c.System == "talos" && strings.HasSuffix(c.Op, "/Bootstrap")
	})
	if n := len(made); n != 4 || slices.ContainsFunc(slices.Collect(maps.Values(made)), func(n int) bool { return n != 1 }) {
		t.Errorf("creations and bootstraps: %v", made)
	}
}
