package helm

import (
	"context"
	"errors"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/helm/render"
)

// maxArchive is how large a packed chart may be, in bytes.
const maxArchive = 10 << 20

// fetchChart brings a chart into the cache and checks it.
func (r *Releaser) fetchChart(ctx context.Context, a cluster.Addon, pin string) (string, error) {
	c := a.Chart
	if c.Path != "" {
		digest := digestOfFiles(c.Files)
		_, err := r.readChart(ctx, c, digest, render.Packed{Files: c.Files})
		return digest, err
	}
	if pin != "" {
		if hexOf(pin) == "" {
			return "", newError("write it as "+formatDigest(c), "the pinned digest is no SHA-256")
		}
		if packed, err := r.load(c, pin); err == nil {
			_, err := r.readChart(ctx, c, pin, packed)
			return pin, err
		}
	}
	if c.OCI != "" {
		return r.fetchOCI(ctx, c, pin)
	}
	archive, err := r.fromRepository(ctx, c)
	if err != nil {
		return "", err
	}
	hex := digestOf(archive)
	if pin != "" && hex != hexOf(pin) {
		return "", newError(fmt.Sprintf("the chart was published again under the same version, or somebody tampers with it; if the new one is meant, set sha256 in %s to the first", a.File),
			"what came has sha256 %s, and %s is pinned", hex, hexOf(pin))
	}
	if err := r.keepChart(ctx, archive, c, nil); err != nil {
		return "", err
	}
	return hex, nil
}

// fetchOCI is fetchChart for a chart in an OCI registry.
func (r *Releaser) fetchOCI(ctx context.Context, c cluster.Chart, pin string) (string, error) {
	manifest, archive, err := r.fromRegistry(ctx, c, pin)
	if err != nil {
		return "", err
	}
	if err := r.keepChart(ctx, archive, c, manifest); err != nil {
		return "", err
	}
	return "sha256:" + digestOf(manifest), nil
}

// keepChart checks a chart that came and puts it into the cache, the manifest last:
// with it the chart is complete.
func (r *Releaser) keepChart(ctx context.Context, archive []byte, c cluster.Chart, manifest []byte) error {
	if _, err := r.readChart(ctx, c, digestOf(archive), render.Packed{Archive: archive}); err != nil {
		return err
	}
	if err := r.cache.write(archive, archiveFile); err != nil || manifest == nil {
		return err
	}
	return r.cache.write(manifest, manifestFile)
}

// readChart has a chart read, unless that took too much before.
func (r *Releaser) readChart(ctx context.Context, c cluster.Chart, digest string, packed render.Packed) (*render.Chart, error) {
	var want render.Want
	if c.Path == "" {
		want = render.Want{Name: c.Name, Version: c.Version}
	}
	var made *render.Chart
	err := r.excesses.Try(digest, func() (err error) {
		made, err = render.Read(ctx, r.worker, packed, want)
		return err
	})
	return made, explainWorker("read", c, err)
}

// formatDigest writes the digest of a chart.
func formatDigest(c cluster.Chart) string {
	if c.OCI != "" {
		return "sha256: and 64 hex digits"
	}
	return "64 hex digits"
}

// cached reports whether a chart lies in the cache.
func (r *Releaser) cached(c cluster.Chart, digest string) bool {
	if c.Path != "" {
		return true
	}
	hex, err := r.archiveOf(c, digest)
	return err == nil && r.cache.has(hex, archiveFile, maxArchive)
}

// archiveOf is the hex digest of the archive of a chart.
func (r *Releaser) archiveOf(c cluster.Chart, digest string) (string, error) {
	if c.OCI == "" {
		return hexOf(digest), nil
	}
	manifest, err := r.cache.read(hexOf(digest), manifestFile, maxManifest)
	if err != nil {
		return "", err
	}
	return archiveIn(manifest)
}

// load takes a chart from the cache, or from the inventory.
func (r *Releaser) load(c cluster.Chart, digest string) (render.Packed, error) {
	if c.Path != "" {
		if digestOfFiles(c.Files) != digest {
			return render.Packed{}, errors.New("the chart has changed meanwhile")
		}
		return render.Packed{Files: c.Files}, nil
	}
	hex, err := r.archiveOf(c, digest)
	if err != nil {
		return render.Packed{}, err
	}
	archive, err := r.cache.read(hex, archiveFile, maxArchive)
	return render.Packed{Archive: archive}, err
}
