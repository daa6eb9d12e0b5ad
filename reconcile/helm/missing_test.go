package helm

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// parts is a chart of objects of several kinds.
func (b *bench) parts() cluster.Addon {
	return b.local("parts", "apps", nil, map[string]string{
		"templates/deploy.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec: {containers: [{name: c, image: \"i:1\"}]}\n",
		"templates/conf.yaml":   "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {a: b}\n",
		"templates/role.yaml":   "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: parts}\nrules: []\n",
		"templates/job.yaml":    "apiVersion: batch/v1\nkind: Job\nmetadata: {name: once}\nspec:\n  template:\n    spec: {restartPolicy: Never, containers: [{name: c, image: \"i:1\"}]}\n",
	})
}

// missing is what of the release is missing.
func (b *bench) missing() string { return b.look().Releases.Value["parts"].Missing }

// installParts brings up the chart of several kinds.
func (b *bench) installParts() cluster.Addon {
	b.Helper()
	b.serve("flannel")
	b.join(1)
	a := b.parts()
	b.want(a)
	b.settle(a, 5*time.Minute)
	if got := b.missing(); got != "" {
		b.Fatalf("%s is missing", got)
	}
	return a
}

// TestDeletedObjects: an object of a release that somebody deletes is missed, a workload at
// once and others within minutes, and the same installation puts it back.
func TestDeletedObjects(t *testing.T) {
	bubble(t, func(b *bench) {
		a := b.installParts()
		began := b.look().Releases.Value["parts"]
		if age := time.Since(began.Changed); age < 0 || age > 5*time.Minute {
			t.Errorf("changed %v ago", age)
		}
		if err := b.client().AppsV1().Deployments("apps").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := b.missing(); got != "deployment apps/web" {
			t.Errorf("missing: %q", got)
		}
		if err := b.install(a); err != nil {
			t.Fatal(err)
		}
		if rel := b.settle(a, 5*time.Minute); rel.Missing != "" || rel.Revision != began.Revision+1 {
			t.Errorf("%+v", rel)
		}
		for range 2 { // nothing is missing, so that nothing is done
			if err := b.install(a); err != nil || b.look().Releases.Value["parts"].Revision != began.Revision+1 {
				t.Errorf("%v, %+v", err, b.look().Releases)
			}
		}
		if err := b.client().CoreV1().ConfigMaps("apps").Delete(ctx, "conf", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := b.client().RbacV1().ClusterRoles().Delete(ctx, "parts", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := b.client().BatchV1().Jobs("apps").Delete(ctx, "once", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := b.changes.Load()
		for end := time.Now().Add(2 * searchEvery); b.missing() == "" && time.Now().Before(end); {
			time.Sleep(time.Minute)
		}
		if got := b.missing(); got != "configmap apps/conf (and 1 more)" || b.changes.Load() == before {
			t.Errorf("missing: %q, and %d changes were reported", got, b.changes.Load()-before)
		}
		if err := b.install(a); err != nil {
			t.Fatal(err)
		}
		b.settle(a, 5*time.Minute)
		if b.missing() != "" || b.names("", "v1", "configmaps", "apps") != "conf" || b.names("rbac.authorization.k8s.io", "v1", "clusterroles", "") == "" {
			t.Errorf("it was not put back: %q", b.missing())
		}
	})
}

// TestPutBackByHand: what somebody else has put back meanwhile makes no new revision, and
// is not missed until the next search.
func TestPutBackByHand(t *testing.T) {
	bubble(t, func(b *bench) {
		a := b.installParts()
		conf, err := b.client().CoreV1().ConfigMaps("apps").Get(ctx, "conf", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.client().CoreV1().ConfigMaps("apps").Delete(ctx, "conf", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(2 * searchEvery); b.missing() == "" && time.Now().Before(end); {
			time.Sleep(time.Minute)
		}
		conf.ResourceVersion, conf.UID = "", ""
		if _, err := b.client().CoreV1().ConfigMaps("apps").Create(ctx, conf, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if b.missing() != "configmap apps/conf" {
			t.Errorf("missing: %q", b.missing())
		}
		if err := b.install(a); err != nil {
			t.Fatal(err)
		}
		if rel := b.look().Releases.Value["parts"]; rel.Missing != "" || rel.Revision != 1 {
			t.Errorf("%+v", rel)
		}
	})
}

// TestWhatIsNotMissed: a job that is deleted when it has ended, what cannot be asked for,
// and what of a release is somebody else's now.
func TestWhatIsNotMissed(t *testing.T) {
	bubble(t, func(b *bench) {
		b.installParts()
		if err := b.client().BatchV1().Jobs("apps").Delete(ctx, "once", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expectNone := func(when string) {
			t.Helper()
			for range 40 {
				if got := b.missing(); got != "" {
					t.Fatalf("%s: %q is missing", when, got)
				}
				time.Sleep(time.Minute)
			}
		}
		expectNone("a job has ended")
		if err := b.client().CoreV1().ConfigMaps("apps").Delete(ctx, "conf", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		b.world.Inject(world.Fault{Op: "GET /apis/rbac.authorization.k8s.io/v1/clusterroles/{name}", Kind: world.Answer, Status: 403, Times: 1000})
		expectNone("not everything is seen")
	})
}

// TestRemovedFields: what somebody removes from the objects of a release is found by the next search,
// a workload's too, and put back by the same installation. What the API does not keep is not missed.
func TestRemovedFields(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		a := b.local("parts", "apps", nil, map[string]string{
			"templates/deploy.yaml":  "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec: {nodeSelector: {}, containers: [{name: c, image: \"i:1\", env: [{name: A, value: one}, {name: B, value: two}], ports: [{containerPort: 80}]}]}\n",
			"templates/service.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: web, labels: {team: red}}\nspec: {selector: {app: web}, ports: [{name: http, port: 80}]}\n",
		})
		b.want(a)
		b.settle(a, 5*time.Minute)
		altered := func() string { return b.look().Releases.Value["parts"].Altered }
		for range 25 {
			if got := altered(); got != "" {
				t.Fatalf("nothing was removed, and found is %q", got)
			}
			time.Sleep(time.Minute)
		}
		byHand := metav1.PatchOptions{FieldManager: "kubectl-patch"}
		if _, err := b.client().AppsV1().Deployments("apps").Patch(ctx, "web", types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/template/spec/containers/0/env/0"},{"op":"remove","path":"/spec/template/spec/containers/0/ports"}]`), byHand); err != nil {
			t.Fatal(err)
		}
		if _, err := b.client().CoreV1().Services("apps").Patch(ctx, "web", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/labels/team"}]`), byHand); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(2 * searchEvery); altered() == "" && time.Now().Before(end); {
			time.Sleep(time.Minute)
		}
		if got := altered(); !strings.Contains(got, "(removed)") || !strings.Contains(got, "(and 1 more)") {
			t.Errorf("altered: %q", got)
		}
		if err := b.install(a); err != nil {
			t.Fatal(err)
		}
		b.settle(a, 5*time.Minute)
		web, err := b.client().AppsV1().Deployments("apps").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if c := web.Spec.Template.Spec.Containers[0]; len(c.Env) != 2 || len(c.Ports) != 1 {
			t.Errorf("%+v", c)
		}
		if s, err := b.client().CoreV1().Services("apps").Get(ctx, "web", metav1.GetOptions{}); err != nil || s.Labels["team"] != "red" {
			t.Errorf("%+v, %v", s, err)
		}
		for range 25 {
			if got := altered(); got != "" {
				t.Fatalf("it was put back, and found is %q", got)
			}
			time.Sleep(time.Minute)
		}
	})
}
