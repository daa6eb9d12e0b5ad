package agent_test

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// hops judges, of every story, what an upgrade must not do by the way: skip a minor version, take down a control plane that etcd
// needs, or change Talos and Kubernetes at once.
type hops struct {
	mu     sync.Mutex
	ran    map[string]int    // the minor version that ran last, by node and component
	images map[string]string // of Kubernetes, in the config that a node was given last
	// guarded: a guard judges what etcd needs, which knows whom people have had a hand in.
	guarded bool
}

// judgeHops judges a call, before it is carried out.
func (s *sim) judgeHops(c world.CallRecord) {
	if !c.Mutating || c.System != "talos" && c.System != "kube" {
		return
	}
	machines := s.Lab.Talos.Machines()
	s.judgeSkipped(machines)
	takesDown := slices.ContainsFunc([]string{"/Reboot", "/Rollback", "MachineService/Upgrade"}, func(op string) bool { return strings.HasSuffix(c.Op, op) })
	i := slices.IndexFunc(machines, func(m talos.MachineView) bool { return m.Node == c.Subject })
	if c.System != "talos" || !takesDown || i < 0 {
		return
	}
	m, others := machines[i], 0
	for _, o := range machines {
		if o.Node != m.Node && o.Etcd == m.Etcd && !o.Learner && o.Healthy {
			others++
		}
	}
	s.mu.Lock()
	recently := time.Since(s.touched) < justTouched
	s.mu.Unlock()
	if majority := m.Voters/2 + 1; !recently && !s.hops.guarded && m.Voters > 1 && m.Etcd != "" && !m.Learner && m.Healthy && others < majority {
		s.Lab.World.Violate("quorum", "%s goes down (%s), and of %d voters of etcd %d others answer", m.Node, c.Op, m.Voters, others)
	}
}

// judgeSkipped: no node runs a Talos, a kubelet or a kube-apiserver more than one minor version newer than the one before.
func (s *sim) judgeSkipped(machines []talos.MachineView) {
	ran := map[string]int{}
	for _, m := range machines {
		if m.Configured && m.Talos != "" {
			ran["Talos of "+m.Node] = installer.MinorOf(m.Talos)
		}
	}
	for _, n := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "") {
		if kubelet, _, _ := unstructured.NestedString(n.Object, "status", "nodeInfo", "kubeletVersion"); kubelet != "" {
			ran["kubelet of "+n.GetName()] = installer.MinorOf(kubelet)
		}
	}
	for _, p := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "kube-system") {
		containers, _, _ := unstructured.NestedSlice(p.Object, "spec", "containers")
		if len(containers) == 0 || !strings.HasPrefix(p.GetName(), "kube-apiserver-") {
			continue
		}
		of, _ := containers[0].(map[string]any)
		image, _ := of["image"].(string)
		ran[p.GetName()] = installer.MinorOf(image[strings.LastIndex(image, ":")+1:])
	}
	s.hops.mu.Lock()
	defer s.hops.mu.Unlock()
	for what, now := range ran {
		if before, known := s.hops.ran[what]; known && now > before+1 {
			s.Lab.World.Violate("skipped", "%s goes from minor version %d to %d", what, before, now)
		}
		if s.hops.ran == nil {
			s.hops.ran = map[string]int{}
		}
		s.hops.ran[what] = now
	}
}

// componentImages are the images of Kubernetes in a machine config.
var componentImages = regexp.MustCompile(`/(?:kubelet|kube-apiserver|kube-controller-manager|kube-scheduler|kube-proxy):v[0-9.]+`)

// judgeGiven: a machine config with other images of Kubernetes is given to no machine while another Talos is on its way on any, or
// a node is out of service for its turn.
func (s *sim) judgeGiven(c world.GivenConfig) {
	if strings.Contains(string(c.Config), handMark) {
		return // somebody has edited it
	}
	images := strings.Join(componentImages.FindAllString(string(c.Config), -1), " ")
	s.hops.mu.Lock()
	if s.hops.images == nil {
		s.hops.images = map[string]string{}
	}
	before := s.hops.images[c.Node]
	s.hops.images[c.Node] = images
	s.hops.mu.Unlock()
	if before == "" || before == images || c.First {
		return
	}
	s.mu.Lock()
	asked := slices.DeleteFunc(slices.Clone(s.asked), func(a askedInstall) bool { return a.commit != s.fetched }) // what was taken back is booted by none
	back := s.back
	s.mu.Unlock()
	for _, o := range s.Lab.Talos.Machines() {
		if s.isPending(o, asked) && !(back && s.lastInstalled(o.Node) == o.Talos) { // what it runs was installed over what was taken back
			s.Lab.World.Violate("both at once", "%s is given%s, and %s has another Talos that it does not run yet", c.Node, strings.ReplaceAll(images, "/", " "), o.Node)
		}
	}
	for _, n := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "") {
		out, _, _ := unstructured.NestedBool(n.Object, "spec", "unschedulable")
		if turn := n.GetAnnotations()[cluster.AnnotationTurn]; out && turn != "" {
			s.Lab.World.Violate("both at once", "%s is given%s, and %s is out of service for its turn", c.Node, strings.ReplaceAll(images, "/", " "), n.GetName())
		}
	}
}

// lastInstalled is the version of Talos that a node was given last, "" where it was given none.
func (s *sim) lastInstalled(node string) (version string) {
	for _, e := range s.Lab.World.Events() {
		if rest, is := strings.CutPrefix(e.Text, "has Talos "); is && e.Subject == node {
			version, _, _ = strings.Cut(rest, " ")
		}
	}
	return version
}
