package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/internal/text"
)

const (
	// lookPause is the wait between two looks at the pods of a node that is drained.
	lookPause = time.Second
	// deletedWithin is how long deleted pods may take after the timeout of a drain.
	deletedWithin = time.Minute
	// detachWithin is how long volumes may take to be detached. A CSI driver that does
	// not answer would hold up every drain.
	detachWithin = 2 * time.Minute
	detachPause  = 2 * time.Second
)

// Drain takes a node out of service for a turn: it cordons it, evicts its pods, waits
// until they have ended and their volumes are detached, and records that in the Node.
// Pods of DaemonSets and mirror pods stay; pods without a controller and data in
// emptyDirs are lost. Disruption budgets are honoured until how.Timeout is over. The
// pods of a node that Kubernetes does not reach are not waited for.
//
// It can be called again after any end, and a node that is drained already costs one
// request. Its errors, besides that Kubernetes cannot be asked:
//
//   - cluster.ErrCordonedByOthers: the cordon is not ours, nothing was changed;
//   - cluster.ErrUncordoned: somebody put the node back into service, nothing more was
//     evicted;
//   - cluster.ErrUndrained: pods are left. Without how.Delete the turn ends as by Uncordon,
//     whichever call has begun it; with it, the node stays cordoned, because most of its
//     pods are somewhere else by then;
//   - the machine has restarted meanwhile, so that its pods run again, or has not
//     reported a boot id yet: then nothing was changed.
//
// After the other errors, and when ctx ends, the node stays cordoned for the turn.
func (k *Cluster) Drain(ctx context.Context, d cluster.Desired, n cluster.Node, turn string, how cluster.Drain, progress func(cluster.Progress)) error {
	if progress == nil {
		progress = func(cluster.Progress) {}
	}
	ctx, leave, err := k.enter(ctx)
	if err != nil {
		return fmt.Errorf("drain %s: %w", n.Name, err)
	}
	defer leave()
	dr := &drainer{
		changer: &changer{k: k, access: d.Access.Kube}, node: n.Name, turn: turn, how: how, progress: progress,
		deadline: time.Now().Add(how.Patience()), pods: map[types.UID]*evicted{},
	}
	if err := dr.run(ctx); err != nil {
		return fmt.Errorf("drain %s: %w", n.Name, err)
	}
	return nil
}

// drainer is one Drain under way.
type drainer struct {
	*changer
	node     string
	turn     string
	how      cluster.Drain
	progress func(cluster.Progress)
	deadline time.Time // until pods are deleted, or the drain is given up
	deleting bool      // against the budgets, since the first deadline

	uid         types.UID // of the Node
	boot        string    // boot id of the machine when the drain began
	unreachable bool      // Kubernetes does not reach the node

	pods  map[types.UID]*evicted // that are to end, and have not
	total int                    // pods that were to end, so far
}

// run is Drain.
func (dr *drainer) run(ctx context.Context) error {
	if dr.turn == "" {
		return errors.New("there is no turn to drain it for")
	}
	node, err := dr.cordon(ctx)
	if err != nil {
		return err
	}
	dr.uid, dr.boot = node.UID, node.Status.NodeInfo.BootID
	if node.Annotations[cluster.AnnotationDrained] == dr.boot {
		return nil // it may have been drained for another turn
	}
	if dr.how.Stay {
		return dr.mark(ctx)
	}
	if err := dr.empty(ctx); err != nil {
		if errors.Is(err, cluster.ErrUndrained) && !dr.how.Delete {
			return dr.giveUp(ctx, err)
		}
		return err
	}
	if err := dr.detach(ctx); err != nil {
		return err
	}
	return dr.mark(ctx)
}

// giveUp puts the node back into service, unless somebody else took it out, and returns why.
func (dr *drainer) giveUp(ctx context.Context, why error) error {
	if err := dr.uncordon(ctx, dr.node); err != nil {
		return fault.WithHint(fmt.Errorf("%w; and it stays cordoned: %w", why, err), fault.HintOf(why))
	}
	return why
}

// judge returns why the drain cannot go on, from the Node as it is now.
func (dr *drainer) judge(node *corev1.Node) error {
	switch {
	case node.UID != dr.uid:
		return errors.New("its Node object was deleted and made again meanwhile")
	case !node.Spec.Unschedulable || node.Annotations[cluster.AnnotationTurn] != dr.turn:
		return fault.WithHint(cluster.ErrUncordoned, "nothing more is evicted from it; the agent tries again later")
	case node.Status.NodeInfo.BootID != dr.boot:
		return fmt.Errorf("its machine has restarted meanwhile (boot id %s, and %s before)", node.Status.NodeInfo.BootID, dr.boot)
	}
	dr.unreachable = isUnreachable(node)
	return nil
}

// isUnreachable reports whether the control plane has lost the node.
func isUnreachable(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable }) ||
		slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
		})
}

// empty evicts the pods of the node and waits until they have ended.
func (dr *drainer) empty(ctx context.Context) error {
	for first := true; ; first = false {
		node, err := dr.readNode(ctx, dr.node)
		if err != nil {
			return err
		}
		if err := dr.judge(node); err != nil {
			return err
		}
		if err := dr.look(ctx); err != nil {
			return err
		}
		if len(dr.pods) == 0 {
			if err := dr.choose(ctx, first); err != nil {
				return err
			}
		}
		dr.report()
		if len(dr.pods) == 0 {
			return nil
		}
		if err := dr.checkTime(); err != nil {
			return err
		}
		for _, p := range dr.due() {
			if err := dr.expel(ctx, p); err != nil {
				return err
			}
		}
		dr.report()
		if retry.Sleep(ctx, lookPause) != nil {
			return context.Cause(ctx)
		}
	}
}

// checkTime begins to delete pods, or gives the drain up, when its time is over.
func (dr *drainer) checkTime() error {
	if time.Now().Before(dr.deadline) {
		return nil
	}
	if dr.how.Delete && !dr.deleting {
		dr.deleting = true
		dr.deadline = time.Now().Add(deletedWithin)
		for _, p := range dr.pods {
			p.next = time.Time{}
		}
		return nil
	}
	patience := dr.how.Patience()
	hint := "give the workload another replica, or its budget room, and the agent tries again; `on_timeout: delete` would delete what is left"
	if dr.deleting {
		patience += deletedWithin
		hint = fmt.Sprintf("find out why it does not end: `kubectl describe pod`; `kubectl delete pod --force` makes Kubernetes forget it, and is safe only when %s is off", dr.node)
	}
	return fault.Errorf(hint, "%w after %v: %s", cluster.ErrUndrained, patience, dr.describePods(true))
}

// report sends how far the drain has come.
func (dr *drainer) report() {
	waits := dr.describePods(false)
	if ends := dr.describeEnding(); waits == "" && ends != "" {
		waits = "pods to end: " + ends
	}
	if lost := dr.describeLost(); lost != "" {
		waits = strings.TrimPrefix(waits+"; deletes pods that no controller starts again: "+lost, "; ")
	}
	dr.progress(cluster.Progress{Done: int64(dr.total - len(dr.pods)), Total: int64(dr.total), Unit: "pods", Waits: waits})
}

// describeLost lists the pods that are left and have no controller, which are lost.
func (dr *drainer) describeLost() string {
	var names []string
	for _, p := range dr.inOrder() {
		if p.isLost() {
			names = append(names, p.name())
		}
	}
	return kubeapi.Sanitize(text.JoinSome(names, mostNamed, ", "))
}

// mostNamed is how many pods or volumes are named before the rest is only counted.
const mostNamed = 5

// describePods lists the pods that are left, with why: all of them, or those that may
// not be evicted.
func (dr *drainer) describePods(all bool) string {
	var words []string
	for _, p := range dr.inOrder() {
		switch {
		case p.refused != "":
			words = append(words, fmt.Sprintf("%s (%s)", p.name(), p.refused))
		case all && p.pod.DeletionTimestamp != nil:
			words = append(words, fmt.Sprintf("%s (has not ended)", p.name()))
		case all:
			words = append(words, p.name())
		}
	}
	return text.JoinSome(words, mostNamed, ", ")
}

// describeEnding lists the pods that were evicted or deleted, and take their grace.
func (dr *drainer) describeEnding() string {
	var names []string
	for _, p := range dr.inOrder() {
		if p.pod.DeletionTimestamp != nil {
			names = append(names, p.name())
		}
	}
	return text.JoinSome(names, mostNamed, ", ")
}

// detach waits until no volume is attached to the node, but for no longer than two
// minutes: then the drain goes on.
func (dr *drainer) detach(ctx context.Context) error {
	for deadline := time.Now().Add(detachWithin); ; {
		volumes, err := dr.listAttached(ctx)
		switch {
		case err != nil:
			return err
		case len(volumes) == 0:
			return nil
		case !time.Now().Before(deadline):
			dr.k.log.Warn("volumes stay attached to a drained node", logging.Node, dr.node, logging.Detail, text.JoinSome(volumes, mostNamed, ", "))
			return nil
		}
		dr.progress(cluster.Progress{Done: int64(dr.total), Total: int64(dr.total), Unit: "pods", Waits: "volumes to be detached: " + text.JoinSome(volumes, mostNamed, ", ")})
		if retry.Sleep(ctx, detachPause) != nil {
			return context.Cause(ctx)
		}
	}
}

// listAttached returns the volumes that are attached to the node. (Kubernetes 1.36:
// they cannot be selected by node.)
func (dr *drainer) listAttached(ctx context.Context) (volumes []string, err error) {
	var list *storagev1.VolumeAttachmentList
	err = dr.insist(ctx, func(ctx context.Context, set kubernetes.Interface) (err error) {
		list, err = set.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the volumes that are attached: %w", kubeError(err))
	}
	for _, a := range list.Items {
		if a.Spec.NodeName != dr.node {
			continue
		}
		name := a.Name
		if pv := a.Spec.Source.PersistentVolumeName; pv != nil {
			name = *pv
		}
		volumes = append(volumes, name)
	}
	slices.Sort(volumes)
	return volumes, nil
}
