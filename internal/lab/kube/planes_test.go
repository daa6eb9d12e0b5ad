package kube_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestPlanes runs three control planes on one etcd with a VIP, and takes them
// down one after the other.
func TestPlanes(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		const vip = "10.0.0.5"
		addrs := []string{"10.0.0.11", "10.0.0.12", "10.0.0.13"}
		var stops []func()
		for i, addr := range addrs {
			cp := l.control([]string{"cp-1", "cp-2", "cp-3"}[i], addr)
			cp.VIP = netip.MustParseAddr(vip)
			up := newReadiness()
			stops = append(stops, l.kube.ServeAPI(l.id, "etcd-1", cp, up.call))
			<-up.ch
		}
		maps := l.typed(addrs[0]).CoreV1().ConfigMaps("default")
		if _, err := maps.Create(ctx, configMap("shared", nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, addr := range append(addrs[1:], vip) {
			if _, err := l.typed(addr).CoreV1().ConfigMaps("default").Get(ctx, "shared", metav1.GetOptions{}); err != nil {
				t.Errorf("through %s: %v", addr, err)
			}
		}
		for i, stop := range stops {
			stop()
			stop() // a second time is nothing
			if _, err := l.typed(addrs[i]).Discovery().ServerVersion(); err == nil {
				t.Errorf("%s answers after it was stopped", addrs[i])
			}
			_, err := l.typed(vip).CoreV1().ConfigMaps("default").Get(ctx, "shared", metav1.GetOptions{})
			if last := i == len(stops)-1; (err != nil) != last {
				t.Errorf("the VIP after %d of %d stopped: %v", i+1, len(stops), err)
			}
		}
		// Everything is there when one comes back, with no second pull.
		start := time.Now()
		up := newReadiness()
		l.kube.ServeAPI(l.id, "etcd-1", l.control("cp-2", addrs[1]), up.call)
		<-up.ch
		if took := time.Since(start); took != l.world.Latency.API {
			t.Errorf("back after %v, want %v", took, l.world.Latency.API)
		}
		if _, err := l.typed(addrs[1]).CoreV1().ConfigMaps("default").Get(ctx, "shared", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestNothingHappensWithoutAnAPI stops the only API while things are under
// way: they go on when it is back.
func TestNothingHappensWithoutAnAPI(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		cp := l.control("cp-1", apiAddr)
		up, ready := newReadiness(), newReadiness()
		l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
		stop := l.kube.ServeAPI(l.id, "etcd-1", cp, up.call)
		<-up.ch
		time.Sleep(time.Second)
		stop()
		select {
		case <-ready.ch:
			t.Error("a node became Ready without an API")
		case <-time.After(time.Hour):
		}
		l.kube.ServeAPI(l.id, "etcd-1", cp, up.call)
		<-up.ch
		<-ready.ch
		if err := nodeReady(l.typed(apiAddr), "wk-1"); err != nil {
			t.Error(err)
		}
	})
}

func TestStopBeforeReady(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		stop := l.kube.ServeAPI(l.id, "etcd-1", l.control("cp-1", apiAddr), func(bool) { t.Error("ready after stop") })
		stopKubelet := l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), func(bool) { t.Error("ready after stop") })
		time.Sleep(l.world.Latency.ImagePull + time.Second)
		stop()
		stopKubelet()
		time.Sleep(time.Hour)
	})
}

// TestSplitBrain founds two etcds with one CA: two clusters that know nothing
// of each other.
func TestSplitBrain(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		up := newReadiness()
		l.kube.ServeAPI(l.id, "etcd-1", l.control("cp-1", "10.0.0.11"), up.call)
		<-up.ch
		l.kube.ServeAPI(l.id, "etcd-2", l.control("cp-2", "10.0.0.12"), up.call)
		<-up.ch
		if _, err := l.typed("10.0.0.11").CoreV1().ConfigMaps("default").Create(ctx, configMap("here", nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := l.typed("10.0.0.12").CoreV1().ConfigMaps("default").Get(ctx, "here", metav1.GetOptions{})
		mustReason(t, err, metav1.StatusReasonNotFound)
		spaces := l.kube.Objects(l.id, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "")
		if len(spaces) != 8 {
			t.Errorf("%d namespaces in both, want 8", len(spaces))
		}
	})
}

func TestRegistration(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		k := controlKubelet("cp-1", apiAddr, 401)
		k.Labels = map[string]string{"zone": "a"}
		k.Taints = []string{"dedicated=gpu:NoSchedule", "plain:NoExecute"}
		ready := newReadiness()
		l.kube.RunKubelet(l.id, k, ready.call)
		open := controlKubelet("cp-2", "10.0.0.12", 402)
		open.Schedulable = true
		l.kube.RunKubelet(l.id, open, ready.call)
		set := l.running(apiAddr)
		<-ready.ch
		<-ready.ch
		n, err := set.CoreV1().Nodes().Get(ctx, "cp-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if n.Labels["zone"] != "a" || n.Labels["kubernetes.io/hostname"] != "cp-1" {
			t.Errorf("labels %v", n.Labels)
		}
		if _, ok := n.Labels["node-role.kubernetes.io/control-plane"]; !ok {
			t.Errorf("labels %v", n.Labels)
		}
		var taints []string
		for _, tt := range n.Spec.Taints {
			taints = append(taints, tt.ToString())
		}
		if got := strings.Join(taints, " "); got != "node-role.kubernetes.io/control-plane:NoSchedule dedicated=gpu:NoSchedule plain:NoExecute" {
			t.Errorf("taints %s", got)
		}
		info := n.Status.NodeInfo
		if info.OSImage != "Talos (v1.14.1)" || info.KubeletVersion != "v1.36.1" || n.Status.Addresses[0] != (corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: apiAddr}) {
			t.Errorf("node %+v %+v", info, n.Status.Addresses)
		}
		if n.Spec.PodCIDR != "10.244.0.0/24" {
			t.Errorf("pod network %q", n.Spec.PodCIDR)
		}
		if n, err = set.CoreV1().Nodes().Get(ctx, "cp-2", metav1.GetOptions{}); err != nil || len(n.Spec.Taints) != 0 {
			t.Errorf("taints %v, %v", n.Spec.Taints, err)
		}
		pod, err := set.CoreV1().Pods("kube-system").Get(ctx, "kube-apiserver-cp-1", metav1.GetOptions{})
		if err != nil || pod.Status.Phase != corev1.PodRunning || !pod.Status.ContainerStatuses[0].Ready {
			t.Errorf("static pod %+v, %v", pod.Status, err)
		}
		if _, err := set.CoreV1().Pods("kube-system").Get(ctx, "kube-apiserver-cp-2", metav1.GetOptions{}); err == nil {
			t.Error("a static pod where no API runs")
		}
	})
}

func TestClose(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		w, err := set.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for next(t, w) != "nothing" {
		}
		if _, err := set.AppsV1().Deployments("default").Create(ctx, deployment("web", 3), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		l.kube.Close() // while pods are starting and a watch is open
		if got := next(t, w); got != "closed" {
			t.Errorf("the watch after Close: %q", got)
		}
		if _, err := set.Discovery().ServerVersion(); err == nil {
			t.Error("the API answers after Close")
		}
		if pods := l.kube.Objects(l.id, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "default"); len(pods) != 3 {
			t.Errorf("%d pods to be seen after Close, want 3", len(pods))
		}
		l.kube.ServeAPI(l.id, "etcd-1", l.control("cp-2", "10.0.0.12"), func(bool) { t.Error("ready after Close") })()
		l.kube.RunKubelet(l.id, kubelet("wk-2", "10.0.0.22", 502), func(bool) { t.Error("ready after Close") })()
		time.Sleep(time.Hour)
		l.kube.Close()
	})
}

// TestPortInUse: a kube-apiserver that cannot listen tries again.
func TestPortInUse(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		other, err := l.world.Net.Listen(apiAddr + ":6443")
		if err != nil {
			t.Fatal(err)
		}
		up := newReadiness()
		l.kube.ServeAPI(l.id, "etcd-1", l.control("cp-1", apiAddr), up.call)
		time.Sleep(time.Minute)
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-up.ch:
		case <-time.After(time.Minute):
			t.Fatal("the API did not come up when its port was free")
		}
		var reported bool
		for _, e := range l.world.Events() {
			reported = reported || e.Subject == "cp-1" && strings.Contains(e.Text, "address already in use")
		}
		if !reported {
			t.Error("no event shows why it was down")
		}
	})
}

// TestLoopback brings a cluster with a VIP up on the real network.
func TestLoopback(t *testing.T) {
	net := loopback(t)
	l := newLab(t, world.Config{Speed: 200, Network: world.Loopback{}})
	cp := l.control("cp-1", net+".11")
	cp.VIP = netip.MustParseAddr(net + ".5")
	api, ready := newReadiness(), newReadiness()
	l.kube.RunKubelet(l.id, controlKubelet("cp-1", net+".11", 401), ready.call)
	stop := l.kube.ServeAPI(l.id, "etcd-1", cp, api.call)
	<-api.ch
	<-ready.ch
	set := l.typed(net + ".5")
	if err := nodeReady(set, "cp-1"); err != nil {
		t.Error(err)
	}
	w, err := set.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	for range w.ResultChan() {
	}
	if _, err := set.Discovery().ServerVersion(); err == nil {
		t.Error("the VIP answers after the only API stopped")
	}
}
