package kube

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

// nodeClient lists and watches the Node objects.
type nodeClient struct{ corev1client.NodeInterface }

func (c nodeClient) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return c.List(ctx, o)
}

func (c nodeClient) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.Watch(ctx, o)
}

// kindOfNodes is how Node objects are followed, as r reads them.
// Who has written their fields is noted beside.
func kindOfNodes(c corev1client.CoreV1Interface, r nodeReader, writings *writings) kind[cluster.KubeNode] {
	return kind[cluster.KubeNode]{name: "nodes", example: &corev1.Node{}, client: nodeClient{c.Nodes()}, trim: r.trimNode, drop: writings.drop,
		read: func(obj any) (string, cluster.KubeNode, error) {
			n, err := r.nodeOf(obj)
			if o, ok := obj.(*corev1.Node); ok {
				writings.note(o)
			}
			return n.Name, n, err
		}}
}

// pressures are the conditions of a node that should not be true, though its kubelet
// reports it as Ready.
var pressures = []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable}

// trimNode is a Node with nothing but what nodeOf reads.
func (r nodeReader) trimNode(obj any) any {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj
	}
	small := &corev1.Node{}
	small.Name, small.UID, small.ResourceVersion, small.CreationTimestamp = n.Name, n.UID, n.ResourceVersion, n.CreationTimestamp
	small.Spec.Unschedulable, small.ManagedFields = n.Spec.Unschedulable, keepWritings(n)
	owned := r.ownedOf(n)
	small.Labels, small.Spec.Taints = r.pick(n.Labels, owned.Labels), r.taintsOf(n, owned)
	small.Annotations = r.pick(n.Annotations, owned.Annotations)
	for _, key := range []string{cluster.AnnotationTurn, cluster.AnnotationDrained, cluster.AnnotationAdopted, cluster.AnnotationOwned} {
		if v, ok := n.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&small.ObjectMeta, key, v)
		}
	}
	small.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: n.Status.NodeInfo.KubeletVersion, BootID: n.Status.NodeInfo.BootID, SystemUUID: n.Status.NodeInfo.SystemUUID, OSImage: n.Status.NodeInfo.OSImage}
	if v, ok := n.Labels[labelControlPlane]; ok {
		metav1.SetMetaDataLabel(&small.ObjectMeta, labelControlPlane, v)
	}
	if a := addressOf(n); a != "" {
		small.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: a}}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady || c.Status == corev1.ConditionTrue {
			small.Status.Conditions = append(small.Status.Conditions, c)
		}
	}
	return small
}

// labelControlPlane is on the Node of every control plane (Talos 1.13: recorded).
const labelControlPlane = "node-role.kubernetes.io/control-plane"

// addressOf is the first internal address of a node, "" when it has none.
func addressOf(n *corev1.Node) string {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	return ""
}

// nodeOf reads a Node object.
func (r nodeReader) nodeOf(obj any) (cluster.KubeNode, error) {
	o, ok := obj.(*corev1.Node)
	if !ok {
		return cluster.KubeNode{}, fmt.Errorf("%T is no node", obj)
	}
	owned := r.ownedOf(o)
	n := cluster.KubeNode{Name: o.Name, Kubelet: o.Status.NodeInfo.KubeletVersion, OS: o.Status.NodeInfo.OSImage, Why: "its kubelet has not reported yet",
		Cordoned: o.Spec.Unschedulable, BootID: o.Status.NodeInfo.BootID, UUID: strings.ToLower(o.Status.NodeInfo.SystemUUID), Address: addressOf(o),
		Turn: kubeapi.Sanitize(o.Annotations[cluster.AnnotationTurn]), Drained: kubeapi.Sanitize(o.Annotations[cluster.AnnotationDrained]),
		Adopted: isAdopted(o), Meta: r.metaOf(o, owned), Owned: owned, Created: o.CreationTimestamp.Time}
	for _, c := range o.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		n.Ready, n.Why = c.Status == corev1.ConditionTrue, kubeapi.Sanitize(c.Message)
		if n.Ready {
			n.Why, n.ReadySince = "", c.LastTransitionTime.Time
		} else {
			n.NotReadySince = c.LastTransitionTime.Time
		}
	}
	n.Pressure = pressureOf(o)
	_, n.ControlPlane = o.Labels[labelControlPlane]
	return n, nil
}

// pressureOf returns the conditions of a node that should not be true, in the order
// of their table: a kubelet may list them in any.
func pressureOf(n *corev1.Node) string {
	var found []string
	for _, kind := range pressures {
		for _, c := range n.Status.Conditions {
			if c.Type == kind && c.Status == corev1.ConditionTrue {
				found = append(found, kubeapi.Sanitize(strings.TrimSuffix(string(kind)+": "+c.Message, ": ")))
			}
		}
	}
	return strings.Join(found, "; ")
}
