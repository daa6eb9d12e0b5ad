package factory

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// installerCall matches the calls to the lab for an installer.
const installerCall = "* /v2/{installer}/{schematic}/manifests/{reference}"

// TestCheckInstaller: an installer that the factory builds is there, one that it refuses is missing with its words, and what
// it cannot be asked for is neither.
func TestCheckInstaller(t *testing.T) {
	answers := func(code int, times int) world.Fault {
		return world.Fault{System: "factory", Op: installerCall, Kind: world.Answer, Status: code, Text: "no", Times: times}
	}
	for _, tc := range []struct {
		name, version, registry    string
		extension                  string
		mirror                     string
		fault                      world.Fault
		missing, unchecked, failed string // "": it is not
		unknown                    bool   // the schematic
	}{
		{name: "it is there", version: "v1.14.1"},
		{name: "the factory is named by its host", version: "v1.13.9", registry: "factory.lab"},
		{name: "an extension is missing", version: "v1.14.1", extension: "siderolabs/zfs", missing: "the factory answers 400: "},
		{name: "the version before has it", version: "v1.13.9", extension: "siderolabs/zfs"},
		{name: "there is no such version", version: "v1.99.0", missing: "the factory answers 404: version 1.99.0 is not available"},
		{name: "a mirror", version: "v1.99.0", mirror: "https://mirror.example.org", unchecked: "the nodes pull it from the mirror of factory.talos.dev"},
		{name: "another registry", version: "v1.99.0", registry: "registry.example.org", unchecked: "the nodes pull it from registry.example.org, "},
		{name: "the factory is in trouble", version: "v1.14.1", fault: answers(http.StatusBadGateway, 0), failed: "the factory answers 502"},
		{name: "it is asked too often", version: "v1.14.1", fault: answers(http.StatusTooManyRequests, 0), failed: "the factory answers 429"},
		{name: "it asks for credentials", version: "v1.14.1", fault: answers(http.StatusForbidden, 0), failed: "the factory answers 403"},
		{name: "it does not answer", version: "v1.14.1", fault: world.Fault{System: "factory", Kind: world.LoseRequest}, failed: "ask factory.lab"},
		{name: "it breaks off", version: "v1.99.0", fault: world.Fault{System: "factory", Op: "GET /v2/{$}", Kind: world.LoseReply}, failed: "ask factory.lab"},
		{name: "it serves no installers", version: "v1.99.0", fault: world.Fault{System: "factory", Op: "GET /v2/{$}", Kind: world.Answer, Status: http.StatusNotFound, Text: "no"}, unchecked: "factory.lab serves no installers"},
		{name: "it has forgotten the schematic", version: "v1.14.1", fault: world.Fault{System: "factory", Op: installerCall, Kind: world.Answer, Status: http.StatusNotFound, Text: "schematic ID \"x\" not found"}, failed: "schematic ID", unknown: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inLab(t, func(b *bench) {
				var extensions []string
				if tc.extension != "" {
					extensions = append(extensions, tc.extension)
				}
				s := cluster.Schematic{Extensions: extensions}
				id, err := b.f.Schematic(b.Context(), s)
				if err != nil {
					t.Fatal(err)
				}
				if tc.registry == "" {
					tc.registry = public
				} else if tc.registry == "factory.lab" {
					tc.registry = b.f.url.Host
				}
				spec := cluster.Spec{InstallerRegistry: tc.registry, Mirrors: map[string]string{"docker.io": "https://other.example.org"}}
				if tc.mirror != "" {
					spec.Mirrors[tc.registry] = tc.mirror
				}
				if tc.fault.Kind != "" {
					b.world.Inject(tc.fault)
				}
				image := spec.InstallerOf(id, tc.version)
				err = b.f.CheckInstaller(b.Context(), image, spec.Mirrors)
				seen, known := b.f.Installers()[image]
				if tc.failed != "" {
					if err == nil || !strings.Contains(err.Error(), tc.failed) || known || errors.Is(err, ErrUnknownSchematic) != tc.unknown {
						t.Errorf("%v, %+v", err, seen)
					}
					if _, kept := b.f.Known(s); kept == tc.unknown {
						t.Errorf("the id of the schematic is kept: %t", kept)
					}
					return
				}
				if err != nil || !known || seen.At.IsZero() || !strings.Contains(seen.Missing, tc.missing) || !strings.HasPrefix(seen.Unchecked, tc.unchecked) || (seen.Missing == "") != (tc.missing == "") || (seen.Unchecked == "") != (tc.unchecked == "") {
					t.Errorf("%v, %+v", err, seen)
				}
			})
		})
	}
}

// TestCheckInstallerAgain: what was missing is there when it was put there.
func TestCheckInstallerAgain(t *testing.T) {
	inLab(t, func(b *bench) {
		image := cluster.Spec{InstallerRegistry: public}.InstallerOf(vanilla, "v1.14.1")
		if _, err := b.f.Schematic(b.Context(), cluster.Schematic{}); err != nil {
			t.Fatal(err)
		}
		b.world.Inject(world.Fault{System: "factory", Op: installerCall, Kind: world.Answer, Status: http.StatusNotFound, Text: "version 1.14.1 is not available", Times: 2})
		for _, missing := range []bool{true, false} {
			if err := b.f.CheckInstaller(b.Context(), image, nil); err != nil || (b.f.Installers()[image].Missing != "") != missing {
				t.Errorf("%v, %+v", err, b.f.Installers())
			}
		}
		if err := b.f.CheckInstaller(b.Context(), "factory.talos.dev/nonsense", nil); err == nil {
			t.Error("what is no installer was looked for")
		}
	})
}
