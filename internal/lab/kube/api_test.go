package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const apiAddr = "10.0.0.11"

func TestWrites(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		maps := l.running(apiAddr).CoreV1().ConfigMaps("default")
		made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "1"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if made.UID == "" || made.ResourceVersion == "" || !made.CreationTimestamp.Time.Equal(time.Now().Truncate(time.Second)) {
			t.Errorf("metadata %+v", made.ObjectMeta)
		}
		_, err = maps.Create(ctx, made.DeepCopy(), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "resourceVersion should not be set") {
			t.Errorf("create with a version: %v", err)
		}
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		mustReason(t, err, metav1.StatusReasonAlreadyExists)

		stale := made.DeepCopy()
		made.Data["k"] = "2"
		changed, err := maps.Update(ctx, made, metav1.UpdateOptions{})
		if err != nil || changed.Data["k"] != "2" || changed.UID != made.UID || changed.ResourceVersion == made.ResourceVersion {
			t.Fatalf("update: %+v, %v", changed, err)
		}
		same, err := maps.Update(ctx, changed, metav1.UpdateOptions{})
		if err != nil || same.ResourceVersion != changed.ResourceVersion {
			t.Errorf("an update that changes nothing made version %s of %s: %v", same.ResourceVersion, changed.ResourceVersion, err)
		}
		stale.Data["k"] = "3"
		_, err = maps.Update(ctx, stale, metav1.UpdateOptions{})
		mustReason(t, err, metav1.StatusReasonConflict)

		generated, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "gen-"}}, metav1.CreateOptions{})
		if err != nil || len(generated.Name) != len("gen-")+5 {
			t.Errorf("generated name %q, %v", generated.Name, err)
		}
		tried, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dry"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || tried.UID == "" {
			t.Errorf("dry run: %+v, %v", tried, err)
		}
		_, err = maps.Get(ctx, "dry", metav1.GetOptions{})
		mustReason(t, err, metav1.StatusReasonNotFound)

		wrong := types.UID("another")
		err = maps.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
		mustReason(t, err, metav1.StatusReasonConflict)
		if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		mustReason(t, maps.Delete(ctx, "a", metav1.DeleteOptions{}), metav1.StatusReasonNotFound)
		if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=" + generated.Name}); err != nil {
			t.Error(err)
		}
		_, err = maps.Get(ctx, generated.Name, metav1.GetOptions{})
		mustReason(t, err, metav1.StatusReasonNotFound)
	})
}

func TestRefusals(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		_, err := set.CoreV1().ConfigMaps("nowhere").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		mustReason(t, err, metav1.StatusReasonNotFound)
		if err == nil || err.Error() != `namespaces "nowhere" not found` {
			t.Errorf("error %v", err)
		}
		_, err = set.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "Not_A_Name"}}, metav1.CreateOptions{})
		mustReason(t, err, metav1.StatusReasonInvalid)
		_, err = set.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{}, metav1.CreateOptions{})
		mustReason(t, err, metav1.StatusReasonInvalid)
		d := deployment("web", 1)
		d.Spec.Selector.MatchLabels["app"] = "other"
		_, err = set.AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{})
		mustReason(t, err, metav1.StatusReasonInvalid)
		_, err = set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nonsense=1"})
		mustReason(t, err, metav1.StatusReasonBadRequest)
		_, err = set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "a in"})
		mustReason(t, err, metav1.StatusReasonBadRequest)

		raw := set.CoreV1().RESTClient()
		err = raw.Post().AbsPath("/api/v1/namespaces/default/configmaps").Body([]byte(`{"metadata":{"name":"x"},"data":{"n":1}}`)).Do(ctx).Error()
		mustReason(t, err, metav1.StatusReasonBadRequest)
		if err == nil || !strings.Contains(err.Error(), "cannot unmarshal number into Go struct field ConfigMap.data of type string") {
			t.Errorf("error %v", err)
		}
		err = raw.Post().AbsPath("/api/v1/namespaces/default/configmaps").Param("fieldValidation", "Strict").Body([]byte(`{"metadata":{"name":"x"},"date":{}}`)).Do(ctx).Error()
		if err == nil || !strings.Contains(err.Error(), `unknown field "date"`) {
			t.Errorf("error %v", err)
		}
		err = raw.Post().AbsPath("/api/v1/namespaces/default/configmaps").SetHeader("Content-Type", "application/vnd.kubernetes.protobuf").Body([]byte(`k8s`)).Do(ctx).Error()
		mustReason(t, err, metav1.StatusReasonBadRequest)
		err = raw.Post().AbsPath("/api/v1/namespaces/default/configmaps").SetHeader("Content-Type", "application/cbor").Body([]byte(`x`)).Do(ctx).Error()
		mustReason(t, err, metav1.StatusReasonUnsupportedMediaType)
		err = raw.Get().AbsPath("/api/v1/nodes").SetHeader("Accept", "application/vnd.kubernetes.protobuf").Do(ctx).Error()
		mustReason(t, err, metav1.StatusReasonNotAcceptable)
		err = raw.Put().AbsPath("/api/v1/nodes").Body([]byte(`{}`)).Do(ctx).Error()
		mustReason(t, err, metav1.StatusReasonMethodNotAllowed)
		err = raw.Get().AbsPath("/apis/nonsense.example.org/v1/things").Do(ctx).Error()
		mustReason(t, err, metav1.StatusReasonNotFound)
		err = raw.Get().AbsPath("/api/v1/namespaces/default/nodes").Do(ctx).Error()
		mustReason(t, err, metav1.StatusReasonNotFound)
	})
}

// TestAccess checks who is let in where.
func TestAccess(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		l.running(apiAddr)
		anonymous := l.config(apiAddr)
		anonymous.CertData, anonymous.KeyData = nil, nil
		for path, want := range map[string]int{"/readyz": 200, "/livez": 200, "/healthz": 200, "/version": 200, "/readyz?verbose": 200, "/api": 401, "/api/v1/nodes": 401} {
			code, body := get(t, anonymous, path)
			if code != want {
				t.Errorf("anonymous GET %s: %d %s, want %d", path, code, body, want)
			}
			if path == "/readyz" && body != "ok" {
				t.Errorf("readyz says %q", body)
			}
			if want == 401 {
				var s metav1.Status
				if err := json.Unmarshal([]byte(body), &s); err != nil || s.Reason != metav1.StatusReasonUnauthorized || s.Kind != "Status" {
					t.Errorf("anonymous GET %s: %s", path, body)
				}
			}
		}
		weak := l.config(apiAddr)
		weak.CertData, weak.KeyData = l.client("jane", "people")
		code, body := get(t, weak, "/api/v1/nodes")
		if code != 403 || !strings.Contains(body, `nodes is forbidden: User \"jane\" cannot list resource \"nodes\" in API group \"\" at the cluster scope`) {
			t.Errorf("GET as somebody else: %d %s", code, body)
		}
		other := newLab(t, world.Config{})
		stranger := l.config(apiAddr)
		stranger.CertData, stranger.KeyData = other.client("admin", "system:masters")
		if code, _ := get(t, stranger, "/api/v1/nodes"); code != 401 {
			t.Errorf("GET with a certificate of another CA: %d, want 401", code)
		}
		distrust := l.config(apiAddr)
		distrust.CAData = other.ca.PEM
		client, err := rest.HTTPClientFor(distrust)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Get(distrust.Host + "/readyz"); err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("the server's certificate is believed under another CA: %v", err)
		}
	})
}

// TestClientWhoseTimeIsUp keeps a connection open beyond the life of the
// certificate it was opened with.
func TestClientWhoseTimeIsUp(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		l.running(apiAddr)
		c := l.config(apiAddr)
		var err error
		if c.CertData, c.KeyData, err = l.ca.Client(time.Minute, "admin", "system:masters"); err != nil {
			t.Fatal(err)
		}
		dials := 0
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials++
			return l.world.Net.DialContext(ctx, network, addr)
		}
		client, err := rest.HTTPClientFor(c)
		if err != nil {
			t.Fatal(err)
		}
		defer utilnet.CloseIdleConnectionsFor(client.Transport)
		for _, want := range []int{200, 200, 401, 401} {
			resp, err := client.Get(c.Host + "/api/v1/nodes")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != want {
				t.Errorf("the answer is %d, want %d", resp.StatusCode, want)
			}
			time.Sleep(31 * time.Second)
		}
		if dials != 1 {
			t.Errorf("%d connections were opened", dials)
		}
	})
}

func get(t *testing.T, c *rest.Config, path string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	resp, err := client.Get(c.Host + path)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestDefaultClient uses client-go as it comes: it writes protobuf, and takes
// JSON for an answer.
func TestDefaultClient(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		l.running(apiAddr)
		config := l.config(apiAddr)
		config.ContentType = ""
		set := kubernetes.NewForConfigOrDie(config)
		deployments := set.AppsV1().Deployments("default")
		d, err := deployments.Create(ctx, deployment("web", 2), metav1.CreateOptions{})
		if err != nil || *d.Spec.Replicas != 2 || d.Spec.Template.Spec.Containers[0].Image != "web:1" {
			t.Fatalf("created %+v, %v", d, err)
		}
		if list, err := deployments.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
			t.Errorf("list %+v, %v", list, err)
		}
		if err := deployments.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func TestStatusIsAPartOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		jobs := set.BatchV1().CronJobs("default")
		body := []byte(`{"metadata":{"name":"j"},"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i:1"}]}}}}},"status":{"lastScheduleTime":"2020-01-01T00:00:00Z"}}`)
		if err := set.BatchV1().RESTClient().Post().AbsPath("/apis/batch/v1/namespaces/default/cronjobs").Body(body).Do(ctx).Error(); err != nil {
			t.Fatal(err)
		}
		j, err := jobs.Get(ctx, "j", metav1.GetOptions{})
		if err != nil || j.Status.LastScheduleTime != nil || j.Generation != 1 {
			t.Fatalf("status %+v generation %d, %v", j.Status, j.Generation, err)
		}
		when := metav1.NewTime(time.Now().Truncate(time.Second))
		j.Status.LastScheduleTime = &when
		j.Spec.Schedule = "1 * * * *"
		if j, err = jobs.UpdateStatus(ctx, j, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if j.Spec.Schedule != "* * * * *" || j.Status.LastScheduleTime == nil || j.Generation != 1 {
			t.Errorf("after the status update: %+v", j)
		}
		j.Spec.Schedule = "1 * * * *"
		j.Status.LastScheduleTime = nil
		if j, err = jobs.Update(ctx, j, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if j.Spec.Schedule != "1 * * * *" || j.Status.LastScheduleTime == nil || j.Generation != 2 {
			t.Errorf("after the update: %+v", j)
		}
	})
}

func TestPatches(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		deployments := set.AppsV1().Deployments("default")
		d := deployment("web", 1)
		d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{Name: "side", Image: "side:1"})
		d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "a", Operator: "Exists"}}
		if _, err := deployments.Create(ctx, d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		patch := func(kind types.PatchType, body string, opts metav1.PatchOptions) *appsv1.Deployment {
			t.Helper()
			out, err := deployments.Patch(ctx, "web", kind, []byte(body), opts)
			if err != nil {
				t.Fatalf("%s %s: %v", kind, body, err)
			}
			return out
		}
		images := func(d *appsv1.Deployment) string {
			var s []string
			for _, c := range d.Spec.Template.Spec.Containers {
				s = append(s, c.Name+"="+c.Image)
			}
			return strings.Join(s, " ")
		}
		// Containers merge by name, tolerations are replaced.
		got := patch(types.StrategicMergePatchType, `{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"side:2"}],"tolerations":[{"key":"b","operator":"Exists"}]}}}}`, metav1.PatchOptions{})
		if images(got) != "side=side:2 main=web:1" && images(got) != "main=web:1 side=side:2" {
			t.Errorf("images %s", images(got))
		}
		if tol := got.Spec.Template.Spec.Tolerations; len(tol) != 1 || tol[0].Key != "b" {
			t.Errorf("tolerations %+v", tol)
		}
		got = patch(types.StrategicMergePatchType, `{"spec":{"template":{"spec":{"containers":[{"name":"side","$patch":"delete"}]}}}}`, metav1.PatchOptions{})
		if images(got) != "main=web:1" {
			t.Errorf("images %s", images(got))
		}
		got = patch(types.MergePatchType, `{"metadata":{"labels":{"x":"y"}},"spec":{"replicas":3,"template":{"spec":{"tolerations":null}}}}`, metav1.PatchOptions{})
		if *got.Spec.Replicas != 3 || got.Labels["x"] != "y" || got.Spec.Template.Spec.Tolerations != nil {
			t.Errorf("after the merge patch: %+v", got)
		}
		got = patch(types.JSONPatchType, `[{"op":"test","path":"/spec/replicas","value":3},{"op":"replace","path":"/spec/replicas","value":2}]`, metav1.PatchOptions{})
		if *got.Spec.Replicas != 2 {
			t.Errorf("replicas %d", *got.Spec.Replicas)
		}
		_, err := deployments.Patch(ctx, "web", types.JSONPatchType, []byte(`[{"op":"test","path":"/spec/replicas","value":3}]`), metav1.PatchOptions{})
		mustReason(t, err, metav1.StatusReasonInvalid)
		_, err = deployments.Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"selector":{"matchLabels":{"app":"z"}}}}`), metav1.PatchOptions{})
		mustReason(t, err, metav1.StatusReasonInvalid)
		_, err = deployments.Patch(ctx, "web", types.MergePatchType, []byte(`{"metadata":{"resourceVersion":"1"}}`), metav1.PatchOptions{})
		mustReason(t, err, metav1.StatusReasonConflict)
		_, err = deployments.Patch(ctx, "none", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
		mustReason(t, err, metav1.StatusReasonNotFound)

		apply := metav1.PatchOptions{FieldManager: "test"}
		_, err = deployments.Patch(ctx, "web", types.ApplyYAMLPatchType, []byte("apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 4}\n"), apply)
		mustReason(t, err, metav1.StatusReasonConflict) // whoever set them owns them
		force := true
		apply.Force = &force
		got = patch(types.ApplyYAMLPatchType, "apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 4}\n", apply)
		if *got.Spec.Replicas != 4 || images(got) != "main=web:1" {
			t.Errorf("after apply: %d replicas of %s", *got.Spec.Replicas, images(got))
		}
		apply.DryRun = []string{metav1.DryRunAll}
		if got = patch(types.ApplyYAMLPatchType, "apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 5}\n", apply); *got.Spec.Replicas != 5 {
			t.Errorf("dry run answers %d replicas", *got.Spec.Replicas)
		}
		if now, err := deployments.Get(ctx, "web", metav1.GetOptions{}); err != nil || *now.Spec.Replicas != 4 {
			t.Errorf("the dry run was real: %v", err)
		}
		made, err := set.CoreV1().ConfigMaps("default").Patch(ctx, "applied", types.ApplyYAMLPatchType, []byte("apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n"), metav1.PatchOptions{FieldManager: "test"})
		if err != nil || made.Data["a"] != "b" || made.UID == "" {
			t.Errorf("apply of a new object: %+v, %v", made, err)
		}
	})
}

func TestFaults(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.running(apiAddr)
		maps := set.CoreV1().ConfigMaps("default")
		l.world.Inject(
			world.Fault{System: "kube", Op: "POST /api/v1/namespaces/{namespace}/configmaps", Subject: "default/lost", Kind: world.LoseReply},
			world.Fault{System: "kube", Op: "GET /api/v1/namespaces/{namespace}/configmaps", Kind: world.EmptyList},
			world.Fault{System: "kube", Op: "GET /readyz", Subject: "cp-1", Kind: world.Answer, Status: 500, Text: "[-]etcd failed"},
			world.Fault{System: "kube", Op: "WATCH /api/v1/nodes", Kind: world.LoseReply},
		)
		if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "lost"}}, metav1.CreateOptions{}); err == nil {
			t.Error("the lost reply arrived")
		}
		if _, err := maps.Get(ctx, "lost", metav1.GetOptions{}); err != nil {
			t.Errorf("the call whose reply was lost was not carried out: %v", err)
		}
		list, err := maps.List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 0 {
			t.Errorf("%d objects in the empty list, %v", len(list.Items), err)
		}
		if err := set.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); !apierrors.IsInternalError(err) {
			t.Errorf("readyz: %v", err)
		}
		if _, err := set.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{}); err == nil {
			t.Error("the watch whose reply was lost was answered")
		}
		var last world.CallRecord
		for _, c := range l.world.Calls() {
			last = c
		}
		if last.Op != "WATCH /api/v1/nodes" || last.Mutating {
			t.Errorf("last call %+v", last)
		}
	})
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: name + ":1"}}},
			},
		},
	}
}
