package factory

import (
	"net/http"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestLook: a factory that answers is distinguished from one that does not, and
// from something else in its place.
func TestLook(t *testing.T) {
	inLab(t, func(b *bench) {
		if host, err := b.f.Look(b.Context()); err != nil || host != "factory.lab" {
			b.Errorf("%s, %v", host, err)
		}
		strike := func(f world.Fault, words, hint string) {
			b.Helper()
			f.System = "factory"
			b.world.Inject(f)
			_, err := b.f.Look(b.Context())
			mustFail(b, err, true, words, hint)
			b.world.Heal()
		}
		// A mirror that lists no versions serves the two paths that are used.
		for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
			b.world.Inject(world.Fault{System: "factory", Op: "GET /versions", Kind: world.Answer, Status: status, Text: "no"})
			if host, err := b.f.Look(b.Context()); err != nil || host != "factory.lab" {
				b.Errorf("a mirror without versions (%d): %s, %v", status, host, err)
			}
			b.world.Inject(world.Fault{System: "factory", Op: "POST /schematics", Kind: world.Answer, Status: status, Text: "no"})
			if _, err := b.f.Look(b.Context()); err == nil || !strings.Contains(err.Error(), "register schematic") {
				b.Errorf("something that serves neither (%d): %v", status, err)
			}
			b.world.Heal()
		}
		strike(world.Fault{Kind: world.LoseRequest}, "ask factory.lab", "proxy")
		strike(world.Fault{Kind: world.Answer, Status: http.StatusBadGateway, Text: "<html>"}, "502", "trouble")
		strike(world.Fault{Kind: world.Answer, Status: http.StatusOK, Text: "<html>log in</html>"}, "not that of an image factory", "curl")
	})
}
