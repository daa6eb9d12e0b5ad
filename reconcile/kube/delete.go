package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// DeleteNode deletes the Node object of a node whose machine is no longer there. One that
// is not there is success. It refuses a Node whose kubelet reported from a machine with
// another SMBIOS UUID than the node's, and one that was made again meanwhile: a kubelet
// that runs registers its Node again when it starts (Kubernetes 1.36: seen).
func (k *Cluster) DeleteNode(ctx context.Context, d cluster.Desired, n cluster.Node) error {
	ctx, leave, err := k.enter(ctx)
	if err != nil {
		return fmt.Errorf("delete node object %s: %w", n.Name, err)
	}
	defer leave()
	c := &changer{k: k, access: d.Access.Kube}
	if err := c.deleteNode(ctx, n); err != nil {
		return fmt.Errorf("delete node object %s: %w", n.Name, err)
	}
	return nil
}

func (c *changer) deleteNode(ctx context.Context, n cluster.Node) error {
	node, err := c.readNode(ctx, n.Name)
	switch {
	case errors.Is(err, errNoNode):
		return nil
	case err != nil:
		return err
	case !strings.EqualFold(node.Status.NodeInfo.SystemUUID, n.UUID):
		return fmt.Errorf("its kubelet reported from a machine with SMBIOS UUID %s, and the node's is %s", node.Status.NodeInfo.SystemUUID, n.UUID)
	}
	err = c.insist(ctx, func(ctx context.Context, set kubernetes.Interface) error {
		return set.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &node.UID}})
	})
	switch {
	case apierrors.IsNotFound(err): // or it was carried out, and the answer was lost
		return nil
	case err != nil:
		return kubeError(err)
	}
	c.k.settleNode(ctx, n.Name, nil)
	c.k.log.Info("node object deleted", logging.Node, n.Name)
	return nil
}
