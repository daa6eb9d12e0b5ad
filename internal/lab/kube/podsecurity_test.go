package kube_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
)

// enforce labels a namespace with the level its pods are held to.
const enforce = "pod-security.kubernetes.io/enforce"

func makeNamespace(t testing.TB, set kubernetes.Interface, name string, labels map[string]string) {
	t.Helper()
	if _, err := set.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestPodSecurity: pods are held to the level of their namespace, baseline where
// it names none. The first text is one that a Talos cluster answered.
func TestPodSecurity(t *testing.T) {
	root := true
	cases := []struct {
		name, namespace string
		edit            func(*corev1.PodSpec)
		want            string // "": made
	}{
		{"host network", "default", func(s *corev1.PodSpec) { s.HostNetwork = true },
			`pods "p" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`},
		{"all of it", "apps", func(s *corev1.PodSpec) {
			s.HostPID, s.HostIPC = true, true
			s.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &root, Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}
			s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
			s.Volumes = []corev1.Volume{{Name: "dev", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev"}}}}
		}, `pods "p" is forbidden: violates PodSecurity "baseline:latest": non-default capabilities (container "a" must not include "SYS_ADMIN" in securityContext.capabilities.add), host namespaces (hostPID=true, hostIPC=true), hostPath volumes (volume "dev"), hostPort (container "a" uses hostPort 80), privileged (container "a" must not set securityContext.privileged=true)`},
		{"nothing", "apps", func(*corev1.PodSpec) {}, ""},
		{"restricted", "strict", func(*corev1.PodSpec) {}, `violates PodSecurity "restricted:v1.34": allowPrivilegeEscalation != false`},
		{"privileged", "storage", func(s *corev1.PodSpec) { s.HostNetwork = true }, ""},
		{"exempt", "kube-system", func(s *corev1.PodSpec) { s.HostNetwork = true }, ""},
	}
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		makeNamespace(t, set, "apps", nil)
		makeNamespace(t, set, "strict", map[string]string{enforce: "restricted", enforce + "-version": "v1.34"})
		makeNamespace(t, set, "storage", map[string]string{enforce: "privileged"})
		for _, c := range cases {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "registry.k8s.io/app:v1"}}}}
			c.edit(&pod.Spec)
			_, err := set.CoreV1().Pods(c.namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if c.want == "" {
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
				continue
			}
			mustReason(t, err, metav1.StatusReasonForbidden)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
		}
		_, err := set.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "typo", Labels: map[string]string{enforce: "none"}}}, metav1.CreateOptions{})
		mustReason(t, err, metav1.StatusReasonInvalid)
	})
}

// TestRefusedWorkloads: the pods of workloads are refused, which events and
// conditions show, and are made once their namespace allows them.
func TestRefusedWorkloads(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		l.kube.RunKubelet(l.id, controlKubelet("cp-1", apiAddr, 401), ignore)
		l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ignore)
		set := l.running(apiAddr)
		eventually(t, "wk-1", 5*time.Minute, func() error { return nodeReady(set, "wk-1") })
		makeNamespace(t, set, "apps", nil)
		web := deployment("web", 2)
		web.Spec.Template.Spec.HostNetwork = true
		agent := cilium()
		agent.Name, agent.Namespace = "agent", ""
		base := appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "base"}, Spec: appsv1.StatefulSetSpec{Selector: agent.Spec.Selector, Template: agent.Spec.Template}}
		job := batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{Template: *agent.Spec.Template.DeepCopy()}}
		job.Spec.Template.Labels, job.Spec.Template.Spec.RestartPolicy = nil, corev1.RestartPolicyNever
		for _, make := range []func() error{
			func() error {
				_, err := set.AppsV1().Deployments("apps").Create(ctx, web, metav1.CreateOptions{})
				return err
			},
			func() error {
				_, err := set.AppsV1().DaemonSets("apps").Create(ctx, agent, metav1.CreateOptions{})
				return err
			},
			func() error {
				_, err := set.AppsV1().StatefulSets("apps").Create(ctx, &base, metav1.CreateOptions{})
				return err
			},
			func() error {
				_, err := set.BatchV1().Jobs("apps").Create(ctx, &job, metav1.CreateOptions{})
				return err
			},
		} {
			if err := make(); err != nil {
				t.Fatal(err)
			}
		}
		const words = `is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`
		time.Sleep(2 * time.Minute)
		events, err := set.CoreV1().Events("apps").List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedCreate"})
		if err != nil {
			t.Fatal(err)
		}
		// The names of pods make most texts differ: after nine such events all others
		// are one.
		times := map[string]int32{}
		for _, e := range events.Items {
			combined := strings.HasPrefix(e.Message, "(combined from similar events): ")
			if !strings.Contains(e.Message, words) || combined != (e.Count > 1) && e.InvolvedObject.Kind != "StatefulSet" {
				t.Errorf("event %d times: %s", e.Count, e.Message)
			}
			times[e.InvolvedObject.Kind] += e.Count
		}
		for _, kind := range []string{"DaemonSet", "Job", "ReplicaSet", "StatefulSet"} {
			if times[kind] < 5 || times[kind] > 30 {
				t.Errorf("%d events of a %s", times[kind], kind)
			}
		}
		if len(events.Items) != 31 || len(times) != 4 {
			t.Errorf("%d events, of %v", len(events.Items), times)
		}
		d, err := set.AppsV1().Deployments("apps").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		failed := slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue && c.Reason == "FailedCreate" && strings.Contains(c.Message, words)
		})
		if !failed {
			t.Errorf("conditions %+v", d.Status.Conditions)
		}
		if _, err := set.CoreV1().Namespaces().Patch(ctx, "apps", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+enforce+`":"privileged"}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "pods", 20*time.Minute, func() error {
			if err := deploymentReady(set, "apps", "web", 2); err != nil {
				return err
			}
			ds, err := set.AppsV1().DaemonSets("apps").Get(ctx, "agent", metav1.GetOptions{})
			if err != nil || ds.Status.NumberReady != 2 {
				return fmt.Errorf("%+v, %w", ds.Status, err)
			}
			sts, err := set.AppsV1().StatefulSets("apps").Get(ctx, "base", metav1.GetOptions{})
			if err != nil || sts.Status.ReadyReplicas != 1 {
				return fmt.Errorf("%+v, %w", sts.Status, err)
			}
			j, err := set.BatchV1().Jobs("apps").Get(ctx, "once", metav1.GetOptions{})
			if err != nil || j.Status.Succeeded != 1 {
				return fmt.Errorf("%+v, %w", j.Status, err)
			}
			return nil
		})
		if d, err = set.AppsV1().Deployments("apps").Get(ctx, "web", metav1.GetOptions{}); err != nil || strings.Contains(fmt.Sprint(d.Status.Conditions), "ReplicaFailure") {
			t.Errorf("conditions %+v, %v", d.Status.Conditions, err)
		}
	})
}

// TestOwnersOfLabels: an apply takes away what its manager no longer names, unless
// another one owns it too, and needs force to change what another one owns.
func TestOwnersOfLabels(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		makeNamespace(t, set, "apps", map[string]string{"team": "a", "tier": "1"})
		apply := func(force bool, labels map[string]string) error {
			_, err := set.CoreV1().Namespaces().Apply(ctx, applycorev1.Namespace("apps").WithLabels(labels), metav1.ApplyOptions{FieldManager: "agent", Force: force})
			return err
		}
		must := func(err error, want map[string]string) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			ns, err := set.CoreV1().Namespaces().Get(ctx, "apps", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			delete(ns.Labels, "kubernetes.io/metadata.name")
			if fmt.Sprint(ns.Labels) != fmt.Sprint(want) {
				t.Errorf("labels %v, want %v; owners %v", ns.Labels, want, ns.ManagedFields)
			}
		}
		err := apply(false, map[string]string{"tier": "2"})
		mustReason(t, err, metav1.StatusReasonConflict)
		must(apply(true, map[string]string{"team": "a", "tier": "2", enforce: "privileged"}), map[string]string{"team": "a", "tier": "2", enforce: "privileged"})
		must(apply(true, map[string]string{"tier": "2"}), map[string]string{"team": "a", "tier": "2"}) // the creator owns team as well
		_, err = set.CoreV1().Namespaces().Patch(ctx, "apps", types.MergePatchType, []byte(`{"metadata":{"labels":{"tier":"3"}}}`), metav1.PatchOptions{FieldManager: "person"})
		must(err, map[string]string{"team": "a", "tier": "3"})
		must(apply(true, nil), map[string]string{"team": "a", "tier": "3"}) // it is the person's now
	})
}
