package manifests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/reconcile/edits"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

const (
	// lookWithin bounds one comparison: some 30 objects, one request or two each.
	lookWithin = 10 * time.Second
	// goodFor is how long a comparison is used while no node changes: what Talos renders changes
	// with its version, which takes a boot, with the kubelets', and with the configs of control planes.
	goodFor = 24 * time.Hour
	// lacksFor is the same while a control plane has not rendered all that it is to, as where it cannot download it.
	lacksFor = 10 * time.Minute
	// againFor is the same where there is something to be done, or nothing could be compared: that is tried at
	// growing distances at first, since an agent that starts has no connection yet.
	againFor = 30 * time.Second
	// rollsFor is the same, at first, while nothing but pods is awaited, which start within seconds: a hop waits for them.
	rollsFor = 5 * time.Second
	// missedFor is for how long what was seen last still counts while nothing can be compared.
	missedFor = 2 * time.Minute
)

// Config is how Kubernetes is reached, and where the manifests come from.
type Config struct {
	// API is the base URL of a kube-apiserver that is ready; ok is false while there is none.
	API  func() (server string, ok bool)
	Dial kubeapi.Dial
	Wrap kubeapi.Wrap
	// Rendered are the manifests as all control planes render them.
	Rendered func(context.Context, cluster.Desired) cluster.Seen[cluster.RenderedManifests]
	// Configs identify what the control planes run of their configs, by name, as far as that is known. It does not
	// wait for any of them.
	Configs func(cluster.Desired) map[string]string
}

// Keeper compares the manifests of one cluster, and applies them.
type Keeper struct {
	c Config

	mu    sync.Mutex
	asked time.Time
	nodes string // what the nodes ran then
	// configs are those of the control planes, as they were known last then.
	configs map[string]string
	seen    cluster.Seen[cluster.Manifests]
	since   time.Time // of the first comparison in a row that failed; zero: the last one did not
	rolls   time.Time // of the first in a row that has found nothing but pods to wait for; zero: the last one did not
}

// New makes a Keeper. It makes no request before Observe.
func New(c Config) *Keeper { return &Keeper{c: c} }

// Forget implements reconcile.Forgetter.
func (k *Keeper) Forget(string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = time.Time{}
}

// Observe fills in o.Manifests, from o.Nodes: they are looked at only while all nodes are Ready and run the same, and again when
// all run something else. That nodes are on their way leaves it unknown without a reason.
func (k *Keeper) Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed) {
	nodes, ready := describeNodes(d, o.Nodes.Value)
	if !o.Nodes.Known || !ready || o.Facts.Destroying() {
		return
	}
	configs := k.c.Configs(d)
	k.mu.Lock()
	age, last, same, edited := time.Since(k.asked), k.seen, k.nodes == nodes, isOther(k.configs, configs)
	good := k.lastsFor()
	k.mu.Unlock()
	if same && !edited && age < good {
		o.Manifests = last
		return
	}
	asked := time.Now()
	o.Manifests = k.look(ctx, d, areInventoried(d, o.Nodes.Value))
	since := k.countFailures(asked, o.Manifests.Known)
	if !o.Manifests.Known && same && last.Known && asked.Sub(since) < missedFor {
		o.Manifests = last
	}
	if m := &o.Manifests.Value; len(m.Changes) > 0 {
		if m.Since = last.Value.Since; m.Since.IsZero() || len(last.Value.Changes) == 0 {
			m.Since = asked
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked, k.nodes, k.seen = asked, nodes, o.Manifests
	switch m := o.Manifests; {
	case !m.Known || len(m.Value.Changes) > 0 || len(m.Value.Rolling) == 0:
		k.rolls = time.Time{}
	case k.rolls.IsZero():
		k.rolls = asked
	}
	if k.configs == nil {
		k.configs = map[string]string{}
	}
	maps.Copy(k.configs, configs)
}

// lastsFor is how long the last comparison is used while no node changes. Pods that do not start are asked for at growing distances.
// The Keeper's lock is held.
func (k *Keeper) lastsFor() time.Duration {
	last := k.seen
	switch {
	case !k.since.IsZero():
		return min(againFor, k.asked.Sub(k.since))
	case !k.rolls.IsZero():
		return min(againFor, max(rollsFor, k.asked.Sub(k.rolls)/2))
	case last.Known && len(last.Value.Changes)+len(last.Value.Rolling) == 0 && last.Value.Rendered.Lacks != "":
		return lacksFor
	case last.Known && len(last.Value.Changes)+len(last.Value.Rolling) == 0:
		return goodFor
	}
	return againFor
}

// countFailures notes how a comparison ended, and returns since when all have failed.
func (k *Keeper) countFailures(asked time.Time, known bool) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case known:
		k.since = time.Time{}
	case k.since.IsZero():
		k.since = asked
	}
	return k.since
}

// describeNodes is what changes with the manifests that nodes render, and whether all nodes of the inventory are Ready and
// have that in common. One that is locked stays behind.
func describeNodes(d cluster.Desired, nodes map[string]cluster.KubeNode) (all string, ready bool) {
	for _, n := range d.Spec.Nodes {
		kn := nodes[n.Name]
		has := kn.OS + ", kubelet " + kn.Kubelet
		switch {
		case !kn.Ready, all != "" && has != all && !n.Locked:
			return "", false
		case !n.Locked:
			all = has
		}
	}
	return all, true
}

// isOther reports whether a control plane is known to run another config than it was known to run. One that does not answer, as
// while it boots, is none.
func isOther(before, now map[string]string) bool {
	for name, digest := range now {
		if was := before[name]; was != "" && was != digest {
			return true
		}
	}
	return false
}

// areInventoried reports whether all nodes run a Talos that lists what it deploys: talosctl prunes on the same condition.
func areInventoried(d cluster.Desired, nodes map[string]cluster.KubeNode) bool {
	return !slices.ContainsFunc(d.Spec.Nodes, func(n cluster.Node) bool {
		version, ok := strings.CutPrefix(nodes[n.Name].OS, "Talos (")
		return !ok || !ladder.KeepsInventory(strings.TrimSuffix(version, ")"))
	})
}

// look compares now.
func (k *Keeper) look(ctx context.Context, d cluster.Desired, inventoried bool) cluster.Seen[cluster.Manifests] {
	rendered := k.c.Rendered(ctx, d)
	if !rendered.Known {
		return cluster.Unseen[cluster.Manifests](rendered.Why)
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	found := cluster.Manifests{Rendered: rendered.Value, Inventoried: inventoried}
	if err := k.compare(ctx, d, &found); err != nil {
		return cluster.Unseen[cluster.Manifests](kubeapi.Reason(err))
	}
	return cluster.Saw(found)
}

// compare tries to apply every object of found, and changes nothing.
func (k *Keeper) compare(ctx context.Context, d cluster.Desired, found *cluster.Manifests) error {
	return k.withClient(d, found.Inventoried, func(c *client) error {
		objects, err := c.read(found.Rendered.Objects)
		if err != nil {
			return err
		}
		pruned, err := c.findUnrendered(ctx, objects)
		if err != nil {
			return err
		}
		for _, o := range pruned {
			switch {
			case o.kept != "":
				found.Left = append(found.Left, o.name()+": nothing renders it any longer, and "+o.kept)
			case found.Rendered.Lacks != "":
				found.Left = append(found.Left, o.name()+": nothing renders it now, and "+found.Rendered.Lacks)
			default:
				found.Changes = append(found.Changes, cluster.ObjectChange{Object: o.name(), Deleted: true})
			}
		}
		for _, o := range objects {
			t, err := c.try(ctx, o)
			switch {
			case err != nil:
				return fmt.Errorf("try to apply %s: %w", nameOf(o), err)
			case t.left != "":
				found.Left = append(found.Left, nameOf(o)+": "+t.left)
			case t.change != nil:
				found.Changes = append(found.Changes, *t.change)
			case t.rolls != "":
				found.Rolling = append(found.Rolling, nameOf(o)+": "+t.rolls)
			}
		}
		return nil
	})
}

// Sync applies the objects that a comparison has shown to differ, and deletes those that it has shown to be rendered
// no longer; no other. Each is tried once more right before: one that somebody else has taken over meanwhile is
// left. It ends with the first error. What it applies is in the inventory before, and what it deletes until after that:
// if it ends in between, nothing that Talos has made is missing there.
func (k *Keeper) Sync(ctx context.Context, d cluster.Desired, m cluster.Manifests) error {
	defer k.Forget("")
	return k.withClient(d, m.Inventoried, func(c *client) error {
		objects, err := c.read(m.Rendered.Objects)
		if err != nil {
			return err
		}
		shown := slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool {
			return !slices.ContainsFunc(m.Changes, func(c cluster.ObjectChange) bool { return c.Object == nameOf(o) && !c.Deleted })
		})
		if err := c.addToInventory(ctx, shown); err != nil {
			return fmt.Errorf("list the manifests in %s: %s", inventoryName, kubeapi.Reason(err))
		}
		for _, o := range shown {
			if err := c.apply(ctx, o); err != nil {
				return fmt.Errorf("apply %s: %s", nameOf(o), kubeapi.Reason(err))
			}
		}
		return k.prune(ctx, d, m, c, objects)
	})
}

// withClient has something done with a client of the API that is ready now.
func (k *Keeper) withClient(d cluster.Desired, inventoried bool, do func(*client) error) error {
	server, ok := k.c.API()
	if !ok {
		return errors.New("no kube-apiserver is ready on a control plane's own address")
	}
	if d.Access.Kube.Cert.IsZero() {
		return errors.New("the cluster has no secrets yet")
	}
	conn, err := kubeapi.Connect(d.Access.Kube, k.c.Dial, k.c.Wrap)
	if err != nil {
		return err
	}
	defer conn.Close()
	config := &rest.Config{Host: server, QPS: -1, UserAgent: "talos-agent", WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON}}
	through := &http.Client{Transport: kubeapi.Once(conn)}
	found, err := discovery.NewDiscoveryClientForConfigAndClient(config, through)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfigAndClient(config, through)
	if err != nil {
		return err
	}
	groups, err := restmapper.GetAPIGroupResources(found)
	if err != nil {
		return err
	}
	return do(&client{objects, restmapper.NewDiscoveryRESTMapper(groups), inventoried})
}

// client asks one API.
type client struct {
	objects     dynamic.Interface
	kinds       meta.RESTMapper
	inventoried bool // what is applied is marked, and what is not rendered any longer deleted
}

// read reads the objects, each with its namespace: one of a kind that has namespaces is in default where it
// names none, and one of another kind is in none, as for Talos.
func (c *client) read(rendered cluster.Secret) ([]*unstructured.Unstructured, error) {
	objects, err := readObjects(rendered.Reveal())
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if _, err := c.find(o); err != nil && !meta.IsNoMatchError(err) {
			return nil, err
		}
	}
	return objects, nil
}

// find is where an object belongs, and gives it its namespace.
func (c *client) find(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := o.GroupVersionKind()
	m, err := c.kinds.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() != meta.RESTScopeNameNamespace {
		o.SetNamespace("") // whoever wrote it may have named one: Talos ignores that, too
		return c.objects.Resource(m.Resource), nil
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	return c.objects.Resource(m.Resource).Namespace(o.GetNamespace()), nil
}

// judged is an object that is to be applied, and how.
type judged struct {
	at    dynamic.ResourceInterface
	body  []byte
	force bool // it takes fields from Talos' own earlier writes
	has   *unstructured.Unstructured
	would *unstructured.Unstructured
	left  string // why it is left
}

// judge finds what an apply would do. What is there is named with its version where the apply is forced, so that one
// which somebody changes meanwhile is refused.
func (c *client) judge(ctx context.Context, o *unstructured.Unstructured) (j judged, err error) {
	if j.at, err = c.find(o); err != nil {
		return j, err
	}
	o = o.DeepCopy()
	j.has, err = j.at.Get(ctx, o.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		j.has = nil
	case err != nil:
		return j, err
	default:
		if release := releaseOf(j.has); release != "" {
			j.left = "Helm has it, in release " + release
			return j, nil
		}
	}
	if other := c.mark(o, j.has); other != "" {
		j.left = fmt.Sprintf("the inventory %s has it", other)
		return j, nil
	}
	if j.body, err = json.Marshal(o); err != nil {
		return j, err
	}
	j.would, err = c.patch(ctx, o.GetName(), j, true)
	foreign, conflicts := conflictOf(j.has, err)
	switch {
	case !conflicts:
		return j, err
	case foreign != "":
		j.left = foreign
		return j, nil
	}
	o.SetResourceVersion(j.has.GetResourceVersion())
	if j.body, err = json.Marshal(o); err != nil {
		return j, err
	}
	j.force = true
	j.would, err = c.patch(ctx, o.GetName(), j, true)
	return j, err
}

// patch sends an apply.
func (c *client) patch(ctx context.Context, name string, j judged, dry bool) (*unstructured.Unstructured, error) {
	opts := metav1.PatchOptions{FieldManager: fieldManager, Force: &j.force}
	if dry {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	return j.at.Patch(ctx, name, types.ApplyPatchType, j.body, opts)
}

// tried is what an apply would change of an object, or why it is left, or how far what it changed has come; none of
// these: it is as it should be.
type tried struct {
	change *cluster.ObjectChange
	left   string
	rolls  string
}

// try finds what an apply would do to an object. One that the API refuses, whatever is asked again, keeps no other from
// being compared; what the API writes about it may quote a secret, and is not shown.
func (c *client) try(ctx context.Context, o *unstructured.Unstructured) (tried, error) {
	j, err := c.judge(ctx, o)
	switch {
	case meta.IsNoMatchError(err):
		return tried{left: "its kind is not served"}, nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err):
		return tried{left: fmt.Sprintf("Kubernetes refuses it (%s)", apierrors.ReasonForError(err))}, nil
	case err != nil, j.left != "":
		return tried{left: j.left}, err
	}
	change := &cluster.ObjectChange{Object: nameOf(o)}
	if j.has == nil {
		return tried{change: change}, nil
	}
	would := j.would
	if j.has.GetAnnotations()[owningInventory] == "" {
		would = withoutMark(would) // what Talos < 1.13 made bears none, and gets it when it changes
	}
	for _, e := range edits.Compare(j.has.Object, would.Object) {
		change.Fields = append(change.Fields, cluster.FieldDifference{Field: e.Path, Has: e.Has, Wants: e.Wants})
	}
	if len(change.Fields) == 0 {
		return tried{rolls: describeRollout(j.has)}, nil
	}
	return tried{change: change}, nil
}

// apply applies an object that is still to be changed.
func (c *client) apply(ctx context.Context, o *unstructured.Unstructured) error {
	j, err := c.judge(ctx, o)
	if err != nil || j.left != "" {
		return err
	}
	_, err = c.patch(ctx, o.GetName(), j, false)
	return err
}
