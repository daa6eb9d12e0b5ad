package kube_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// budget is a disruption budget for the pods of an app.
func budget(name, app string, edit func(*policyv1.PodDisruptionBudgetSpec)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}
	edit(&b.Spec)
	return b
}

func minAvailable(v string) func(*policyv1.PodDisruptionBudgetSpec) {
	limit := intstr.Parse(v)
	return func(s *policyv1.PodDisruptionBudgetSpec) { s.MinAvailable = &limit }
}

func maxUnavailable(v string) func(*policyv1.PodDisruptionBudgetSpec) {
	limit := intstr.Parse(v)
	return func(s *policyv1.PodDisruptionBudgetSpec) { s.MaxUnavailable = &limit }
}

// barePod is a pod without a controller.
func barePod(name, app string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: app + ":1"}}},
	}
}

func evict(set kubernetes.Interface, ns, pod string, dryRun ...string) error {
	return set.PolicyV1().Evictions(ns).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pod}, DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun},
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// budgets makes disruption budgets.
func (l *lab) budgets(set kubernetes.Interface, all ...*policyv1.PodDisruptionBudget) {
	l.t.Helper()
	for _, b := range all {
		_, err := set.PolicyV1().PodDisruptionBudgets("default").Create(ctx, b, metav1.CreateOptions{})
		must(l.t, err)
	}
}

// podNames are those of the pods of an app, without those that are being deleted.
func podNames(t testing.TB, set kubernetes.Interface, app string) []string {
	t.Helper()
	pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	must(t, err)
	var names []string
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			names = append(names, p.Name)
		}
	}
	return names
}

// counted waits until a budget counts current/desired/expected pods and allows so
// many disruptions.
func counted(t testing.TB, set kubernetes.Interface, name string, current, desired, expected, allowed int32) {
	t.Helper()
	eventually(t, "budget "+name, 20*time.Second, func() error {
		b, err := set.PolicyV1().PodDisruptionBudgets("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := b.Status
		got := fmt.Sprint(s.CurrentHealthy, s.DesiredHealthy, s.ExpectedPods, s.DisruptionsAllowed, s.ObservedGeneration == b.Generation)
		if want := fmt.Sprint(current, desired, expected, allowed, true); got != want {
			return fmt.Errorf("counts %s, want %s", got, want)
		}
		return nil
	})
}

// refusedBy is the status a real server refuses an eviction with.
func refusedBy(why string) metav1.Status {
	return metav1.Status{
		Status: "Failure", Reason: "TooManyRequests", Code: 429,
		Message: "Cannot evict pod as it would violate the pod's disruption budget.",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "DisruptionBudget", Message: why}}},
	}
}

func mustStatus(t testing.TB, err error, want metav1.Status) {
	t.Helper()
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		t.Fatalf("error %v, want a status", err)
	}
	if diff := cmp.Diff(want, status.Status()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// TestEvictionAsksBudgets: the answers are those recorded of Kubernetes 1.36.3.
func TestEvictionAsksBudgets(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(2)
		_, err := set.AppsV1().Deployments("default").Create(ctx, deployment("web", 3), metav1.CreateOptions{})
		must(t, err)
		l.budgets(set, budget("web", "web", minAvailable("2")))
		eventually(t, "ready", time.Minute, func() error { return deploymentReady(set, "default", "web", 3) })
		counted(t, set, "web", 3, 2, 3, 1)
		names := podNames(t, set, "web")
		must(t, evict(set, "default", names[0], metav1.DryRunAll))
		counted(t, set, "web", 3, 2, 3, 1)
		if now := podNames(t, set, "web"); !cmp.Equal(now, names) {
			t.Errorf("after a dry run: %v, before %v", now, names)
		}
		must(t, evict(set, "default", names[0]))
		full := refusedBy("The disruption budget web needs 2 healthy pods and has 2 currently")
		mustStatus(t, evict(set, "default", names[1]), full)
		mustStatus(t, evict(set, "default", names[1], metav1.DryRunAll), full)
		// It is replaced, and then the next may go.
		counted(t, set, "web", 3, 2, 3, 1)
		must(t, evict(set, "default", names[1]))
		mustReason(t, evict(set, "default", "nosuch"), metav1.StatusReasonNotFound)
		err = set.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/default/pods/a/eviction").Body([]byte(`{"metadata":{"name":"b"}}`)).Do(ctx).Error()
		mustReason(t, err, metav1.StatusReasonBadRequest)
		// A static pod's mirror may go; it comes back.
		l.kube.RunKubelet(l.id, controlKubelet("cp-1", apiAddr, 401), ignore)
		eventually(t, "mirror", time.Minute, func() error {
			_, err := set.CoreV1().Pods("kube-system").Get(ctx, "kube-scheduler-cp-1", metav1.GetOptions{})
			return err
		})
		must(t, evict(set, "kube-system", "kube-scheduler-cp-1"))
		eventually(t, "mirror again", time.Minute, func() error {
			p, err := set.CoreV1().Pods("kube-system").Get(ctx, "kube-scheduler-cp-1", metav1.GetOptions{})
			if err == nil && (p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning) {
				err = errors.New("not running")
			}
			return err
		})
	})
}

// TestEvictionsAtOnce: of many at once a budget lets through what it allows.
func TestEvictionsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(2)
		_, err := set.AppsV1().Deployments("default").Create(ctx, deployment("web", 10), metav1.CreateOptions{})
		must(t, err)
		l.budgets(set, budget("web", "web", maxUnavailable("25%"))) // 3 of 10, rounded up
		counted(t, set, "web", 10, 7, 10, 3)
		results := make(chan error, 10)
		for _, name := range podNames(t, set, "web") {
			go func() { results <- evict(set, "default", name) }()
		}
		evicted := 0
		for range 10 {
			switch err := <-results; {
			case err == nil:
				evicted++
			case !apierrors.IsTooManyRequests(err):
				t.Error(err)
			}
		}
		if evicted != 3 {
			t.Errorf("%d pods evicted, want 3", evicted)
		}
		counted(t, set, "web", 10, 7, 10, 3)
	})
}

func TestBudgetKinds(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(2)
		for _, app := range []string{"web", "zero"} {
			_, err := set.AppsV1().Deployments("default").Create(ctx, deployment(app, 3), metav1.CreateOptions{})
			must(t, err)
		}
		for _, app := range []string{"bare", "two", "pending"} {
			p := barePod(app, app)
			if app == "pending" {
				p.Spec.Containers[0].Image = "registry.invalid/pending:1"
			}
			_, err := set.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
			must(t, err)
		}
		l.budgets(set,
			budget("web", "web", minAvailable("50%")), budget("zero", "zero", maxUnavailable("0")), budget("bare", "bare", maxUnavailable("0")),
			budget("pending", "pending", minAvailable("1")), budget("two-a", "two", maxUnavailable("1")), budget("two-b", "two", maxUnavailable("1")))
		counted(t, set, "web", 3, 2, 3, 1) // half of 3, rounded up
		counted(t, set, "zero", 3, 3, 3, 0)
		counted(t, set, "bare", 1, 0, 0, 0) // pods without a controller do not count
		counted(t, set, "pending", 0, 1, 1, 0)
		mustStatus(t, evict(set, "default", podNames(t, set, "zero")[0]), refusedBy("The disruption budget zero needs 3 healthy pods and has 3 currently"))
		mustStatus(t, evict(set, "default", "bare"), refusedBy("The disruption budget bare does not allow evicting pods currently"))
		mustStatus(t, evict(set, "default", "two"), metav1.Status{
			Status: "Failure", Code: 500,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		})
		must(t, evict(set, "default", "pending"))
		// A budget follows the scale of the workload.
		_, err := set.AppsV1().Deployments("default").Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":6}}`), metav1.PatchOptions{})
		must(t, err)
		counted(t, set, "web", 6, 3, 6, 3)
		b, err := set.PolicyV1().PodDisruptionBudgets("default").Get(ctx, "web", metav1.GetOptions{})
		must(t, err)
		if c := b.Status.Conditions; len(c) != 1 || c[0].Type != policyv1.DisruptionAllowedCondition || c[0].Status != "True" || c[0].Reason != "SufficientPods" {
			t.Errorf("conditions %+v", c)
		}
		both := budget("both", "web", minAvailable("1"))
		maxUnavailable("1")(&both.Spec)
		_, err = set.PolicyV1().PodDisruptionBudgets("default").Create(ctx, both, metav1.CreateOptions{})
		mustReason(t, err, metav1.StatusReasonInvalid)
	})
}

// TestBudgetOfDaemons: a share of a DaemonSet cannot be reckoned, so the controller
// never gets to see such a budget through, and it allows nothing.
func TestBudgetOfDaemons(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		d := deployment("agent", 1)
		_, err := set.AppsV1().DaemonSets("default").Create(ctx, &appsv1.DaemonSet{
			ObjectMeta: d.ObjectMeta, Spec: appsv1.DaemonSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
		}, metav1.CreateOptions{})
		must(t, err)
		l.budgets(set, budget("agent", "agent", maxUnavailable("50%")))
		var pod corev1.Pod
		eventually(t, "running", time.Minute, func() error {
			pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=agent"})
			if err != nil || len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
				return fmt.Errorf("%d pods, %v", len(pods.Items), err)
			}
			pod = pods.Items[0]
			return nil
		})
		b, err := set.PolicyV1().PodDisruptionBudgets("default").Get(ctx, "agent", metav1.GetOptions{})
		must(t, err)
		c := b.Status.Conditions
		if len(c) != 1 || c[0].Reason != "SyncFailed" || c[0].Message != "daemonsets.apps does not implement the scale subresource" || b.Status.ObservedGeneration != 0 {
			t.Errorf("status %+v", b.Status)
		}
		want := refusedBy("The disruption budget agent is still being processed by the server.")
		want.Details.RetryAfterSeconds = 10
		mustStatus(t, evict(set, "default", pod.Name), want)
	})
}

// TestEvictionsOnADeadNode: a pod that runs and is not ready is guarded as long as
// its budget is short of healthy ones, unless the budget does not mind.
func TestEvictionsOnADeadNode(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		var stop func()
		for i, name := range []string{"wk-1", "wk-2"} {
			stop = l.kube.RunKubelet(l.id, kubelet(name, fmt.Sprintf("10.0.0.%d", 21+i), 501+i), ready.call)
			<-ready.ch
		}
		on := func(name, app, node string) *corev1.Pod {
			p := barePod(name, app)
			p.Spec.NodeName = node
			return p
		}
		l.runPods(set, on("short", "short", "wk-2"), on("careless", "careless", "wk-2"), on("spare", "spare", "wk-2"), on("enough", "spare", "wk-1"))
		careless, always := budget("careless", "careless", minAvailable("1")), policyv1.AlwaysAllow
		careless.Spec.UnhealthyPodEvictionPolicy = &always
		l.budgets(set, budget("short", "short", minAvailable("1")), careless, budget("spare", "spare", minAvailable("1")))
		stop()
		time.Sleep(time.Minute)
		counted(t, set, "short", 0, 1, 1, 0)
		counted(t, set, "spare", 1, 1, 2, 0)
		mustStatus(t, evict(set, "default", "short"), refusedBy("The disruption budget short needs 1 healthy pods and has 0 currently"))
		mustStatus(t, evict(set, "default", "enough"), refusedBy("The disruption budget spare needs 1 healthy pods and has 1 currently"))
		for _, name := range []string{"careless", "spare"} {
			must(t, evict(set, "default", name))
			must(t, evict(set, "default", name)) // once more, while it does not end
			if p := getPod(t, set, name); p.DeletionTimestamp == nil || p.Status.Phase != corev1.PodRunning {
				t.Errorf("pod %s: deleted %v, %s", name, p.DeletionTimestamp, p.Status.Phase)
			}
		}
	})
}
