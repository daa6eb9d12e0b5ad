package helm

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/edits"
)

// workload is what is known of one object that runs pods.
type workload struct {
	uid        types.UID
	generation int64
	why        string // what it waits for; "": it is ready
	short      bool   // pods of it are missing, and an event may show why
	touched    string // what somebody else than Helm has set; "": nothing
}

// The rules below are those of `kubectl rollout status` (kubectl 0.37,
// pkg/polymorphichelpers/rollout_status.go), which knows no deadline either. A
// paused Deployment, and pods that are replaced only when somebody deletes
// them, are not waited for.

// deploymentWaits is what a Deployment waits for, "" when for nothing.
func deploymentWaits(d *appsv1.Deployment) string {
	s, want := d.Status, wantedReplicas(d.Spec.Replicas)
	switch {
	case d.Spec.Paused:
		return ""
	case s.ObservedGeneration < d.Generation:
		return notObserved
	case s.UpdatedReplicas < want && replicaFailure(d) != "":
		return describeRefusal(replicaFailure(d))
	case s.UpdatedReplicas < want:
		return fmt.Sprintf("%d of %d pods are of its newest version", s.UpdatedReplicas, want)
	case s.Replicas > s.UpdatedReplicas:
		return fmt.Sprintf("%d pods of an older version are still there", s.Replicas-s.UpdatedReplicas)
	case s.AvailableReplicas < s.UpdatedReplicas:
		return podsReady(s.AvailableReplicas, s.UpdatedReplicas)
	}
	return ""
}

// replicaFailure is why pods of a Deployment could not be made, "" if they could.
func replicaFailure(d *appsv1.Deployment) string {
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// daemonSetWaits is what a DaemonSet waits for, "" when for nothing.
func daemonSetWaits(d *appsv1.DaemonSet) string {
	s, want := d.Status, d.Status.DesiredNumberScheduled
	switch {
	case s.ObservedGeneration < d.Generation:
		return notObserved
	case s.UpdatedNumberScheduled < want && d.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType:
		return fmt.Sprintf("%d of %d pods are of its newest version", s.UpdatedNumberScheduled, want)
	case s.NumberAvailable < want:
		return podsReady(s.NumberAvailable, want)
	}
	return ""
}

// statefulSetWaits is what a StatefulSet waits for, "" when for nothing.
func statefulSetWaits(d *appsv1.StatefulSet) string {
	s, want := d.Status, wantedReplicas(d.Spec.Replicas)
	rolling := d.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType
	partition := int32(0)
	if r := d.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		partition = *r.Partition
	}
	switch {
	case s.ObservedGeneration == 0 || s.ObservedGeneration < d.Generation:
		return notObserved
	case s.ReadyReplicas < want:
		return podsReady(s.ReadyReplicas, want)
	case rolling && s.UpdatedReplicas < want-partition:
		return fmt.Sprintf("%d of %d pods are of its newest version", s.UpdatedReplicas, want-partition)
	case rolling && partition == 0 && s.UpdateRevision != s.CurrentRevision:
		return "its pods are being replaced"
	}
	return ""
}

const notObserved = "its controller has not looked at it yet"

func podsReady(ready, want int32) string { return fmt.Sprintf("%d of %d pods ready", ready, want) }

// wantedReplicas returns how many pods are wanted; the API server fills in 1
// where nothing is set.
func wantedReplicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// waits is what a release waits for until it is ready, "" when for nothing, and what of
// it is not as it was made.
func (r *Releaser) waits(ctx context.Context, conn *connection, v *view, rev revision) (why string, d damage) {
	if rev.status != "deployed" {
		return "its release is " + sanitize(rev.status), damage{}
	}
	has, err := r.contentOf(ctx, conn, rev)
	if err != nil {
		return err.Error(), damage{}
	}
	ours := rev.mine && rev.manager != ""
	var found damage
	if ours {
		found = r.lookFor(conn, rev)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range has.workloads {
		w, ok := v.workload(o)
		if !ok {
			d.missing = append(d.missing, o.String())
		}
		if ours && w.touched != "" {
			if a, ok := alterationOf(o, has.documents[o], w.touched); ok {
				d.altered = append(d.altered, a)
			}
		}
		switch {
		case why != "":
		case !ok:
			why = o.String() + " is not there"
		case w.short && v.refusal(o) != "":
			why = o.String() + ": " + v.refusal(o)
		case w.why != "":
			why = o.String() + ": " + w.why
		}
	}
	for _, o := range found.missing {
		if !slices.Contains(d.missing, o) && !has.hasWorkload(o) { // of those, the watch is newer
			d.missing = append(d.missing, o)
		}
	}
	for _, a := range found.altered {
		if has.hasWorkload(a.object) { // the watch has what was set, and not what was removed
			a.edits = slices.DeleteFunc(slices.Clone(a.edits), func(e edits.Edit) bool { return e.Manager != "" })
		}
		if len(a.edits) > 0 {
			d.altered = append(d.altered, a)
		}
	}
	return why, d
}

// content is what a revision holds.
type content struct {
	workloads []object
	documents map[object]string // of the workloads
	network   bool              // it is, or may be, the container network
}

// hasWorkload reports whether an object is one of the workloads.
func (c content) hasWorkload(o string) bool {
	return slices.ContainsFunc(c.workloads, func(w object) bool { return w.String() == o })
}

// contentOf reads what a revision holds. That never changes, so it is read once.
func (r *Releaser) contentOf(ctx context.Context, conn *connection, rev revision) (content, error) {
	r.mu.Lock()
	has, ok := r.parsed[rev.uid]
	r.mu.Unlock()
	if ok {
		return has, nil
	}
	manifest, err := readManifest(ctx, conn, rev)
	if err != nil {
		return content{}, fmt.Errorf("cannot read revision %d of release %s: %s", rev.number, rev.name, kubeapi.Reason(err))
	}
	has = content{network: isNetwork(rev.name.release, manifest)}
	has.workloads, has.documents = workloadsIn(manifest, rev.name.namespace)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parsed[rev.uid] = has
	return has, nil
}

// lookFor returns what the last search for the objects of a revision found, and begins the
// next one beside what calls it when it is time.
func (r *Releaser) lookFor(conn *connection, rev revision) damage {
	found, begin := r.searches.lookUp(rev.uid)
	r.mu.Lock()
	defer r.mu.Unlock()
	if begin && !r.closed {
		r.wg.Go(func() { r.searchFor(conn, rev) })
	}
	return found
}

// searchFor searches for the objects of a revision. Where that fails nothing is known to
// be missing or changed.
func (r *Releaser) searchFor(conn *connection, rev revision) {
	ctx, cancel := context.WithTimeout(r.ctx, searchWithin)
	defer cancel()
	found, err := findDamage(ctx, conn, rev)
	if err != nil {
		found = damage{}
		r.log.Debug("cannot look for the objects of a release", logging.Detail, rev.name.String(), logging.Err, kubeapi.Reason(err))
	}
	if r.searches.end(rev.uid, found) {
		r.change()
	}
}

// findDamage asks for every object of a revision.
func findDamage(ctx context.Context, conn *connection, rev revision) (damage, error) {
	manifest, err := readManifest(ctx, conn, rev)
	if err != nil {
		return damage{}, err
	}
	w, err := newWorkshop(ctx, conn, rev.name.namespace)
	if err != nil {
		return damage{}, err
	}
	return damageIn(w.kube, manifest)
}

// other is what a revision was made of, otherwise than the inventory has it. No value is in
// it.
type other struct {
	than                         string // the digest of chart and values that it was compared with
	version, values, description string
}

// describeOther adds to a release what it was made of, where that is something else than the
// inventory has, and who made it, where somebody else did. A revision never changes, so it is
// read once for what the inventory has.
func (r *Releaser) describeOther(ctx context.Context, conn *connection, rev revision, a cluster.Addon, chart cluster.Fetched, rel *cluster.Release) {
	than := digestOfRelease(a, chart.Digest)
	if rel.Digest == "" || !rel.Edited && (chart.Digest == "" || rel.Digest == than) {
		return
	}
	r.mu.Lock()
	o, known := r.others[rev.uid]
	r.mu.Unlock()
	if !known || o.than != than {
		made, err := readRecord(ctx, conn, rev)
		if err != nil {
			r.log.Debug("cannot read what a release was made of", logging.Detail, rev.name.String(), logging.Err, kubeapi.Reason(err))
		} else {
			installed := cluster.Installed{Values: cluster.NewSecret(made.Config)}
			o = other{than, sanitize(made.Chart.Metadata.Version), installed.OtherPaths(a.Values), made.Info.Description}
			r.mu.Lock()
			r.others[rev.uid] = o
			r.mu.Unlock()
		}
	}
	if rel.Version, rel.OtherValues = o.version, sanitize(o.values); rel.Edited {
		rel.EditedBy = describeEdit(rev, o.description)
	}
}

// describeEdit is who made a revision that is not ours, as far as it is noted: the name that its
// client calls itself by, and what Helm or a person wrote about it. A failure is described with
// what the API refused, which may be a value.
func describeEdit(rev revision, description string) string {
	out := fmt.Sprintf("revision %d", rev.number)
	if rev.writer != "" {
		out += " by " + edits.Shown(rev.writer)
	}
	out += " at " + text.Moment(time.Unix(rev.changed, 0))
	if description != "" && rev.status == "deployed" {
		out += ": " + text.Cut(sanitize(description), maxDescription)
	}
	return out
}

// maxDescription bounds what is shown of the description of a release.
const maxDescription = 80
