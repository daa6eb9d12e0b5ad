package kube_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestMachineConfigOfANode: what of a machine config reaches the Node object, as a real
// Talos 1.13.9 does it.
func TestMachineConfigOfANode(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		stop := func() {}
		run := func(boot, zone string, taints ...string) {
			t.Helper()
			stop()
			k := kubelet("wk-1", "10.0.0.21", 501)
			k.BootID, k.Taints, k.Labels = boot, taints, map[string]string{"zone": zone}
			if zone == "" {
				k.Labels = nil
			}
			stop = l.kube.RunKubelet(l.id, k, ready.call)
			<-ready.ch
		}
		want := func(what, zone string, taints ...string) {
			t.Helper()
			n, err := set.CoreV1().Nodes().Get(ctx, "wk-1", metav1.GetOptions{})
			must(t, err)
			var have []string
			for _, x := range n.Spec.Taints {
				have = append(have, x.ToString())
			}
			if n.Labels["zone"] != zone || !slices.Equal(have, taints) {
				t.Errorf("%s: zone %q, taints %q, %s", what, n.Labels["zone"], have, n.Annotations)
			}
		}
		run("1", "a", "dedicated=gpu:NoSchedule")
		want("registered", "a", "dedicated=gpu:NoSchedule")
		run("1", "b")
		want("another config", "b", "dedicated=gpu:NoSchedule")
		patchNode(t, set, "wk-1", `{"metadata":{"labels":{"zone":"hand","rack":"1"}},"spec":{"taints":null}}`)
		run("1", "b")
		want("the same config", "hand")
		run("1", "c", "dedicated=gpu:NoSchedule")
		want("a third", "c")
		run("1", "", "dedicated=gpu:NoSchedule")
		want("its label goes some seconds later", "c")
		time.Sleep(7 * time.Second)
		want("its label has left", "")
		patchNode(t, set, "wk-1", `{"metadata":{"labels":{"zone":"hand"}}}`)
		run("1", "d")
		want("a label of somebody else", "hand")
		run("2", "d")
		want("booted", "hand")
		must(t, set.CoreV1().Nodes().Delete(ctx, "wk-1", metav1.DeleteOptions{}))
		run("3", "d", "dedicated=gpu:NoSchedule")
		want("registered anew", "d", "dedicated=gpu:NoSchedule")
		patchNode(t, set, "wk-1", `{"metadata":{"labels":{"zone":"hand"}}}`)
		run("4", "d", "dedicated=gpu:NoSchedule")
		want("booted with its own label", "d", "dedicated=gpu:NoSchedule")
	})
}

// TestTaintsOfAControlPlane reach its Node whenever its config changes.
func TestTaintsOfAControlPlane(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		stop := func() {}
		want := func(change func(*world.Kubelet), taints ...corev1.Taint) {
			t.Helper()
			stop()
			k := controlKubelet("cp-1", apiAddr, 401)
			k.BootID = "1"
			change(&k)
			stop = l.kube.RunKubelet(l.id, k, ready.call)
			<-ready.ch
			n, err := set.CoreV1().Nodes().Get(ctx, "cp-1", metav1.GetOptions{})
			must(t, err)
			if fmt.Sprint(n.Spec.Taints) != fmt.Sprint(taints) {
				t.Errorf("taints %v, want %v", n.Spec.Taints, taints)
			}
		}
		control := corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}
		gpu := corev1.Taint{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}
		want(func(*world.Kubelet) {}, control)
		want(func(k *world.Kubelet) { k.Taints = []string{"dedicated=gpu:NoSchedule"} }, control, gpu)
		want(func(k *world.Kubelet) { k.Schedulable = true })
		patchNode(t, set, "cp-1", `{"spec":{"taints":[{"key":"dedicated","value":"mine","effect":"NoExecute"}]}}`)
		want(func(k *world.Kubelet) { k.Taints, k.Schedulable = []string{"dedicated=gpu:NoSchedule"}, true },
			corev1.Taint{Key: "dedicated", Value: "mine", Effect: corev1.TaintEffectNoExecute})
	})
}
