package helm

import (
	"context"
	"errors"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
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
