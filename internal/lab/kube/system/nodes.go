package system

import (
	"cmp"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const (
	noNetwork = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"
	isPosting = "kubelet is posting ready status"
)

// ApplyConfig has Talos bring labels and taints of its config to the Node. A worker's
// taints reach no Node that is there (recorded): Kubernetes lets no kubelet change its own.
func ApplyConfig(o map[string]any, k world.Kubelet) {
	rules.SetLabels(o, k.NodeLabels())
	if k.Control {
		rules.SetTaints(o, k.NodeTaints())
	}
}

// DescribeNode writes what a starting kubelet reports of its node; network is that the
// pod network is up.
func DescribeNode(o map[string]any, k world.Kubelet, network bool) {
	labels := rules.EnsureMap(o, "metadata", "labels")
	for _, prefix := range []string{"beta.kubernetes.io/", "kubernetes.io/"} {
		labels[prefix+"arch"], labels[prefix+"os"] = "amd64", "linux"
	}
	labels["kubernetes.io/hostname"] = k.Node
	spec := rules.EnsureMap(o, "spec")
	rules.RemoveTaint(spec, corev1.TaintNodeUnreachable)
	if !network {
		rules.AddTaint(spec, corev1.TaintNodeNotReady, "", corev1.TaintEffectNoSchedule)
		rules.NoteTaint(spec, corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)
	}
	status := rules.EnsureMap(o, "status")
	addresses := []any{map[string]any{"type": "InternalIP", "address": k.Address.String()}}
	if k.Address6.IsValid() {
		addresses = append(addresses, map[string]any{"type": "InternalIP", "address": k.Address6.String()})
	}
	status["addresses"] = append(addresses, map[string]any{"type": "Hostname", "address": k.Node})
	status["nodeInfo"] = map[string]any{
		"architecture": "amd64", "operatingSystem": "linux", "kernelVersion": "6.18.5-talos",
		"containerRuntimeVersion": "containerd://2.2.1", "osImage": "Talos (" + k.Talos + ")",
		"kubeletVersion": k.Kubernetes, "kubeProxyVersion": "",
		"machineID": strconv.Itoa(k.VMID), "systemUUID": k.UUID, "bootID": k.BootID,
	}
	status["capacity"], status["allocatable"] = rules.NodeSize(cmp.Or(k.Cores, 4), cmp.Or(k.MemoryMiB, 8192), k.Control)
	status["daemonEndpoints"] = map[string]any{"kubeletEndpoint": map[string]any{"Port": int64(10250)}}
	for _, p := range rules.Pressures {
		status["conditions"] = rules.SetCondition(rules.ListAt(status, "conditions"), p.Condition, "False", p.Reasons[0], p.Texts[0])
	}
	if network {
		rules.RemoveTaint(spec, corev1.TaintNodeNotReady)
		status["conditions"] = rules.SetCondition(rules.ListAt(status, "conditions"), "Ready", "True", "KubeletReady", isPosting)
	} else {
		status["conditions"] = rules.SetCondition(rules.ListAt(status, "conditions"), "Ready", "False", "KubeletNotReady", noNetwork)
	}
	for _, c := range rules.MapsAt(status, "conditions") {
		c["lastHeartbeatTime"] = rules.FormatNow()
	}
}

// ReadyNode writes that the pod network of a node is up.
func ReadyNode(o map[string]any) {
	status := rules.EnsureMap(o, "status")
	status["conditions"] = rules.SetCondition(rules.ListAt(status, "conditions"), "Ready", "True", "KubeletReady", isPosting)
	rules.WriteAs(rules.Controllers, o, func() { rules.RemoveTaint(rules.EnsureMap(o, "spec"), corev1.TaintNodeNotReady) })
}

// LoseNode writes that the kubelet of a node is silent. Its taints evict its pods in
// time.
func LoseNode(o map[string]any) {
	status := rules.EnsureMap(o, "status")
	for _, c := range []string{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
		status["conditions"] = rules.SetCondition(rules.ListAt(status, "conditions"), c, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
	}
	rules.WriteAs(rules.Controllers, o, func() {
		spec := rules.EnsureMap(o, "spec")
		rules.RemoveTaint(spec, corev1.TaintNodeNotReady)
		rules.NoteTaint(spec, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule)
		rules.NoteTaint(spec, corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	})
}
