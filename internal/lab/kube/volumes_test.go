package kube_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestAttachmentsByHand: as recorded of Kubernetes 1.36.3.
func TestAttachmentsByHand(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		all, volume := set.StorageV1().VolumeAttachments(), "pv-1"
		made, err := all.Create(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va-1"}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "lab.csi", NodeName: "wk-1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		}}, metav1.CreateOptions{})
		if err != nil || made.Status.Attached || made.Generation != 0 {
			t.Errorf("made %+v, %v", made, err)
		}
		_, err = all.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=wk-1"})
		mustReason(t, err, metav1.StatusReasonBadRequest)
		if want := `"spec.nodeName" is not a known field selector: only "metadata.name", "metadata.namespace"`; err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
		time.Sleep(time.Hour)
		if list, err := all.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
			t.Errorf("attachments %+v, %v", list.Items, err)
		}
		must(t, all.Delete(ctx, "va-1", metav1.DeleteOptions{}))
		_, err = all.Get(ctx, "va-1", metav1.GetOptions{})
		mustReason(t, err, metav1.StatusReasonNotFound)
	})
}

// database is a StatefulSet of one pod with a volume.
func database() *appsv1.StatefulSet {
	d, replicas := deployment("db", 1), int32(1)
	d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"},
	}}}
	return &appsv1.StatefulSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.StatefulSetSpec{
		Replicas: &replicas, Selector: d.Spec.Selector, Template: d.Spec.Template, ServiceName: "db",
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}},
	}}
}

// attachments are the nodes that volumes are attached to, or ("?") will be.
func attachments(t testing.TB, set kubernetes.Interface) string {
	t.Helper()
	list, err := set.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	must(t, err)
	var out []string
	for _, a := range list.Items {
		text := a.Spec.NodeName
		if !a.Status.Attached {
			text += "?"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// TestVolumesFollowTheirPods: detached a few seconds after the pod has ended, and
// attached where the next one is, which waits for that.
func TestVolumesFollowTheirPods(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		stops := map[string]func(){}
		for i, name := range []string{"wk-1", "wk-2", "wk-3"} {
			stops[name] = l.kube.RunKubelet(l.id, kubelet(name, fmt.Sprintf("10.0.0.%d", 21+i), 501+i), ready.call)
			<-ready.ch
		}
		_, err := set.AppsV1().StatefulSets("default").Create(ctx, database(), metav1.CreateOptions{})
		must(t, err)
		runs := func(not string) string {
			t.Helper()
			var node string
			eventually(t, "db-0", 10*time.Minute, func() error {
				p, err := set.CoreV1().Pods("default").Get(ctx, "db-0", metav1.GetOptions{})
				if err != nil || !podReady(p) || p.DeletionTimestamp != nil || p.Spec.NodeName == not {
					return fmt.Errorf("%v", err)
				}
				node = p.Spec.NodeName
				return nil
			})
			return node
		}
		first := runs("")
		if got := attachments(t, set); got != first {
			t.Errorf("attached to %q, the pod is on %s", got, first)
		}
		patchNode(t, set, first, `{"spec":{"unschedulable":true}}`)
		must(t, evict(set, "default", "db-0"))
		time.Sleep(2 * time.Second)
		if got := attachments(t, set); got != first {
			t.Errorf("attached to %q just after the pod has ended on %s", got, first)
		}
		time.Sleep(2200 * time.Millisecond)
		p := getPod(t, set, "db-0")
		if got := attachments(t, set); got != p.Spec.NodeName+"?" || podReady(p) {
			t.Errorf("attached to %q, the next pod is on %s", got, p.Spec.NodeName)
		}
		second := runs(first)
		if got := attachments(t, set); got != second {
			t.Errorf("attached to %q, the pod is on %s", got, second)
		}
		// A dead node keeps its volume for six minutes after its pod was forced away.
		stops[second]()
		time.Sleep(time.Hour)
		now := int64(0)
		must(t, set.CoreV1().Pods("default").Delete(ctx, "db-0", metav1.DeleteOptions{GracePeriodSeconds: &now}))
		forced := time.Now()
		if third := runs(second); third == first || time.Since(forced) < 6*time.Minute || time.Since(forced) > 7*time.Minute {
			t.Errorf("on %s after %v", third, time.Since(forced))
		}
	})
}

// TestVolumesOfADestroyedMachine: the next machine of a Node does not have the volumes of the one
// before, so that its pods never start there; with the taint of nodes out of service they are
// forced away and their volumes detached without the six minutes, elsewhere to start. A Node object
// that is deleted keeps its volumes for these.
func TestVolumesOfADestroyedMachine(t *testing.T) {
	for _, tc := range []struct {
		name     string
		taint    bool
		again    bool // another machine registers
		at, most time.Duration
	}{
		{"another machine", false, true, 0, 0},
		{"out of service", true, false, 20 * time.Second, time.Minute},
		{"deleted", false, false, 6 * time.Minute, 8 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, l *lab) {
				set := l.running(apiAddr)
				ready, stops := newReadiness(), map[string]func(){}
				join := func(name, addr, machine string) {
					k := kubelet(name, addr, 501)
					k.Machine, k.BootID = machine, machine
					stops[name] = l.kube.RunKubelet(l.id, k, ready.call)
					<-ready.ch
				}
				join("wk-1", "10.0.0.21", "a")
				_, err := set.AppsV1().StatefulSets("default").Create(ctx, database(), metav1.CreateOptions{})
				must(t, err)
				runs := func(on string) error {
					p, err := set.CoreV1().Pods("default").Get(ctx, "db-0", metav1.GetOptions{})
					if err != nil || !podReady(p) || p.DeletionTimestamp != nil || p.Spec.NodeName != on {
						return fmt.Errorf("not on %s: %w", on, err)
					}
					return nil
				}
				eventually(t, "db-0", 10*time.Minute, func() error { return runs("wk-1") })
				if !tc.again {
					join("wk-2", "10.0.0.22", "c")
				}
				stops["wk-1"]()
				time.Sleep(time.Minute)
				began := time.Now()
				switch {
				case tc.again:
					join("wk-1", "10.0.0.21", "b")
					time.Sleep(time.Hour)
					if runs("wk-1") == nil {
						t.Error("its volume was attached to another machine")
					}
					return
				case tc.taint:
					patchNode(t, set, "wk-1", `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]}}`)
				default:
					must(t, set.CoreV1().Nodes().Delete(ctx, "wk-1", metav1.DeleteOptions{}))
				}
				eventually(t, "db-0 elsewhere", time.Hour, func() error { return runs("wk-2") })
				if took := time.Since(began); took < tc.at || took > tc.most {
					t.Errorf("elsewhere after %v", took)
				}
			})
		})
	}
}

// TestPodsWaitForClaims: nothing runs without its volume.
func TestPodsWaitForClaims(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		p := barePod("a", "a")
		p.Spec.Volumes = database().Spec.Template.Spec.Volumes
		_, err := set.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
		must(t, err)
		time.Sleep(time.Hour)
		if p := getPod(t, set, "a"); p.Status.Phase != corev1.PodPending {
			t.Errorf("without its claim: %s", p.Status.Phase)
		}
		claim := database().Spec.VolumeClaimTemplates[0]
		claim.Name = "data-db-0"
		_, err = set.CoreV1().PersistentVolumeClaims("default").Create(ctx, &claim, metav1.CreateOptions{})
		must(t, err)
		eventually(t, "running", time.Minute, func() error {
			if p := getPod(t, set, "a"); !podReady(p) {
				return fmt.Errorf("phase %s", p.Status.Phase)
			}
			return nil
		})
		if _, err := set.StorageV1().VolumeAttachments().Get(ctx, "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
}
