package helm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/reconcile/edits"
)

// The labels of what Helm makes. Source: Helm 3.22, pkg/storage/driver/secrets.go
// and pkg/action/validate.go.
const (
	selectReleases  = "owner=helm"
	selectWorkloads = "app.kubernetes.io/managed-by=Helm"
	// selectRefusals are the events of controllers that cannot make a pod.
	selectRefusals = "reason=FailedCreate"
)

// name names a release.
type name struct{ namespace, release string }

// String implements fmt.Stringer.
func (n name) String() string { return n.namespace + "/" + n.release }

// revision is one revision of a release, as the labels of the secret state it.
type revision struct {
	uid    types.UID // of the secret
	secret string
	name   name
	number int
	status string
	// digest is the digest of chart and values, "" when we did not make the
	// release; mine: we made this very revision.
	digest string
	mine   bool
	// manager is the id of the cluster that manages the release, "" when none does.
	manager string
	// good: this very revision was ready; rolledBack: the digest that it took back.
	good       bool
	rolledBack string
	putBack    string // labelPutBack
	writer     string // who wrote it last, as it calls itself, "" when that is not noted
	made       int64  // in seconds since 1970
	tried      int64  // when the first of those that repeat each other was made, 0: this is it
	changed    int64  // when it was written last, in seconds since 1970
}

// view watches the releases and workloads of a cluster through one
// kube-apiserver. It ends by itself when that one is lost; whoever needs it
// then begins another.
type view struct {
	change func() // something changed, or the view was lost
	ctx    context.Context
	cancel context.CancelFunc

	mu        sync.Mutex
	moved     chan struct{} // closed and replaced whenever anything below changes
	lost      error         // why the view ended
	whole     bool          // everything was listed and watched at the same time, once
	missed    bool          // somebody gave up waiting for the first lists
	releases  *shelf[types.NamespacedName, revision]
	workloads map[string]*shelf[object, workload] // by kind
	// namespaces are by name; refusals are events that pods cannot be made, by name.
	namespaces *shelf[string, namespaceMark]
	refusals   *shelf[types.NamespacedName, refusalMark]
}

// newView prepares a view that ends with ctx, when cancel is called, or when
// the server is lost. run must be started by the caller.
func newView(ctx context.Context, c *connection, change func()) (v *view, run func(), err error) {
	config := c.config(kubeapi.Once(c))
	client := &http.Client{Transport: config.Transport}
	secrets, err := metadata.NewForConfigAndClient(metadata.ConfigFor(config), client)
	if err != nil {
		return nil, nil, fmt.Errorf("make client for %s: %w", c.server, err)
	}
	apps, err := appsv1client.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, nil, fmt.Errorf("make client for %s: %w", c.server, err)
	}
	core, err := corev1client.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, nil, fmt.Errorf("make client for %s: %w", c.server, err)
	}
	v = &view{change: change, moved: make(chan struct{})}
	// What client-go reports about a watch that broke is reported by us.
	v.ctx, v.cancel = context.WithCancel(klog.NewContext(ctx, logr.Discard()))
	v.releases, v.namespaces, v.refusals = newShelf(v, revisionOf), newShelf(v, markOf), newShelf(v, refusalOf)
	v.workloads = map[string]*shelf[object, workload]{
		kindDaemonSet: newShelf(v, func(d *appsv1.DaemonSet) (object, workload, bool) {
			return object{kindDaemonSet, d.Namespace, d.Name}, workload{d.UID, d.Generation, daemonSetWaits(d), d.Status.CurrentNumberScheduled < d.Status.DesiredNumberScheduled, edits.Touched(d, isOurs)}, true
		}),
		kindDeployment: newShelf(v, func(d *appsv1.Deployment) (object, workload, bool) {
			return object{kindDeployment, d.Namespace, d.Name}, workload{d.UID, d.Generation, deploymentWaits(d), false, edits.Touched(d, isOurs)}, true
		}),
		kindStatefulSet: newShelf(v, func(d *appsv1.StatefulSet) (object, workload, bool) {
			return object{kindStatefulSet, d.Namespace, d.Name}, workload{d.UID, d.Generation, statefulSetWaits(d), d.Status.Replicas < wantedReplicas(d.Spec.Replicas), edits.Touched(d, isOurs)}, true
		}),
	}
	runs := []func(){
		followObjects(v.releases, secrets.Resource(corev1.SchemeGroupVersion.WithResource("secrets")), &metav1.PartialObjectMetadata{}, selectReleases, ""),
		followObjects(v.namespaces, secrets.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")), &metav1.PartialObjectMetadata{}, "", ""),
		followObjects(v.refusals, core.Events(""), &corev1.Event{}, "", selectRefusals),
		followObjects(v.workloads[kindDaemonSet], apps.DaemonSets(""), &appsv1.DaemonSet{}, selectWorkloads, ""),
		followObjects(v.workloads[kindDeployment], apps.Deployments(""), &appsv1.Deployment{}, selectWorkloads, ""),
		followObjects(v.workloads[kindStatefulSet], apps.StatefulSets(""), &appsv1.StatefulSet{}, selectWorkloads, ""),
	}
	return v, func() {
		var wg sync.WaitGroup
		for _, run := range runs {
			wg.Go(run)
		}
		wg.Wait()
	}, nil
}

// latestTime is the last second that has a form in JSON: what a label has may be any number.
const latestTime = 253402300799

// revisionOf reads the labels of a secret of Helm's.
func revisionOf(o *metav1.PartialObjectMetadata) (types.NamespacedName, revision, bool) {
	number, err := strconv.Atoi(o.Labels["version"])
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	// Helm carries these labels over from the revision before, and sets them only where
	// there are none (3.22, pkg/storage/driver/secrets.go, Query and newSecretsObject): they
	// may be older than the secret. What cannot be read was long ago.
	modified, _ := strconv.ParseInt(cmp.Or(o.Labels["modifiedAt"], o.Labels["createdAt"]), 10, 64)
	made := o.CreationTimestamp.Unix()
	tried, _ := strconv.ParseInt(o.Labels[labelTried], 10, 64) // none: 0
	return key, revision{
		made: made, tried: tried, changed: max(made, min(modified, latestTime)),
		uid: o.UID, secret: o.Name, name: name{o.Namespace, o.Labels["name"]}, number: number, status: o.Labels["status"],
		digest: o.Labels[labelDigest], manager: o.Labels[labelManager], mine: o.Labels[labelRevision] == strconv.Itoa(number),
		good: o.Labels[labelReady] == strconv.Itoa(number), rolledBack: o.Labels[labelRolledBack], putBack: o.Labels[labelPutBack],
		writer: edits.LastWriter(o.ManagedFields),
	}, err == nil
}

// refusalOf reads an event about an object whose pods cannot be made.
func refusalOf(e *corev1.Event) (types.NamespacedName, refusalMark, bool) {
	about := object{kinds[e.InvolvedObject.Kind], e.InvolvedObject.Namespace, e.InvolvedObject.Name}
	key := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
	return key, refusalMark{about, e.CreationTimestamp.Unix(), describeRefusal(e.Message)}, about.kind != ""
}

// update changes something, wakes who waits, and notifies.
func (v *view) update(notify bool, f func()) {
	v.mu.Lock()
	// Whoever began the view still waits for the first lists, and needs no word.
	notify = notify && (v.missed || v.whole)
	f()
	v.whole = v.whole || v.complete()
	close(v.moved)
	v.moved = make(chan struct{})
	v.mu.Unlock()
	if notify {
		v.change()
	}
}

// lose ends the view for good. It notifies like update: a view that is refused
// would call for the next one without end.
func (v *view) lose(err error) {
	v.mu.Lock()
	first, notify := v.lost == nil, v.missed || v.whole
	if first {
		v.lost = err
		close(v.moved)
		v.moved = make(chan struct{})
	}
	v.mu.Unlock()
	if first && notify && !errors.Is(err, context.Canceled) {
		v.change()
	}
}

// complete reports whether everything is listed and watched. v.mu is held.
func (v *view) complete() bool {
	for _, s := range v.workloads {
		if !s.listed || !s.watching {
			return false
		}
	}
	return v.releases.listed && v.releases.watching && v.namespaces.listed && v.namespaces.watching && v.refusals.listed && v.refusals.watching
}

// over reports whether the view has ended.
func (v *view) over() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lost != nil
}

// wait returns when done accepts a complete view, or with an error. done is
// called with v.mu held.
func (v *view) wait(ctx context.Context, done func() bool) error {
	for {
		v.mu.Lock()
		moved, lost, ok := v.moved, v.lost, v.complete() && done()
		v.mu.Unlock()
		switch {
		case lost != nil:
			return lost
		case ok:
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			v.mu.Lock()
			v.missed = true
			v.mu.Unlock()
			return errors.New("it has not listed its releases in time")
		}
	}
}

// newest returns the newest revision of a release. v.mu is held.
func (v *view) newest(n name) (newest revision, ok bool) {
	for _, r := range v.releases.items {
		if r.name == n && (!ok || r.number > newest.number) {
			newest, ok = r, true
		}
	}
	return newest, ok
}

// past is what the earlier revisions of a release are needed for: when the first of the
// newest ones with its digest was made, and which good one it can be brought back to, 0
// when there is none. What was good itself is not brought back to what was before it: it
// was upgraded to the same again, to put back what was missing. v.mu is held.
func (v *view) past(newest revision) (tried int64, back int) {
	var all []revision
	for _, r := range v.releases.items {
		if r.name == newest.name && r.number < newest.number {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b revision) int { return cmp.Compare(b.number, a.number) })
	bad := newest.digest
	if newest.mine && newest.rolledBack != "" {
		bad = newest.rolledBack // by a rollback that did not end
	}
	tried = newest.made
	if newest.mine {
		tried = cmp.Or(newest.tried, tried)
	}
	same := true
	for _, r := range all {
		if same = same && r.digest == newest.digest && r.mine; same {
			tried = cmp.Or(r.tried, r.made)
			if r.good {
				return tried, 0
			}
		}
		if r.good && r.mine && r.digest != bad && r.status != "failed" {
			return tried, r.number
		}
	}
	return tried, 0
}

// left lists the newest revisions of the releases of ours that no addon has. Of one
// that is uninstalled nothing is left but its history. v.mu is held.
func (v *view) left(addons []cluster.Addon) (out []revision) {
	newest := map[name]revision{}
	for _, r := range v.releases.items {
		if have, ok := newest[r.name]; !ok || r.number > have.number {
			newest[r.name] = r
		}
	}
	for n, r := range newest {
		has := slices.ContainsFunc(addons, func(a cluster.Addon) bool { return a.Namespace == n.namespace && a.Name == n.release })
		if r.digest != "" && !has && r.status != "uninstalled" {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b revision) int {
		return cmp.Or(cmp.Compare(a.name.namespace, b.name.namespace), cmp.Compare(a.name.release, b.name.release))
	})
	return out
}

// refusal returns why the last pod of a workload was refused, "" if none is known to
// have been. v.mu is held.
func (v *view) refusal(o object) string {
	var last refusalMark
	for _, m := range v.refusals.items {
		if m.about == o && (last.reason == "" || m.made > last.made) {
			last = m
		}
	}
	return last.reason
}

// workload returns what is known of a workload. v.mu is held.
func (v *view) workload(o object) (workload, bool) {
	w, ok := v.workloads[o.kind].items[o]
	return w, ok
}

// shelf holds what a view knows of one kind of object; it is what a reflector
// fills. Its fields are guarded by the view's mutex.
type shelf[K, V comparable] struct {
	v        *view
	read     func(any) (K, V, bool)
	listed   bool
	watching bool
	items    map[K]V
}

// newShelf makes a shelf for objects that read understands; what it calls not
// ok is left out.
func newShelf[T any, K, V comparable](v *view, read func(T) (K, V, bool)) *shelf[K, V] {
	return &shelf[K, V]{v: v, items: map[K]V{}, read: func(obj any) (key K, value V, ok bool) {
		if o, is := obj.(T); is {
			return read(o)
		}
		return key, value, false
	}}
}

// Add implements cache.ReflectorStore.
func (s *shelf[K, V]) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore. Many updates change nothing anybody
// asks about.
func (s *shelf[K, V]) Update(obj any) error {
	key, value, ok := s.read(obj)
	if !ok {
		return nil
	}
	s.v.mu.Lock()
	have, there := s.items[key]
	s.v.mu.Unlock()
	if !there || have != value {
		s.v.update(true, func() { s.items[key] = value })
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *shelf[K, V]) Delete(obj any) error {
	if key, _, ok := s.read(obj); ok {
		s.v.update(true, func() { delete(s.items, key) })
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *shelf[K, V]) Replace(list []any, _ string) error {
	items := make(map[K]V, len(list))
	for _, obj := range list {
		if key, value, ok := s.read(obj); ok {
			items[key] = value
		}
	}
	s.v.update(true, func() { s.items, s.listed = items, true })
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *shelf[K, V]) Resync() error { return nil }

// client lists and watches one kind of object.
type client[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// followObjects returns a function that keeps a shelf up to date until the server is
// lost, and then ends the whole view.
func followObjects[K, V comparable, L runtime.Object](s *shelf[K, V], c client[L], example any, labels, fields string) (run func()) {
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector, o.FieldSelector = labels, fields
			return c.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector, o.FieldSelector = labels, fields
			s.v.update(false, func() { s.watching = false })
			stream, err := c.Watch(ctx, o)
			if apierrors.IsTooManyRequests(err) {
				// A server that is too busy would make the reflector try it for
				// ever, so that its answer is disguised.
				return nil, kubeapi.InWords(err)
			}
			if err != nil {
				return nil, err
			}
			s.v.update(false, func() { s.watching = true })
			return stream, nil
		},
	}, example, s, cache.ReflectorOptions{Name: labels + fields})
	return func() {
		defer s.v.cancel()
		for {
			began := time.Now()
			round, end := context.WithTimeout(s.v.ctx, kubeapi.ListAgain)
			err := reflector.ListAndWatchWithContext(round)
			again := round.Err() != nil
			end()
			switch {
			case s.v.ctx.Err() != nil:
				err = s.v.ctx.Err()
			case again:
				continue
			case err == nil && time.Since(began) < time.Second:
				err = errors.New("its watches end at once")
			case err == nil:
				// The history it watched was thrown away: list again.
				continue
			}
			s.v.lose(err)
			return
		}
	}
}
