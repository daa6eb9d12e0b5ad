package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// askedInstall is a request to a machine for another Talos.
type askedInstall struct {
	node, runs, schematic, boot, commit string
	at                                  time.Duration // since the world began
}

// Witness judges every call, of every story.
func (s *sim) Witness(c world.CallRecord) {
	s.Sim.Witness(c)
	if c.System == "git" && strings.HasSuffix(c.Op, "git-upload-pack") { // a push is news only then
		head := s.Head()
		s.mu.Lock()
		s.fetched = head
		s.mu.Unlock()
	}
	s.judgeUpgrade(c)
	s.judgeReset(c)
	s.judgeHops(c)
}

// judgeReset: the agent resets no VM a second time for one commit and one Talos.
func (s *sim) judgeReset(c world.CallRecord) {
	if c.System != "pve" || c.Op != resetCall {
		return
	}
	for _, m := range s.Lab.Talos.Machines() {
		if fmt.Sprint(m.VMID) != c.Subject {
			continue
		}
		s.mu.Lock()
		now := fmt.Sprintf("%s with %s for %s", m.Node, m.Talos, s.fetched)
		again := slices.Contains(s.resets, now)
		s.resets = append(s.resets, now)
		s.mu.Unlock()
		if again {
			s.Lab.World.Violate("resets", "%s is reset a second time", now)
		}
	}
}

// judgeUpgrade: a machine that is asked for another Talos was not given one in the same boot, which the
// second may be written over, nor for the same commit before, unless somebody has reset it since. Etcd has no alarm. All other
// nodes are in service, their etcd has a majority without this one, no two are more than one minor
// version apart, and none is between two versions of Kubernetes.
func (s *sim) judgeUpgrade(c world.CallRecord) {
	if c.System != "talos" || !strings.HasSuffix(c.Op, "LifecycleService/Upgrade") && !strings.HasSuffix(c.Op, "MachineService/Upgrade") {
		return
	}
	machines := s.Lab.Talos.Machines()
	i := slices.IndexFunc(machines, func(m talos.MachineView) bool { return m.Node == c.Subject })
	if i < 0 {
		return
	}
	m := machines[i]
	s.mu.Lock()
	now := askedInstall{m.Node, m.Talos, m.Schematic, m.BootID, s.fetched, c.At}
	before, recently, back := slices.Clone(s.asked), time.Since(s.touched) < justTouched, s.back
	if !s.alarmed.IsZero() && time.Since(s.alarmed) > 2*time.Minute {
		s.Lab.World.Violate("alarm", "%s is asked for another Talos, and etcd has an alarm", m.Node)
	}
	s.asked = append(s.asked, now)
	s.mu.Unlock()
	for _, was := range before {
		if was.node != now.node || !s.hasInstalled(was) {
			continue
		}
		switch {
		case was.boot == now.boot && was.commit == now.commit: // another commit has something else installed over it
			s.Lab.World.Violate("slots", "%s is asked for another Talos beside %s a second time in one boot", now.node, now.runs)
		case was.runs == now.runs && was.schematic == now.schematic && was.commit == now.commit:
			s.Lab.World.Violate("repeated", "%s runs %s with what was installed for the same commit, and is asked for another Talos again", now.node, now.runs)
		}
	}
	wanted := slices.DeleteFunc(slices.Clone(before), func(a askedInstall) bool { return back && a.commit != now.commit }) // nobody boots the others
	for _, o := range machines {
		if apart := installer.MinorOf(o.Talos) - installer.MinorOf(m.Talos); o.Configured && (apart > 1 || apart < -1) {
			s.Lab.World.Violate("hops", "%s is asked for another Talos and runs %s, and %s runs %s", m.Node, m.Talos, o.Node, o.Talos)
		}
		if o.Node != m.Node && s.isPending(o, wanted) && !(back && isPlane(o.Node) != isPlane(m.Node)) {
			s.Lab.World.Violate("one at a time", "%s is asked for another Talos, and %s has one that it does not run yet", m.Node, o.Node)
		}
	}
	if !recently && m.Voters > 1 && m.Etcd != "" && !m.Learner && m.Up-1 < m.Voters/2+1 {
		s.Lab.World.Violate("quorum", "%s is asked for another Talos, and of %d voters of etcd %d are up", m.Node, m.Voters, m.Up)
	}
	s.judgeOthers(m)
}

// touch notes that people, or the host, have a hand in a node: what was read before may be out of date.
func (s *sim) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touched = time.Now()
}

// isPlane reports whether a node is a control plane. What goes back waits for the budget of its role, and for no other node.
func isPlane(node string) bool { return strings.HasPrefix(node, "dev-cp-") }

// judgeOthers looks at the nodes beside one that is asked for another Talos.
func (s *sim) judgeOthers(m talos.MachineView) {
	runs := map[string]string{} // one component for each version
	s.mu.Lock()
	back := s.back
	s.mu.Unlock()
	for _, n := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "") {
		if kubelet, _, _ := unstructured.NestedString(n.Object, "status", "nodeInfo", "kubeletVersion"); kubelet != "" {
			runs[kubelet] = "the kubelet of " + n.GetName()
		}
		out, _, _ := unstructured.NestedBool(n.Object, "spec", "unschedulable")
		if turn := n.GetAnnotations()[cluster.AnnotationTurn]; out && turn != "" && n.GetName() != m.Node && !(back && isPlane(n.GetName()) != isPlane(m.Node)) {
			s.Lab.World.Violate("one at a time", "%s is asked for another Talos, and %s is out of service", m.Node, n.GetName())
		}
	}
	for _, p := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "kube-system") {
		if !strings.HasPrefix(p.GetName(), "kube-apiserver-") {
			continue
		}
		containers, _, _ := unstructured.NestedSlice(p.Object, "spec", "containers")
		for _, c := range containers {
			of, _ := c.(map[string]any)
			image, _ := of["image"].(string)
			runs[image[strings.LastIndex(image, ":")+1:]] = p.GetName()
		}
	}
	if len(runs) > 1 {
		s.Lab.World.Violate("both at once", "%s is asked for another Talos, and Kubernetes is being upgraded: %v", m.Node, runs)
	}
}

// isPending reports whether a machine has another Talos that it was asked for in this boot.
func (s *sim) isPending(m talos.MachineView, asked []askedInstall) bool {
	return slices.ContainsFunc(asked, func(a askedInstall) bool { return a.node == m.Node && a.boot == m.BootID && s.hasInstalled(a) })
}

// hasInstalled reports whether what was asked for was installed, and the machine was not reset since.
func (s *sim) hasInstalled(a askedInstall) (yes bool) {
	for _, e := range s.Lab.World.Events() {
		switch {
		case e.Subject != a.node || e.At < a.at:
		case strings.HasPrefix(e.Text, "has Talos ") && strings.HasSuffix(e.Text, " installed beside "+a.runs):
			yes = true
		case e.Text == "is reset", e.Text == "is rolled back":
			return false
		}
	}
	return yes
}
