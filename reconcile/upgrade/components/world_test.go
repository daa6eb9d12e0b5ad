package components

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// modelled is a cluster as it is: what its nodes have by their configs, and what runs.
type modelled struct {
	spec      cluster.Spec
	has, runs map[string]*cluster.Components
	broken    map[string]bool // nodes that are not Ready
	silent    map[string]bool // nodes whose machines do not answer
	podsWhy   string          // why the pods of kube-system are not seen
	nodesWhy  string
}

func newModel(planes, workers int, version string) *modelled {
	w := &modelled{has: map[string]*cluster.Components{}, runs: map[string]*cluster.Components{}, broken: map[string]bool{}, silent: map[string]bool{}}
	add := func(name string, role cluster.Role, c cluster.Components) {
		w.spec.Nodes = append(w.spec.Nodes, cluster.Node{Name: name, Role: role, IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + len(w.spec.Nodes))})})
		has, runs := c, c
		runs.Proxy = ""
		w.has[name], w.runs[name] = &has, &runs
	}
	for i := range planes {
		add(fmt.Sprintf("cp-%d", i+1), cluster.ControlPlane, cluster.Components{APIServer: version, ControllerManager: version, Scheduler: version, Proxy: version, Kubelet: version})
	}
	for i := range workers {
		add(fmt.Sprintf("wk-%d", i+1), cluster.Worker, cluster.Components{Kubelet: version})
	}
	return w
}

// observe is the cluster as an agent sees it.
func (w *modelled) observe() cluster.Observed {
	o := cluster.Observed{Now: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC), Machines: map[string]cluster.Machine{}, APIs: map[string]cluster.Seen[bool]{}}
	nodes, pods := map[string]cluster.KubeNode{}, map[string]cluster.SystemPod{}
	var members []cluster.Member
	for _, n := range w.spec.Nodes {
		has, runs := w.has[n.Name], w.runs[n.Name]
		m := cluster.Machine{Reach: cluster.Configured, Stage: "running", Ready: true, BootID: "b",
			Summary: cluster.ConfigSummary{Images: cluster.Images{Kubelet: "ghcr.io/siderolabs/kubelet:" + has.Kubelet}}}
		kn := cluster.KubeNode{Name: n.Name, Kubelet: runs.Kubelet, BootID: "b", Ready: !w.broken[n.Name], Why: "its network is down"}
		if kn.Ready {
			kn.Why = ""
		}
		nodes[n.Name] = kn
		if n.Role == cluster.ControlPlane {
			members = append(members, cluster.Member{Name: n.Name})
			m.Services = map[string]cluster.Service{"etcd": {State: "Running", Healthy: true}}
			o.APIs[n.Name] = cluster.Saw(true)
			m.Summary.Images.Proxy = "registry.k8s.io/kube-proxy:" + has.Proxy
			m.StaticPods = map[string]cluster.StaticPod{}
			m.Summary.Images.APIServer = "registry.k8s.io/kube-apiserver:" + has.APIServer
			m.Summary.Images.ControllerManager = "registry.k8s.io/kube-controller-manager:" + has.ControllerManager
			m.Summary.Images.Scheduler = "registry.k8s.io/kube-scheduler:" + has.Scheduler
			for _, p := range planeParts {
				m.StaticPods[p.name] = cluster.NewStaticPod("registry.k8s.io/"+p.name+":"+*p.of(has), nil)
				name := p.name + "-" + n.Name
				pods[name] = cluster.SystemPod{Name: name, Node: n.Name, Workload: name, Ready: true, Static: cluster.NewStaticPod("registry.example.org:5000/"+p.name+":"+*p.of(runs), nil)}
			}
		}
		if w.silent[n.Name] {
			m = cluster.Machine{Reach: cluster.Silent}
		}
		o.Machines[n.Name] = m
	}
	o.Members, o.Nodes, o.SystemPods = cluster.Saw(members), cluster.Saw(nodes), cluster.Saw(pods)
	if w.podsWhy != "" {
		o.SystemPods = cluster.Unseen[map[string]cluster.SystemPod](w.podsWhy)
	}
	if w.nodesWhy != "" {
		o.Nodes = cluster.Unseen[map[string]cluster.KubeNode](w.nodesWhy)
	}
	return o
}

// changesOf are the components of a node that are to become others, by name.
func (w *modelled) changesOf(n cluster.Node, next map[string]cluster.Components) (out []part) {
	want, ok := next[n.Name]
	if !ok {
		return nil
	}
	for _, p := range partsOf(n) {
		if *p.of(&want) != *p.of(w.has[n.Name]) {
			out = append(out, p)
		}
	}
	return out
}

// comesUp has a component of a node run what its config has.
func (w *modelled) comesUp(node string, p part) { *p.of(w.runs[node]) = *p.of(w.has[node]) }

func (w *modelled) isSettled(n cluster.Node) bool {
	for _, p := range partsOf(n) {
		if *p.of(w.runs[n.Name]) != *p.of(w.has[n.Name]) {
			return false
		}
	}
	return !w.broken[n.Name] && !w.silent[n.Name]
}
