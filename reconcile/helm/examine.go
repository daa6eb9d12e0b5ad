package helm

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Look looks whether a chart could be fetched, over the mirrors and authorities
// of the config: its repository lists the version, or its registry has the
// manifest. It returns the host that was asked; a chart of the repository of the
// inventory is fetched from nowhere, and the host is "". The chart itself is not
// fetched, and nothing is kept.
func Look(ctx context.Context, c Config, chart cluster.Chart) (host string, err error) {
	client, err := fetchClient(c)
	if err != nil {
		return "", err
	}
	r := &Releaser{mirrors: c.Mirrors, client: client}
	switch {
	case chart.OCI != "":
		ref, err := r.place(chart)
		if err != nil {
			return sanitize(chart.OCI), err
		}
		ctx = auth.AppendRepositoryScope(ctx, ref, auth.ActionPull)
		base := &url.URL{Scheme: "https", Host: ref.Host(), Path: "/v2/" + ref.Repository}
		_, err = r.manifestOf(ctx, anonymous{&auth.Client{Client: client, Cache: auth.NewCache()}}, base, chart, chart.Digest)
		return ref.Host(), err
	case chart.Repository != "":
		base, err := url.Parse(r.mirrors.of(chart.Repository) + "/")
		if err != nil {
			return sanitize(chart.Repository), newError("use an https URL", "%s is no URL", sanitize(chart.Repository))
		}
		_, err = r.find(ctx, base, chart)
		return base.Host, err
	}
	return "", nil
}

// LookRegistry looks whether a registry answers, at a host or the address of a
// mirror. One that wants to know who asks answers too.
func LookRegistry(ctx context.Context, c Config, address string) error {
	client, err := fetchClient(c)
	if err != nil {
		return err
	}
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return newError("write a host, or the address of a mirror", "%s is no address of a registry", sanitize(address))
	}
	body, err := openURL(ctx, client, u.JoinPath("v2/"), "", maxManifest)
	var refused *httpError
	switch {
	case errors.As(err, &refused) && (refused.status == http.StatusUnauthorized || refused.status == http.StatusForbidden):
		return nil
	case err != nil:
		return err
	}
	return body.Close()
}
