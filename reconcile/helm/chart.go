package helm

import (
	"context"
	"errors"
	"fmt"

	"helm.sh/helm/v3/pkg/chart"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// fetchChart brings a chart into the cache and checks it.
func (r *Releaser) fetchChart(ctx context.Context, a cluster.Addon, pin string) (string, error) {
	c := a.Chart
	if c.Path != "" {
		made, err := assembleChart(c.Files)
		if err != nil {
			return "", newError("correct the chart in the repository", "%v", err)
		}
		return digestOfFiles(c.Files), checkChart(made, c)
	}
	if pin != "" {
		if hexOf(pin) == "" {
			return "", newError("write it as "+formatDigest(c), "the pinned digest is no SHA-256")
		}
		if made, err := r.load(c, pin); err == nil {
			return pin, checkChart(made, c)
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
	if err := keepChart(r.cache, archive, c, nil); err != nil {
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
	if err := keepChart(r.cache, archive, c, manifest); err != nil {
		return "", err
	}
	return "sha256:" + digestOf(manifest), nil
}

// keepChart checks a chart that came and puts it into the cache, the manifest last:
// with it the chart is complete.
func keepChart(cache *archives, archive []byte, c cluster.Chart, manifest []byte) error {
	made, err := unpackChart(archive)
	if err != nil {
		return newError("tell the owner of the chart, or use another version", "%v", err)
	}
	if err := checkChart(made, c); err != nil {
		return err
	}
	if err := cache.write(archive, archiveFile); err != nil || manifest == nil {
		return err
	}
	return cache.write(manifest, manifestFile)
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

// load reads a chart from the cache, or from the inventory.
func (r *Releaser) load(c cluster.Chart, digest string) (*chart.Chart, error) {
	if c.Path != "" {
		if digestOfFiles(c.Files) != digest {
			return nil, errors.New("the chart has changed meanwhile")
		}
		return assembleChart(c.Files)
	}
	hex, err := r.archiveOf(c, digest)
	if err != nil {
		return nil, err
	}
	archive, err := r.cache.read(hex, archiveFile, maxArchive)
	if err != nil {
		return nil, err
	}
	return unpackChart(archive)
}
