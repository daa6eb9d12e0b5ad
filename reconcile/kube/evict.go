package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/drain"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/logging"
)

const (
	// evictPause is the wait before a pod that may not be evicted is tried again, as
	// kubectl and Talos do.
	evictPause = 5 * time.Second
	// lostAfter is how long after the end of its grace a pod on a node that Kubernetes
	// does not reach is waited for: no kubelet will report its end.
	lostAfter = time.Second
	// lostGrace is the grace in seconds that a pod gets there. Kubernetes waits for all of
	// it before the pod may count as lost, and there may be a week of it.
	lostGrace = 1
)

// evicted is a pod that is to end.
type evicted struct {
	pod     corev1.Pod
	next    time.Time // when it is evicted, or deleted
	asked   bool      // it was evicted or deleted once
	hurried bool      // its grace was cut short, because no kubelet will use it
	refused string    // why it may not be evicted, "" when nothing is known to forbid it
}

func (p *evicted) name() string { return p.pod.Namespace + "/" + p.pod.Name }

// inOrder returns the pods that are left, by name.
func (dr *drainer) inOrder() []*evicted {
	return slices.SortedFunc(maps.Values(dr.pods), func(a, b *evicted) int { return cmp.Compare(a.name(), b.name()) })
}

// due returns the pods that are to be evicted or deleted now.
func (dr *drainer) due() []*evicted {
	return slices.DeleteFunc(dr.inOrder(), func(p *evicted) bool {
		ends := p.pod.DeletionTimestamp
		return ends != nil && !(dr.unreachable && !p.hurried && time.Until(ends.Time) > lostGrace*time.Second) || time.Now().Before(p.next)
	})
}

// choose takes the pods that are to end: all but mirror pods and those of DaemonSets.
// What came to the node after the first time is taken too, unless it tolerates a
// cordon: it would come back as often as it was evicted.
func (dr *drainer) choose(ctx context.Context, first bool) error {
	pods, err := dr.listEvictable(ctx, first)
	if err != nil {
		return err
	}
	for _, p := range pods {
		dr.pods[p.UID] = &evicted{pod: p}
	}
	dr.total += len(dr.pods)
	if lost := dr.describeLost(); lost != "" {
		dr.k.log.Warn("a drain deletes pods that no controller starts again", logging.Node, dr.node, logging.Detail, lost)
	}
	return nil
}

// listEvictable returns the pods on the node that a drain has end, be it at its first look
// or later.
func (dr *drainer) listEvictable(ctx context.Context, first bool) ([]corev1.Pod, error) {
	var chosen *drain.PodDeleteList
	err := dr.insist(ctx, func(ctx context.Context, set kubernetes.Interface) error {
		helper := &drain.Helper{
			Ctx: ctx, Client: set, Force: true, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true, GracePeriodSeconds: -1,
			AdditionalFilters: []drain.PodFilter{func(p corev1.Pod) drain.PodDeleteStatus {
				if dr.isLost(&p) || !first && toleratesCordon(&p) {
					return drain.MakePodDeleteStatusSkip()
				}
				return drain.MakePodDeleteStatusOkay()
			}},
		}
		var errs []error
		chosen, errs = helper.GetPodsForDeletion(dr.node)
		return errors.Join(errs...)
	})
	if err != nil {
		return nil, fmt.Errorf("choose the pods to evict: %w", kubeError(err))
	}
	return chosen.Pods(), nil
}

// toleratesCordon reports whether the scheduler may put a pod on a node that is cordoned.
func toleratesCordon(p *corev1.Pod) bool {
	cordon := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Background(), &cordon, false) })
}

// isLost reports whether a pod should have ended on a node that Kubernetes does not
// reach.
func (dr *drainer) isLost(p *corev1.Pod) bool {
	return dr.unreachable && p.DeletionTimestamp != nil && time.Since(p.DeletionTimestamp.Time) > lostAfter
}

// look finds out which pods have ended: those that are no longer there, or lost. One
// of the same name is another pod.
func (dr *drainer) look(ctx context.Context) error {
	if len(dr.pods) == 0 {
		return nil
	}
	var list *corev1.PodList
	err := dr.insist(ctx, func(ctx context.Context, set kubernetes.Interface) (err error) {
		list, err = set.CoreV1().Pods(metav1.NamespaceAll).List(ctx, podsOf(dr.node))
		return err
	})
	if err != nil {
		return fmt.Errorf("list its pods: %w", kubeError(err))
	}
	there := make(map[types.UID]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		there[list.Items[i].UID] = &list.Items[i]
	}
	for _, p := range dr.inOrder() {
		now := there[p.pod.UID]
		if now == nil || dr.isLost(now) {
			detail := p.name()
			if now != nil {
				detail += ", as far as Kubernetes will know: it does not reach the node"
			}
			dr.k.log.Info("pod ended", logging.Node, dr.node, logging.Detail, detail)
			delete(dr.pods, p.pod.UID)
			continue
		}
		p.pod = *now
		if now.DeletionTimestamp != nil {
			p.refused = ""
		}
	}
	return nil
}

// expel evicts a pod, or deletes it when the time for that has come. What is refused is
// tried again; an error is what no time changes.
func (dr *drainer) expel(ctx context.Context, p *evicted) error {
	p.next = time.Now().Add(evictPause)
	err := dr.ask(ctx, func(ctx context.Context, set kubernetes.Interface) error {
		// By its UID: when an answer was lost, a pod of the same name may run
		// somewhere else by now.
		options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.pod.UID))}
		if dr.unreachable {
			options.GracePeriodSeconds = new(int64(lostGrace))
		}
		if dr.deleting {
			return set.CoreV1().Pods(p.pod.Namespace).Delete(ctx, p.pod.Name, options)
		}
		return set.PolicyV1().Evictions(p.pod.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.pod.Namespace, Name: p.pod.Name}, DeleteOptions: &options,
		})
	})
	answer := apierrors.APIStatus(nil)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil:
		p.hurried = dr.unreachable
		dr.logPod(p)
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		p.next = time.Time{} // the next look finds out
	case !errors.As(err, &answer):
		p.next = time.Now().Add(retryPause) // whether an API answers is asked at the next look
	default:
		dr.refuse(p, err, answer)
		if answer.Status().Code == http.StatusInternalServerError && !dr.how.Delete {
			return dr.checkBudgets(ctx, p)
		}
	}
	return nil
}

// checkBudgets returns an error when several budgets select a pod: it is never evicted
// then. (Kubernetes 1.36: the answer is 500 without a reason.)
func (dr *drainer) checkBudgets(ctx context.Context, p *evicted) error {
	var budgets *policyv1.PodDisruptionBudgetList
	err := dr.insist(ctx, func(ctx context.Context, set kubernetes.Interface) (err error) {
		budgets, err = set.PolicyV1().PodDisruptionBudgets(p.pod.Namespace).List(ctx, metav1.ListOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("list the disruption budgets of %s: %w", p.pod.Namespace, kubeError(err))
	}
	var names []string
	for _, b := range budgets.Items {
		if s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && s.Matches(labels.Set(p.pod.Labels)) {
			names = append(names, b.Name)
		}
	}
	if len(names) < 2 {
		return nil
	}
	return fault.Errorf("let one budget alone select the pod: Kubernetes never evicts one that several select",
		"%w: %s has the disruption budgets %s: %s", cluster.ErrUndrained, p.name(), strings.Join(names, ", "), p.refused)
}

// refuse notes why a pod may not be evicted, in the words of the budget where it is one.
func (dr *drainer) refuse(p *evicted, err error, answer apierrors.APIStatus) {
	why := answer.Status().Message
	if cause, ok := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause); ok {
		why = cause.Message
	}
	known := p.refused != ""
	if p.refused = cmp.Or(kubeapi.Sanitize(why), "it may not be evicted"); !known {
		dr.k.log.Info("pod may not be evicted yet", logging.Node, dr.node, logging.Detail, p.name()+": "+p.refused)
	}
}

// logPod logs, once for each pod, that it was evicted or deleted.
func (dr *drainer) logPod(p *evicted) {
	refused := p.refused
	p.refused = ""
	if p.asked && !dr.deleting {
		return
	}
	p.asked = true
	detail := p.name()
	if p.isLost() {
		detail += ", which has no controller that starts it again"
	}
	if !dr.deleting {
		dr.k.log.Info("pod evicted", logging.Node, dr.node, logging.Detail, detail)
		return
	}
	if refused != "" {
		detail += ": " + refused
	}
	dr.k.log.Info("pod deleted", logging.Node, dr.node, logging.Detail, detail)
}
