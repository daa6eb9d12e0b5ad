package kube

import (
	"context"
	"net/netip"
	"reflect"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUnanswered(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.11")
	if s := seenUnanswered(addr, syscall.ECONNREFUSED); !s.Known || s.Value || s.Why != "10.0.0.11:6443: nothing listens there" {
		t.Errorf("refused is %+v", s)
	}
	if s := seenUnanswered(addr, context.DeadlineExceeded); s.Known || s.Why == "" {
		t.Errorf("silent is %+v", s)
	}
}

func FuzzFirstFailed(f *testing.F) {
	f.Add("500 Internal Server Error", "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n")
	f.Add("503 Service Unavailable", "")
	f.Fuzz(func(t *testing.T, status, body string) {
		got := firstFailed(status, body)
		if strings.ContainsAny(got, "\n\r") || len(got) > 310 {
			t.Errorf("%q", got)
		}
	})
}

func TestFirstFailed(t *testing.T) {
	got := firstFailed("500 Internal Server Error", "[+]ping ok\n[-]etcd failed: reason withheld\n[-]other failed\nreadyz check failed\n")
	if got != "etcd failed: reason withheld" {
		t.Errorf("%q", got)
	}
}

func TestNodeOf(t *testing.T) {
	node := func(status corev1.ConditionStatus, message string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue, Message: "no"}, {Type: corev1.NodeReady, Status: status, Message: message},
		}}}
	}
	for _, c := range []struct {
		node  *corev1.Node
		ready bool
		why   string
	}{
		{node(corev1.ConditionTrue, "kubelet is posting ready status"), true, ""},
		{node(corev1.ConditionFalse, "container runtime network not ready:\ncni plugin not initialized"), false, "container runtime network not ready: cni plugin not initialized"},
		{node(corev1.ConditionUnknown, "Kubelet stopped posting node status."), false, "Kubelet stopped posting node status."},
		{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, false, "its kubelet has not reported yet"},
	} {
		n, err := plainReader.nodeOf(c.node)
		if err != nil || n.Ready != c.ready || n.Why != c.why {
			t.Errorf("%v: %+v, %v", c.node.Status.Conditions, n, err)
		}
		if again, err := plainReader.nodeOf(plainReader.trimNode(c.node)); err != nil || !reflect.DeepEqual(again, n) {
			t.Errorf("transformed it reads as %+v, not %+v (%v)", again, n, err)
		}
	}
	if _, err := plainReader.nodeOf("x"); err == nil {
		t.Error("a string is a node")
	}
}
