package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// inSecureCluster plays a story over a cluster that is Ready with Secure Boot.
func inSecureCluster(t *testing.T, sz size, talos string, story func(s *sim, push func(what, from, to string), w *turns)) {
	t.Helper()
	files := sz.Files()
	changed(t, files, "inventory/dev/cluster.yaml", "talos:\n", "talos:\n  secureboot: true\n")
	// Its disks are encrypted with keys that a TPM gives out.
	changed(t, files, "inventory/dev/cluster.yaml", "talos:\n", "patches: {all: [patches/seal.yaml]}\ntalos:\n")
	files["inventory/dev/patches/seal.yaml"] = []byte("apiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nencryption: {provider: luks2, keys: [{slot: 0, tpm: {}}]}\n")
	inClusterOfFiles(t, sz, lab.Config{}, files, talos, "v1.36.1", story)
}

// wantSecure checks that the machines of all nodes were made from the image that is signed, with a TPM and a firmware that had no keys.
func (s *sim) wantSecure() {
	s.T.Helper()
	for _, n := range s.Status().Nodes {
		vm, ok := s.Lab.PVE.VM(n.VMID)
		if !ok || !strings.Contains(vm.Config["tpmstate0"], "version=v2.0") || !strings.Contains(vm.Config["efidisk0"], "pre-enrolled-keys=0") || !vm.Disks["scsi0"].Image.Signed {
			s.T.Errorf("%s: %v, %+v", n.Name, vm.Config, vm.Disks["scsi0"])
		}
	}
}

// TestSecureBootUpgrade: a cluster with Secure Boot comes up, and is upgraded and set back with the installer that is signed as well:
// with the other one no machine would boot again.
func TestSecureBootUpgrade(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	inSecureCluster(t, sz, "v1.14.0", func(s *sim, push func(what, from, to string), w *turns) {
		s.wantSecure()
		before := len(s.Lab.World.Calls())
		push("another talos", "talos_version: v1.14.0", "talos_version: v1.14.1")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		s.wantTalos("v1.14.1")
		asked := slices.ContainsFunc(s.Lab.World.Calls()[before:], func(c world.CallRecord) bool {
			return c.System == "factory" && strings.Contains(c.Op, "manifests")
		})
		if !asked {
			s.T.Error("the factory was not asked for the installer")
		}
		s.wantSecure()
		push("set back", "talos_version: v1.14.1", "talos_version: v1.14.0")
		s.untilAppliedIn(4*time.Hour, "set back")
		s.wantTalos("v1.14.0")
	})
}

// TestSecureBootLater: Secure Boot that is asked for of a cluster that runs without it changes no node, nor does another Talos that is asked
// for with it; each gets it with a new machine.
func TestSecureBootLater(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 1}
	files := sz.Files()
	inClusterOfFiles(t, sz, lab.Config{}, files, "v1.14.0", "v1.36.1", func(s *sim, push func(what, from, to string), w *turns) {
		push("secure boot", "talos:\n", "talos:\n  secureboot: true\n")
		s.Until(10*time.Minute, "it is refused", func(st cluster.Status) bool { return st.Condition == cluster.Stalled })
		for _, n := range s.Status().Nodes {
			if n.Phase != cluster.PhaseReady {
				s.T.Errorf("%s is %s", n.Name, n.Phase)
			}
		}
		reasons := map[cluster.Reason]int{}
		for _, b := range s.Status().Blocked {
			reasons[b.Reason]++
		}
		if reasons[cluster.SecureBootDrift] != 2 {
			s.T.Errorf("blocked: %+v", s.Status().Blocked)
		}
		w.wantDown("")
		changed(t, files, "inventory/dev/nodes.yaml", "name: dev-wk-1,", "name: dev-wk-1, replace: signed,")
		push("a new machine", "", "")
		s.Until(time.Hour, "the worker has a new machine", func(st cluster.Status) bool {
			n := slices.IndexFunc(st.Nodes, func(n cluster.NodeStatus) bool { return n.Name == "dev-wk-1" })
			secure := slices.ContainsFunc(st.Blocked, func(b cluster.Block) bool { return b.Subject == "dev-wk-1" })
			vm, ok := s.Lab.PVE.VM(st.Nodes[n].VMID)
			return st.Nodes[n].Phase == cluster.PhaseReady && !secure && ok && vm.Disks["scsi0"].Image.Signed
		})
	})
}
