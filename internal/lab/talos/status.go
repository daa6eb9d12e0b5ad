package talos

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	etcdres "github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	timeres "github.com/siderolabs/talos/pkg/machinery/resources/time"

	"github.com/talos-agent/talos-agent/internal/lab/talos/manifests"
	"github.com/talos-agent/talos-agent/internal/lab/talos/services"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// evaluateState works out everything about a machine that follows from the rest:
// the health of its etcd, what Kubernetes is given, its stage and its readiness.
func (b *boot) evaluateState() {
	if b.set != nil && b.set.control {
		b.judgeEtcd()
	}
	if b.set != nil && !b.stopping && !b.awaitsInstall {
		b.judgeKubelet()
		b.reportToKubernetes()
		if b.servicesUp() {
			if !b.sequenced {
				b.publishSequence("boot", machineapi.SequenceEvent_STOP)
			}
			b.sequenced = true
		}
		if b.sequenced {
			b.stage = runtime.MachineStageRunning
		}
		b.writeNode()
	}
	b.writeStatus()
}

// servicesUp reports whether the services are up that a boot waits for. A Bootstrap ends the wait
// for etcd before it runs (recorded). A worker has its API, one of them, once a control plane has
// signed its certificate; a control plane signs its own.
// Source: talos v1.13.9, StartAllServices, the last task of a boot, and services.Etcd: with data
// it asks no other control plane.
func (b *boot) servicesUp() bool {
	if !b.findService("kubelet").Healthy || !b.extensionsUp() {
		return false
	}
	if b.set.control {
		return b.founded || b.findService("etcd").Healthy
	}
	return !b.lacksEndpoint()
}

func (b *boot) judgeEtcd() {
	m := b.m.disk().member
	if m == nil || m.on != b {
		dropResource(b, "etcd.MemberController", etcdres.NewMember(etcdres.NamespaceName, etcdres.LocalMemberID).Metadata())
		return
	}
	switch {
	case m.isHealthy():
		b.findService("etcd").PassHealth()
		putResource(b, "etcd.MemberController", etcdres.NewMember(etcdres.NamespaceName, etcdres.LocalMemberID), func(r *etcdres.Member) {
			r.TypedSpec().MemberID = etcdres.FormatMemberID(m.id)
		})
	case m.started && !m.learner:
		b.findService("etcd").FailHealth("context deadline exceeded")
	}
}

// writeNode writes what the machine knows of its time and of its Kubernetes
// node, when that changed.
func (b *boot) writeNode() {
	now := fmt.Sprint(b.m.timeless, b.nodeSeen, b.nodeReady, b.apiSeen, b.apiReady, b.schedulers, b.seen, b.set.kubelet)
	if now == b.lastNode {
		return
	}
	b.lastNode = now
	putResource(b, "time.SyncController", timeres.NewStatus(), func(r *timeres.Status) { r.TypedSpec().Synced = !b.m.timeless })
	if !b.nodeSeen {
		return
	}
	node := b.set.kubelet.Node
	putResource(b, "k8s.NodeStatusController", k8s.NewNodeStatus(k8s.NamespaceName, node), func(r *k8s.NodeStatus) {
		r.TypedSpec().Nodename, r.TypedSpec().NodeReady, r.TypedSpec().Labels = node, b.nodeReady, b.set.kubelet.Labels
	})
	if !b.apiSeen {
		return
	}
	for _, pod := range staticPods {
		putResource(b, "k8s.KubeletStaticPodController", k8s.NewStaticPodStatus(k8s.NamespaceName, podID(pod, node)), func(r *k8s.StaticPodStatus) {
			r.TypedSpec().PodStatus = manifests.Status(b.seen, pod, b.podReady(pod), b.address.Addr())
		})
	}
}

var staticPods = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}

func podID(pod, node string) string { return "kube-system/" + pod + "-" + node }

func (b *boot) podReady(pod string) bool {
	return b.apiReady && !(pod == "kube-scheduler" && b.schedulers) && manifests.FindPullError(b.seen, pod) == ""
}

// listUnmet lists what keeps a machine from being ready, in the order and with the text of
// Talos' own status controller. Outside of booting and running a machine is
// always ready.
func (b *boot) listUnmet() []runtime.UnmetCondition {
	var out []runtime.UnmetCondition
	add := func(name string, reasons ...string) {
		if len(reasons) > 0 {
			out = append(out, runtime.UnmetCondition{Name: name, Reason: strings.Join(reasons, ", ")})
		}
	}
	if b.stage != runtime.MachineStageBooting && b.stage != runtime.MachineStageRunning {
		return nil
	}
	if b.m.timeless {
		add("time", "time is not synced")
	}
	if !b.address.IsValid() {
		add("network", "waiting on: address, connectivity")
	}
	add("services", services.ListUnmet(b.findService, b.listServices(), b.set != nil && b.set.control)...)
	if b.set == nil || b.set.homeless {
		return out // it has no node name yet
	}
	if b.nodeSeen && b.apiSeen {
		var pods []string
		for _, pod := range staticPods {
			if !b.podReady(pod) {
				pods = append(pods, podID(pod, b.set.kubelet.Node)+" "+manifests.Unmet(b.seen, pod))
			}
		}
		add("staticPods", pods...)
	}
	switch {
	case !b.nodeSeen:
		add("nodeReady", fmt.Sprintf("node %q status is not available yet", b.set.kubelet.Node))
	case !b.nodeReady:
		add("nodeReady", fmt.Sprintf("node %q is not ready", b.set.kubelet.Node))
	}
	return out
}

// writeStatus writes the machine's status when it changed.
func (b *boot) writeStatus() {
	unmet := b.listUnmet()
	b.ready = len(unmet) == 0
	if b.ready && b.stage == runtime.MachineStageRunning && !b.confirmed {
		b.confirmed = true // once in a boot: what is installed later is not confirmed by this one
		b.m.disk().slots.Confirm()
	}
	if now := fmt.Sprint(b.stage, unmet); now != b.lastReported {
		b.lastReported = now
		putResource(b, "runtime.MachineStatusController", runtime.NewMachineStatus(), func(r *runtime.MachineStatus) {
			r.TypedSpec().Stage, r.TypedSpec().Status.Ready, r.TypedSpec().Status.UnmetConditions = b.stage, b.ready, unmet
		})
		b.publishStatus(unmet)
	}
}

// What Kubernetes is given.

type kubelet struct {
	ca string
	world.Kubelet
}

type plane struct {
	ca, etcd, files string
	world.ControlPlane
}

// reportToKubernetes keeps Kubernetes up to date about what this node runs: a
// kubelet as soon as it is configured, an API as long as its etcd member is
// healthy.
func (b *boot) reportToKubernetes() {
	if b.reportPods(); b.f.kubernetes == nil {
		return
	}
	var k *kubelet
	if !b.set.homeless && !b.m.dark && !b.lacksKubelet() {
		k = &kubelet{b.set.kubeCA, b.set.kubelet}
		k.Address, k.BootID, k.Machine = b.address.Addr(), b.id, b.m.disk().id
	}
	if k == nil && b.kubelet.What != nil && b.nodeReady {
		b.runAfter(nodeGrace, func() { b.nodeReady = b.nodeReady && b.kubelet.What != nil })
	}
	b.kubelet.SetWanted(b, k, func(k kubelet, ready func(bool)) func() {
		return b.f.kubernetes.RunKubelet(k.ca, k.Kubelet, ready)
	}, b.takeReadiness)

	var p *plane
	if m := b.m.disk().member; m != nil && m.on == b && m.isHealthy() && b.set.crash == "" && manifests.FindPullError(b.seen, "kube-apiserver") == "" {
		p = &plane{b.set.kubeCA, m.of.id, b.set.files, b.set.plane}
		p.Address = b.address.Addr()
	}
	p = b.noticePlane(p)
	b.plane.SetWanted(b, p, func(p plane, ready func(bool)) func() {
		return b.f.kubernetes.ServeAPI(p.ca, p.etcd, p.ControlPlane, ready)
	}, func(ready bool) { b.apiSeen, b.apiReady = b.apiSeen || ready, ready })
	if p == nil {
		b.apiReady = false
	}

	b.awaitEndpoint()
}

// noticePlane is the kube-apiserver that runs while its kubelet has not seen yet that its manifest
// is another one: it goes on as it was (recorded).
func (b *boot) noticePlane(p *plane) *plane {
	had := b.plane.What
	if had == nil || p == nil || reflect.DeepEqual(had, p) || reflect.DeepEqual(b.noticed, p) {
		return p
	}
	if !reflect.DeepEqual(b.noticing, p) {
		b.noticing = p
		b.runAfter(b.f.world.Latency.Manifest, func() { b.noticed = p })
	}
	return had
}

// reportPods shows the static pods once etcd works, and gives the kubelet those that change.
func (b *boot) reportPods() {
	m := b.m.disk().member
	if m == nil || m.on != b || !m.isHealthy() {
		return
	}
	pods := b.manifests.Render(b.set.provider)
	if reflect.DeepEqual(pods, b.pods) {
		return
	}
	const podOwner = "k8s.ControlPlaneStaticPodController"
	for _, had := range b.pods {
		if !slices.ContainsFunc(pods, func(pod world.StaticPod) bool { return pod.Name == had.Name }) {
			dropResource(b, podOwner, k8s.NewStaticPod(k8s.NamespaceName, had.Name).Metadata())
		}
	}
	b.pods = pods
	for _, pod := range pods {
		putResource(b, podOwner, k8s.NewStaticPod(k8s.NamespaceName, pod.Name), func(r *k8s.StaticPod) { r.TypedSpec().Pod = manifests.Manifest(pod) })
	}
	if k := b.f.kubernetes; k != nil {
		ca, etcd, node, had := b.set.kubeCA, m.of.id, b.set.plane.Node, slices.Clone(b.m.disk().images)
		b.f.queueEffect(func() {
			pods := manifests.PullImages(pods, had, k)
			k.RunStaticPods(ca, etcd, node, pods)
			b.f.changeState(func() { b.takePods(pods) })
		})
	}
}

// takePods has the kubelet see static pods, at once in a new boot. It asks again for the images that it lacks.
func (b *boot) takePods(pods []world.StaticPod) {
	wait := b.f.world.Latency.Manifest
	if b.seen == nil {
		wait = 0
	}
	b.runAfter(wait, func() {
		b.seen = pods
		if d := b.m.disk(); !manifests.KeepImages(&d.images, pods, b.started) {
			b.apiSeen = true // its kubelet has static pods to report of
			b.runAfter(manifests.PullBackoff, func() { b.pods = nil })
		}
	})
}

// nodeGrace is for how long the Node of a kubelet that does not run is still Ready (recorded).
const nodeGrace = 48 * time.Second

// takeReadiness learns how the machine's Kubernetes node does. On the node that
// founded the cluster, readiness comes, goes and comes again: a static pod has
// a bad moment just then (recorded).
func (b *boot) takeReadiness(ready bool) {
	first := ready && !b.nodeReady && b.founded
	b.nodeSeen, b.nodeReady = true, ready
	if first {
		b.runAfter(3*b.f.step, func() {
			b.schedulers = true
			b.runAfter(17*b.f.step, func() { b.schedulers = false })
		})
	}
}
