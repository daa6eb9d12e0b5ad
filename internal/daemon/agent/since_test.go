package agent_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/pve/accesslog"
)

// TestWhoChangedItWhileNoAgentRan: what somebody changed while the agent was stopped is theirs,
// since then, and stays so over every restart and crash; who came before the stop, or after it, is not
// named for it.
func TestWhoChangedItWhileNoAgentRan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz, path := size{ControlPlanes: 1, Workers: 2}, filepath.Join(t.TempDir(), "access.log")
		log, err := accesslog.Open(path)
		must(err)
		defer func() { must(log.Close()) }()
		host := sz.Host()
		host.AccessLog = log
		s := newSim(t, sz, lab.Config{Hosts: []pve.Host{host}})
		defer s.Close()
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "heal: observe\ncni: cilium\n")
		s.Push(files, "observe")
		boot := func() {
			t.Helper()
			s.Boot(func(c *agent.Config) { c.Proxmox.AccessLog, c.Proxmox.Host = path, "pve1" })
		}
		vmids := map[int]int{}
		vmid := func(n int) int { return vmids[n] }
		put := func(n int, form string) {
			t.Helper()
			s.putAsRoot(fmt.Sprintf("/nodes/pve1/qemu/%d/config", vmid(n)), form)
		}
		left := func(node, field string) cluster.FieldDifference {
			t.Helper()
			var out cluster.FieldDifference
			s.Until(10*time.Minute, node+" "+field, func(st cluster.Status) bool {
				for _, b := range st.Blocked {
					for _, f := range b.Drift {
						if b.Subject == node && f.Field == field {
							out = f
						}
					}
				}
				return out.Field != ""
			})
			return out
		}
		boot()
		s.UntilReady(20 * time.Minute)
		first, second := "dev-wk-1", "dev-wk-2"
		vmids[1], vmids[2] = s.vmidOf(first), s.vmidOf(second)
		put(1, "protection=0") // the agent looks on, and it is no difference
		time.Sleep(5 * time.Minute)
		s.Halt()

		time.Sleep(time.Minute)
		edited := time.Now()
		put(1, "cores=3")
		must(s.Lab.PVE.Edit(vmid(2), "cores", "3")) // as qm set does
		time.Sleep(time.Minute)
		must(s.Lab.PVE.Stop(vmid(1)))
		must(s.Lab.PVE.Start(vmid(1)))
		time.Sleep(time.Hour)
		boot()
		named, unnamed := left(first, "cores"), left(second, "cores")
		if !strings.HasPrefix(named.By, "PUT config by root@pam!admin at ") || named.Since.Sub(edited).Abs() > time.Second {
			t.Errorf("edited at %v: %+v", edited, named)
		}
		if !regexp.MustCompile(`^changed after [0-9: -]+ UTC; no task shows who it was$`).MatchString(unnamed.By) || unnamed.Since.Before(edited.Add(time.Hour)) {
			t.Errorf("edited by a program: %+v", unnamed)
		}

		put(1, "onboot=0")
		put(2, "onboot=0")
		booted := left(first, "start at boot")
		if !strings.HasPrefix(booted.By, "PUT config by root@pam!admin at ") || !booted.Since.After(named.Since) {
			t.Errorf("edited later: %+v", booted)
		}
		for _, end := range []func(){s.Halt, s.Die, s.Halt} {
			time.Sleep(3 * time.Minute)
			if end(); !s.IsDead() {
				boot()
			}
			time.Sleep(3 * time.Minute)
			for _, want := range []struct {
				node string
				cluster.FieldDifference
			}{{first, named}, {second, unnamed}, {first, booted}} {
				if got := left(want.node, want.Field); got != want.FieldDifference {
					t.Errorf("after a restart:\n got %+v\nwant %+v", got, want.FieldDifference)
				}
			}
		}

		// What an agent that crashed did not see has no name.
		put(2, "protection=0")
		time.Sleep(5 * time.Minute)
		s.Die()
		must(s.Lab.PVE.Edit(vmid(2), "memory", "4096"))
		s.Until(10*time.Minute, "restarted", func(cluster.Status) bool { return s.Agent != nil && !s.IsDead() })
		if got := left(second, "memory (MiB)"); got.By != "" {
			t.Errorf("after a crash: %+v", got)
		}
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestEditUnderOtherVersions: that somebody edited a machine config is reported, and left, while the
// inventory has other versions than the nodes run; of the others there is nothing to report.
func TestEditUnderOtherVersions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 2}, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		files := size{ControlPlanes: 1, Workers: 2}.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "kubernetes_version: v1.36.1", "kubernetes_version: v1.36.0")
		s.Push(files, "another version")
		blocked := func(st cluster.Status, reason cluster.Reason) (out []cluster.Block) {
			for _, b := range st.Blocked {
				if b.Reason == reason {
					out = append(out, b)
				}
			}
			return out
		}
		s.Until(10*time.Minute, "of another version", func(st cluster.Status) bool { return len(blocked(st, cluster.KubernetesDrift)) == 3 })
		if b := blocked(s.Status(), cluster.KubernetesDrift)[0]; !strings.HasSuffix(b.Hint, "a downgrade of Kubernetes, from v1.36.1 to v1.36.0, is not made") {
			t.Errorf("why there is no way is not named: %s", b.Hint)
		}
		time.Sleep(10 * time.Minute)
		if got := blocked(s.Status(), cluster.ConfigDrift); len(got) > 0 {
			t.Errorf("nothing was edited: %+v", got)
		}
		must(s.talosctl("10.10.0.41", machineapi.ApplyConfigurationRequest_NO_REBOOT))
		edited := time.Now()
		s.Until(10*time.Minute, "reported", func(st cluster.Status) bool { return len(blocked(st, cluster.ConfigDrift)) > 0 })
		time.Sleep(30 * time.Minute)
		got := blocked(s.Status(), cluster.ConfigDrift)
		if len(got) != 1 || got[0].Subject != "dev-wk-1" || len(got[0].Drift) != 1 {
			t.Fatalf("%+v", got)
		}
		if f := got[0].Drift[0]; f.Field != "machine config" || !strings.HasPrefix(f.By, "edited on the node") || f.Since.Sub(edited).Abs() > time.Minute {
			t.Errorf("edited at %v: %+v", edited, f)
		}
		changed(t, files, "inventory/dev/cluster.yaml", "kubernetes_version: v1.36.0", "kubernetes_version: v1.36.1")
		s.Push(files, "back")
		s.UntilReady(time.Hour)
		s.Halt()
	})
}
