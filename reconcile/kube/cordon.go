package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

// patchTries is how often a Node is read and patched again that others change at the
// same time.
const patchTries = 10

var errNoNode = errors.New("there is no Node object of this name")

// Uncordon ends the turn of a node: its cordon, the annotations of a turn and a taint of ours are removed, or
// these but the cordon, where somebody had cordoned it before. A node that is not there, or was not
// taken out of service by the agent, is left as it is. What it returns is no more than that Kubernetes cannot be asked or
// refuses: it can be called again.
func (k *Cluster) Uncordon(ctx context.Context, d cluster.Desired, n cluster.Node) error {
	ctx, leave, err := k.enter(ctx)
	if err != nil {
		return fmt.Errorf("uncordon %s: %w", n.Name, err)
	}
	defer leave()
	c := &changer{k: k, access: d.Access.Kube}
	if err := c.uncordon(ctx, n.Name); err != nil {
		return fmt.Errorf("uncordon %s: %w", n.Name, err)
	}
	return nil
}

func (c *changer) uncordon(ctx context.Context, name string) error {
	_, err := c.alterNode(ctx, name, func(node *corev1.Node) (patch, error) {
		if node.Annotations[cluster.AnnotationTurn] == "" {
			return nil, nil
		}
		var unschedulable any
		if isAdopted(node) {
			unschedulable = true
		}
		p := patchNode(unschedulable, map[string]any{cluster.AnnotationTurn: nil, cluster.AnnotationDrained: nil, cluster.AnnotationAdopted: nil})
		if slices.ContainsFunc(node.Spec.Taints, isOwnTaint) {
			p["spec"].(map[string]any)["taints"] = slices.DeleteFunc(slices.Clone(node.Spec.Taints), isOwnTaint)
		}
		return p, nil
	})
	switch {
	case errors.Is(err, errNoNode):
		return nil
	case err != nil:
		return err
	}
	return nil
}

// isAdopted reports whether a Node has a cordon of somebody else that the agent drained it
// behind.
func isAdopted(node *corev1.Node) bool {
	return node.Spec.Unschedulable && node.Annotations[cluster.AnnotationAdopted] != ""
}

// cordon takes the node out of service for the turn, unless it already is, and returns
// the Node as it is then. A Node that is cordoned without an annotation of ours is
// somebody else's.
func (dr *drainer) cordon(ctx context.Context) (*corev1.Node, error) {
	return dr.alterNode(ctx, dr.node, func(node *corev1.Node) (patch, error) {
		turn := node.Annotations[cluster.AnnotationTurn]
		switch {
		case node.Spec.Unschedulable && turn == "" && !dr.how.Adopt:
			return nil, fault.WithHint(cluster.ErrCordonedByOthers,
				fmt.Sprintf("`kubectl uncordon %s` when it may be drained: the agent waits until then", dr.node))
		case node.Status.NodeInfo.BootID == "":
			return nil, errors.New("its kubelet has not reported a boot id yet")
		case node.Spec.Unschedulable && turn == dr.turn:
			return nil, nil
		case node.Spec.Unschedulable && turn == "":
			return patchNode(true, map[string]any{cluster.AnnotationTurn: dr.turn, cluster.AnnotationAdopted: "true"}), nil
		case node.Spec.Unschedulable:
			return patchNode(true, map[string]any{cluster.AnnotationTurn: dr.turn}), nil
		}
		annotations := map[string]any{cluster.AnnotationTurn: dr.turn}
		for _, key := range []string{cluster.AnnotationDrained, cluster.AnnotationAdopted} {
			if node.Annotations[key] != "" {
				annotations[key] = nil // it was put back into service since
			}
		}
		return patchNode(true, annotations), nil
	})
}

// mark records that the machine that was drained has this boot id, unless the node is
// no longer as the drain left it.
func (dr *drainer) mark(ctx context.Context) error {
	_, err := dr.alterNode(ctx, dr.node, func(node *corev1.Node) (patch, error) {
		if err := dr.judge(node); err != nil {
			return nil, err
		}
		return patchNode(true, map[string]any{cluster.AnnotationDrained: dr.boot}), nil
	})
	return err
}

// patch is what is to become of a Node, as a JSON merge patch; nil: it stays as it is.
type patch map[string]any

// patchNode makes the patch of a cordon and of annotations; nil removes.
func patchNode(unschedulable any, annotations map[string]any) patch {
	return patch{"metadata": map[string]any{"annotations": annotations}, "spec": map[string]any{"unschedulable": unschedulable}}
}

// alterNode reads a Node, asks what is to become of it, and changes exactly the version
// that was read, so that nothing that others do at the same time is lost. It returns
// the Node as it is then.
func (c *changer) alterNode(ctx context.Context, name string, alter func(*corev1.Node) (patch, error)) (*corev1.Node, error) {
	for tries := 1; ; tries++ {
		node, err := c.readNode(ctx, name)
		if err != nil {
			return nil, err
		}
		p, err := alter(node)
		if p == nil || err != nil {
			return node, err
		}
		p["metadata"].(map[string]any)["resourceVersion"] = node.ResourceVersion
		body, err := json.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("encode patch: %w", err)
		}
		err = c.insist(ctx, func(ctx context.Context, set kubernetes.Interface) (err error) {
			node, err = set.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
			return err
		})
		if apierrors.IsConflict(err) && tries < patchTries {
			continue // somebody else, or we, and the answer was lost
		}
		if err != nil {
			return nil, fmt.Errorf("change its Node object: %w", kubeError(err))
		}
		c.k.settleNode(ctx, name, node)
		return node, nil
	}
}

// settleWithin is how long a change waits until what it wrote is seen.
const settleWithin = 2 * time.Second

// settleNode waits until the watch shows what was written to a Node, nil: that it was
// deleted. Else the next pass would see it as it was, and do the same again.
func (k *Cluster) settleNode(ctx context.Context, name string, wrote *corev1.Node) {
	k.mu.Lock()
	nodes, reader := k.nodes, k.reader
	k.mu.Unlock()
	if nodes == nil {
		return
	}
	var want cluster.KubeNode
	if wrote != nil {
		var err error
		if want, err = reader.nodeOf(wrote); err != nil {
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	nodes.settle(ctx, func(seen map[string]cluster.KubeNode) bool {
		have, there := seen[name]
		if wrote == nil || !there {
			return !there
		}
		return have.Cordoned == want.Cordoned && have.Turn == want.Turn && have.Drained == want.Drained && have.Adopted == want.Adopted && reflect.DeepEqual(have.Owned, want.Owned)
	})
}

// readNode returns a Node, or errNoNode.
func (c *changer) readNode(ctx context.Context, name string) (node *corev1.Node, err error) {
	err = c.insist(ctx, func(ctx context.Context, set kubernetes.Interface) (err error) {
		node, err = set.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, errNoNode
	case err != nil:
		return nil, fmt.Errorf("read its Node object: %w", kubeError(err))
	}
	return node, nil
}

// kubeError is an API's answer in the words of people. Other errors are in them
// already.
func kubeError(err error) error {
	if answer := apierrors.APIStatus(nil); errors.As(err, &answer) {
		return kubeapi.InWords(err)
	}
	return err
}
