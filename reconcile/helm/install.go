package helm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/worker"
	"github.com/talos-agent/talos-agent/reconcile/helm/render"
)

// The labels of a release we made. Helm carries the labels of a release over to
// every later revision, whoever makes it: the revision shows whether it was we.
const (
	labelDigest   = "talos-agent.dev/digest"
	labelRevision = "talos-agent.dev/revision"
	// labelReady has the number of the revision that was seen ready.
	labelReady = "talos-agent.dev/ready-revision"
	// labelTried has when the first of the revisions was made that this one repeats, in
	// seconds since 1970: of those that fail only the newest are kept.
	labelTried = "talos-agent.dev/tried"
	// labelPutBack has marks of what somebody had changed of its objects and the revision
	// put back: what is changed again soon is left so.
	labelPutBack = "talos-agent.dev/put-back"
	// labelRolledBack has the digest of what a rollback of ours took back.
	labelRolledBack = "talos-agent.dev/rolled-back"
)

// notCarried is the value of a label that a new revision does not have from the one
// before: Helm 3.22, mergeCustomLabels.
const notCarried = "null"

const (
	// hooksWithin is how long the hooks of a chart may run, each.
	hooksWithin = 5 * time.Minute
	// settleWithin is how long Install waits until what it wrote is seen.
	settleWithin = 2 * time.Second
	// pendingFor is how long somebody else's action on a release of ours is left
	// alone; Helm's own does not wait longer unless it is set to.
	pendingFor = 10 * time.Minute
)

func (r *Releaser) install(ctx context.Context, d cluster.Desired, a cluster.Addon, digest string) error {
	packed, made, err := r.chartFor(ctx, a, digest)
	if err != nil {
		return err
	}
	// Read like a file of values, as the helm command does.
	values, err := chartutil.ReadValues(a.Values.Reveal())
	if err != nil {
		return newError("correct the values in "+a.File, "its values cannot be read")
	}
	conn, err := r.ownConnection(d)
	if err != nil {
		return err
	}
	defer conn.Close()
	w, err := newWorkshop(ctx, conn, a.Namespace)
	if err != nil {
		return fmt.Errorf("make client for %s: %w", conn.server, err)
	}
	job := &job{log: r.log, addon: a, manager: managerOf(d, a), asks: d.Spec.Namespace(a.Namespace), digest: digest, packed: packed, chart: made, values: values, worker: r.worker, Excesses: &r.excesses, workshop: w}
	rel, err := job.run(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return explainError(err, a, job.public)
	}
	r.searches.forget(nil) // what they found is put back
	r.settle(ctx, rel, w.kube.wrote)
	return nil
}

// chartFor loads the chart whose digest, with the values, is the wanted one.
func (r *Releaser) chartFor(ctx context.Context, a cluster.Addon, digest string) (render.Packed, *render.Chart, error) {
	r.mu.Lock()
	pins := []string{a.Chart.Digest, r.pins[a.Chart.Ref()]}
	r.mu.Unlock()
	i := slices.IndexFunc(pins, func(pin string) bool { return pin != "" && digestOfRelease(a, pin) == digest })
	if i < 0 {
		return render.Packed{}, nil, errors.New("its chart or its values have changed meanwhile")
	}
	packed, err := r.load(a.Chart, pins[i])
	if err != nil {
		return packed, nil, fmt.Errorf("load chart %s: %w", a.Chart.Ref(), err)
	}
	made, err := r.readChart(ctx, a.Chart, pins[i], packed)
	if err != nil {
		return packed, nil, fmt.Errorf("load chart %s: %w", a.Chart.Ref(), err)
	}
	if len(made.Unchecked) > 0 {
		r.log.Warn("values of an addon are not checked: the chart's schema refers to other documents, which are not read",
			logging.Detail, fmt.Sprintf("addon %s: %s", a.Name, made.Unchecked[0]), logging.Addon, a.Name)
	}
	return packed, made, nil
}

// settle waits until the view shows what was written.
func (r *Releaser) settle(ctx context.Context, rel *release.Release, wrote map[object]written) {
	r.settleView(ctx, "release "+rel.Name, func(v *view) bool {
		rev, ok := v.newest(name{rel.Namespace, rel.Name})
		if !ok || rev.number < rel.Version || rev.number == rel.Version && rev.status != rel.Info.Status.String() {
			return false
		}
		for o, w := range wrote {
			if seen, ok := v.workload(o); !ok || seen.uid != w.uid || seen.generation < w.generation {
				return false
			}
		}
		return true
	})
}

// job is one installation or upgrade. Helm is given no context: it would leave
// its work to a goroutine when that ended. Ours ends its requests instead, and
// so Helm.
type job struct {
	log   *slog.Logger
	addon cluster.Addon
	// manager is the id of the cluster that manages the release, "" when none does.
	manager string
	asks    cluster.NamespaceMeta // of its namespace
	digest  string
	tried   string // labelTried of the revision that is made
	putBack string // and its labelPutBack
	packed  render.Packed
	chart   *render.Chart
	values  map[string]any
	public  []string // of the values what stands in the chart
	worker  worker.Runner
	*worker.Excesses
	*workshop
}

// run looks how the release stands and does what that asks for.
func (j *job) run(ctx context.Context) (*release.Release, error) {
	history, err := j.helm.Releases.History(j.addon.Name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		history, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	releaseutil.SortByRevision(history)
	if len(history) == 0 {
		if err := j.makeNamespace(ctx); err != nil {
			return nil, err
		}
		return j.fresh(ctx, 1, false)
	}
	last := history[len(history)-1]
	ours := last.Labels[labelDigest]
	mine := last.Labels[labelRevision] == strconv.Itoa(last.Version)
	if mine && ours == j.digest {
		j.tried = cmp.Or(last.Labels[labelTried], strconv.FormatInt(last.Info.LastDeployed.Unix(), 10))
		j.putBack = last.Labels[labelPutBack]
	}
	switch status := last.Info.Status; {
	case ours == "":
		return nil, newError("say `ownership: bootstrap-only` to leave it to whoever installed it, or uninstall it", "somebody else has installed a release of that name")
	case status == release.StatusDeployed && ours == j.digest && mine:
		// The same again puts back what is missing or changed.
		found, err := damageIn(j.kube, last.Manifest)
		if once, _ := splitAltered(found.altered, j.putBack, last.Info.LastDeployed.Time); err != nil || len(found.missing) == 0 && once == "" {
			return last, err
		}
		if err := checkPutBack(j.kube, last.Manifest, found.altered); err != nil {
			return nil, err
		}
		if time.Since(last.Info.LastDeployed.Time) >= againWithin {
			j.putBack = ""
		}
		j.putBack = marksOf(found.altered, j.putBack)
		for _, a := range found.altered {
			j.kube.putBack = append(j.kube.putBack, a.object)
		}
		return j.upgrade(ctx, last.Version+1)
	case status == release.StatusUninstalling && time.Since(last.Info.Deleted.Time) < pendingFor:
		return nil, errors.New("its release is being uninstalled")
	case status.IsPending(), status == release.StatusUnknown, status == release.StatusUninstalling:
		if since := time.Since(last.Info.LastDeployed.Time); !mine && since < pendingFor {
			return nil, fmt.Errorf("somebody else has changed its release for %s (%s)", since.Round(time.Second), status)
		}
		// Whoever began it is dead: no one else makes our revisions, and no other
		// action of ours is under way.
		j.log.Info("resume an interrupted release", logging.Detail, fmt.Sprintf("addon %s (%s)", j.addon.Name, status), logging.Addon, j.addon.Name, logging.Status, string(status))
		last.SetStatus(release.StatusFailed, "cut off")
		if err := j.helm.Releases.Update(last); err != nil {
			return nil, err
		}
	}
	deployed := slices.ContainsFunc(history, func(rel *release.Release) bool {
		return rel.Info.Status == release.StatusDeployed || rel.Info.Status == release.StatusSuperseded
	})
	if last.Info.Status == release.StatusUninstalled || !deployed && ours == j.digest {
		// It never came up, and nothing else is asked for now: the same
		// installation again, hooks and all, over what is there of it.
		return j.fresh(ctx, last.Version+1, true)
	}
	return j.upgrade(ctx, last.Version+1)
}

// labels are those of the revision that is about to be made.
func (j *job) labels(revision int) map[string]string {
	labels := map[string]string{labelDigest: j.digest, labelRevision: strconv.Itoa(revision)}
	if j.manager != "" {
		labels[labelManager] = j.manager
	}
	return labels
}

// fresh installs the release, over its own remains if it is to be done again.
func (j *job) fresh(ctx context.Context, revision int, again bool) (*release.Release, error) {
	if err := j.applyCRDs(ctx); err != nil {
		return nil, err
	}
	made, err := j.render(ctx, 1, false)
	if err != nil {
		return nil, err
	}
	install := action.NewInstall(j.helm)
	install.ReleaseName, install.Namespace, install.Labels = j.addon.Name, j.addon.Namespace, j.labels(revision)
	install.Replace, install.SkipCRDs, install.DisableOpenAPIValidation, install.Timeout = again, true, true, hooksWithin
	return install.Run(made, j.values)
}

// upgrade makes a new revision of a release that is there.
func (j *job) upgrade(ctx context.Context, revision int) (*release.Release, error) {
	if err := j.applyCRDs(ctx); err != nil {
		return nil, err
	}
	made, err := j.render(ctx, revision, true)
	if err != nil {
		return nil, err
	}
	upgrade := action.NewUpgrade(j.helm)
	labels := j.labels(revision)
	labels[labelRolledBack], labels[labelTried], labels[labelPutBack] = notCarried, cmp.Or(j.tried, notCarried), cmp.Or(j.putBack, notCarried)
	if j.manager == "" {
		labels[labelManager] = notCarried
	}
	upgrade.Namespace, upgrade.Labels, upgrade.MaxHistory = j.addon.Namespace, labels, maxHistory
	upgrade.ResetValues, upgrade.SkipCRDs, upgrade.DisableOpenAPIValidation, upgrade.Timeout = true, true, true, hooksWithin
	return upgrade.Run(j.addon.Name, made, j.values)
}

// makeNamespace makes the release's namespace if it is missing, with what the
// inventory asks of it: how secure pods must be is asked when they are made.
func (j *job) makeNamespace(ctx context.Context) error {
	if !j.asks.IsZero() {
		return applyNamespace(ctx, j.set, j.addon.Namespace, j.asks)
	}
	namespaces := j.set.CoreV1().Namespaces()
	_, err := namespaces.Get(ctx, j.addon.Namespace, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: j.addon.Namespace}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
