package helm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/edits"
)

// Installed reads what the newest revision of an addon's release was made of, and which of
// its objects are missing or changed, now. Nothing of it is kept; no error quotes a value.
func (r *Releaser) Installed(ctx context.Context, d cluster.Desired, a cluster.Addon) (cluster.Installed, error) {
	ctx, end, err := r.begin(ctx)
	if err != nil {
		return cluster.Installed{}, wrapError("read the release of "+a.Name, err)
	}
	defer end()
	out, err := r.readInstalled(ctx, d, name{a.Namespace, a.Name})
	if err != nil {
		return cluster.Installed{}, wrapError("read the release of "+a.Name, err)
	}
	return out, nil
}

func (r *Releaser) readInstalled(ctx context.Context, d cluster.Desired, n name) (cluster.Installed, error) {
	server, ok := r.api()
	if !ok {
		return cluster.Installed{}, errors.New("no kube-apiserver is ready")
	}
	conn, err := r.connection(server, d.Access.Kube)
	if err != nil {
		return cluster.Installed{}, err
	}
	v, err := r.viewThrough(conn)
	if err != nil {
		return cluster.Installed{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, searchWithin)
	defer cancel()
	var rev revision
	if err := v.wait(ctx, func() bool { rev, ok = v.newest(n); return true }); err != nil {
		return cluster.Installed{}, errors.New(kubeapi.Reason(err))
	}
	if !ok {
		return cluster.Installed{}, fmt.Errorf("there is no release %s", n)
	}
	made, err := readRecord(ctx, conn, rev)
	if err != nil {
		return cluster.Installed{}, fmt.Errorf("cannot read revision %d of release %s: %s", rev.number, n, kubeapi.Reason(err))
	}
	out := cluster.Installed{Chart: made.Chart.Metadata.Name, Version: made.Chart.Metadata.Version, Values: cluster.NewSecret(made.Config)}
	w, err := newWorkshop(ctx, conn, n.namespace)
	if err != nil {
		return cluster.Installed{}, err
	}
	found, err := damageIn(w.kube, made.Manifest)
	if err != nil {
		return cluster.Installed{}, fmt.Errorf("cannot look for the objects of release %s: %s", n, kubeapi.Reason(err))
	}
	out.Missing = found.missing
	for _, a := range found.altered {
		out.Altered = append(out.Altered, a.String())
	}
	return out, nil
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
