package helm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/storage/driver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// Mark notes in the release of an addon whether the cluster manages it, and that its
// newest revision was ready. A release that is not ours is left as it is.
func (r *Releaser) Mark(ctx context.Context, d cluster.Desired, a cluster.Addon, good bool) error {
	return r.edit(ctx, "mark addon "+a.Name, d, a, func(ctx context.Context, w *workshop) error {
		if err := markRelease(ctx, w, d, a, good); err != nil {
			return err
		}
		r.settleView(ctx, "release "+a.Name, func(v *view) bool {
			rev, ok := v.newest(name{a.Namespace, a.Name})
			return !ok || rev.manager == managerOf(d, a) && (rev.good || !good || !rev.mine)
		})
		return nil
	})
}

// edit has the record of an addon's release to itself.
func (r *Releaser) edit(ctx context.Context, what string, d cluster.Desired, a cluster.Addon, do func(context.Context, *workshop) error) error {
	ctx, end, err := r.begin(ctx)
	if err != nil {
		return wrapError(what, err)
	}
	defer end()
	done, err := r.reserve(ctx, name{a.Namespace, a.Name})
	if err != nil {
		return wrapError(what, err)
	}
	defer done()
	conn, err := r.ownConnection(d)
	if err != nil {
		return wrapError(what, err)
	}
	defer conn.Close()
	w, err := newWorkshop(ctx, conn, a.Namespace)
	if err != nil {
		return wrapError(what, fmt.Errorf("make client for %s: %w", conn.server, err))
	}
	if err := do(ctx, w); err != nil {
		if ctx.Err() != nil {
			return wrapError(what, context.Cause(ctx))
		}
		return wrapError(what, newError(cmp.Or(fault.HintOf(err), findHint(err.Error())), "%s", sanitize(err.Error())))
	}
	return nil
}

// markRelease labels the newest revision, from which the later ones have their labels.
func markRelease(ctx context.Context, w *workshop, d cluster.Desired, a cluster.Addon, good bool) error {
	last, err := newestOf(w.helm, a.Name)
	if err != nil || last == nil || last.Labels[labelDigest] == "" {
		return err
	}
	labels := map[string]any{labelManager: nil}
	if id := managerOf(d, a); id != "" {
		labels[labelManager] = id
	}
	if good && isMine(last) {
		labels[labelReady] = strconv.Itoa(last.Version)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	secret := fmt.Sprintf("sh.helm.release.v1.%s.v%d", last.Name, last.Version) // Helm 3.22, pkg/storage/storage.go
	_, err = w.set.CoreV1().Secrets(a.Namespace).Patch(ctx, secret, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// RollBack brings a release back to a revision of ours that was ready, from one with that
// digest, which did not become so. It finishes a rollback that was interrupted. The
// custom resource definitions of the chart stay as they are.
func (r *Releaser) RollBack(ctx context.Context, d cluster.Desired, a cluster.Addon, to int, digest string) error {
	return r.edit(ctx, "roll back addon "+a.Name, d, a, func(ctx context.Context, w *workshop) error {
		made, err := rollBack(w, d, a, to, digest)
		if err != nil || made == nil {
			return err
		}
		r.searches.forget(nil)
		r.settle(ctx, made, w.kube.wrote)
		return nil
	})
}

// rollBack returns the new revision, nil when it was there.
func rollBack(w *workshop, d cluster.Desired, a cluster.Addon, to int, digest string) (*release.Release, error) {
	history, err := w.helm.Releases.History(a.Name)
	if err != nil {
		return nil, err
	}
	hint := fmt.Sprintf("see what it has: `helm -n %s history %s`", a.Namespace, a.Name)
	if len(history) < 2 {
		return nil, newError(hint, "its release has no revision to go back to")
	}
	releaseutil.SortByRevision(history)
	last := history[len(history)-1]
	at := slices.IndexFunc(history, func(rel *release.Release) bool { return rel.Version == to })
	switch begun := last.Labels[labelRolledBack] == digest; {
	case !isMine(last), !begun && last.Labels[labelDigest] != digest:
		return nil, newError(hint, "its release has changed meanwhile")
	case begun && last.Info.Status == release.StatusDeployed:
		return nil, nil
	case at < 0 || !isMine(history[at]) || history[at].Labels[labelReady] != strconv.Itoa(to):
		return nil, newError(hint, "revision %d is not one of ours that was ready", to)
	}
	if last.Labels[labelRolledBack] == digest {
		// A rollback of ours that did not end. Helm changes custom resources by what
		// differs between the newest record and the target, so that this one would
		// hide what is left to do.
		if _, err := w.helm.Releases.Delete(last.Name, last.Version); err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
			return nil, err
		}
		last = history[len(history)-2]
	}
	// Helm gives the new revision the labels of the old one, with which it would look
	// like somebody else's.
	labels := map[string]string{labelDigest: history[at].Labels[labelDigest], labelRevision: strconv.Itoa(last.Version + 1), labelRolledBack: digest}
	if id := managerOf(d, a); id != "" {
		labels[labelManager] = id
	}
	w.helm.Releases.Driver = labelled{w.helm.Releases.Driver, last.Version + 1, labels}
	back := action.NewRollback(w.helm)
	back.Version, back.Timeout, back.MaxHistory = to, hooksWithin, maxHistory
	if err := back.Run(a.Name); err != nil {
		return nil, err
	}
	return w.helm.Releases.Get(a.Name, last.Version+1)
}

// isMine reports whether we made this very revision.
func isMine(rel *release.Release) bool {
	return rel.Labels[labelDigest] != "" && rel.Labels[labelRevision] == strconv.Itoa(rel.Version)
}

// labelled gives a revision its labels when it is made.
type labelled struct {
	driver.Driver
	revision int
	labels   map[string]string
}

// Create implements driver.Creator.
func (l labelled) Create(key string, rel *release.Release) error {
	if rel.Version == l.revision {
		rel.Labels = l.labels
	}
	return l.Driver.Create(key, rel)
}
