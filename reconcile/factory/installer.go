package factory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// public is the registry of the public factory. A factory that stands in for that builds the same images.
const public = "factory.talos.dev"

// manifests are the types of what an image may be described by.
const manifests = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, " +
	"application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"

// CheckInstaller looks whether the factory has an installer image, registry/name/schematic:version, which it builds
// where it has not done so. Installers has what it found. No other registry is asked than the factory that this host is
// configured with: one that only the nodes reach, and mirrors, by the registry, are not. It fails with ErrUnknownSchematic
// where the schematic has to be registered first, and with an Error that is transient where there was no clear answer.
func (f *Factory) CheckInstaller(ctx context.Context, image string, mirrors map[string]string) error {
	registry, path, _ := strings.Cut(image, "/")
	name, version, ok := strings.Cut(path, ":")
	if !ok {
		return newError("see talos.installer_registry in cluster.yaml", "look for %s: it is not the name of an installer", text.OneLine(sanitize(image)))
	}
	var seen cluster.InstallerSeen
	if mirror := mirrors[registry]; mirror != "" {
		seen.Unchecked = "the nodes pull it from the mirror of " + registry
	} else if registry != f.url.Host && registry != public {
		seen.Unchecked = "the nodes pull it from " + registry + ", which is not the image factory of this host"
	} else if err := f.lookForInstaller(ctx, name, version, &seen); err != nil {
		if errors.Is(err, ErrUnknownSchematic) {
			f.mu.Lock()
			defer f.mu.Unlock()
			maps.DeleteFunc(f.ids, func(_, id string) bool { return strings.HasSuffix(name, "/"+id) })
		}
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	seen.At = time.Now()
	f.installers[image] = seen
	return nil
}

// Installers returns what is known of the installer images that were looked for, by reference.
func (f *Factory) Installers() map[string]cluster.InstallerSeen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.installers)
}

func (f *Factory) lookForInstaller(ctx context.Context, name, version string, seen *cluster.InstallerSeen) error {
	ctx, cancel := context.WithTimeout(ctx, buildWithin)
	defer cancel()
	what := "look for the installer of Talos " + version
	path := "v2/" + name + "/manifests/" + version
	code, _, err := f.askRegistry(ctx, http.MethodHead, path, what)
	if err != nil {
		return err
	}
	switch code {
	case http.StatusOK:
		return nil
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
	default:
		e := readRefusal(what, code, nil)
		if e.transient = true; e.hint == "" {
			e.hint = f.inTheWay()
		}
		return e
	}
	// A mirror of the factory may serve disk images and nothing else.
	if code, _, err := f.askRegistry(ctx, http.MethodGet, "v2/", what); err != nil {
		return err
	} else if code != http.StatusOK {
		seen.Unchecked = f.url.Host + " serves no installers"
		return nil
	}
	code, words, err := f.askRegistry(ctx, http.MethodGet, path, what) // a refusal of HEAD has no words
	if err != nil || code == http.StatusOK {
		return err
	}
	e := readRefusal(what, code, words)
	if e.transient || errors.Is(e, ErrUnknownSchematic) {
		return e
	}
	seen.Missing = e.Error()
	return nil
}

// askRegistry asks the factory for something of a registry's, and returns the status of the answer and, where that refuses, its words.
func (f *Factory) askRegistry(ctx context.Context, method, path, what string) (code int, words []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, f.url.JoinPath(path).String(), nil)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", what, err)
	}
	req.Header.Set("Accept", manifests)
	resp, err := f.client.Do(req)
	if err != nil {
		return 0, nil, f.unreachable(what, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusOK {
		return resp.StatusCode, nil, nil
	}
	if words, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20)); err != nil {
		return 0, nil, f.unreachable(what, err)
	}
	return resp.StatusCode, words, nil
}
