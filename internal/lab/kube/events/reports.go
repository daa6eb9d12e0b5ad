package events

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// All texts are those of kubernetes v1.35.

// refTo refers to an object as a component does that has read it.
func refTo(o map[string]any) corev1.ObjectReference {
	meta := rules.MapAt(o, "metadata")
	ref := corev1.ObjectReference{
		APIVersion: rules.TextAt(o, "apiVersion"), Kind: rules.TextAt(o, "kind"), Namespace: rules.TextAt(meta, "namespace"), Name: rules.TextAt(meta, "name"),
		UID: types.UID(rules.TextAt(meta, "uid")), ResourceVersion: rules.TextAt(meta, "resourceVersion"),
	}
	if static := rules.TextAt(meta, "annotations", corev1.MirrorPodAnnotationKey); static != "" {
		ref.UID = types.UID(static) // its kubelet knows the static pod, not the one in the API
	}
	return ref
}

func normal(about corev1.ObjectReference, component, host, reason, format string, args ...any) Report {
	return Report{About: about, Type: corev1.EventTypeNormal, Reason: reason, Message: fmt.Sprintf(format, args...), Component: component, Host: host}
}

func warning(about corev1.ObjectReference, component, host, reason, format string, args ...any) Report {
	r := normal(about, component, host, reason, format, args...)
	r.Type = corev1.EventTypeWarning
	return r
}

const (
	kubelet         = "kubelet"
	nodeController  = "node-controller"
	scheduler       = "default-scheduler"
	taintController = "taint-eviction-controller"
	attachDetach    = "attachdetach-controller"
)

// ofContainer refers to a container of a pod.
func ofContainer(pod, container map[string]any) corev1.ObjectReference {
	ref := refTo(pod)
	list := "containers"
	for _, c := range rules.MapsAt(pod, "spec", "initContainers") {
		if rules.TextAt(c, "name") == rules.TextAt(container, "name") {
			list = "initContainers"
		}
	}
	ref.FieldPath = fmt.Sprintf("spec.%s{%s}", list, rules.TextAt(container, "name"))
	return ref
}

// Start is what a kubelet reports when it starts containers of a pod. has reports whether
// its machine has an image; others were pulled, all in the same time. Images of the lab
// have no bytes.
func Start(pod map[string]any, containers []map[string]any, has func(image string) bool, took time.Duration) []Report {
	node := rules.TextAt(pod, "spec", "nodeName")
	var out []Report
	for _, c := range rules.MapsAt(pod, "status", "containerStatuses") {
		if rules.NumberAt(c, "restartCount") > 0 {
			out = append(out, normal(refTo(pod), kubelet, node, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created."))
			break
		}
	}
	took = took.Truncate(time.Millisecond)
	for _, c := range containers {
		about, image := ofContainer(pod, c), rules.TextAt(c, "image")
		if rules.TextAt(c, "imagePullPolicy") != "Always" && has(image) {
			out = append(out, normal(about, kubelet, node, "Pulled", "Container image %q already present on machine and can be accessed by the pod", image))
		} else {
			out = append(out, normal(about, kubelet, node, "Pulling", "Pulling image %q", image),
				normal(about, kubelet, node, "Pulled", "Successfully pulled image %q in %v (%v including waiting). Image size: 0 bytes.", image, took, took))
		}
		out = append(out, normal(about, kubelet, node, "Created", "Container created"), normal(about, kubelet, node, "Started", "Container started"))
	}
	return out
}

// FailPull is what a kubelet reports of a container whose image cannot be pulled, and why.
func FailPull(pod, container map[string]any, why string) []Report {
	node, about, image := rules.TextAt(pod, "spec", "nodeName"), ofContainer(pod, container), rules.TextAt(container, "image")
	return []Report{
		normal(about, kubelet, node, "Pulling", "Pulling image %q", image),
		warning(about, kubelet, node, "Failed", "Failed to pull image %q: %s", image, why),
		warning(about, kubelet, node, "Failed", "Error: ErrImagePull"),
		normal(about, kubelet, node, "BackOff", "Back-off pulling image %q", image),
		warning(about, kubelet, node, "Failed", "Error: ImagePullBackOff"),
	}
}

// RejectPod is what a kubelet reports of a pod that it does not take.
func RejectPod(pod map[string]any, reason, message string) Report {
	return warning(refTo(pod), kubelet, rules.TextAt(pod, "spec", "nodeName"), reason, "%s", strings.TrimPrefix(message, "Pod was rejected: "))
}

// Kill is what a kubelet reports when it ends the containers of a pod.
func Kill(pod map[string]any) []Report {
	var out []Report
	for _, c := range rules.MapsAt(pod, "spec", "containers") {
		out = append(out, normal(ofContainer(pod, c), kubelet, rules.TextAt(pod, "spec", "nodeName"), "Killing", "Stopping container %s", rules.TextAt(c, "name")))
	}
	return out
}

// ofKubelet refers to a node as its kubelet does. Those before v1.37 have no uid there, so
// that "kubectl describe node" does not find what they report.
func ofKubelet(node map[string]any) corev1.ObjectReference {
	ref := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: rules.TextAt(node, "metadata", "name")}
	var major, minor int
	_, err := fmt.Sscanf(rules.TextAt(node, "status", "nodeInfo", "kubeletVersion"), "v%d.%d", &major, &minor)
	if err == nil && (major > 1 || minor >= 37) {
		ref.UID = types.UID(rules.TextAt(node, "metadata", "uid"))
	}
	return ref
}

// ofController refers to a node as the node controller does.
func ofController(node map[string]any) corev1.ObjectReference {
	ref := refTo(node)
	ref.APIVersion, ref.Kind, ref.ResourceVersion = "v1", "Node", ""
	return ref
}

// StartKubelet is what a kubelet reports when it starts: was is the Node as it found it,
// node as it wrote it.
func StartKubelet(was, node map[string]any) []Report {
	name, about := rules.TextAt(node, "metadata", "name"), ofKubelet(node)
	out := []Report{normal(about, kubelet, name, "Starting", "Starting kubelet.")}
	before, boot := rules.TextAt(was, "status", "nodeInfo", "bootID"), rules.TextAt(node, "status", "nodeInfo", "bootID")
	if before != "" && before != boot {
		out = append(out, warning(about, kubelet, name, "Rebooted", "Node %s has been rebooted, boot id: %s", name, boot))
	}
	return append(out, ChangeNode(was, node)...)
}

// ChangeNode is what is reported of a change of whether a node is ready, and whether it can
// be given pods.
func ChangeNode(was, node map[string]any) []Report {
	name, about := rules.TextAt(node, "metadata", "name"), ofKubelet(node)
	status := func(ref corev1.ObjectReference, component, host, is string) Report {
		return normal(ref, component, host, is, "Node %s status is now: %s", name, is)
	}
	var out []Report
	before, after := readiness(was), readiness(node)
	if before != "" && before != after && after != "Unknown" { // else it is the controller that writes it
		is := "NodeNotReady"
		if after == "True" {
			is = "NodeReady"
		}
		out = append(out, status(about, kubelet, name, is))
	}
	if before == "True" && after != "True" {
		out = append(out, status(ofController(node), nodeController, "", "NodeNotReady"))
	}
	return out
}

// readiness is the status of the condition Ready of a node, "" if it has none.
func readiness(node map[string]any) string {
	for _, c := range rules.MapsAt(node, "status", "conditions") {
		if rules.TextAt(c, "type") == "Ready" {
			return rules.TextAt(c, "status")
		}
	}
	return ""
}

// Cordon is what a kubelet reports when its node was cordoned, or is no longer.
func Cordon(node map[string]any) Report {
	is, name := "NodeSchedulable", rules.TextAt(node, "metadata", "name")
	if rules.BoolAt(node, "spec", "unschedulable") {
		is = "NodeNotSchedulable"
	}
	return normal(ofKubelet(node), kubelet, name, is, "Node %s status is now: %s", name, is)
}

// Register is what the node controller reports of a new node.
func Register(node map[string]any) Report {
	name := rules.TextAt(node, "metadata", "name")
	return normal(ofController(node), nodeController, "", "RegisteredNode", "Node %s event: Registered Node %s in Controller", name, name)
}

// Remove is what the node controller reports of a node that was deleted.
func Remove(node map[string]any) Report {
	name := rules.TextAt(node, "metadata", "name")
	return normal(ofController(node), nodeController, "", "RemovingNode", "Node %s event: Removing Node %s from Controller", name, name)
}

// LosePod is what the node controller reports of a pod whose node was lost.
func LosePod(pod map[string]any) Report {
	return warning(refTo(pod), nodeController, "", "NodeNotReady", "Node is not ready")
}

// EvictByTaint is what the taint manager reports of a pod that it deletes, or after all does
// not. It names the pod alone, so that "kubectl describe pod" does not find it.
func EvictByTaint(namespace, name string, cancelled bool) Report {
	doing := "Marking for deletion"
	if cancelled {
		doing = "Cancelling deletion of"
	}
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name}
	return normal(about, taintController, "", "TaintManagerEviction", "%s Pod %s/%s", doing, namespace, name)
}

// Schedule is what the scheduler of a control plane reports of a pod that it found a node
// for.
func Schedule(pod map[string]any, node, control string) Report {
	r := normal(refTo(pod), scheduler, scheduler+"-"+control, "Scheduled", "Successfully assigned %s/%s to %s",
		rules.TextAt(pod, "metadata", "namespace"), rules.TextAt(pod, "metadata", "name"), node)
	r.Action = "Binding"
	return r
}

// FailSchedule is what it reports of one that no node takes, and why.
func FailSchedule(pod map[string]any, why, control string) Report {
	r := warning(refTo(pod), scheduler, scheduler+"-"+control, "FailedScheduling", "%s", why)
	r.Action = "Scheduling"
	return r
}

// Attach is what is reported of a volume that was attached for a pod.
func Attach(pod map[string]any, volume string) Report {
	return normal(refTo(pod), attachDetach, "", "SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume %q ", volume)
}

// FailAttach is what is reported of a volume that another node has, where these pods of
// the namespace use it.
func FailAttach(pod map[string]any, volume string, users []string) Report {
	why := "Volume is already exclusively attached to one node and can't be attached to another"
	if len(users) > 0 {
		why = "Volume is already used by pod(s) " + strings.Join(users, ", ")
	}
	return warning(refTo(pod), attachDetach, "", "FailedAttachVolume", "Multi-Attach error for volume %q %s", volume, why)
}

// controllerOf is how the controller of a kind of workload calls itself.
func controllerOf(workload map[string]any) string {
	return strings.ToLower(rules.TextAt(workload, "kind")) + "-controller"
}

// Scale is what the controller of a Deployment reports of a change of a ReplicaSet.
func Scale(deployment map[string]any, set string, from, to int64) Report {
	way := "up"
	if to < from {
		way = "down"
	}
	return normal(refTo(deployment), controllerOf(deployment), "", "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", way, set, from, to)
}

// MakePod is what the controller of a workload reports of a pod it made.
func MakePod(workload map[string]any, pod string) Report {
	if rules.TextAt(workload, "kind") == "StatefulSet" {
		return normal(refTo(workload), controllerOf(workload), "", "SuccessfulCreate", "Create Pod %s in StatefulSet %s successful", pod, rules.TextAt(workload, "metadata", "name"))
	}
	return normal(refTo(workload), controllerOf(workload), "", "SuccessfulCreate", "Created pod: %s", pod)
}

// FailPod is what it reports of a pod that it could not make.
func FailPod(workload map[string]any, pod string, err error) Report {
	if rules.TextAt(workload, "kind") == "StatefulSet" {
		return warning(refTo(workload), controllerOf(workload), "", "FailedCreate", "Create Pod %s in StatefulSet %s failed error: %v", pod, rules.TextAt(workload, "metadata", "name"), err)
	}
	return warning(refTo(workload), controllerOf(workload), "", "FailedCreate", "Error creating: %v", err)
}

// DropPod is what it reports of a pod that it deleted.
func DropPod(workload map[string]any, pod string) Report {
	if rules.TextAt(workload, "kind") == "StatefulSet" {
		return normal(refTo(workload), controllerOf(workload), "", "SuccessfulDelete", "Delete Pod %s in StatefulSet %s successful", pod, rules.TextAt(workload, "metadata", "name"))
	}
	return normal(refTo(workload), controllerOf(workload), "", "SuccessfulDelete", "Deleted pod: %s", pod)
}

// ChangeJob is what the controller of Jobs reports of one that gets a status in which it is suspended, or has ended.
func ChangeJob(job, status map[string]any) Report {
	for _, c := range rules.MapsAt(status, "conditions") {
		switch kind := rules.TextAt(c, "type"); kind {
		case "Failed":
			return warning(refTo(job), controllerOf(job), "", rules.TextAt(c, "reason"), "%s", rules.TextAt(c, "message"))
		case "Suspended":
			return normal(refTo(job), controllerOf(job), "", "Suspended", "Job suspended")
		}
	}
	return normal(refTo(job), controllerOf(job), "", "Completed", "Job completed")
}
