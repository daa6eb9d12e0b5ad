package helm

import (
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// webAddon is a chart of one Deployment whose pod asks for so many cores.
func (b *bench) webAddon(cores string) cluster.Addon {
	a := b.local("web", "apps", map[string]any{"cpu": cores}, map[string]string{
		"templates/deploy.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec: {containers: [{name: c, image: \"i:1\", resources: {requests: {cpu: {{ .Values.cpu | quote }}}}}]}\n",
	})
	a.RollBack = true
	b.want(a)
	return a
}

// TestRollBack: an upgrade that does not become ready is taken back to the newest revision
// that was, and what came of it can be read from the release alone.
func TestRollBack(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		web := func() cluster.Release { return b.look().Releases.Value["web"] }
		good := b.webAddon("100m")
		b.settle(good, 5*time.Minute)
		if rel := web(); rel.Good || rel.Back != 0 {
			t.Errorf("before it is marked: %+v", rel)
		}
		b.must(b.releaser.Mark(ctx, b.desired, good, true))
		first := web()
		if !first.Good || !first.Managed || first.Back != 0 {
			t.Errorf("marked: %+v", first)
		}
		bad := b.webAddon("64")
		digest := b.digest(bad)
		b.must(b.install(bad))
		made := time.Now()
		time.Sleep(20 * time.Minute)
		rel := web()
		if rel.Good || rel.Ready || rel.Back != 1 || rel.Digest != digest || rel.Tried.Before(made.Add(-time.Minute)) || rel.Tried.After(made) {
			t.Errorf("upgraded: %+v", rel)
		}
		mustFail(t, b.releaser.RollBack(ctx, b.desired, bad, 2, digest), "revision 2 is not one of ours that was ready", "`helm -n apps history web`")
		for range 2 { // the second time there is nothing left to do
			b.must(b.releaser.RollBack(ctx, b.desired, bad, 1, digest))
			rel = web()
			if rel.Revision != 3 || rel.Status != "deployed" || rel.Digest != first.Digest || rel.RolledBack != digest || !rel.Managed || rel.Edited || rel.Good {
				t.Errorf("rolled back: %+v", rel)
			}
		}
		time.Sleep(5 * time.Minute)
		if rel = web(); !rel.Ready {
			t.Errorf("some time later: %+v", rel)
		}
		better, before := b.webAddon("200m"), time.Now().Add(-time.Second)
		b.settle(better, 5*time.Minute)
		if rel = web(); rel.Tried.Before(before) || rel.Changed.Before(before) {
			t.Errorf("it is older than it is: %+v", rel)
		}
		if rel.Revision != 4 || rel.RolledBack != "" || rel.Back != 1 || rel.Good {
			t.Errorf("upgraded to something else: %+v", rel)
		}
		b.upgradeByHand(better, map[string]any{"cpu": "300m"})
		if rel = web(); !rel.Edited || rel.RolledBack != "" || rel.Good {
			t.Errorf("upgraded by hand: %+v", rel)
		}
		b.must(b.releaser.Mark(ctx, b.desired, better, true))
		if rel = web(); rel.Good {
			t.Error("a revision of somebody else is marked as good")
		}
		if err := b.releaser.RollBack(ctx, b.desired, better, 1, rel.Digest); err == nil || !strings.Contains(err.Error(), "changed meanwhile") {
			t.Errorf("somebody else's revision is taken back: %v", err)
		}
	})
}

// TestWhatWasGoodIsNotRolledBack: a release that is made the same again, to put back what
// somebody has deleted of it, is not an upgrade that did not become ready.
func TestWhatWasGoodIsNotRolledBack(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		var a cluster.Addon
		for _, cores := range []string{"100m", "200m"} {
			a = b.webAddon(cores)
			b.settle(a, 5*time.Minute)
			b.must(b.releaser.Mark(ctx, b.desired, a, true))
		}
		if rel := b.look().Releases.Value["web"]; rel.Back != 1 {
			t.Errorf("upgraded: %+v", rel)
		}
		time.Sleep(time.Hour)
		b.must(b.client().AppsV1().Deployments("apps").Delete(ctx, "web", metav1.DeleteOptions{}))
		b.must(b.install(a))
		if rel := b.look().Releases.Value["web"]; rel.Revision != 3 || rel.Good || rel.Back != 0 {
			t.Errorf("put back: %+v", rel)
		}
	})
}

// TestFailedUpgradesAreCounted: an upgrade that fails again and again is as old as the first
// of its revisions, of which only the newest are kept.
func TestFailedUpgradesAreCounted(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		good := b.webAddon("100m")
		b.settle(good, 5*time.Minute)
		b.must(b.releaser.Mark(ctx, b.desired, good, true))
		bad := b.webAddon("200m")
		began := time.Now()
		for range 2 * maxHistory {
			b.must(b.install(bad))
			b.mark(bad, release.StatusFailed, time.Now())
			rels := action.NewHistory(b.human("apps"))
			all, err := rels.Run("web")
			b.must(err)
			for _, rel := range all { // as Helm leaves the one that was deployed when an upgrade fails
				if rel.Version == 1 {
					rel.Info.Status = release.StatusDeployed
					b.must(b.human("apps").Releases.Update(rel))
				}
			}
			time.Sleep(5 * time.Minute)
		}
		if rel := b.look().Releases.Value["web"]; rel.Back != 1 || rel.Tried.After(began.Add(time.Minute)) || rel.Status != "failed" {
			t.Errorf("after %s: %+v", time.Since(began), rel)
		}
	})
}
