package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestDrainNamesPodsWithoutController: what nobody starts again is named before the first
// pod is evicted, a few by name, as long as it is there.
func TestDrainNamesPodsWithoutController(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addDeployment("aweb", 2, nil)
		for i := range mostNamed + 2 {
			b.addPod(fmt.Sprintf("bare-%d", i), nil)
		}
		if err := b.drain(cluster.Drain{}); err != nil {
			t.Fatal(err)
		}
		const want = "deletes pods that no controller starts again: default/bare-0, default/bare-1, default/bare-2, default/bare-3, default/bare-4, and 2 more"
		if p := b.progress[0]; p.Done != 0 || p.Waits != want {
			t.Errorf("the first progress is %+v", p)
		}
		if p := b.progress[len(b.progress)-1]; p.Done != p.Total || p.Waits != "" {
			t.Errorf("the last progress is %+v", p)
		}
		_, log := b.asked("")
		named, evicted := strings.Index(log, `level=WARN msg="a drain deletes pods that no controller starts again"`), strings.Index(log, "pod evicted")
		if named < 0 || evicted < named || strings.Count(log, "a drain deletes pods") != 1 || !strings.Contains(log, `detail="default/bare-0, `) {
			t.Errorf("log:\n%s", log)
		}
	})
}

// TestListLostPods: before anything is drained, those pods are listed that a drain names, by one request;
// and not at all where no API answers.
func TestListLostPods(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addDeployment("aweb", 2, nil)
		b.addPod("two", nil)
		b.addPod("one", nil)
		template := podTemplate("static")
		static := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		static.Name, static.Spec.NodeName, static.Annotations = "static", "wk-1", map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		if _, err := b.set.CoreV1().Pods("default").Create(b.Context(), static, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		b.calls()
		got, err := b.cluster.ListLostPods(b.Context(), b.desired, "wk-1")
		if want := []string{"default/one", "default/two"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%q %v", got, err)
		}
		if calls := b.calls(); len(calls) != 1 {
			t.Errorf("asked %v", calls)
		}
		got, err = b.cluster.ListLostPods(b.Context(), b.desired, "wk-9")
		if err != nil || len(got) > 0 {
			t.Errorf("of a node that is not there: %q %v", got, err)
		}
		b.cluster.Close()
		if got, err := b.cluster.ListLostPods(b.Context(), b.desired, "wk-1"); err == nil || got != nil {
			t.Errorf("closed: %q %v", got, err)
		}
	})
}
