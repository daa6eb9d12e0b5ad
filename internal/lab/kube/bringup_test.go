package kube_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestBringUp follows a cluster of one control plane and two workers with
// flannel from the first etcd to the last pod, second by second.
func TestBringUp(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		start := time.Now()
		lat := l.world.Latency
		api, nodes := newReadiness(), newReadiness()
		l.kube.RunKubelet(l.id, controlKubelet("cp-1", "10.0.0.11", 401), nodes.call)
		l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), nodes.call)
		l.kube.RunKubelet(l.id, kubelet("wk-2", "10.0.0.22", 502), nodes.call)
		l.kube.ServeAPI(l.id, "etcd-1", l.control("cp-1", "10.0.0.11"), api.call)
		set := l.typed("10.0.0.11")

		time.Sleep(lat.ImagePull + lat.API - time.Second)
		if _, err := set.Discovery().ServerVersion(); err == nil || !strings.Contains(err.Error(), "no route to host") {
			t.Errorf("before the API is up: %v, want a dial error", err)
		}
		if <-api.ch; time.Since(start) != lat.ImagePull+lat.API {
			t.Errorf("API ready after %v, want %v", time.Since(start), lat.ImagePull+lat.API)
		}
		v, err := set.Discovery().ServerVersion()
		if err != nil || v.GitVersion != "v1.36.1" || v.Minor != "36" {
			t.Fatalf("version %+v, %v", v, err)
		}
		time.Sleep(time.Second)
		if err := nodeReady(set, "wk-1"); err == nil {
			t.Error("a node is Ready before it has a network")
		}
		for range 3 {
			<-nodes.ch
		}
		want := lat.ImagePull + lat.API + lat.CNIPull + lat.Ready
		if got := time.Since(start); got != want {
			t.Errorf("nodes Ready after %v, want %v", got, want)
		}
		for _, n := range []string{"cp-1", "wk-1", "wk-2"} {
			if err := nodeReady(set, n); err != nil {
				t.Error(err)
			}
		}
		eventually(t, "coredns", time.Minute, func() error { return deploymentReady(set, "kube-system", "coredns", 2) })
		if got := time.Since(start) - want; got > lat.Pods+time.Second {
			t.Errorf("coredns took %v after the nodes", got)
		}
		checkChain(t, l)
		pods, err := set.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// 3 static pods, 3 of flannel, 3 of kube-proxy, 2 of coredns.
		if len(pods.Items) != 11 {
			t.Errorf("%d pods, want 11", len(pods.Items))
		}
		for _, p := range pods.Items {
			if p.Status.Phase != "Running" || p.Spec.NodeName == "" || p.Status.PodIP == "" {
				t.Errorf("pod %s: phase %s on %q with address %q", p.Name, p.Status.Phase, p.Spec.NodeName, p.Status.PodIP)
			}
		}
	})
}

func checkChain(t *testing.T, l *lab) {
	t.Helper()
	got, chain := l.world.LongestChain()
	lat := l.world.Latency
	if want := lat.ImagePull + lat.API + lat.CNIPull + lat.Ready + lat.Pods; got != want {
		t.Errorf("longest chain %v, want %v: %v", got, want, chain)
	}
}

func deploymentReady(set kubernetes.Interface, ns, name string, want int32) error {
	d, err := set.AppsV1().Deployments(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if d.Status.ReadyReplicas != want || d.Status.ObservedGeneration != d.Generation {
		return fmt.Errorf("%d of %d ready", d.Status.ReadyReplicas, want)
	}
	return nil
}
