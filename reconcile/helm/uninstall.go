package helm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/kube"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/storage/driver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// labelManager of a release holds the id of the cluster that manages it. A release
// without it is installed, and left to somebody else.
const labelManager = "talos-agent.dev/manager"

// Why a release is not uninstalled: it ...
const (
	keptNetwork   = "is the container network"
	keptChanged   = "has been changed by somebody else"
	keptUnmanaged = "is not marked as managed by this cluster"
)

// aNetwork finds the container network in a manifest: its pods write its
// configuration into the folder that the kubelet's runtime reads; that of Calico is made
// by its operator. Source: containerd 2.1, the default of conf_dir; Talos 1.14.
var aNetwork = pattern.New(`/etc/cni/net\.d|operator\.tigera\.io`)

// isNetwork reports whether a release is, or may be, the container network.
func isNetwork(release, manifest string) bool {
	return release == string(cluster.CNICilium) || aNetwork.MatchString(manifest)
}

// keptFor is why a release is not uninstalled without its addon, as far as its labels
// show it, "" when they do not.
func (r revision) keptFor(clusterID string) string {
	switch {
	case r.manager == "" || r.manager != clusterID:
		return keptUnmanaged
	case !r.mine:
		return keptChanged
	}
	return ""
}

// keeps is why a release is not uninstalled without its addon, "" when it may be.
func (r *Releaser) keeps(ctx context.Context, conn *connection, rev revision, clusterID string) string {
	if why := rev.keptFor(clusterID); why != "" {
		return why
	}
	switch has, err := r.contentOf(ctx, conn, rev); {
	case err != nil:
		return "is not known: " + err.Error()
	case has.network:
		return keptNetwork
	}
	return ""
}

// managerOf is the id of the cluster that manages an addon, "" when none does.
func managerOf(d cluster.Desired, a cluster.Addon) string {
	if a.Ownership == cluster.BootstrapOnly {
		return ""
	}
	return d.Spec.ID
}

// newestOf returns the newest revision of a release, nil when there is none.
func newestOf(helm *action.Configuration, release string) (*release.Release, error) {
	history, err := helm.Releases.History(release)
	if errors.Is(err, driver.ErrReleaseNotFound) || err == nil && len(history) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	releaseutil.SortByRevision(history)
	return history[len(history)-1], nil
}

// Uninstall removes a release that the cluster manages and no addon of the inventory
// has, and finishes what was interrupted. That it is such a release is verified against
// the cluster first. A release that is not there is removed.
//
// Namespaces and custom resource definitions stay, and with them what others have in
// them; so do objects that belong to another release by now, and what the chart wants
// kept.
func (r *Releaser) Uninstall(ctx context.Context, d cluster.Desired, n cluster.ReleaseName) error {
	what := "uninstall addon " + n.Name
	ctx, end, err := r.begin(ctx)
	if err != nil {
		return wrapError(what, err)
	}
	defer end()
	done, err := r.reserve(ctx, name{n.Namespace, n.Name})
	if err != nil {
		return wrapError(what, err)
	}
	defer done()
	if err := r.uninstall(ctx, d, n); err != nil {
		return wrapError(what, err)
	}
	return nil
}

func (r *Releaser) uninstall(ctx context.Context, d cluster.Desired, n cluster.ReleaseName) error {
	if slices.ContainsFunc(d.Spec.Addons, func(a cluster.Addon) bool { return a.Name == n.Name && a.Namespace == n.Namespace }) || !d.Spec.Prune {
		return errors.New("the inventory does not want it removed")
	}
	conn, err := r.ownConnection(d)
	if err != nil {
		return err
	}
	defer conn.Close()
	w, err := newWorkshop(ctx, conn, n.Namespace)
	if err != nil {
		return fmt.Errorf("make client for %s: %w", conn.server, err)
	}
	last, err := newestOf(w.helm, n.Name)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return newError(findHint(err.Error()), "%s", sanitize(err.Error()))
	case last == nil:
		return nil
	}
	if kept := keptWhy(d, last); kept != "" {
		return newError(fmt.Sprintf("put the addon back, or remove the release by hand: `helm -n %s uninstall %s`", n.Namespace, n.Name), "its release %s", kept)
	}
	if err := removeRelease(w, last); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	r.settleView(ctx, "release "+n.Name, func(v *view) bool {
		_, there := v.newest(name{n.Namespace, n.Name})
		return !there
	})
	return nil
}

// keptWhy is why a release must not be uninstalled, by its record, "" when it may be.
func keptWhy(d cluster.Desired, rel *release.Release) string {
	rev := revision{digest: rel.Labels[labelDigest], manager: rel.Labels[labelManager], mine: rel.Labels[labelRevision] == strconv.Itoa(rel.Version)}
	switch {
	case rev.digest == "":
		return "is somebody else's"
	case isNetwork(rel.Name, rel.Manifest):
		return keptNetwork
	}
	return rev.keptFor(d.Spec.ID)
}

// removeRelease has Helm uninstall a release. What Helm could not delete it only logs.
func removeRelease(w *workshop, rel *release.Release) error {
	var logged string
	w.helm.Log = func(format string, args ...any) {
		if line := fmt.Sprintf(format, args...); strings.Contains(line, "Failed to delete release") {
			logged = line
		}
	}
	w.kube.release = rel.Name
	uninstall := action.NewUninstall(w.helm)
	uninstall.Timeout, uninstall.IgnoreNotFound = hooksWithin, true
	_, err := uninstall.Run(rel.Name)
	if err == nil {
		return nil
	}
	words := err.Error()
	if logged != "" {
		words = logged
	}
	values, err := json.Marshal(rel.Config)
	if err != nil {
		return err
	}
	words = scrubText(words, secretsIn(values), func(string) bool { return false })
	return newError(findHint(words), "%s", words)
}

// DeleteWithPropagationPolicy implements kube.InterfaceDeletionPropagation. Helm
// calls it to uninstall a release, by the names of its objects: those that stay are left
// out.
func (c *kubeClient) DeleteWithPropagationPolicy(list kube.ResourceList, policy metav1.DeletionPropagation) (*kube.Result, []error) {
	var goes kube.ResourceList
	for _, info := range list {
		stays, err := c.isKept(info)
		switch {
		case err != nil:
			return nil, []error{err}
		case !stays:
			goes = append(goes, info)
		}
	}
	if len(goes) == 0 {
		return &kube.Result{}, nil
	}
	return c.Client.DeleteWithPropagationPolicy(goes, policy)
}

// isKept reports whether an object stays when its release is uninstalled: a container of
// what others made, or what another release has taken over.
func (c *kubeClient) isKept(info *resource.Info) (bool, error) {
	switch kind := info.Mapping.GroupVersionKind; {
	case kind.Group == "" && kind.Kind == "Namespace", kind.Group == "apiextensions.k8s.io":
		return true, nil
	}
	err := info.Get()
	if apierrors.IsNotFound(err) {
		return true, nil // already deleted
	}
	if err != nil {
		return false, err
	}
	o, err := meta.Accessor(info.Object)
	if err != nil {
		return false, err
	}
	// Helm 3.22, pkg/action/validate.go.
	notes := o.GetAnnotations()
	return notes["meta.helm.sh/release-name"] != c.release || notes["meta.helm.sh/release-namespace"] != c.Namespace, nil
}

// settleView waits for a moment until the view shows what was done, so that the state
// before it is not taken for the result.
func (r *Releaser) settleView(ctx context.Context, what string, done func(*view) bool) {
	r.mu.Lock()
	v := r.view
	r.mu.Unlock()
	if v == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	if err := v.wait(ctx, func() bool { return done(v) }); err != nil {
		r.log.Debug("what was written is not seen yet", logging.Detail, what, logging.Err, err)
	}
}
