package helm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Media types of OCI, and those Helm 3 packs charts with; the last two were
// used before Helm 3.7.
const (
	mediaManifest    = "application/vnd.oci.image.manifest.v1+json"
	mediaChart       = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	mediaChartLegacy = "application/tar+gzip"
	mediaConfig      = "application/vnd.cncf.helm.config.v1+json"
)

// maxManifest is the largest manifest that is read, in bytes.
const maxManifest = 4 << 20

// manifest is what a registry keeps of a chart beside the archive.
type manifest struct {
	Config struct {
		MediaType string `json:"mediaType"`
	} `json:"config"`
	Layers []struct {
		MediaType string `json:"mediaType"`
		Digest    string `json:"digest"`
		Size      int64  `json:"size"`
	} `json:"layers"`
}

// archiveIn is the hex digest of the archive a manifest names.
func archiveIn(b []byte) (string, error) {
	var m manifest
	if err := json.Unmarshal(b, &m); err != nil || m.Config.MediaType != mediaConfig {
		return "", newError("check the chart's oci URL", "it is no Helm chart but something else")
	}
	for _, l := range m.Layers {
		if l.MediaType != mediaChart && l.MediaType != mediaChartLegacy {
			continue
		}
		hex := hexOf(l.Digest)
		if hex == "" {
			return "", errors.New("its manifest names the archive by something else than a SHA-256")
		}
		if l.Size > maxArchive {
			return "", newError("use a smaller chart", "its archive is larger than %d MiB", maxArchive>>20)
		}
		return hex, nil
	}
	return "", errors.New("its manifest names no archive of a chart")
}

// anonymous asks a registry without an identity, and fetches a token where
// everybody must.
type anonymous struct{ client *auth.Client }

// Do implements doer.
func (a anonymous) Do(r *http.Request) (*http.Response, error) {
	resp, err := a.client.Do(r)
	var refused *errcode.ErrorResponse
	switch {
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return nil, &httpError{r.URL.Host, http.StatusUnauthorized, "it wants a name and a password"}
	case errors.As(err, &refused):
		return nil, &httpError{refused.URL.Host, refused.StatusCode, http.StatusText(refused.StatusCode)}
	}
	return resp, err
}

// place is where a chart lies in an OCI registry.
func (r *Releaser) place(c cluster.Chart) (registry.Reference, error) {
	at := r.mirrors.of(c.OCI)
	ref, err := registry.ParseReference(strings.TrimPrefix(at, "oci://"))
	if err != nil || !strings.HasPrefix(at, "oci://") {
		return ref, newError("write it like oci://host/path/chart", "%s is no place in an OCI registry", sanitize(at))
	}
	return ref, nil
}

// manifestOf fetches the manifest of a chart.
func (r *Releaser) manifestOf(ctx context.Context, client doer, base *url.URL, c cluster.Chart, pin string) ([]byte, error) {
	name := strings.ReplaceAll(c.Version, "+", "_")
	if pin != "" {
		name = "sha256:" + hexOf(pin)
	}
	b, err := fetchFile(ctx, client, base.JoinPath("manifests", name), mediaManifest, maxManifest)
	if missing := (*httpError)(nil); pin != "" && errors.As(err, &missing) && missing.status == http.StatusNotFound {
		return nil, newError("if the chart was published again, take the new digest into the addon", "%s has no manifest %s any more", base.Host, name)
	}
	return b, err
}

// fromRegistry fetches the manifest and the archive of a chart from an OCI
// registry: by the pinned digest, or by the version when nothing is pinned.
func (r *Releaser) fromRegistry(ctx context.Context, c cluster.Chart, pin string) (manifest, archive []byte, err error) {
	ref, err := r.place(c)
	if err != nil {
		return nil, nil, err
	}
	client := anonymous{&auth.Client{Client: r.client, Cache: auth.NewCache()}}
	ctx = auth.AppendRepositoryScope(ctx, ref, auth.ActionPull)
	base := &url.URL{Scheme: "https", Host: ref.Host(), Path: "/v2/" + ref.Repository}
	if manifest, err = r.manifestOf(ctx, client, base, c, pin); err != nil {
		return nil, nil, err
	}
	if pin != "" && digestOf(manifest) != hexOf(pin) {
		return nil, nil, fmt.Errorf("%s sends another manifest than the one it was asked for", base.Host)
	}
	hex, err := archiveIn(manifest)
	if err != nil {
		return nil, nil, err
	}
	archive, err = fetchFile(ctx, client, base.JoinPath("blobs", "sha256:"+hex), "", maxArchive)
	if err != nil {
		return nil, nil, err
	}
	if digestOf(archive) != hex {
		return nil, nil, fmt.Errorf("%s sends another archive than the one its manifest names", ref.Host())
	}
	return manifest, archive, nil
}
