package agent_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/talos"
)

// wantInstalled checks that the machines of all nodes have installed themselves, and that their media are out of the drives.
func (s *sim) wantInstalled() {
	s.T.Helper()
	for _, n := range s.Status().Nodes {
		vm, ok := s.Lab.PVE.VM(n.VMID)
		if !ok || vm.Config["ide0"] != "none,media=cdrom" || vm.Config["boot"] != "order=scsi0;ide0" {
			s.T.Errorf("%s: its drive has %q, and it boots by %q", n.Name, vm.Config["ide0"], vm.Config["boot"])
		}
		for _, r := range s.Status().Waiting {
			s.T.Errorf("%+v", r)
		}
	}
}

// bootFromMedium has the machines of an inventory install themselves.
func bootFromMedium(t *testing.T, files map[string][]byte) {
	t.Helper()
	changed(t, files, "inventory/dev/cluster.yaml", "talos:\n", "talos:\n  boot: iso\n")
}

// newMediumSim is a simulation of a cluster whose machines install themselves, which has been pushed.
func newMediumSim(t *testing.T, sz size, c lab.Config) (*sim, map[string][]byte) {
	t.Helper()
	files := sz.Files()
	bootFromMedium(t, files)
	s := newSim(t, sz, c)
	s.Push(files, "the cluster")
	return s, files
}

// installs reports whether the machine of a node installs itself.
func (s *sim) installs(name string) bool {
	return slices.ContainsFunc(s.Lab.Talos.Machines(), func(m talos.MachineView) bool { return m.Node == name && m.Stage == "installing" })
}

// TestBootFromMedium: machines install themselves from a medium, which is taken out of the drive when Talos runs; then nothing is left to
// do, and they are upgraded, and get a new machine, as others do.
func TestBootFromMedium(t *testing.T) {
	t.Parallel()
	for _, v := range [][3]string{{"v1.12.11", "v1.13.9", "v1.35.4"}, {"v1.13.9", "v1.14.1", "v1.36.1"}, {"v1.14.0", "v1.14.1", "v1.36.1"}} {
		t.Run(v[0], func(t *testing.T) {
			t.Parallel()
			sz := size{ControlPlanes: 1, Workers: 1}
			files := sz.Files()
			bootFromMedium(t, files)
			inClusterOfFiles(t, sz, lab.Config{}, files, v[0], v[2], func(s *sim, push func(what, from, to string), w *turns) {
				s.wantInstalled()
				s.wantTalos(v[0])
				s.Quiet(10 * time.Minute)
				push("another talos", "talos_version: "+v[0], "talos_version: "+v[1])
				s.untilAppliedIn(4*time.Hour, "upgraded")
				s.wantTalos(v[1])
				s.wantInstalled()
				// To make a machine takes no healing.
				changed(t, files, "inventory/dev/nodes.yaml", "name: dev-wk-1,", "name: dev-wk-1, replace: again,")
				push("a new machine", "cluster_name: dev\n", "cluster_name: dev\nheal: observe\n")
				s.untilAppliedIn(time.Hour, "replaced")
				s.wantTalos(v[1])
				s.wantInstalled()
			})
		})
	}
}

// TestPowerFailsInAnInstallation: a machine that is switched off before its installer writes comes up from its medium again, and gets
// its config once more. After that it has partitions of Talos, for which its medium halts: the node says so, and is well with a new machine.
func TestPowerFailsInAnInstallation(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		what, node string
		writes     bool // its installer, which it has pulled
	}{
		{"a worker that pulls its installer", "dev-wk-1", false},
		{"a worker whose installer writes", "dev-wk-1", true},
		{"the only control plane, whose installer writes", "dev-cp-1", true},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, files := newMediumSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{})
				defer s.Close()
				s.Boot()
				s.Until(time.Hour, "it installs itself", func(cluster.Status) bool { return s.installs(tc.node) })
				if l := s.Lab.World.Latency; tc.writes {
					time.Sleep(l.ImagePull + l.Install/2)
				}
				if err := s.Lab.PVE.Stop(s.node(tc.node).VMID); err != nil {
					t.Fatal(err)
				}
				if tc.writes {
					s.Until(time.Hour, "it is overdue", func(st cluster.Status) bool {
						return slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool {
							return w.Subject == tc.node && w.Overdue && strings.Contains(w.Hint, "its installation was interrupted: give it another `replace`")
						})
					})
					changed(t, files, "inventory/dev/nodes.yaml", "name: "+tc.node+",", "name: "+tc.node+", replace: again,")
					s.Push(files, "a new machine")
				}
				s.untilAppliedIn(2*time.Hour, "it is a node")
				s.wantInstalled()
				s.Halt()
			})
		})
	}
}

// installedWith brings a cluster up whose machines install themselves, with one crash on the way if there is a point for it, and returns
// how often the agent died.
func installedWith(t *testing.T, sz size, c lab.Config, p *crashPoint) (points []crashPoint, deaths int) {
	s, _ := newMediumSim(t, sz, c)
	defer s.Close()
	pointsOf := s.armAt(p)
	s.Boot()
	s.untilAppliedIn(time.Hour, "installed")
	points = pointsOf()
	if t.Failed() {
		return points, s.Deaths
	}
	s.wantInstalled()
	s.Quiet(10 * time.Minute)
	s.CheckRules(sz)
	s.Halt()
	return points, s.Deaths
}

// TestCrashDuringAnInstallation kills the agent at one instant in eight, with -all-crashes at every one, while machines are made that
// install themselves: another one ends it, and no medium stays.
func TestCrashDuringAnInstallation(t *testing.T) {
	t.Parallel()
	crashEverywhere(t, size{ControlPlanes: 1, Workers: 1}, 8, installedWith)
}

// TestInstallerIsMissing: machines whose installer no registry gives out boot their medium again and get their config once more, until
// one does.
func TestInstallerIsMissing(t *testing.T) {
	t.Parallel()
	for _, v := range [][2]string{{"v1.12.11", "v1.35.4"}, {"v1.13.9", "v1.36.1"}, {"v1.14.1", "v1.36.1"}} {
		t.Run(v[0], func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sz := size{ControlPlanes: 1, Workers: 1}
				files := sz.Files()
				bootFromMedium(t, files)
				changed(t, files, "inventory/dev/cluster.yaml", "talos_version: v1.13.9\nkubernetes_version: v1.36.1", "talos_version: "+v[0]+"\nkubernetes_version: "+v[1])
				s := newSim(t, sz, lab.Config{})
				defer s.Close()
				const registry = "factory.talos.dev"
				s.Lab.Kube.CloseRegistry(registry)
				s.Push(files, "the cluster")
				s.Boot()
				s.Until(time.Hour, "it is shown what is missing", func(st cluster.Status) bool {
					return slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool {
						return w.Subject == "dev-cp-1" && w.Overdue && strings.Contains(w.Hint, "mostly no registry gives the installer") && st.Condition == cluster.Stalled
					})
				})
				time.Sleep(time.Hour)
				s.Lab.Kube.OpenRegistry(registry)
				s.untilAppliedIn(4*time.Hour, "installed")
				s.wantInstalled()
				s.Quiet(10 * time.Minute)
				s.CheckRules(sz)
				s.Halt()
			})
		})
	}
}
