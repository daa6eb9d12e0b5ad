package helm

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestInstalled: what a release was made of, and what is missing of it, is read when it is
// asked for.
func TestInstalled(t *testing.T) {
	bubble(t, func(b *bench) {
		a := b.parts()
		b.dead.Store(true)
		if _, err := b.releaser.Installed(ctx, b.desired, a); err == nil || err.Error() != "read the release of parts: no kube-apiserver is ready" {
			t.Errorf("without an API: %v", err)
		}
		b.dead.Store(false)
		b.serve("flannel")
		b.join(1)
		a.Values = b.values(map[string]any{"size": 3, "words": "a b"})
		b.want(a)
		if _, err := b.releaser.Installed(ctx, b.desired, a); err == nil || !strings.Contains(err.Error(), "there is no release apps/parts") {
			t.Errorf("before it is installed: %v", err)
		}
		b.settle(a, 5*time.Minute)
		has, err := b.releaser.Installed(ctx, b.desired, a)
		if err != nil || has.Chart != "parts" || has.Version == "" || has.Values.RevealString() != `{"size":3,"words":"a b"}` || len(has.Missing) > 0 {
			t.Errorf("%+v with %s, %v", has, has.Values.RevealString(), err)
		}
		if err := b.client().CoreV1().ConfigMaps("apps").Delete(ctx, "conf", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if has, err = b.releaser.Installed(ctx, b.desired, a); err != nil || !slices.Equal(has.Missing, []string{"configmap apps/conf"}) {
			t.Errorf("%+v, %v", has, err)
		}
		b.world.Inject(world.Fault{Op: "GET /api/v1/namespaces/{namespace}/secrets/{name}", Kind: world.Answer, Status: 500, Text: "storage error", Times: 100})
		if _, err := b.releaser.Installed(ctx, b.desired, a); err == nil {
			t.Error("the record cannot be read, and nothing is wrong")
		}
	})
}
