package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/worker/workertest"
)

const turn = "reboot"

// The answers to evictions that Kubernetes 1.36.3 gave, as recorded.
const (
	noBudget   = `{"apiVersion":"v1","code":429,"details":{"causes":[{"message":"The disruption budget db needs 1 healthy pods and has 1 currently","reason":"DisruptionBudget"}]},"kind":"Status","message":"Cannot evict pod as it would violate the pod's disruption budget.","metadata":{},"reason":"TooManyRequests","status":"Failure"}`
	manyBudget = `{"apiVersion":"v1","code":500,"kind":"Status","message":"This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.","metadata":{},"status":"Failure"}`
	created    = `{"apiVersion":"v1","code":201,"kind":"Status","metadata":{},"status":"Success"}`
)

// eviction is a request to evict a pod.
type eviction struct {
	pod string
	at  time.Duration
}

// drains is a bench with two workers, whose evictions a test can answer itself.
type drains struct {
	unreached bool // evictions may shorten the grace of pods
	*bench
	set   kubernetes.Interface
	begun time.Time

	mu        sync.Mutex
	evictions []eviction
	// answer, where it is set, answers an eviction; "" : it goes to the API.
	answer   func(pod string) (code int, body string)
	log      bytes.Buffer
	progress []cluster.Progress
}

// onDrains runs a test in virtual time.
func onDrains(t *testing.T, planes int, f func(b *drains)) {
	t.Helper()
	bubble(t, planes, func(base *bench) {
		b := &drains{bench: base, begun: time.Now()}
		base.cluster.Close()
		base.cluster = New(Config{Worker: workertest.Run, Dial: base.link.DialContext, Log: slog.New(slog.NewTextHandler(locked{&b.mu, &b.log}, nil)),
			Wrap: func(next http.RoundTripper) http.RoundTripper { return front{b, next} }})
		for n := range planes {
			b.serve(n + 1)
		}
		conn, err := kubeapi.Connect(b.desired.Access.Kube, base.world.Net.DialContext, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(conn.Close)
		b.set, err = kubernetes.NewForConfigAndClient(&rest.Config{Host: serverOf(b.desired.Spec.Nodes[planes-1].IP), QPS: -1, WarningHandler: rest.NoWarnings{},
			ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}}, &http.Client{Transport: conn})
		if err != nil {
			b.Fatal(err)
		}
		// CoreDNS comes to wk-2, so that wk-1 has no pods but those of a test.
		ready, _ := b.join("wk-2", "10.0.0.22", 502)
		<-ready
		b.until("CoreDNS is ready", func() bool {
			d, err := b.set.AppsV1().Deployments("kube-system").Get(context.Background(), "coredns", metav1.GetOptions{})
			return err == nil && d.Status.ReadyReplicas == d.Status.Replicas && d.Status.Replicas > 0
		})
		ready, _ = b.join("wk-1", "10.0.0.21", 501)
		<-ready
		b.boot("wk-1", "boot-1")
		b.mustKnow(b.look(), 2)
		b.calls()
		f(b)
	})
}

// locked is a writer for several goroutines.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// front stands between the Cluster and the API.
type front struct {
	b    *drains
	next http.RoundTripper
}

func (f front) RoundTrip(r *http.Request) (*http.Response, error) {
	if path.Base(r.URL.Path) == "eviction" {
		pod := path.Base(path.Dir(r.URL.Path))
		f.b.checkEviction(r)
		f.b.mu.Lock()
		f.b.evictions = append(f.b.evictions, eviction{pod, time.Since(f.b.begun)})
		answer := f.b.answer
		f.b.mu.Unlock()
		if answer != nil {
			if code, body := answer(pod); body != "" {
				return &http.Response{StatusCode: code, Proto: "HTTP/2.0", ProtoMajor: 2, Request: r,
					Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
			}
		}
	}
	return f.next.RoundTrip(r)
}

// checkEviction fails unless an eviction is of one pod, whatever others of its name
// there are by then.
func (b *drains) checkEviction(r *http.Request) {
	body, err := r.GetBody()
	if err != nil {
		b.Error(err)
		return
	}
	var e policyv1.Eviction
	if err := json.NewDecoder(body).Decode(&e); err != nil || e.DeleteOptions == nil || e.DeleteOptions.Preconditions == nil || e.DeleteOptions.Preconditions.UID == nil || e.DeleteOptions.GracePeriodSeconds != nil && !b.unreached {
		b.Errorf("eviction %+v, %v", e, err)
	}
}

// boot sets the boot id that a node's kubelet reports.
func (b *drains) boot(name, id string) {
	b.Helper()
	if _, err := b.set.CoreV1().Nodes().Patch(context.Background(), name, types.MergePatchType,
		[]byte(fmt.Sprintf(`{"status":{"nodeInfo":{"bootID":%q}}}`, id)), metav1.PatchOptions{}, "status"); err != nil {
		b.Fatal(err)
	}
}

// loseNode has a node run pods, with a grace unless nil, and then has Kubernetes not reach it.
func (b *drains) loseNode(name string, grace *int64, pods ...string) {
	b.Helper()
	b.unreached = true
	ready, stop := b.join(name, "10.0.0.23", 503)
	<-ready
	b.boot(name, "boot-3")
	for _, pod := range pods {
		b.addPod(pod, func(p *corev1.Pod) { p.Spec.NodeName, p.Spec.TerminationGracePeriodSeconds = name, grace })
	}
	stop()
	b.until("it is lost", func() bool { return isUnreachable(b.node(name)) })
}

// interruptDrain begins a drain whose pod may not be evicted, and has whoever began it end.
func (b *drains) interruptDrain() {
	b.Helper()
	b.addPod("db", nil)
	b.refuseAll("db")
	ctx, cancel := context.WithTimeout(context.Background(), 12*time.Second)
	defer cancel()
	if err := b.drainWith(ctx, cluster.Drain{}); !errors.Is(err, context.DeadlineExceeded) {
		b.Errorf("%v", err)
	}
	b.mustBe(true, turn, "")
}

// patchNode changes a Node as a person does.
func (b *drains) patchNode(name, patch string) {
	b.Helper()
	if _, err := b.set.CoreV1().Nodes().Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		b.Fatal(err)
	}
}

func podTemplate(name string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}}}
}

// addPod makes a pod without a controller on wk-1, and waits until it runs.
func (b *drains) addPod(name string, alter func(*corev1.Pod)) {
	b.Helper()
	template := podTemplate(name)
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Spec.NodeName = name, "wk-1"
	if alter != nil {
		alter(pod)
	}
	if _, err := b.set.CoreV1().Pods("default").Create(context.Background(), pod, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	b.until(name+" runs", func() bool {
		p, err := b.set.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning
	})
}

// addDeployment makes a Deployment, and waits until it is ready.
func (b *drains) addDeployment(name string, replicas int32, alter func(*corev1.PodSpec)) {
	b.Helper()
	template := podTemplate(name)
	if alter != nil {
		alter(&template.Spec)
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template}}
	if _, err := b.set.AppsV1().Deployments("default").Create(context.Background(), d, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	b.until(name+" is ready", func() bool {
		d, err := b.set.AppsV1().Deployments("default").Get(context.Background(), name, metav1.GetOptions{})
		return err == nil && d.Status.ReadyReplicas == replicas
	})
}

// until waits, in virtual time.
func (b *drains) until(what string, cond func() bool) {
	b.Helper()
	for end := time.Now().Add(10 * time.Minute); !cond(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("%s: never", what)
		}
	}
}

// podsOn returns the names of the pods of the namespace default on a node that are not
// being deleted.
func (b *drains) podsOn(node string) (names []string) {
	b.Helper()
	list, err := b.set.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		b.Fatal(err)
	}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			names = append(names, p.Name)
		}
	}
	return names
}

func (b *drains) node(name string) *corev1.Node {
	b.Helper()
	n, err := b.set.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// drain drains wk-1.
func (b *drains) drain(how cluster.Drain) error { return b.drainWith(context.Background(), how) }

func (b *drains) drainWith(ctx context.Context, how cluster.Drain) error {
	return b.cluster.Drain(ctx, b.desired, cluster.Node{Name: "wk-1"}, turn, how, b.note)
}

// note keeps how far an action has come.
func (b *drains) note(p cluster.Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.progress = append(b.progress, p)
}

// asked returns how often a pod was asked to be evicted, and all that was logged.
func (b *drains) asked(pod string) (times int, log string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.evictions {
		if e.pod == pod {
			times++
		}
	}
	return times, b.log.String()
}

// mustBe fails unless wk-1 is cordoned or not, for a turn, and drained.
func (b *drains) mustBe(cordoned bool, turn, drained string) {
	b.Helper()
	n := b.node("wk-1")
	if n.Spec.Unschedulable != cordoned || n.Annotations[cluster.AnnotationTurn] != turn || n.Annotations[cluster.AnnotationDrained] != drained {
		b.Errorf("the node has unschedulable %v, annotations %v", n.Spec.Unschedulable, n.Annotations)
	}
}

// refuseAll answers evictions of one pod with what Kubernetes answers when its budget
// allows none.
func (b *drains) refuseAll(pod string) {
	b.answer = func(name string) (int, string) {
		if name == pod {
			return http.StatusTooManyRequests, noBudget
		}
		return 0, ""
	}
}

// keep accepts evictions of one pod that has no effect.
func (b *drains) keep(pod string) {
	b.answer = func(name string) (int, string) {
		if name == pod {
			return http.StatusCreated, created
		}
		return 0, ""
	}
}

// attach makes a volume that is attached to a node.
func (b *drains) attach(node string) {
	b.Helper()
	pv := "pv-1"
	if _, err := b.set.StorageV1().VolumeAttachments().Create(context.Background(), &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-" + node},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: "lab.csi", NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
}
