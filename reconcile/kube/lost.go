package kube

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

// ListLostPods names the pods of a node, as namespace/name and in that order, that Drain would
// delete now and that no controller starts again. It asks once, and changes nothing.
func (k *Cluster) ListLostPods(ctx context.Context, d cluster.Desired, node string) ([]string, error) {
	ctx, leave, err := k.enter(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", node, err)
	}
	defer leave()
	var list *corev1.PodList
	err = (&changer{k: k, access: d.Access.Kube}).ask(ctx, func(ctx context.Context, set kubernetes.Interface) (err error) {
		list, err = set.CoreV1().Pods(metav1.NamespaceAll).List(ctx, podsOf(node))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", node, kubeError(err))
	}
	var names []string
	for i := range list.Items {
		_, mirror := list.Items[i].Annotations[corev1.MirrorPodAnnotationKey]
		if p := (&evicted{pod: list.Items[i]}); !mirror && p.isLost() {
			names = append(names, kubeapi.Sanitize(p.name()))
		}
	}
	slices.Sort(names)
	return names, nil
}

// podsOf selects the pods of a node.
func podsOf(node string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()}
}

// isLost reports whether no controller starts a pod again that has ended.
func (p *evicted) isLost() bool { return metav1.GetControllerOf(&p.pod) == nil }
