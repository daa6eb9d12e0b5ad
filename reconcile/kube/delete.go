package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/internal/text"
)

// ownTaint is what declares a node that the agent deletes to be out of service. Kubernetes then
// ends its pods, forces those away that no kubelet will, and detaches its volumes at once, and not
// after six minutes (Kubernetes 1.28 and later: documented; the value may be any).
var ownTaint = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "talos-agent", Effect: corev1.TaintEffectNoExecute}

func isOwnTaint(t corev1.Taint) bool { return t.Key == ownTaint.Key && t.Value == ownTaint.Value }

// DeleteNode deletes the Node object of a node whose machine is no longer there. One that
// is not there is success. Pods and volumes that it has left, and that a drain would have taken from
// it, are ended first, for two minutes at most: the next machine of the node would have them
// otherwise. It refuses a Node whose kubelet reported from a machine with
// another SMBIOS UUID than the node's, and one that was made again meanwhile: a kubelet
// that runs registers its Node again when it starts (Kubernetes 1.36: seen).
func (k *Cluster) DeleteNode(ctx context.Context, d cluster.Desired, n cluster.Node, progress func(cluster.Progress)) error {
	if progress == nil {
		progress = func(cluster.Progress) {}
	}
	ctx, leave, err := k.enter(ctx)
	if err != nil {
		return fmt.Errorf("delete node object %s: %w", n.Name, err)
	}
	defer leave()
	dr := &drainer{changer: &changer{k: k, access: d.Access.Kube}, node: n.Name, progress: progress}
	if err := dr.deleteNode(ctx, n); err != nil {
		return fmt.Errorf("delete node object %s: %w", n.Name, err)
	}
	return nil
}

func (dr *drainer) deleteNode(ctx context.Context, n cluster.Node) error {
	node, err := dr.readNode(ctx, n.Name)
	switch {
	case errors.Is(err, errNoNode):
		return nil
	case err != nil:
		return err
	case !strings.EqualFold(node.Status.NodeInfo.SystemUUID, n.UUID):
		return fmt.Errorf("its kubelet reported from a machine with SMBIOS UUID %s, and the node's is %s", node.Status.NodeInfo.SystemUUID, n.UUID)
	}
	dr.uid, dr.boot = node.UID, node.Status.NodeInfo.BootID
	if err := dr.clear(ctx); errors.Is(err, errNoNode) {
		return nil
	} else if err != nil {
		return err
	}
	err = dr.insist(ctx, func(ctx context.Context, set kubernetes.Interface) error {
		return set.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &dr.uid}})
	})
	switch {
	case apierrors.IsNotFound(err): // or it was carried out, and the answer was lost
		return nil
	case err != nil:
		return kubeError(err)
	}
	dr.k.settleNode(ctx, n.Name, nil)
	dr.k.log.Info("node object deleted", logging.Node, n.Name)
	return nil
}

// clear declares the node to be out of service where it has pods or volumes, and waits until it
// has none, but for no longer than two minutes: then it is deleted all the same.
func (dr *drainer) clear(ctx context.Context) error {
	for deadline := time.Now().Add(detachWithin); ; {
		left, pods, err := dr.listLeft(ctx)
		switch {
		case err != nil:
			return err
		case len(left) == 0:
			return nil
		case !time.Now().Before(deadline):
			dr.k.log.Warn("pods or volumes stay with a node whose machine is no longer there", logging.Node, dr.node, logging.Detail, text.JoinSome(left, mostNamed, ", "))
			return nil
		}
		if err := dr.declareOff(ctx); err != nil {
			return err
		}
		if err := dr.deletePods(ctx, pods); err != nil {
			return err
		}
		dr.progress(cluster.Progress{Waits: "Kubernetes to end what its machine has left: " + text.JoinSome(left, mostNamed, ", ")})
		if retry.Sleep(ctx, detachPause) != nil {
			return context.Cause(ctx)
		}
	}
}

// listLeft returns the pods on the node that a drain would have end, and the volumes that are
// attached to it.
func (dr *drainer) listLeft(ctx context.Context) (left []string, pods []corev1.Pod, err error) {
	if pods, err = dr.listEvictable(ctx, true); err != nil {
		return nil, nil, err
	}
	for _, p := range pods {
		left = append(left, "pod "+p.Namespace+"/"+p.Name)
	}
	volumes, err := dr.listAttached(ctx)
	for _, v := range volumes {
		left = append(left, "volume "+v)
	}
	return left, pods, err
}

// deletePods deletes the pods that are not being deleted: those that tolerate every taint, as some
// of a pod network do, stay otherwise. Kubernetes forces away what no kubelet ends.
func (dr *drainer) deletePods(ctx context.Context, pods []corev1.Pod) error {
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		err := dr.insist(ctx, func(ctx context.Context, set kubernetes.Interface) error {
			return set.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, kubeError(err))
		}
	}
	return nil
}

// declareOff declares the node to be out of service, as a part of its removal: where its machine is
// there again before it is deleted, Uncordon takes that back.
func (dr *drainer) declareOff(ctx context.Context) error {
	_, err := dr.alterNode(ctx, dr.node, func(node *corev1.Node) (patch, error) {
		switch {
		case node.UID != dr.uid:
			return nil, errors.New("its Node object was deleted and made again meanwhile")
		case node.Status.NodeInfo.BootID != dr.boot:
			return nil, fmt.Errorf("its machine has started meanwhile (boot id %s, and %s before)", node.Status.NodeInfo.BootID, dr.boot)
		case slices.ContainsFunc(node.Spec.Taints, isOwnTaint):
			return nil, nil
		}
		annotations := map[string]any{cluster.AnnotationTurn: cluster.TurnRemoval}
		if node.Spec.Unschedulable && node.Annotations[cluster.AnnotationTurn] == "" {
			annotations[cluster.AnnotationAdopted] = "true"
		}
		p := patchNode(true, annotations)
		p["spec"].(map[string]any)["taints"] = append(slices.Clone(node.Spec.Taints), ownTaint)
		return p, nil
	})
	return err
}
