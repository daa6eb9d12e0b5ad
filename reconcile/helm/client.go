package helm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/kube"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/reconcile/helm/record"
)

// maxHistory is how many revisions of a release are kept.
const maxHistory = 5

// getter hands Helm the connection to an API. It lives as long as one action:
// Helm asks again, at the beginning of each, what the API serves, so that a
// longer life would save no call and only keep what was learned in memory.
type getter struct {
	config *rest.Config
	served *served
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newGetter(config *rest.Config) (*getter, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	s := &served{DiscoveryClient: client}
	return &getter{config, s, restmapper.NewDeferredDiscoveryRESTMapper(s)}, nil
}

// served remembers what the API serves. (That of client-go prints what goes
// wrong to the standard error output, and sleeps after it.)
type served struct {
	*discovery.DiscoveryClient

	mu        sync.Mutex
	asked     bool
	groups    []*metav1.APIGroup
	resources []*metav1.APIResourceList
	err       error // beside it, groups and resources hold what could be learned
}

// ServerGroupsAndResources implements discovery.DiscoveryInterface.
func (s *served) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return s.ServerGroupsAndResourcesWithContext(context.Background())
}

// ServerGroupsAndResourcesWithContext implements
// discovery.DiscoveryInterfaceWithContext.
func (s *served) ServerGroupsAndResourcesWithContext(ctx context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asked {
		s.groups, s.resources, s.err = s.DiscoveryClient.ServerGroupsAndResourcesWithContext(ctx)
		s.asked = s.err == nil || discovery.IsGroupDiscoveryFailedError(s.err)
	}
	return s.groups, s.resources, s.err
}

// Fresh implements discovery.CachedDiscoveryInterface.
func (s *served) Fresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// Invalidate implements discovery.CachedDiscoveryInterface.
func (s *served) Invalidate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = false
}

// ToRESTConfig implements genericclioptions.RESTClientGetter.
func (g *getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }

// ToDiscoveryClient implements genericclioptions.RESTClientGetter.
func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return g.served, nil
}

// ToRESTMapper implements genericclioptions.RESTClientGetter.
func (g *getter) ToRESTMapper() (meta.RESTMapper, error) { return g.mapper, nil }

// ToRawKubeConfigLoader implements genericclioptions.RESTClientGetter. There
// is no kubeconfig.
func (g *getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), &clientcmd.ConfigOverrides{})
}

// kubeClient is Helm's client with what must not happen here taken out: it
// never asks for schemas, and waits for hooks under our context. It keeps note
// of the workloads it wrote.
type kubeClient struct {
	*kube.Client
	ctx context.Context
	set kubernetes.Interface
	// release is the one whose objects are deleted, in the client's namespace.
	release string
	// putBack are objects, by their names, of which somebody's edits are taken back. Helm
	// changes custom resources by what differs between two revisions, which is nothing
	// then: these are compared with what is there, too.
	putBack []string

	mu    sync.Mutex
	wrote map[object]written
}

// written is what the API made of a workload.
type written struct {
	uid        types.UID
	generation int64
}

// Build implements kube.Interface.
func (c *kubeClient) Build(manifest io.Reader, _ bool) (kube.ResourceList, error) {
	return c.Client.Build(manifest, false)
}

// Create implements kube.Interface.
func (c *kubeClient) Create(list kube.ResourceList) (*kube.Result, error) {
	res, err := c.Client.Create(list)
	if err == nil {
		c.note(res.Created)
	}
	return res, err
}

// Update implements kube.Interface.
func (c *kubeClient) Update(original, target kube.ResourceList, force bool) (*kube.Result, error) {
	edited := func(info *resource.Info) bool { return slices.Contains(c.putBack, nameObject(info).String()) }
	others := func(info *resource.Info) bool { return !edited(info) }
	res, err := c.Client.Update(original.Filter(others), target.Filter(others), force)
	if again := target.Filter(edited); err == nil && len(again) > 0 {
		var more *kube.Result
		more, err = c.UpdateThreeWayMerge(original.Filter(edited), again, force)
		if more != nil {
			res.Created, res.Updated, res.Deleted = append(res.Created, more.Created...), append(res.Updated, more.Updated...), append(res.Deleted, more.Deleted...)
		}
	}
	if err == nil {
		c.note(res.Created)
		c.note(res.Updated)
	}
	return res, err
}

func (c *kubeClient) note(list kube.ResourceList) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, info := range list {
		kind := kinds[info.Mapping.GroupVersionKind.Kind]
		if kind == "" || info.Mapping.GroupVersionKind.Group != "apps" {
			continue
		}
		if o, err := meta.Accessor(info.Object); err == nil {
			c.wrote[object{kind, info.Namespace, info.Name}] = written{o.GetUID(), o.GetGeneration()}
		}
	}
}

const (
	// hookEvery is how often a hook is looked at.
	hookEvery = time.Second
	// refusalEvery is after how many looks it is asked whether its pods are refused.
	refusalEvery = 5
)

// WatchUntilReady implements kube.Interface: it returns when the hooks have
// run. Helm calls it for hooks only, which must have ended before what comes
// next is made.
func (c *kubeClient) WatchUntilReady(list kube.ResourceList, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	for _, info := range list {
		for look := 1; ; look++ {
			done, err := hookDone(info)
			if err == nil && !done && look%refusalEvery == 0 {
				err = c.checkRefused(ctx, info)
			}
			if err != nil {
				return err
			}
			if done {
				break
			}
			if retry.Sleep(ctx, hookEvery) != nil {
				return fmt.Errorf("hook %s %s has not ended after %s", info.Mapping.GroupVersionKind.Kind, info.Name, timeout)
			}
		}
	}
	return nil
}

// checkRefused returns an error if a hook gets no pod because its namespace allows
// none like it: that does not end by itself.
func (c *kubeClient) checkRefused(ctx context.Context, info *resource.Info) error {
	if job, ok := kube.AsVersioned(info).(*batchv1.Job); !ok || job.Status.Active > 0 {
		return nil
	}
	events, err := c.set.CoreV1().Events(info.Namespace).List(ctx, metav1.ListOptions{FieldSelector: selectRefusals + ",involvedObject.kind=Job,involvedObject.name=" + info.Name})
	if err != nil {
		return err
	}
	job, err := meta.Accessor(info.Object)
	if err != nil {
		return err
	}
	for _, e := range events.Items {
		if why := describeRefusal(e.Message); e.InvolvedObject.UID == job.GetUID() && isSecurity(why) {
			return fmt.Errorf("hook Job %s: %s", info.Name, why)
		}
	}
	return nil
}

// hookDone reports whether a hook has run: Jobs and Pods run, everything else
// is done when it is there.
func hookDone(info *resource.Info) (bool, error) {
	kind := info.Mapping.GroupVersionKind.Kind
	if kind != "Job" && kind != "Pod" {
		return true, nil
	}
	if err := info.Get(); err != nil {
		return false, err
	}
	failed := func(why string) error { return fmt.Errorf("hook %s %s failed: %s", kind, info.Name, why) }
	switch o := kube.AsVersioned(info).(type) {
	case *batchv1.Job:
		for _, c := range o.Status.Conditions {
			switch {
			case c.Status != corev1.ConditionTrue:
			case c.Type == batchv1.JobComplete:
				return true, nil
			case c.Type == batchv1.JobFailed:
				return false, failed(c.Reason)
			}
		}
	case *corev1.Pod:
		switch o.Status.Phase {
		case corev1.PodSucceeded:
			return true, nil
		case corev1.PodFailed:
			return false, failed(o.Status.Reason)
		}
	}
	return false, nil
}

// workshop is what one action works with.
type workshop struct {
	helm   *action.Configuration
	kube   *kubeClient
	set    kubernetes.Interface
	getter *getter
}

// newWorkshop prepares an action in a namespace. Every request of it ends with
// ctx.
func newWorkshop(ctx context.Context, c *connection, namespace string) (*workshop, error) {
	config := c.config(&leash{ctx, c})
	config.Timeout = callWithin
	g, err := newGetter(config)
	if err != nil {
		return nil, err
	}
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	client := &kubeClient{Client: kube.New(g), ctx: ctx, set: set, wrote: map[object]written{}}
	client.Namespace = namespace
	releases := storage.Init(&patient{driver.NewSecrets(set.CoreV1().Secrets(namespace)), ctx})
	releases.MaxHistory = maxHistory
	return &workshop{
		helm: &action.Configuration{
			RESTClientGetter: g, Releases: releases, KubeClient: client,
			// What Helm logs quotes whole objects; what matters comes back as
			// an error.
			Log:            func(string, ...any) {},
			HookOutputFunc: func(_, _, _ string) io.Writer { return io.Discard },
		},
		kube: client, set: set, getter: g,
	}, nil
}

// patient writes the record of a release again when the connection broke over
// it. Helm takes a record it cannot write for one that is written, so that a
// release would stay pending, or two revisions deployed.
type patient struct {
	driver.Driver
	ctx context.Context
}

// Update implements driver.Updator. Writing a record twice is writing it once.
func (p *patient) Update(key string, rel *release.Release) error {
	const tries = 5
	for i := range tries {
		err := p.Driver.Update(key, rel)
		if status := apierrors.APIStatus(nil); err == nil || i == tries-1 || errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError {
			return err
		}
		if retry.Sleep(p.ctx, time.Second<<i) != nil {
			return context.Cause(p.ctx)
		}
	}
	return nil
}

// readManifest reads the manifest of a revision.
func readManifest(ctx context.Context, c *connection, rev revision) (string, error) {
	made, err := readRecord(ctx, c, rev)
	return made.Manifest, err
}

// readRecord reads the record of a revision.
func readRecord(ctx context.Context, c *connection, rev revision) (record.Record, error) {
	set, err := kubernetes.NewForConfigAndClient(c.config(c), &http.Client{Transport: c})
	if err != nil {
		return record.Record{}, err
	}
	secret, err := set.CoreV1().Secrets(rev.name.namespace).Get(ctx, rev.secret, metav1.GetOptions{})
	switch {
	case err != nil:
		return record.Record{}, err
	case secret.UID != rev.uid:
		return record.Record{}, errors.New("it was replaced meanwhile")
	}
	return record.Decode(secret.Data["release"])
}
