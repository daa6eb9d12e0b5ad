package kube

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/text"
)

// drainedAgain is the hint of what voids a drain.
const drainedAgain = "nothing was done to its machine; the agent drains it once more"

// CheckDrained returns why the machine of a node may not go down for its turn, nil when it
// may: the node is as its drain left it. Somebody may have put it back into service, and
// cordoned it again, which no annotation shows: then pods are on it that a drain would have
// end. They void the drain, which is noted, so that it is done once more. stay: the drain
// had its pods stay.
func (k *Cluster) CheckDrained(ctx context.Context, d cluster.Desired, n cluster.Node, stay bool) error {
	ctx, leave, err := k.enter(ctx)
	if err != nil {
		return fmt.Errorf("see whether %s is drained: %w", n.Name, err)
	}
	defer leave()
	dr := &drainer{changer: &changer{k: k, access: d.Access.Kube}, node: n.Name}
	if err := dr.checkDrained(ctx, stay); err != nil {
		return fmt.Errorf("%s is not taken down: %w", n.Name, err)
	}
	return nil
}

func (dr *drainer) checkDrained(ctx context.Context, stay bool) error {
	node, err := dr.readNode(ctx, dr.node)
	if err != nil {
		return err
	}
	boot := node.Status.NodeInfo.BootID
	switch {
	case !node.Spec.Unschedulable || node.Annotations[cluster.AnnotationTurn] == "":
		return fault.WithHint(errors.New("somebody has uncordoned it since it was drained"), drainedAgain)
	case boot == "" || node.Annotations[cluster.AnnotationDrained] != boot:
		return fault.Errorf(drainedAgain, "its machine was not drained since it has booted (boot id %s, and %s when it was)", boot, kubeapi.Sanitize(node.Annotations[cluster.AnnotationDrained]))
	case stay:
		return nil
	}
	dr.unreachable = isUnreachable(node)
	pods, err := dr.listEvictable(ctx, false)
	if err != nil || len(pods) == 0 {
		return err
	}
	var names []string
	for _, p := range pods {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	_, err = dr.alterNode(ctx, dr.node, func(now *corev1.Node) (patch, error) {
		if now.UID != node.UID || now.Annotations[cluster.AnnotationDrained] != boot {
			return nil, nil // void already
		}
		return patch{"metadata": map[string]any{"annotations": map[string]any{cluster.AnnotationDrained: nil}}}, nil
	})
	if err != nil {
		return err
	}
	return fault.Errorf(drainedAgain, "pods came to it since it was drained: %s", kubeapi.Sanitize(text.JoinSome(names, mostNamed, ", ")))
}
