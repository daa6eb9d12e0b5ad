package factory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice/servicetest"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestMedium: an installation medium is an ISO 9660 image, another one for each version and schematic, which the world knows.
func TestMedium(t *testing.T) {
	servicetest.Everywhere(t, func(b *servicetest.Bench) {
		f := servicetest.Opened[*Factory](b)(New(Config{Service: b.Config("factory")}))
		id := register(b, f, "customization: {systemExtensions: {officialExtensions: [siderolabs/zfs]}}")
		seen := map[string]string{}
		for _, c := range []struct {
			asset, version, schematic string
			signed                    bool
		}{
			{"nocloud-amd64.iso", "v1.13.9", id, false},
			{"nocloud-amd64.iso", "v1.14.1", id, false},
			{"nocloud-amd64.iso", "v1.13.9", emptySchematic, false},
			{"nocloud-amd64-secureboot.iso", "v1.13.9", id, true},
		} {
			what := c.asset + " of " + c.version + " with " + c.schematic
			r := b.Must("GET", f.URL()+"/image/"+c.schematic+"/"+c.version+"/"+c.asset, "")
			b.Want(r, 200, "version "+c.version+"\nschematic "+c.schematic)
			if len(r.Body) < 32774 || string(r.Body[32769:32774]) != "CD001" || bytes.HasPrefix(r.Body, []byte("QFI")) {
				b.Errorf("%s is no ISO 9660 image", what)
			}
			if got := r.Header.Get("Content-Type"); got != "application/x-iso9660-image" {
				b.Errorf("%s has the type %s", what, got)
			}
			sum := sha256.Sum256(r.Body)
			known, ok := b.World.ImageOf(hex.EncodeToString(sum[:]))
			want := world.Image{Platform: "nocloud", Version: c.version, Schematic: c.schematic, Signed: c.signed, Enrolls: c.signed, Medium: true}
			if c.schematic == id {
				want.Extensions = []string{"siderolabs/zfs"}
			}
			if !ok || !slices.Equal(known.Extensions, want.Extensions) {
				b.Errorf("%s: the world knows %+v (%v)", what, known, ok)
			}
			known.Extensions, want.Extensions = nil, nil
			if a, w := known, want; a.Platform != w.Platform || a.Version != w.Version || a.Schematic != w.Schematic || a.Signed != w.Signed || a.Enrolls != w.Enrolls || !a.Medium {
				b.Errorf("%s: the world knows %+v, want %+v", what, known, want)
			}
			if other := seen[string(sum[:])]; other != "" {
				b.Errorf("%s has the bytes of %s", what, other)
			}
			seen[string(sum[:])] = what
		}
	})
}
