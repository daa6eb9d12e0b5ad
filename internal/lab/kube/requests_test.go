package kube_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// asking is a pod that asks for processor and memory.
func asking(name, cpu, memory string) *corev1.Pod {
	p := barePod(name, name)
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	return p
}

// TestPodsNeedRoom: a pod is only where there is room for what it asks for.
func TestPodsNeedRoom(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		ready := newReadiness()
		run := func(name, addr string, vmid, cores int) func() {
			k := kubelet(name, addr, vmid)
			k.Cores, k.MemoryMiB = cores, 4096
			stop := l.kube.RunKubelet(l.id, k, ready.call)
			<-ready.ch
			return stop
		}
		run("wk-1", "10.0.0.21", 501, 2)
		stop := run("wk-2", "10.0.0.22", 502, 2)
		pending := func(name, want string) {
			t.Helper()
			eventually(t, name, time.Second, func() error {
				for _, c := range getPod(t, set, name).Status.Conditions {
					if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable && c.Message == want {
						return nil
					}
				}
				return fmt.Errorf("status %+v", getPod(t, set, name).Status)
			})
		}
		create := func(p *corev1.Pod) {
			t.Helper()
			_, err := set.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
			must(t, err)
		}
		create(asking("huge", "64", "64Mi"))
		pending("huge", "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
		// Flannel and CoreDNS have some of each.
		l.runPods(set, asking("a", "1", "3Gi"), asking("b", "1", "1Gi"))
		create(asking("c", "1", "3Gi"))
		pending("c", "0/2 nodes are available: 2 Insufficient cpu, 2 Insufficient memory. no new claims to deallocate, preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.")
		// What ends makes room.
		must(t, set.CoreV1().Pods("default").Delete(ctx, "b", metav1.DeleteOptions{}))
		eventually(t, "c", time.Minute, func() error {
			if p := getPod(t, set, "c"); !podReady(p) || p.Spec.NodeName == getPod(t, set, "a").Spec.NodeName {
				return fmt.Errorf("on %q, phase %s", p.Spec.NodeName, p.Status.Phase)
			}
			return nil
		})
		// And so does a bigger machine.
		stop()
		run("wk-2", "10.0.0.22", 502, 96)
		eventually(t, "huge", time.Minute, func() error {
			if p := getPod(t, set, "huge"); p.Spec.NodeName != "wk-2" {
				return fmt.Errorf("on %q", p.Spec.NodeName)
			}
			return nil
		})
	})
}
