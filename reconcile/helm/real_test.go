package helm

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// newReal is a bench around a real kube-apiserver with a real etcd: the program
// built from internal/lab/apiserver, named by TALOS_AGENT_APISERVER.
func newReal(t *testing.T) *bench {
	t.Helper()
	program := os.Getenv("TALOS_AGENT_APISERVER")
	if program == "" {
		t.Skip("TALOS_AGENT_APISERVER does not name the program built from internal/lab/apiserver")
	}
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	net24 := strings.TrimSuffix(prefix.Addr().String(), ".0")
	b := newBench(t, world.Config{Speed: 1000, Network: world.Loopback{}}, net24)
	dir := t.TempDir()
	for name, content := range map[string][]byte{"ca.crt": b.ca.PEM, "ca.key": b.ca.KeyPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := exec.Command(program, "serve", "--dir", dir, "--address", net24+".11", "--etcd-port", "2379")
	logged, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	server.Stdout, server.Stderr = logged, logged
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		_ = logged.Close()
	})
	conn, err := connectServer(*b.server.Load(), b.desired.Access.Kube, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := &http.Client{Transport: conn, Timeout: time.Second}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		resp, err := client.Get(conn.server + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return b
			}
		}
		if time.Now().After(end) {
			log, _ := os.ReadFile(logged.Name())
			t.Fatalf("the API is not ready: %v\n%s", err, log)
		}
	}
}

// rollOut reports for every workload in a namespace what its controller would.
func (b *bench) rollOut(namespace string) {
	b.Helper()
	apps := b.client().AppsV1()
	daemons, err := apps.DaemonSets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for _, d := range daemons.Items {
		d.Status = appsv1.DaemonSetStatus{ObservedGeneration: d.Generation, DesiredNumberScheduled: 3, CurrentNumberScheduled: 3, UpdatedNumberScheduled: 3, NumberReady: 3, NumberAvailable: 3}
		if _, err := apps.DaemonSets(namespace).UpdateStatus(ctx, &d, metav1.UpdateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	deployments, err := apps.Deployments(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for _, d := range deployments.Items {
		n := wantedReplicas(d.Spec.Replicas)
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
		if _, err := apps.Deployments(namespace).UpdateStatus(ctx, &d, metav1.UpdateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// soon waits until cond holds, or fails with what is seen then.
func (b *bench) soon(what string, cond func(cluster.Release) bool, name string) cluster.Release {
	b.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		o := b.look()
		if rel := o.Releases.Value[name]; o.Releases.Known && cond(rel) {
			return rel
		}
		if time.Now().After(end) {
			b.Fatalf("%s: releases are %+v", what, o.Releases)
		}
	}
}

// TestRealAPI goes the way of an addon against a real kube-apiserver.
func TestRealAPI(t *testing.T) {
	b := newReal(t)
	a := b.cilium()
	b.want(a)
	if err := b.install(a); err != nil {
		t.Fatal(err)
	}
	rel := b.soon("installed", func(r cluster.Release) bool { return r.Status == "deployed" }, "cilium")
	if rel.Ready || rel.Why != "daemonset kube-system/cilium: "+notObserved || rel.Digest != b.digest(a) || rel.Revision != 1 {
		t.Errorf("the release is %+v", rel)
	}
	changes := b.changes.Load()
	b.rollOut("kube-system")
	b.soon("rolled out and told", func(r cluster.Release) bool { return r.Ready && b.changes.Load() != changes }, "cilium")
	crd, err := b.client().Discovery().ServerResourcesForGroupVersion("cilium.io/v2")
	if err != nil || len(crd.APIResources) == 0 {
		t.Errorf("the definition is not served: %v, %v", crd, err)
	}

	// Other values: the state before is not taken for the result.
	a.Values = b.values(map[string]any{"operator": map[string]any{"replicas": 1}, "image": map[string]any{"tag": "v9"}})
	b.want(a)
	if err := b.install(a); err != nil {
		t.Fatal(err)
	}
	if rel := b.soon("upgraded", func(r cluster.Release) bool { return r.Revision == 2 }, "cilium"); rel.Ready {
		t.Errorf("just upgraded, the release is %+v", rel)
	}
	b.rollOut("kube-system")
	b.soon("rolled out again", func(r cluster.Release) bool { return r.Ready && r.Revision == 2 }, "cilium")

	b.editReal(a)

	// A dead process's leavings, and another namespace.
	b.mark(a, "pending-upgrade", time.Now())
	b.soon("cut off", func(r cluster.Release) bool { return r.Status == "pending-upgrade" }, "cilium")
	if err := b.install(a); err != nil {
		t.Fatal(err)
	}
	b.rollOut("kube-system")
	b.soon("taken up", func(r cluster.Release) bool { return r.Ready && r.Status == "deployed" && r.Revision == 4 }, "cilium")
	web := b.hooked("real")
	for _, hook := range []string{"templates/before.yaml", "templates/after.yaml"} {
		delete(web.Chart.Files, hook) // nothing runs Jobs here
	}
	b.want(a, web)
	if err := b.install(web); err != nil {
		t.Fatal(err)
	}
	b.rollOut("apps")
	b.soon("another", func(r cluster.Release) bool { return r.Ready }, "hooked")
	web.Chart.Files["crds/things.yaml"] = []byte(strings.ReplaceAll(string(web.Chart.Files["crds/things.yaml"]), "type: object,", "type: object, description: newer,"))
	b.want(a, web)
	if err := b.install(web); err != nil {
		t.Fatal(err)
	}
	b.soon("newer definition", func(r cluster.Release) bool { return r.Revision == 2 }, "hooked")

	// Words of a real API.
	for name, c := range map[string]struct{ template, words string }{
		"name": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"_{{ .Values.password }}_\"}\n", "is invalid: metadata.name: Invalid value"},
		"type": {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {replicas: {{ .Values.password | quote }}}\n", "cannot"},
		"kind": {"apiVersion: example.org/v9\nkind: Unheard\nmetadata: {name: x}\n", "no matches for kind"},
		"spec": {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {selector: {matchLabels: {a: {{ .Values.password | quote }}}}, template: {metadata: {labels: {b: c}}}}\n", "Invalid value"},
	} {
		bad := b.local("bad-"+name, "default", map[string]any{"password": canary}, map[string]string{"templates/x.yaml": c.template})
		b.want(bad)
		err := b.install(bad)
		t.Log(err)
		mustFail(t, err, c.words, "")
		b.mustNotSing(err)
	}
}

// editReal changes the operator by hand, as an autoscaler, and as what insists: a real
// server notes who it was, and the same upgrade puts it back.
func (b *bench) editReal(a cluster.Addon) {
	b.Helper()
	apps := b.client().AppsV1().Deployments("kube-system")
	patch := func(manager, body string) {
		b.Helper()
		if _, err := apps.Patch(context.Background(), "cilium-operator", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{FieldManager: manager}); err != nil {
			b.Fatal(err)
		}
	}
	scale, err := apps.GetScale(ctx, "cilium-operator", metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	scale.Spec.Replicas = 3
	if _, err := apps.UpdateScale(ctx, "cilium-operator", scale, metav1.UpdateOptions{FieldManager: "kube-controller-manager"}); err != nil {
		b.Fatal(err)
	}
	b.soon("scaled", func(r cluster.Release) bool { return !r.Ready }, "cilium")
	if rel := b.look().Releases.Value["cilium"]; rel.Altered != "" {
		b.Errorf("an autoscaler: %+v", rel)
	}
	patch("kubectl-edit", `{"spec":{"replicas":0}}`)
	rel := b.soon("edited", func(r cluster.Release) bool { return r.Altered != "" }, "cilium")
	if !strings.HasPrefix(rel.Altered, "deployment kube-system/cilium-operator: spec.replicas 1 -> 0, changed by kubectl-edit at ") {
		b.Errorf("altered: %s", rel.Altered)
	}
	if err := b.install(a); err != nil {
		b.Fatal(err)
	}
	b.rollOut("kube-system")
	b.soon("put back", func(r cluster.Release) bool { return r.Ready && r.Revision == 3 && r.Altered == "" }, "cilium")
	patch("kubectl-edit", `{"spec":{"replicas":0}}`)
	b.soon("edited again", func(r cluster.Release) bool { return r.Altered == "" && r.AlteredAgain != "" }, "cilium")
	patch("kubectl-edit", `{"spec":{"replicas":1}}`)
	b.soon("by hand", func(r cluster.Release) bool { return r.Altered+r.AlteredAgain == "" }, "cilium")
}

// TestRealAPIThatDies in the middle of everything is unknown, not empty.
func TestRealAPIUnderLoad(t *testing.T) {
	b := newReal(t)
	var all []cluster.Addon
	for i := range 10 {
		all = append(all, b.configAddon(fmt.Sprintf("web-%d", i), map[string]any{"message": fmt.Sprint(i)}))
	}
	b.want(all...)
	errs := make(chan error, len(all))
	for _, a := range all {
		digest := b.digest(a)
		go func() { errs <- b.releaser.Install(context.Background(), b.desired, a, digest) }()
	}
	for range all {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for i, a := range all {
		rel := b.soon("installed", func(r cluster.Release) bool { return r.Ready }, a.Name)
		if rel.Revision != 1 {
			t.Errorf("%d: %+v", i, rel)
		}
	}
}
