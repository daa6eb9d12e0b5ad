package helm

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestCilium(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("none")
		b.join(2)
		time.Sleep(b.world.Latency.ImagePull + time.Second) // nodes are registered
		a := b.cilium()
		b.want(a)
		o := b.look()
		if o.Charts["cilium"].Known || !o.Releases.Known || len(o.Releases.Value) != 0 {
			b.Fatalf("before anything: %+v, %+v", o.Charts, o.Releases)
		}
		digest := b.digest(a)
		if err := b.releaser.Install(context.Background(), b.desired, a, digest); err != nil {
			b.Fatal(err)
		}
		rel := b.look().Releases.Value["cilium"]
		if rel.Status != "deployed" || rel.Revision != 1 || rel.Digest != digest || rel.Ready || rel.Why != "daemonset kube-system/cilium: 0 of 3 pods ready" {
			b.Errorf("just installed: %+v", rel)
		}
		changes := b.changes.Load()
		rel = b.settle(a, 5*time.Minute)
		if !rel.Ready || rel.Why != "" || rel.Namespace != "kube-system" {
			b.Errorf("settled: %+v", rel)
		}
		synctest.Wait()
		if b.changes.Load() == changes {
			b.Error("no one was notified that it became ready")
		}
		if crds := b.objects("apiextensions.k8s.io", "v1", "customresourcedefinitions", ""); len(crds) != 1 {
			b.Errorf("definitions: %v", crds)
		}
		// Nothing left to do, and doing it again does nothing.
		b.calls("kube")
		if err := b.releaser.Install(context.Background(), b.desired, a, digest); err != nil {
			b.Fatal(err)
		}
		if rel := b.look().Releases.Value["cilium"]; rel.Revision != 1 {
			b.Errorf("installed again: %+v", rel)
		}
	})
}

func TestUpgrade(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		a := b.addon("web", "apps", "podinfo", "6.9.0", map[string]any{"message": "first"})
		b.want(a)
		first := b.settle(a, 5*time.Minute)
		a.Values = b.values(map[string]any{"message": "second", "replicaCount": 2})
		b.want(a)
		if o := b.look(); o.Charts["web"].Value.Release == first.Digest {
			b.Error("other values have the same digest")
		}
		second := b.settle(a, 5*time.Minute)
		if second.Revision != 2 || second.Digest == first.Digest {
			b.Errorf("after other values: %+v", second)
		}
		if env, _, _ := nested(b.objects("apps", "v1", "deployments", "apps")[0].Object); env != "second" {
			b.Errorf("the message is %q", env)
		}
		a.Chart.Version = "6.9.1"
		b.want(a)
		third := b.settle(a, 5*time.Minute)
		if third.Revision != 3 || third.Digest == second.Digest {
			b.Errorf("after another version: %+v", third)
		}
		// Empty values are not those of before.
		a.Values = cluster.Secret{}
		b.want(a)
		b.settle(a, 5*time.Minute)
		if env, _, _ := nested(b.objects("apps", "v1", "deployments", "apps")[0].Object); env != "hello" {
			b.Errorf("the message is %q", env)
		}
		for i := range 8 {
			a.Values = b.values(map[string]any{"message": strings.Repeat("x", i+1)})
			b.want(a)
			b.settle(a, 5*time.Minute)
		}
		if kept := len(b.objects("", "v1", "secrets", "apps")); kept != maxHistory {
			b.Errorf("%d revisions are kept", kept)
		}
	})
}

// nested is the message a podinfo Deployment shows.
func nested(o map[string]any) (message, image string, ok bool) {
	spec := o["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	c := spec["containers"].([]any)[0].(map[string]any)
	env := c["env"].([]any)[0].(map[string]any)
	return env["value"].(string), c["image"].(string), true
}
