package helm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

const enforce = "pod-security.kubernetes.io/enforce"

// hostWorkload is a workload of a chart whose pods use the host's network.
func hostWorkload(kind, spec string) string {
	return "apiVersion: apps/v1\nkind: " + kind + "\nmetadata: {name: {{ .Release.Name }}}\nspec:\n  " + spec + "selector: {matchLabels: {app: {{ .Release.Name }}}}\n" +
		"  template:\n    metadata: {labels: {app: {{ .Release.Name }}}}\n    spec:\n      hostNetwork: true\n      containers: [{name: main, image: registry.k8s.io/app:v1}]\n"
}

// asks sets what the addon asks of its namespace.
func asks(a cluster.Addon, labels, annotations map[string]string) cluster.Addon {
	a.Asks = cluster.NamespaceMeta{Labels: labels, Annotations: annotations}
	return a
}

// label sets the labels of an addon's namespace as a pass would if they differ.
func (b *bench) label(a cluster.Addon) error {
	b.Helper()
	want := b.desired.Spec.Namespace(a.Namespace)
	if have, there := b.look().Namespaces[a.Namespace]; !there || have.Equal(want) {
		return nil
	}
	return b.releaser.LabelNamespace(ctx, b.desired, a.Namespace, want)
}

// namespace returns the labels and annotations of a namespace, without those of the
// server.
func (b *bench) namespace(name string) string {
	for _, o := range b.objects("", "v1", "namespaces", "") {
		if o.GetName() == name {
			labels := o.GetLabels()
			delete(labels, "kubernetes.io/metadata.name")
			return fmt.Sprint(labels, o.GetAnnotations())
		}
	}
	return ""
}

// TestRefusedPods: an addon whose pods its namespace does not allow reports why,
// and gets ready once the namespace has the label.
func TestRefusedPods(t *testing.T) {
	for kind, spec := range map[string]string{"DaemonSet": "", "Deployment": "", "StatefulSet": "serviceName: x\n  "} {
		t.Run(kind, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.serve("flannel")
				b.join(2)
				a := b.local("exporter", "monitoring", nil, map[string]string{"templates/all.yaml": hostWorkload(kind, spec)})
				b.want(a)
				for range 240 {
					if _, err := b.step(ctx, a); err != nil {
						b.Fatal(err)
					}
					time.Sleep(500 * time.Millisecond)
				}
				rel := b.look().Releases.Value["exporter"]
				want := strings.ToLower(kind) + ` monitoring/exporter: its pods are refused: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`
				if rel.Ready || !rel.Refused || rel.Why != want {
					b.Errorf("the release is %+v, want %q", rel, want)
				}
				changes := b.changes.Load()
				time.Sleep(time.Minute)
				if got := b.changes.Load(); got > changes+1 {
					b.Errorf("%d notices of the same refusal", got-changes)
				}
				a = asks(a, map[string]string{enforce: "privileged"}, nil)
				b.want(a)
				if err := b.label(a); err != nil {
					b.Fatal(err)
				}
				if rel = b.settle(a, 20*time.Minute); !rel.Ready || rel.Refused || rel.Revision != 1 {
					b.Errorf("the release is %+v", rel)
				}
			})
		})
	}
}

// TestRefusedHook: a hook whose pod is refused fails at once, and why.
func TestRefusedHook(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		a := b.local("exporter", "monitoring", nil, map[string]string{"templates/job.yaml": "apiVersion: batch/v1\nkind: Job\n" +
			"metadata:\n  name: prepare\n  annotations: {helm.sh/hook: pre-install}\n" +
			"spec: {template: {spec: {hostNetwork: true, restartPolicy: Never, containers: [{name: main, image: registry.k8s.io/app:v1}]}}}\n"})
		b.want(a)
		begin := time.Now()
		mustFail(b, b.install(a), `hook Job prepare: its pods are refused: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`, "namespace_labels: {pod-security.kubernetes.io/enforce: privileged}")
		if took := time.Since(begin); took > 30*time.Second {
			b.Errorf("it took %v", took)
		}
		a = asks(a, map[string]string{enforce: "privileged"}, nil)
		b.want(a)
		if err := b.label(a); err != nil {
			b.Fatal(err)
		}
		if rel := b.settle(a, 20*time.Minute); !rel.Ready {
			b.Errorf("the release is %+v", rel)
		}
	})
}

// TestNamespaceLabels: a namespace is made with what its addons ask for, and keeps it;
// what others set stays, and what is not asked for any more goes.
func TestNamespaceLabels(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		files := map[string]string{"templates/all.yaml": hostWorkload("DaemonSet", "")}
		exporter := asks(b.local("exporter", "monitoring", nil, files), map[string]string{enforce: "privileged", "team": "a"}, map[string]string{"example.org/why": "host metrics"})
		probe := asks(b.local("probe", "monitoring", nil, files), map[string]string{"tier": "1"}, nil)
		b.want(exporter, probe)
		b.settle(exporter, 5*time.Minute)
		b.settle(probe, 5*time.Minute)
		must := func(want string) {
			b.Helper()
			if err := b.label(exporter); err != nil {
				b.Fatal(err)
			}
			if got := b.namespace("monitoring"); got != want {
				b.Errorf("the namespace has %s, want %s", got, want)
			}
		}
		all := "map[" + enforce + ":privileged team:a tier:1] map[example.org/why:host metrics]"
		must(all)

		// Nothing to do: no calls.
		b.world.ForgetCalls()
		for range 10 {
			if err := b.label(exporter); err != nil {
				b.Fatal(err)
			}
			time.Sleep(10 * time.Second)
		}
		if calls := b.world.Calls(); len(calls) != 0 {
			b.Errorf("calls: %v", calls)
		}

		// A person changes one, removes one and adds one.
		patch := `{"metadata":{"labels":{"` + enforce + `":"baseline","team":null,"owner":"b"}}}`
		if _, err := b.client().CoreV1().Namespaces().Patch(ctx, "monitoring", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl"}); err != nil {
			b.Fatal(err)
		}
		time.Sleep(time.Second)
		must("map[owner:b " + enforce + ":privileged team:a tier:1] map[example.org/why:host metrics]")

		// The inventory asks for less.
		exporter = asks(exporter, map[string]string{enforce: "privileged"}, nil)
		b.want(exporter, probe)
		must("map[owner:b " + enforce + ":privileged tier:1] map[]")
		probe = asks(probe, nil, nil)
		exporter = asks(exporter, nil, nil)
		b.want(exporter, probe)
		must("map[owner:b] map[]")
	})
}

// TestNamespaceOfSomebodyElse: a namespace that is there gets what is asked for
// before the release is installed into it, and keeps what its maker set too.
func TestNamespaceOfSomebodyElse(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "monitoring", Labels: map[string]string{"team": "a", "owner": "b"}}}
		if _, err := b.client().CoreV1().Namespaces().Create(ctx, made, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		a := asks(b.local("exporter", "monitoring", nil, map[string]string{"templates/all.yaml": hostWorkload("DaemonSet", "")}), map[string]string{enforce: "privileged", "team": "a"}, nil)
		b.want(a)
		b.settle(a, 5*time.Minute)
		if got, want := b.namespace("monitoring"), "map[owner:b "+enforce+":privileged team:a] map[]"; got != want {
			b.Errorf("the namespace has %s, want %s", got, want)
		}
		a = asks(a, nil, nil)
		b.want(a)
		if err := b.label(a); err != nil {
			b.Fatal(err)
		}
		if got, want := b.namespace("monitoring"), "map[owner:b team:a] map[]"; got != want {
			b.Errorf("the namespace has %s, want %s", got, want)
		}
	})
}

// TestLabelNamespaceFails: what goes wrong is reported in words.
func TestLabelNamespaceFails(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		err := b.releaser.LabelNamespace(ctx, b.desired, "monitoring", cluster.NamespaceMeta{Labels: map[string]string{enforce: "none"}})
		mustFail(b, err, "label namespace monitoring: ", "")
		if !strings.Contains(err.Error(), "must be one of privileged, baseline, restricted") {
			b.Error(err)
		}
		b.dead.Store(true)
		mustFail(b, b.releaser.LabelNamespace(ctx, b.desired, "monitoring", cluster.NamespaceMeta{}), "label namespace monitoring: no kube-apiserver is ready", "")
	})
}

// TestOldRefusals: of several events about a workload the newest counts, and none
// does once the pods are there.
func TestOldRefusals(t *testing.T) {
	v := &view{change: func() {}, moved: make(chan struct{})}
	v.releases, v.namespaces, v.refusals = newShelf(v, revisionOf), newShelf(v, markOf), newShelf(v, refusalOf)
	about := object{kindDaemonSet, "monitoring", "exporter"}
	for i, message := range []string{"Error creating: pods \"a\" is forbidden: new", "Error creating: pods \"b\" is forbidden: old"} {
		e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "monitoring", Name: fmt.Sprint("e", i), CreationTimestamp: metav1.NewTime(time.Unix(int64(100-i), 0))},
			InvolvedObject: corev1.ObjectReference{Kind: "DaemonSet", Namespace: "monitoring", Name: "exporter"}, Message: message}
		if err := v.refusals.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if got := v.refusal(about); got != "its pods are refused: new" {
		t.Errorf("%q of %v", got, slices.Collect(maps.Values(v.refusals.items)))
	}
	if got := v.refusal(object{kindDaemonSet, "monitoring", "other"}); got != "" {
		t.Errorf("%q of another workload", got)
	}
}
