package helm

import (
	"errors"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/edits"
)

// sized is a chart whose objects people and controllers change.
func (b *bench) sized() cluster.Addon {
	return b.local("sized", "apps", map[string]any{"password": canary}, map[string]string{
		"crds/things.yaml": "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.example.org}\nspec:\n  group: example.org\n" +
			"  names: {plural: things, kind: Thing, singular: thing, listKind: ThingList}\n  scope: Namespaced\n" +
			"  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]\n",
		"templates/deploy.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: 2\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n" +
			"    spec:\n      containers:\n      - name: c\n        image: i:1\n        env: [{name: A, value: \"1\"}]\n        resources: {requests: {cpu: 1000m}}\n        ports: [{containerPort: 80}]\n",
		"templates/conf.yaml":   "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {a: b, c: d}\n",
		"templates/secret.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {key: {{ .Values.password }}}\n",
		"templates/thing.yaml":  "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: one}\nspec: {size: 3}\n",
		"templates/hook.yaml": "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: sized}\nwebhooks:\n- name: sized.example.org\n  failurePolicy: Ignore\n" +
			"  sideEffects: None\n  admissionReviewVersions: [v1]\n  clientConfig: {service: {name: s, namespace: apps}}\n",
		"templates/claim.yaml": "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: disk}\nspec:\n  accessModes: [ReadWriteOnce]\n  resources: {requests: {storage: 1Gi}}\n",
	})
}

func (b *bench) installSized() cluster.Addon {
	b.Helper()
	b.serve("flannel")
	b.join(1)
	a := b.sized()
	b.want(a)
	b.settle(a, 5*time.Minute)
	return a
}

func (b *bench) release() cluster.Release { return b.look().Releases.Value["sized"] }

// edit patches a Deployment as somebody.
func (b *bench) editDeployment(manager, body string) {
	b.Helper()
	if _, err := b.client().AppsV1().Deployments("apps").Patch(ctx, "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{FieldManager: manager}); err != nil {
		b.Fatal(err)
	}
	time.Sleep(time.Second)
}

// TestEditedWorkload: what somebody sets of a workload that its chart sets otherwise is
// seen at once, with who; the same installation puts it back.
func TestEditedWorkload(t *testing.T) {
	bubble(t, func(b *bench) {
		a := b.installSized()
		b.editDeployment("kubectl-edit", `{"spec":{"replicas":0,"template":{"spec":{"containers":[{"name":"c","image":"i:2","env":[{"name":"A","value":"`+canary+`"}]}]}}}}`)
		rel := b.release()
		const words = "deployment apps/web: spec.replicas 2 -> 0 (and 2 more), changed by kubectl-edit at "
		if !strings.HasPrefix(rel.Altered, words) || rel.AlteredAgain != "" || rel.Revision != 1 {
			t.Errorf("%+v", rel)
		}
		b.mustNotSing(errors.New(rel.Altered))
		if err := b.install(a); err != nil {
			t.Fatal(err)
		}
		if rel := b.settle(a, 5*time.Minute); rel.Altered != "" || rel.Revision != 2 {
			t.Errorf("%+v", rel)
		}
		d, err := b.client().AppsV1().Deployments("apps").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if c := d.Spec.Template.Spec.Containers[0]; *d.Spec.Replicas != 2 || c.Image != "i:1" || c.Env[0].Value != "1" {
			t.Errorf("it was not put back: %+v", d.Spec)
		}
		if err := b.install(a); err != nil || b.release().Revision != 2 {
			t.Errorf("%v, %+v", err, b.release())
		}
	})
}

// TestWhatIsNoEdit: what a chart does not set, the same value written otherwise, what an
// autoscaler sets, and what was changed by helm. What is scaled by hand is one.
func TestWhatIsNoEdit(t *testing.T) {
	bubble(t, func(b *bench) {
		b.installSized()
		b.editDeployment("kubectl-rollout", `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}`)
		b.editDeployment("kubectl-edit", `{"spec":{"template":{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}]}}}}`)
		b.editDeployment("kubectl-edit", `{"spec":{"template":{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"1"}}}]}}}}`)
		b.editDeployment("helm", `{"spec":{"paused":true,"template":{"spec":{"containers":[{"name":"c","image":"i:3"}]}}}}`)
		scale := func(manager string, n int32) {
			t.Helper()
			s := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "apps"}, Spec: autoscalingv1.ScaleSpec{Replicas: n}}
			if _, err := b.client().AppsV1().Deployments("apps").UpdateScale(ctx, "web", s, metav1.UpdateOptions{FieldManager: manager}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		scale("kube-controller-manager", 5)
		if got := b.release(); got.Altered != "" {
			t.Errorf("%+v", got)
		}
		scale("kubectl", 1)
		if got := b.release().Altered; !strings.HasPrefix(got, "deployment apps/web: spec.replicas 2 -> 1, changed by kubectl at ") {
			t.Errorf("altered: %q", got)
		}
	})
}

// things is a client for the custom resources of the chart.
func (b *bench) things() dynamic.ResourceInterface {
	b.Helper()
	conn, err := connectServer(*b.server.Load(), b.desired.Access.Kube, b.releaser.dial, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Close)
	client, err := dynamic.NewForConfig(conn.config(conn))
	if err != nil {
		b.Fatal(err)
	}
	return client.Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "things"}).Namespace("apps")
}

// TestEditedObjects: other objects are seen to be changed within minutes, custom resources
// and secrets as well, and put back. A claim of a volume that was enlarged is left, and so
// is a webhook.
func TestEditedObjects(t *testing.T) {
	bubble(t, func(b *bench) {
		a := b.installSized()
		core, things := b.client().CoreV1(), b.things()
		edit := metav1.PatchOptions{FieldManager: "kubectl-patch"}
		patches := []func() error{
			func() error {
				_, err := core.ConfigMaps("apps").Patch(ctx, "conf", types.MergePatchType, []byte(`{"data":{"a":"`+canary+`","c":null,"more":"x"}}`), edit)
				return err
			},
			func() error {
				_, err := core.Secrets("apps").Patch(ctx, "key", types.MergePatchType, []byte(`{"stringData":{"key":"`+canary+canary+`"}}`), edit)
				return err
			},
			func() error {
				_, err := things.Patch(ctx, "one", types.MergePatchType, []byte(`{"spec":{"size":4}}`), edit)
				return err
			},
			func() error {
				_, err := core.PersistentVolumeClaims("apps").Patch(ctx, "disk", types.MergePatchType, []byte(`{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`), edit)
				return err
			},
			func() error {
				_, err := b.client().AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(ctx, "sized", types.StrategicMergePatchType, []byte(`{"webhooks":[{"name":"sized.example.org","failurePolicy":"Fail"}]}`), edit)
				return err
			},
		}
		for _, patch := range patches {
			if err := patch(); err != nil {
				t.Fatal(err)
			}
		}
		for end := time.Now().Add(2 * searchEvery); b.release().Altered == "" && time.Now().Before(end); {
			time.Sleep(time.Minute)
		}
		rel := b.release()
		if !strings.Contains(rel.Altered, "changed by kubectl-patch at ") || !strings.HasSuffix(rel.Altered, " (and 2 more)") {
			t.Errorf("altered: %q", rel.Altered)
		}
		installed, err := b.releaser.Installed(ctx, b.desired, a)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(installed.Altered, "\n")
		for _, words := range []string{"configmap apps/conf: data.a (and 1 more), changed", "secret apps/key: data.key, changed", "thing apps/one: spec.size 3 -> 4, changed"} {
			if !strings.Contains(got, words) {
				t.Errorf("no %q in\n%s", words, got)
			}
		}
		b.mustNotSing(errors.New(got + rel.Altered))
		if err := b.install(a); err != nil {
			t.Fatal(err)
		}
		b.settle(a, 5*time.Minute)
		conf, err := core.ConfigMaps("apps").Get(ctx, "conf", metav1.GetOptions{})
		if err != nil || conf.Data["a"]+conf.Data["c"] != "bd" || conf.Data["more"] != "x" {
			t.Errorf("%v, %v", conf.Data, err)
		}
		key, err := core.Secrets("apps").Get(ctx, "key", metav1.GetOptions{})
		if err != nil || string(key.Data["key"]) != canary {
			t.Errorf("the secret was not put back: %v", err)
		}
		thing, err := things.Get(ctx, "one", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if size, _, _ := unstructured.NestedInt64(thing.Object, "spec", "size"); size != 3 {
			t.Errorf("size %d", size)
		}
	})
}

// TestNoFight: who changes the same object again within a day after it was put back is
// left to it, and others are not. Another upgrade begins anew.
func TestNoFight(t *testing.T) {
	bubble(t, func(b *bench) {
		a := b.installSized()
		change := func(manager string) { b.editDeployment(manager, `{"spec":{"replicas":1}}`) }
		putBack := func() {
			t.Helper()
			if err := b.install(a); err != nil {
				t.Fatal(err)
			}
			b.settle(a, 5*time.Minute)
		}
		change("operator")
		if rel := b.release(); rel.Altered == "" || rel.AlteredAgain != "" {
			t.Fatalf("%+v", rel)
		}
		putBack()
		change("operator")
		if rel := b.release(); rel.Altered != "" || !strings.HasPrefix(rel.AlteredAgain, "deployment apps/web: spec.replicas 2 -> 1, changed by operator at ") {
			t.Fatalf("%+v", rel)
		}
		if _, err := b.client().CoreV1().ConfigMaps("apps").Patch(ctx, "conf", types.MergePatchType, []byte(`{"data":{"a":"c"}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(2 * searchEvery); b.release().Altered == "" && time.Now().Before(end); {
			time.Sleep(time.Minute)
		}
		if rel := b.release(); !strings.HasPrefix(rel.Altered, "configmap apps/conf: data.a, changed by kubectl-edit") || rel.AlteredAgain == "" {
			t.Fatalf("%+v", rel)
		}
		putBack()
		change("operator") // it is still known
		if rel := b.release(); rel.Altered != "" || rel.AlteredAgain == "" {
			t.Fatalf("%+v", rel)
		}
		a.Values = b.values(map[string]any{"password": canary, "other": "1"})
		b.want(a)
		putBack()
		change("operator")
		if rel := b.release(); rel.Altered == "" || rel.AlteredAgain != "" {
			t.Fatalf("after an upgrade: %+v", rel)
		}
	})
}

// TestAgain: it depends on the object, on who changes it, and on when.
func TestAgain(t *testing.T) {
	made := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	by := func(object, manager string, after time.Duration) alteration {
		return alteration{object, []edits.Edit{{Path: "spec.replicas", Manager: manager, At: made.Add(after)}}}
	}
	marks := marksOf([]alteration{by("deployment a/b", "x", 0), by("deployment a/b", "x", time.Hour), by("configmap a/b", "y", 0)}, "")
	if len(marks) != 2*markLength {
		t.Errorf("marks %q", marks)
	}
	for _, c := range []struct {
		a    alteration
		want bool
	}{
		{by("deployment a/b", "x", time.Hour), true},
		{by("deployment a/b", "x", -time.Hour), true}, // it was not even taken back
		{by("deployment a/b", "x", 25*time.Hour), false},
		{by("deployment a/b", "y", time.Hour), false},
		{by("configmap a/b", "y", time.Hour), true},
	} {
		if once, again := splitAltered([]alteration{c.a}, marks, made); (again != "") != c.want || (once == "") != c.want {
			t.Errorf("%v: once %q, again %q", c.a, once, again)
		}
	}
	two := alteration{"deployment a/b", append(by("", "x", time.Hour).edits, by("", "y", time.Hour).edits...)}
	if once, again := splitAltered([]alteration{two}, marks, made); !strings.Contains(once, "changed by y at") || !strings.Contains(again, "changed by x at") {
		t.Errorf("once %q, again %q", once, again)
	}
	if kept := marksOf([]alteration{by("secret a/b", "z", 0)}, marks); len(kept) != 3*markLength {
		t.Errorf("marks %q: those of before are lost", kept)
	}
	var many []alteration
	for i := range 40 {
		many = append(many, by(strings.Repeat("x", i), "x", 0))
	}
	// There are more than a label holds: all are left for a day.
	if once, _ := splitAltered(many, marksOf(many, ""), made); once != "" || len(marksOf(many, marks)) > 63 {
		t.Errorf("put back once more: %q", once)
	}
	if once, again := splitAltered([]alteration{by("x", "x", 25*time.Hour)}, markAll, made); once == "" || again != "" {
		t.Errorf("a day later: once %q, again %q", once, again)
	}
	// When something is removed is not noted: it is judged by when it is seen.
	removed := []alteration{{"configmap a/b", []edits.Edit{{Path: "data.a"}}}}
	for ago, want := range map[time.Duration]bool{time.Hour: true, 25 * time.Hour: false} {
		if _, again := splitAltered(removed, marksOf(removed, ""), time.Now().Add(-ago)); (again != "") != want {
			t.Errorf("%v after it was put back: left: %q", ago, again)
		}
	}
}

// TestNamespaceOfAChart: what an addon asks of a namespace that its chart brings along
// itself is no edit, although another manager sets it.
func TestNamespaceOfAChart(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		a := b.local("spaced", "apps", nil, map[string]string{
			"templates/space.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: extra, labels: {team: chart}}\n",
		})
		b.want(a)
		b.settle(a, 5*time.Minute)
		if err := b.releaser.LabelNamespace(ctx, b.desired, "extra", cluster.NamespaceMeta{Labels: map[string]string{"team": "inventory"}}); err != nil {
			t.Fatal(err)
		}
		for range 30 {
			if rel := b.look().Releases.Value["spaced"]; rel.Altered != "" {
				t.Fatalf("altered: %s", rel.Altered)
			}
			time.Sleep(time.Minute)
		}
		if _, err := b.client().CoreV1().Namespaces().Patch(ctx, "extra", types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"x"}}}`), metav1.PatchOptions{FieldManager: "kubectl-label"}); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(2 * searchEvery); time.Now().Before(end); time.Sleep(time.Minute) {
			if rel := b.look().Releases.Value["spaced"]; strings.HasPrefix(rel.Altered, "namespace extra: metadata.labels.team, changed by kubectl-label at ") {
				return
			}
		}
		t.Error("an edit was not seen")
	})
}

// TestPutBackThatIsRefused: what the API does not let anybody change back leaves the
// release as it is, and the error names it and the way out.
func TestPutBackThatIsRefused(t *testing.T) {
	bubble(t, func(b *bench) {
		a := b.installSized()
		if _, err := b.client().CoreV1().ConfigMaps("apps").Patch(ctx, "conf", types.MergePatchType, []byte(`{"data":{"a":"x"},"immutable":true}`), metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
			t.Fatal(err)
		}
		before := b.release()
		for range 2 {
			err := b.install(a)
			if err == nil || !strings.Contains(err.Error(), "configmap apps/conf cannot be put back: ") || fault.HintOf(err) == "" {
				t.Errorf("%v", err)
			}
		}
		if rel := b.release(); rel.Revision != before.Revision || rel.Status != "deployed" || !rel.Ready {
			t.Errorf("%+v, and before %+v", rel, before)
		}
	})
}
