package kube_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/lab/kube"
)

// bare brings up a cluster without a network: one control plane and workers,
// all NotReady.
func (l *lab) bare(workers int) kubernetes.Interface {
	l.t.Helper()
	cp := l.control("cp-1", apiAddr)
	cp.CNI, cp.KubeProxy = "none", false
	l.kube.RunKubelet(l.id, controlKubelet("cp-1", apiAddr, 401), ignore)
	for i := range workers {
		l.kube.RunKubelet(l.id, kubelet(fmt.Sprintf("wk-%d", i+1), fmt.Sprintf("10.0.0.%d", 21+i), 501+i), ignore)
	}
	up := newReadiness()
	l.kube.ServeAPI(l.id, "etcd-1", cp, up.call)
	<-up.ch
	return l.typed(apiAddr)
}

// cilium is a DaemonSet like the one of that name.
func cilium() *appsv1.DaemonSet {
	labels := map[string]string{"k8s-app": "cilium"}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "cilium", Namespace: "kube-system"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					HostNetwork: true, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Containers: []corev1.Container{{Name: "agent", Image: "quay.io/cilium/cilium:v1.19.3"}},
				},
			},
		},
	}
}

// TestCiliumMakesNodesReady follows a cluster that has no network until an
// addon brings one.
func TestCiliumMakesNodesReady(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		lat := l.world.Latency
		set := l.bare(2)
		time.Sleep(10 * time.Minute)
		for _, n := range []string{"cp-1", "wk-1", "wk-2"} {
			node, err := set.CoreV1().Nodes().Get(ctx, n, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var why string
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady {
					why = c.Message
				}
			}
			if !strings.Contains(why, "cni plugin not initialized") {
				t.Errorf("node %s: Ready says %q", n, why)
			}
		}
		if err := deploymentReady(set, "kube-system", "coredns", 0); err != nil {
			t.Errorf("coredns without a network: %v", err)
		}
		start := time.Now()
		// The operator tolerates everything and uses the host's network: it
		// does not wait for the nodes. Two of them never share a host.
		operator := deployment("cilium-operator", 2)
		operator.Spec.Template.Spec.HostNetwork = true
		operator.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		operator.Spec.Template.Spec.Affinity = apart(operator.Spec.Selector)
		if _, err := set.AppsV1().Deployments("kube-system").Create(ctx, operator, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "operator", lat.Pods+time.Second, func() error { return deploymentReady(set, "kube-system", "cilium-operator", 2) })
		if _, err := set.AppsV1().DaemonSets("kube-system").Create(ctx, cilium(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		made := time.Now()
		for _, n := range []string{"cp-1", "wk-1", "wk-2"} {
			eventually(t, n, time.Minute, func() error { return nodeReady(set, n) })
		}
		if took := time.Since(made); took < lat.CNIPull+lat.Ready || took > lat.CNIPull+lat.Ready+time.Second {
			t.Errorf("nodes Ready %v after cilium, want %v", took, lat.CNIPull+lat.Ready)
		}
		ds, err := set.AppsV1().DaemonSets("kube-system").Get(ctx, "cilium", metav1.GetOptions{})
		if err != nil || ds.Status.NumberReady != 3 || ds.Status.DesiredNumberScheduled != 3 || ds.Status.UpdatedNumberScheduled != 3 {
			t.Errorf("daemonset status %+v, %v", ds.Status, err)
		}
		eventually(t, "coredns", lat.Pods+time.Second, func() error { return deploymentReady(set, "kube-system", "coredns", 2) })
		total, chain := l.world.LongestChain()
		want := lat.ImagePull + lat.API + lat.CNIPull + lat.Ready + lat.Pods
		if total != want || !strings.Contains(strings.Join(chain, " "), "addon/cilium") {
			t.Errorf("longest chain %v of %v, want %v through addon/cilium", total, chain, want)
		}
		if time.Since(start) > 2*time.Minute {
			t.Errorf("all that took %v", time.Since(start))
		}
	})
}

// TestNoImageNoNetwork: nodes stay NotReady if the network's image cannot be
// pulled.
func TestNoImageNoNetwork(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.bare(0)
		ds := cilium()
		ds.Spec.Template.Spec.Containers[0].Image = "mirror.invalid:5000/cilium:v1"
		if _, err := set.AppsV1().DaemonSets("kube-system").Create(ctx, ds, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := nodeReady(set, "cp-1"); err == nil {
			t.Error("the node is Ready")
		}
		pods, err := set.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=cilium"})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Status.ContainerStatuses[0].State.Waiting.Reason != "ImagePullBackOff" {
			t.Errorf("pods %+v, %v", pods.Items, err)
		}
	})
}

// apart keeps pods of a selector on different hosts.
func apart(sel *metav1.LabelSelector) *corev1.Affinity {
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: sel, TopologyKey: "kubernetes.io/hostname"}},
	}}
}

// flat brings up a Ready cluster of workers with flannel.
func (l *lab) flat(workers int) kubernetes.Interface {
	l.t.Helper()
	set := l.running(apiAddr)
	for i := range workers {
		ready := newReadiness()
		l.kube.RunKubelet(l.id, kubelet(fmt.Sprintf("wk-%d", i+1), fmt.Sprintf("10.0.0.%d", 21+i), 501+i), ready.call)
		<-ready.ch
	}
	return set
}

func TestTwoReplicasOnOneNode(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		d := deployment("web", 2)
		d.Spec.Template.Spec.Affinity = apart(d.Spec.Selector)
		if _, err := set.AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if err := deploymentReady(set, "default", "web", 1); err != nil {
			t.Error(err)
		}
		pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Pending,spec.nodeName="})
		if err != nil || len(pods.Items) != 1 {
			t.Fatalf("pending pods %+v, %v", pods.Items, err)
		}
		if why := pods.Items[0].Status.Conditions[0].Message; why != "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod." {
			t.Errorf("the scheduler says %q", why)
		}
		ready := newReadiness()
		l.kube.RunKubelet(l.id, kubelet("wk-2", "10.0.0.22", 502), ready.call)
		<-ready.ch
		eventually(t, "the second", time.Minute, func() error { return deploymentReady(set, "default", "web", 2) })
	})
}

func TestRollout(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(2)
		deployments := set.AppsV1().Deployments("default")
		if _, err := deployments.Create(ctx, deployment("web", 3), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "first", time.Minute, func() error { return deploymentReady(set, "default", "web", 3) })
		change := func(body string) {
			t.Helper()
			if _, err := deployments.Patch(ctx, "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		change(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"web:2"}]}}}}`)
		if err := deploymentReady(set, "default", "web", 3); err == nil {
			t.Error("the new template is rolled out at once")
		}
		eventually(t, "second", time.Minute, func() error { return deploymentReady(set, "default", "web", 3) })
		sets, err := set.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
		if err != nil || len(sets.Items) != 2 {
			t.Fatalf("%d replica sets, %v", len(sets.Items), err)
		}
		change(`{"spec":{"replicas":1}}`)
		eventually(t, "scaled down", time.Minute, func() error { return deploymentReady(set, "default", "web", 1) })
		time.Sleep(ended)
		pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Spec.Containers[0].Image != "web:2" {
			t.Fatalf("pods %+v, %v", pods.Items, err)
		}
		// A pod that is deleted comes back as another.
		if err := set.CoreV1().Pods("default").Delete(ctx, pods.Items[0].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ended)
		again, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil || len(again.Items) != 1 || again.Items[0].UID == pods.Items[0].UID {
			t.Errorf("pods %+v, %v", again.Items, err)
		}
		change(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"registry.invalid/web:3"}]}}}}`)
		time.Sleep(time.Hour)
		if err := deploymentReady(set, "default", "web", 0); err != nil {
			t.Errorf("an image that cannot be pulled: %v", err)
		}
		if err := deployments.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "everything is collected", time.Second, func() error {
			pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			sets, err2 := set.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
			if err != nil || err2 != nil || len(pods.Items)+len(sets.Items) > 0 {
				return fmt.Errorf("%d pods and %d replica sets, %v, %v", len(pods.Items), len(sets.Items), err, err2)
			}
			return nil
		})
	})
}

func TestOrphansStay(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		if _, err := set.AppsV1().Deployments("default").Create(ctx, deployment("web", 1), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "ready", time.Minute, func() error { return deploymentReady(set, "default", "web", 1) })
		orphan := metav1.DeletePropagationOrphan
		if err := set.AppsV1().Deployments("default").Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		sets, err := set.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
		if err != nil || len(sets.Items) != 1 || len(sets.Items[0].OwnerReferences) != 0 {
			t.Errorf("replica sets %+v, %v", sets.Items, err)
		}
	})
}

func TestStatefulSetAndClaims(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		d := deployment("db", 3)
		sts := &appsv1.StatefulSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.StatefulSetSpec{
			Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template, ServiceName: "db",
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}},
		}}
		start := time.Now()
		if _, err := set.AppsV1().StatefulSets("default").Create(ctx, sts, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "ready", time.Minute, func() error {
			s, err := set.AppsV1().StatefulSets("default").Get(ctx, "db", metav1.GetOptions{})
			if err == nil && s.Status.ReadyReplicas != 3 {
				err = fmt.Errorf("%d ready", s.Status.ReadyReplicas)
			}
			return err
		})
		if took := time.Since(start); took < 3*l.world.Latency.Pods {
			t.Errorf("three pods, one after the other, took only %v", took)
		}
		for i := range 3 {
			if _, err := set.CoreV1().Pods("default").Get(ctx, fmt.Sprintf("db-%d", i), metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
			claim, err := set.CoreV1().PersistentVolumeClaims("default").Get(ctx, fmt.Sprintf("data-db-%d", i), metav1.GetOptions{})
			if err != nil || claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
				t.Errorf("claim %+v, %v", claim.Status, err)
			}
		}
	})
}

func TestJob(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i:1"}}},
		}}}
		if _, err := set.BatchV1().Jobs("default").Create(ctx, job, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "complete", time.Minute, func() error {
			j, err := set.BatchV1().Jobs("default").Get(ctx, "once", metav1.GetOptions{})
			if err == nil && (j.Status.Succeeded != 1 || j.Status.CompletionTime == nil) {
				err = fmt.Errorf("status %+v", j.Status)
			}
			return err
		})
		if err := set.CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); err != nil || len(pods.Items) != 0 {
			t.Errorf("a complete job whose pod was deleted has %d pods: %v", len(pods.Items), err)
		}
	})
}

// TestLostNode stops a kubelet: the node is lost after 40 s, its pods are
// replaced five minutes later, and it comes back without pulling again.
func TestLostNode(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		stop := l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
		<-ready.ch
		if _, err := set.AppsV1().Deployments("default").Create(ctx, deployment("web", 1), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "ready", time.Minute, func() error { return deploymentReady(set, "default", "web", 1) })
		l.kube.RunKubelet(l.id, kubelet("wk-2", "10.0.0.22", 502), ready.call)
		<-ready.ch

		stop()
		time.Sleep(39 * time.Second)
		if err := nodeReady(set, "wk-1"); err != nil {
			t.Errorf("too early: %v", err)
		}
		time.Sleep(2 * time.Second)
		if err := nodeReady(set, "wk-1"); err == nil {
			t.Error("the node is Ready without a kubelet")
		}
		if err := deploymentReady(set, "default", "web", 0); err != nil {
			t.Errorf("pods on a lost node: %v", err)
		}
		time.Sleep(5*time.Minute + l.world.Latency.Pods)
		if err := deploymentReady(set, "default", "web", 1); err != nil {
			t.Errorf("not replaced: %v", err)
		}
		pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=wk-1"})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].DeletionTimestamp == nil {
			t.Fatalf("pods on the lost node %+v, %v", pods.Items, err)
		}
		start := time.Now()
		l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
		<-ready.ch
		if took := time.Since(start); took != l.world.Latency.Ready {
			t.Errorf("back after %v, want %v", took, l.world.Latency.Ready)
		}
		_, err = set.CoreV1().Pods("default").Get(ctx, pods.Items[0].Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("the terminating pod is still there: %v", err)
		}
		// A deleted node stays away while its kubelet runs, with its pods.
		if err := set.CoreV1().Nodes().Delete(ctx, "wk-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := set.CoreV1().Nodes().Get(ctx, "wk-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("deleted node: %v", err)
		}
		left := l.kube.Objects(l.id, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "")
		for _, p := range left {
			if p.Object["spec"].(map[string]any)["nodeName"] == "wk-1" {
				t.Errorf("pod %s is on a deleted node", p.GetName())
			}
		}
	})
}

func TestCordonAndEvict(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(2)
		if _, err := set.AppsV1().Deployments("default").Create(ctx, deployment("web", 2), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "ready", time.Minute, func() error { return deploymentReady(set, "default", "web", 2) })
		if _, err := set.CoreV1().Nodes().Patch(ctx, "wk-1", types.StrategicMergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=wk-1"})
		if err != nil || len(pods.Items) != 1 {
			t.Fatalf("pods on wk-1 %+v, %v", pods.Items, err)
		}
		if err := set.PolicyV1().Evictions("default").Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pods.Items[0].Name}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "elsewhere", time.Minute, func() error {
			pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=wk-2"})
			if err == nil && len(pods.Items) != 2 {
				err = fmt.Errorf("%d pods", len(pods.Items))
			}
			return err
		})
	})
}

// daemonsReady reports whether the DaemonSet cilium is rolled out on so many
// nodes.
func daemonsReady(set kubernetes.Interface, want int32) error {
	ds, err := set.AppsV1().DaemonSets("kube-system").Get(ctx, "cilium", metav1.GetOptions{})
	if err == nil && (ds.Status.NumberReady != want || ds.Status.UpdatedNumberScheduled != want || ds.Status.ObservedGeneration != ds.Generation) {
		err = fmt.Errorf("status %+v", ds.Status)
	}
	return err
}

// TestJobsThatFail: a Job is replaced its pods until it has reached its limit, or its deadline; then it fails, once its pods have
// ended, and what still ran is deleted.
func TestJobsThatFail(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		l.kube.SetExit("bad:1", kube.Exit{Code: 3, Message: "no such host: db"})
		l.kube.SetExit("hung:1", kube.Exit{Hangs: true})
		l.kube.SetExit("slow:1", kube.Exit{After: time.Minute})
		make := func(image string, limit int32, within int64) *batchv1.Job {
			t.Helper()
			name, _, _ := strings.Cut(image, ":")
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{BackoffLimit: &limit, ActiveDeadlineSeconds: &within, Template: corev1.PodTemplateSpec{
				Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: image}}},
			}}}
			job, err := set.BatchV1().Jobs("default").Create(ctx, job, metav1.CreateOptions{})
			must(t, err)
			return job
		}
		for _, c := range []struct {
			image        string
			limit        int32
			within       int64
			least, most  time.Duration
			ends, reason string
			failed       int32
			pods         int
		}{
			{"bad:1", 0, 600, 0, 30 * time.Second, "Failed", "BackoffLimitExceeded", 1, 1},
			{"bad:1", 2, 600, 30 * time.Second, 2 * time.Minute, "Failed", "BackoffLimitExceeded", 3, 3},
			{"bad:1", 6, 60, 59 * time.Second, 2 * time.Minute, "Failed", "DeadlineExceeded", 3, 3},
			{"hung:1", 6, 300, 299 * time.Second, 6 * time.Minute, "Failed", "DeadlineExceeded", 0, 0},
			{"slow:1", 6, 300, time.Minute, 2 * time.Minute, "Complete", "CompletionsReached", 0, 1},
		} {
			job, began := make(c.image, c.limit, c.within), time.Now()
			var end batchv1.JobCondition
			eventually(t, c.image, time.Hour, func() error {
				j, err := set.BatchV1().Jobs("default").Get(ctx, job.Name, metav1.GetOptions{})
				for _, condition := range j.Status.Conditions {
					if condition.Type == batchv1.JobFailed || condition.Type == batchv1.JobComplete {
						job, end = j, condition
						return err
					}
				}
				return fmt.Errorf("status %+v, %v", j.Status, err)
			})
			took := time.Since(began)
			pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=" + job.Name})
			must(t, err)
			if string(end.Type) != c.ends || end.Reason != c.reason || job.Status.Failed != c.failed || len(pods.Items) != c.pods || job.Status.Active != 0 || took < c.least || took > c.most {
				t.Errorf("%s with %d and %d s ended after %v with %+v, %+v and %d pods", c.image, c.limit, c.within, took, end, job.Status, len(pods.Items))
			}
			for _, p := range pods.Items {
				ended := p.Status.ContainerStatuses[0].State.Terminated
				if bad := c.image == "bad:1"; ended == nil || bad != (ended.ExitCode == 3 && ended.Message == "no such host: db" && p.Status.Phase == corev1.PodFailed) {
					t.Errorf("pod of %s: %+v", c.image, p.Status)
				}
			}
			background := metav1.DeletePropagationBackground
			must(t, set.BatchV1().Jobs("default").Delete(ctx, job.Name, metav1.DeleteOptions{PropagationPolicy: &background}))
			eventually(t, "its pods are deleted", time.Minute, func() error {
				pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
				if err == nil && len(pods.Items) > 0 {
					err = fmt.Errorf("%d are left", len(pods.Items))
				}
				return err
			})
		}
	})
}
