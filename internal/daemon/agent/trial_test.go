package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

const (
	blockIngress = "apiVersion: v1alpha1\nkind: NetworkDefaultActionConfig\ningress: block\n"
	admitBridge  = "---\napiVersion: v1alpha1\nkind: NetworkRuleConfig\nname: bridge\nportSelector: {ports: [1-65535], protocol: tcp}\ningress: [{subnet: 10.10.0.0/24}]\n"
)

// TestFirewallThatLocksTheAgentOut pushes a firewall that lets nothing in: the one node
// that tries it goes back, no other does, it is not tried again, and a corrected one
// reaches everybody.
func TestFirewallThatLocksTheAgentOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\npatches: {all: [patches/firewall.yaml]}\n")
		files["inventory/dev/patches/firewall.yaml"] = []byte(blockIngress)
		s.Push(files, "block everything")
		s.Until(10*time.Minute, "the mistake is named", func(st cluster.Status) bool { return st.Condition == cluster.Stalled })
		if st := s.Status(); !strings.Contains(st.Message, "dev-wk-1") || !strings.Contains(st.Message, "did not answer at 10.10.0.41") {
			t.Errorf("%s", st.Message)
		}
		from := len(s.Lab.World.Calls())
		time.Sleep(2 * time.Hour)
		for _, c := range s.Lab.World.Calls()[from:] {
			if strings.HasSuffix(c.Op, "/ApplyConfiguration") {
				t.Errorf("%s is asked or given a config: %v", c.Subject, c)
			}
		}
		for _, n := range s.Status().Nodes {
			if n.Phase != cluster.PhaseReady {
				t.Errorf("%s is %s", n.Name, n.Phase)
			}
		}
		files["inventory/dev/patches/firewall.yaml"] = []byte(blockIngress + admitBridge)
		s.Push(files, "let the bridge in")
		s.UntilReady(30 * time.Minute)
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestFirewallWithWhatTakesAReboot pushes the same firewall together with what takes a reboot: no
// node is taken down for it, and all answer; a push that goes back is enough. A corrected one is
// given before the reboots, of which each node has one.
func TestFirewallWithWhatTakesAReboot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		files, without := sz.Files(), sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\npatches: {all: [patches/firewall.yaml]}\n")
		push := func(firewall string) {
			files["inventory/dev/patches/firewall.yaml"] = []byte("machine: {env: {X: \"1\"}}\n---\n" + firewall)
			s.Push(files, "a variable and a firewall")
		}
		stalls := func() {
			t.Helper()
			push(blockIngress)
			s.Until(10*time.Minute, "the mistake is named", func(st cluster.Status) bool { return st.Condition == cluster.Stalled })
			if st := s.Status(); !strings.Contains(st.Message, "dev-wk-1") || !strings.Contains(st.Message, "did not answer at 10.10.0.41") {
				t.Errorf("%s", st.Message)
			}
			time.Sleep(2 * time.Hour)
			for _, n := range s.Status().Nodes {
				if n.Phase != cluster.PhaseReady {
					t.Errorf("%s is %s", n.Name, n.Phase)
				}
			}
			if len(s.cordoned()) > 0 {
				t.Errorf("cordoned: %v", s.cordoned())
			}
			w.wantDown("")
		}
		stalls()
		s.Push(without, "neither")
		s.UntilReady(30 * time.Minute)
		w.wantDown("")
		stalls()
		push(blockIngress + admitBridge)
		s.UntilReady(time.Hour)
		w.wantDown("dev-cp-1:1 dev-wk-1:1 dev-wk-2:1")
		s.Quiet(10 * time.Minute)
		s.Push(without, "neither")
		s.UntilReady(time.Hour)
		w.wantDown("dev-cp-1:2 dev-wk-1:2 dev-wk-2:2")
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestNodeThatBootsForEver pushes an image of the kubelet that no registry has together with a
// proxy, so that it cannot be pulled before: one node is taken down, and does not come up. It
// gets the next config as it boots, in a boot of its own where that takes one, and the others
// follow.
func TestNodeThatBootsForEver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ proxy, wk1 string }{
		"corrected as it boots": {"http://10.10.0.1:3128", "dev-wk-1:1"},
		"corrected by a reboot": {"http://10.10.0.1:3129", "dev-wk-1:2"},
	} {
		t.Run(name, func(t *testing.T) { checkNodeThatBootsForEver(t, c.proxy, c.wk1+" dev-wk-2:1") })
	}
}

// checkNodeThatBootsForEver corrects the image, and has another proxy with that; down is how often
// which node is taken down in all.
func checkNodeThatBootsForEver(t *testing.T, proxy, down string) {
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\npatches: {worker: [patches/proxy.yaml]}\n")
		push := func(image, proxy string) {
			files["inventory/dev/patches/proxy.yaml"] = []byte("machine: {env: {https_proxy: \"" + proxy + "\"}, kubelet: {image: \"" + image + ":v1.36.1\"}}\n")
			s.Push(files, image)
		}
		push("registry.k8s.io/kubelet", "http://10.10.0.1:3128")
		s.Until(time.Hour, "one does not come up", func(st cluster.Status) bool { return waitFor(st, "dev-wk-1", cluster.WaitingForTalos) != "" })
		time.Sleep(time.Hour)
		w.wantDown("dev-wk-1:1")
		push("registry.example.org/kubelet", proxy)
		s.UntilReady(time.Hour)
		w.wantDown(down)
		s.Quiet(10 * time.Minute)
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestKubeletImageThatIsNowhere pushes an image of the kubelet that no registry has: no node
// is given it, and all go on as they are; one that there is reaches everybody, each of whom
// has pulled it before.
func TestKubeletImageThatIsNowhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\npatches: {all: [patches/kubelet.yaml]}\n")
		push := func(image string) {
			files["inventory/dev/patches/kubelet.yaml"] = []byte("machine: {kubelet: {image: \"" + image + ":v1.36.1\"}}\n")
			s.Push(files, image)
		}
		ready := func() {
			t.Helper()
			for _, m := range s.Lab.Talos.Machines() {
				if !m.NodeReady || !m.Ready {
					t.Errorf("%s is not ready", m.Node)
				}
			}
		}
		push("registry.k8s.io/kubelet")
		s.Until(20*time.Minute, "the mistake is named", func(st cluster.Status) bool { return st.Condition == cluster.Stalled })
		if st := s.Status(); !strings.Contains(st.Message, "there is no image registry.k8s.io/kubelet:v1.36.1") {
			t.Errorf("%s", st.Message)
		}
		time.Sleep(time.Hour)
		ready()
		push("registry.example.org/kubelet")
		s.UntilReady(30 * time.Minute)
		s.Quiet(10 * time.Minute)
		ready()
		s.CheckRules(sz)
		s.Halt()
	})
}

// TestStaticPodImageThatIsNowhere pushes images of the static pods of control planes that no
// registry has, or that only one has that does not answer: the control plane is not given them, its
// kube-apiserver serves on, and a corrected config reaches it.
func TestStaticPodImageThatIsNowhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ part, image, want string }{
		"of no registry":                     {"scheduler", "registry.k8s.io/kube-schedulr", "there is no image registry.k8s.io/kube-schedulr:v1.36.1"},
		"of a registry that does not answer": {"apiServer", "dead.invalid/kube-apiserver", "dead.invalid/kube-apiserver:v1.36.1 could not be pulled"},
	} {
		t.Run(name, func(t *testing.T) { checkStaticPodImageThatIsNowhere(t, c.part, c.image, c.want) })
	}
}

func checkStaticPodImageThatIsNowhere(t *testing.T, part, image, want string) {
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		files := sz.Files()
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\npatches: {controlplane: [patches/planes.yaml]}\n")
		push := func(image string) {
			files["inventory/dev/patches/planes.yaml"] = []byte("cluster: {" + part + ": {image: \"" + image + ":v1.36.1\"}}\n")
			s.Push(files, image)
		}
		ready := func() {
			t.Helper()
			for _, m := range s.Lab.Talos.Machines() {
				if !m.NodeReady || !m.Ready {
					t.Errorf("%s is not ready", m.Node)
				}
			}
		}
		push(image)
		s.Until(time.Hour, "the mistake is named", func(st cluster.Status) bool { return st.Condition == cluster.Stalled })
		if st := s.Status(); !strings.Contains(st.Message, want) {
			t.Errorf("%s", st.Message)
		}
		for range 20 {
			time.Sleep(time.Minute)
			ready()
		}
		push("registry.example.org/kube-part")
		s.UntilReady(30 * time.Minute)
		s.Quiet(10 * time.Minute)
		ready()
		s.CheckRules(sz)
		s.Halt()
	})
}
