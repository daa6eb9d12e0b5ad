package helm

import (
	"context"
	"errors"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/reconcile/helm/record"
)

// Installed reads what the newest revision of an addon's release was made of, and which of
// its objects are missing or changed, now. Nothing of it is kept; no error quotes a value.
func (r *Releaser) Installed(ctx context.Context, d cluster.Desired, a cluster.Addon) (cluster.Installed, error) {
	return r.readInstalled(ctx, d, a, addDamage)
}

// MadeOf is Installed without looking for the objects of the release.
func (r *Releaser) MadeOf(ctx context.Context, d cluster.Desired, a cluster.Addon) (cluster.Installed, error) {
	return r.readInstalled(ctx, d, a, func(context.Context, *connection, name, record.Record, *cluster.Installed) error { return nil })
}

// readInstalled reads what a release was made of, and what add adds to that.
func (r *Releaser) readInstalled(ctx context.Context, d cluster.Desired, a cluster.Addon,
	add func(context.Context, *connection, name, record.Record, *cluster.Installed) error) (cluster.Installed, error) {
	ctx, end, err := r.begin(ctx)
	if err != nil {
		return cluster.Installed{}, wrapError("read the release of "+a.Name, err)
	}
	defer end()
	n := name{a.Namespace, a.Name}
	ctx, cancel := context.WithTimeout(ctx, searchWithin)
	defer cancel()
	conn, made, err := r.newestRecord(ctx, d, n)
	out := cluster.Installed{}
	if err == nil {
		out = cluster.Installed{Chart: made.Chart.Metadata.Name, Version: sanitize(made.Chart.Metadata.Version), Values: cluster.NewSecret(made.Config)}
		err = add(ctx, conn, n, made, &out)
	}
	if err != nil {
		return cluster.Installed{}, wrapError("read the release of "+a.Name, err)
	}
	return out, nil
}

// newestRecord reads the record of the newest revision of a release.
func (r *Releaser) newestRecord(ctx context.Context, d cluster.Desired, n name) (*connection, record.Record, error) {
	server, ok := r.api()
	if !ok {
		return nil, record.Record{}, errors.New("no kube-apiserver is ready")
	}
	conn, err := r.connection(server, d.Access.Kube)
	if err != nil {
		return nil, record.Record{}, err
	}
	v, err := r.viewThrough(conn)
	if err != nil {
		return nil, record.Record{}, err
	}
	var rev revision
	if err := v.wait(ctx, func() bool { rev, ok = v.newest(n); return true }); err != nil {
		return nil, record.Record{}, errors.New(kubeapi.Reason(err))
	}
	if !ok {
		return nil, record.Record{}, fmt.Errorf("there is no release %s", n)
	}
	made, err := readRecord(ctx, conn, rev)
	if err != nil {
		return nil, record.Record{}, fmt.Errorf("cannot read revision %d of release %s: %s", rev.number, n, kubeapi.Reason(err))
	}
	return conn, made, nil
}

// addDamage adds which objects of a release are missing or changed.
func addDamage(ctx context.Context, conn *connection, n name, made record.Record, out *cluster.Installed) error {
	w, err := newWorkshop(ctx, conn, n.namespace)
	if err != nil {
		return err
	}
	found, err := damageIn(w.kube, made.Manifest)
	if err != nil {
		return fmt.Errorf("cannot look for the objects of release %s: %s", n, kubeapi.Reason(err))
	}
	out.Missing = found.missing
	for _, a := range found.altered {
		out.Altered = append(out.Altered, a.String())
	}
	return nil
}
