package agent_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
)

// restore restores a backup of a node's VM under another VMID: its config is that of
// the node's own VM, with UUID, name and mark.
func (s *sim) restore(node string, vmid int) {
	s.T.Helper()
	vm, ok := s.Lab.PVE.VM(s.vmidOf(node))
	if !ok {
		s.T.Fatalf("%s has no VM", node)
	}
	config := maps.Clone(vm.Config)
	for _, key := range []string{"scsi0", "ide2", "efidisk0", "digest", "pool", "lock"} {
		delete(config, key)
	}
	must(s.Lab.PVE.CreateForeign(vmid, pve.Foreign{Pool: vm.Pool, Config: config, Running: true}))
}

// takeOut takes a VM out of the pool, as root does; the agent's token does not see it
// then.
func (s *sim) takeOut(vmid int) {
	s.T.Helper()
	transport := &http.Transport{DialContext: s.Lab.World.Net.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(s.T.Context(), "PUT", fmt.Sprintf("%s/api2/json/pools/talos?vms=%d&delete=1", s.Lab.PVE.URL(), vmid), nil)
	must(err)
	req.Header.Set("Authorization", "PVEAPIToken="+s.Lab.PVE.AdminToken())
	resp, err := (&http.Client{Transport: transport}).Do(req)
	must(err)
	must(resp.Body.Close())
	if resp.StatusCode != http.StatusOK {
		s.T.Fatalf("take vm %d out of its pool: %s", vmid, resp.Status)
	}
}

// hasReason is met when something of the cluster is left for a reason, and nothing is
// deleted any longer.
func hasReason(reason cluster.Reason) func(cluster.Status) bool {
	return func(st cluster.Status) bool {
		return st.Condition == cluster.Stalled && st.Suspended && !st.Destroying && st.Reason == reason
	}
}

// isDestroyed is met when the status calls the cluster destroyed.
func isDestroyed(st cluster.Status) bool {
	return st.Condition == cluster.Suspended && !st.Destroying && len(st.Running) == 0
}

// TestDestroyKeepsARestoredCopy: a backup of a worker that was restored under another
// VMID is not deleted with the worker. A second command shows it, and deletes it.
func TestDestroyKeepsARestoredCopy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		s.restore("dev-wk-1", 999)
		s.Until(10*time.Minute, "reported", func(st cluster.Status) bool { return st.Reason == cluster.DuplicateVM })
		shown, err := s.Cluster().ForecastDestroy(t.Context(), nil)
		must(err)
		if len(shown.Steps) != 2 || len(shown.Blocked) != 1 || shown.Blocked[0].Reason != cluster.DuplicateVM {
			t.Errorf("the preview: %+v", shown)
		}
		must(s.Cluster().Destroy(nil, nil))
		s.Until(20*time.Minute, "ended", func(st cluster.Status) bool { return !st.Destroying && len(st.Running) == 0 })
		if _, ok := s.Lab.PVE.VM(999); !ok {
			t.Fatal("the copy was deleted")
		}
		s.Until(time.Minute, "reported", hasReason(cluster.DuplicateVM))
		if vms := s.Lab.PVE.VMs(); len(vms) != 1 {
			t.Errorf("left: %v", vms)
		}
		must(s.Cluster().Destroy(nil, nil))
		s.Until(20*time.Minute, "destroyed", isDestroyed)
		if s.left() {
			t.Error("the copy is left")
		}
		s.Halt()
	})
}

// TestDestroyKeepsWhatCameLater: a copy that is restored while a destruction waits for
// a backup was not shown to the administrator, and is kept.
func TestDestroyKeepsWhatCameLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		worker := s.vmidOf("dev-wk-1")
		must(s.Lab.PVE.Lock(worker, "backup"))
		must(s.Cluster().Destroy(nil, nil))
		time.Sleep(time.Hour)
		if _, ok := s.Lab.PVE.VM(worker); !ok || !s.Status().Destroying {
			t.Fatal("the destruction did not wait for the backup")
		}
		s.restore("dev-wk-1", 999)
		time.Sleep(5 * time.Minute)
		must(s.Lab.PVE.Unlock(worker))
		s.Until(20*time.Minute, "ended", func(st cluster.Status) bool { return !st.Destroying && len(st.Running) == 0 })
		if _, ok := s.Lab.PVE.VM(999); !ok {
			t.Fatal("the copy was deleted")
		}
		s.Until(time.Minute, "reported", hasReason(cluster.DuplicateVM))
		if vms := s.Lab.PVE.VMs(); len(vms) != 1 {
			t.Errorf("left: %v", vms)
		}
		s.Halt()
	})
}

// TestDestroyReportsAControlPlaneOutOfSight: a control plane that the agent's token
// cannot see is not nothing. The founding of etcd is remembered, so that no second one
// is made beside it.
func TestDestroyReportsAControlPlaneOutOfSight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		plane := s.vmidOf("dev-cp-1")
		must(s.Lab.PVE.Stop(plane))
		s.takeOut(plane)
		must(s.Cluster().Destroy(nil, nil))
		s.Until(20*time.Minute, "ended", func(st cluster.Status) bool { return !st.Destroying && len(st.Running) == 0 })
		st := s.Status()
		if !hasReason(cluster.ControlPlaneUnproven)(st) || st.Concerns != "dev-cp-1" || st.Hint == "" {
			t.Errorf("it ends as %s %s: %s [%s]", st.Condition, st.Reason, st.Message, st.Hint)
		}

		// The administrator gives the node another VMID instead, and goes on.
		files := sz.Files()
		const nodes = "inventory/dev/nodes.yaml"
		files[nodes] = bytes.ReplaceAll(files[nodes], []byte("10.10.0.11"), []byte("10.10.0.12"))
		s.Push(files, "another vmid")
		time.Sleep(time.Minute)
		must(s.Cluster().Resume())
		time.Sleep(time.Hour)
		must(s.Lab.PVE.Start(plane))
		time.Sleep(20 * time.Minute)
		if v := s.Lab.World.Violations(); len(v) > 0 {
			t.Errorf("%v", v)
		}
		s.Halt()
	})
}

// TestDestroyReportsAControlPlaneWithoutUUID: a control plane that has lost its
// SMBIOS UUID is not another's. When it has it again, the destruction ends; when
// nothing is left of it, root can declare that.
func TestDestroyReportsAControlPlaneWithoutUUID(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"it is given back", "root declares that it has no etcd"} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, size{ControlPlanes: 1}, lab.Config{})
				defer s.Close()
				s.Boot()
				s.UntilReady(20 * time.Minute)
				plane := s.vmidOf("dev-cp-1")
				vm, _ := s.Lab.PVE.VM(plane)
				must(s.Lab.PVE.Stop(plane))
				must(s.Lab.PVE.Edit(plane, "smbios1", ""))
				must(s.Cluster().Destroy(nil, nil))
				s.Until(20*time.Minute, "ended", func(st cluster.Status) bool { return !st.Destroying && len(st.Running) == 0 })
				if st := s.Status(); !hasReason(cluster.ControlPlaneUnproven)(st) {
					t.Errorf("it ends as %s %s: %s", st.Condition, st.Reason, st.Message)
				}
				if end != "it is given back" {
					if err := s.Cluster().AcceptBootstrap(); err != nil {
						t.Errorf("root cannot declare that no etcd is left: %v", err)
					}
				} else {
					must(s.Lab.PVE.Edit(plane, "smbios1", vm.Config["smbios1"]))
					must(s.Cluster().Destroy(nil, nil))
				}
				s.Until(20*time.Minute, "destroyed", isDestroyed)
				s.Halt()
			})
		})
	}
}
