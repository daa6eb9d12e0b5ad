package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// The labels that are read. Source: Talos v1.13.9, manifests of CoreDNS; whatever
// serves the cluster's DNS needs the first, by which its Service finds it.
const (
	labelApp          = "k8s-app"
	appDNS            = "kube-dns"
	labelTemplateHash = "pod-template-hash"
)

// podClient lists and watches the pods of kube-system.
type podClient struct{ corev1client.PodInterface }

func (c podClient) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return c.List(ctx, o)
}

func (c podClient) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.Watch(ctx, o)
}

// kindOfPods is how the pods of kube-system are followed.
func kindOfPods(c corev1client.CoreV1Interface) kind[cluster.SystemPod] {
	return kind[cluster.SystemPod]{name: "pods of kube-system", example: &corev1.Pod{}, client: podClient{c.Pods(metav1.NamespaceSystem)}, trim: trimPod,
		read: func(obj any) (string, cluster.SystemPod, error) {
			p, err := podOf(obj)
			return p.Name, p, err
		}}
}

// trimPod is a Pod with nothing but what podOf reads.
func trimPod(obj any) any {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj
	}
	small := &corev1.Pod{}
	small.Name, small.ResourceVersion, small.DeletionTimestamp = p.Name, p.ResourceVersion, p.DeletionTimestamp
	small.OwnerReferences = p.OwnerReferences
	small.Labels = map[string]string{labelApp: p.Labels[labelApp], labelTemplateHash: p.Labels[labelTemplateHash]}
	small.Spec.NodeName = p.Spec.NodeName
	if isMirror(p) {
		small.Annotations = maps.Clone(p.Annotations)
		maps.DeleteFunc(small.Annotations, func(key, _ string) bool {
			return key != corev1.MirrorPodAnnotationKey && !cluster.IsStaticPodVersion(key)
		})
	}
	if isMirror(p) || workloadOf(p) == workloadProxy {
		for _, c := range p.Spec.Containers {
			small.Spec.Containers = append(small.Spec.Containers, corev1.Container{Name: c.Name, Image: c.Image})
		}
	}
	small.Status = corev1.PodStatus{Phase: p.Status.Phase, Conditions: p.Status.Conditions,
		InitContainerStatuses: p.Status.InitContainerStatuses, ContainerStatuses: p.Status.ContainerStatuses}
	return small
}

// podOf reads a Pod object.
func podOf(obj any) (cluster.SystemPod, error) {
	o, ok := obj.(*corev1.Pod)
	if !ok {
		return cluster.SystemPod{}, fmt.Errorf("%T is no pod", obj)
	}
	p := cluster.SystemPod{Name: o.Name, Node: o.Spec.NodeName, Workload: workloadOf(o), DNS: o.Labels[labelApp] == appDNS, Static: staticOf(o), Proxy: proxyOf(o)}
	if o.DeletionTimestamp != nil || o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return p, nil // it is about to be replaced, or has done its work
	}
	for _, c := range o.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady:
			p.Ready = c.Status == corev1.ConditionTrue
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable:
			p.Unschedulable = kubeapi.Sanitize(strings.TrimSuffix(cmp.Or(c.Message, c.Reason), "."))
		}
	}
	if !p.Ready {
		p.Failing = failureOf(o)
	}
	return p, nil
}

// isMirror reports whether a pod stands for a static pod of its node.
func isMirror(p *corev1.Pod) bool { return p.Annotations[corev1.MirrorPodAnnotationKey] != "" }

// staticOf is what the static pod is made of that a pod stands for.
func staticOf(p *corev1.Pod) cluster.StaticPod {
	if !isMirror(p) || len(p.Spec.Containers) == 0 {
		return cluster.StaticPod{}
	}
	return cluster.NewStaticPod(p.Spec.Containers[0].Image, p.Annotations)
}

// workloadProxy is the DaemonSet of kube-proxy. Source: Talos 1.8 to 1.14, its manifests.
const workloadProxy = "kube-proxy"

// proxyOf is the image of a pod of kube-proxy, "" of another one.
func proxyOf(p *corev1.Pod) string {
	if workloadOf(p) != workloadProxy || len(p.Spec.Containers) == 0 {
		return ""
	}
	image := p.Spec.Containers[0].Image
	return image[:min(len(image), 512)]
}

// workloadOf names what a pod belongs to, so that all pods of one Deployment have
// the same.
func workloadOf(p *corev1.Pod) string {
	i := slices.IndexFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Controller != nil && *r.Controller })
	if i < 0 || p.OwnerReferences[i].Kind == "Node" {
		return p.Name
	}
	return strings.TrimSuffix(p.OwnerReferences[i].Name, "-"+p.Labels[labelTemplateHash])
}

// starting are the reasons with which a container waits that has not failed.
var starting = []string{"", "ContainerCreating", "PodInitializing"}

// failureOf returns why a pod does not come up: the reason with which its first
// failing container waits.
func failureOf(p *corev1.Pod) string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && !slices.Contains(starting, w.Reason) {
			return kubeapi.Sanitize(describeWaiting(c, *w))
		}
	}
	return ""
}

// describeWaiting puts into words why a container waits. What the kubelet writes
// about images and about missing objects is shown without what may be secret in
// it; other messages may repeat the command line of the container, and are not.
func describeWaiting(c corev1.ContainerStatus, w corev1.ContainerStateWaiting) string {
	switch w.Reason {
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
		words := fmt.Sprintf("%s of %s", w.Reason, redactURLs(c.Image))
		if w.Message != "" {
			words += ": " + redactURLs(w.Message)
		}
		return words
	case "CreateContainerConfigError":
		return strings.TrimSuffix(w.Reason+": "+redactURLs(w.Message), ": ")
	}
	if t := c.LastTerminationState.Terminated; t != nil {
		return fmt.Sprintf("%s: container %s ended with exit code %d%s", w.Reason, c.Name, t.ExitCode, inParentheses(t.Reason))
	}
	return w.Reason
}

func inParentheses(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// Of a URL, the part before its host and the query may hold credentials or a
// signature. The query of one that is truncated or oddly quoted ends with the word.
var (
	userInURL  = pattern.New(`://[^/\s@]*@`)
	queryInURL = pattern.New(`(://[^\s?"'\x60]*)\?[^\s"'\x60]*`)
)

func redactURLs(s string) string {
	return queryInURL.ReplaceAllString(userInURL.ReplaceAllString(s, "://"), "$1")
}
