package factory

import (
	"net/http"
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
		strike(world.Fault{Kind: world.LoseRequest}, "ask factory.lab", "proxy")
		strike(world.Fault{Kind: world.Answer, Status: http.StatusBadGateway, Text: "<html>"}, "502", "trouble")
		strike(world.Fault{Kind: world.Answer, Status: http.StatusOK, Text: "<html>log in</html>"}, "not that of an image factory", "curl")
	})
}
