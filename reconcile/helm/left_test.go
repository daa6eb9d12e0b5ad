package helm

import (
	"slices"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestReleasesThatNoAddonHas: a release of ours stays when its addon is removed from the
// inventory, and is reported, also when it was the last and after a restart. Those of
// others are theirs.
func TestReleasesThatNoAddonHas(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		web, db := b.configAddon("web", nil), b.configAddon("db", nil)
		theirs := b.configAddon("theirs", nil)
		b.installByHand(theirs)
		b.want(web, db)
		b.settle(web, time.Minute)
		b.settle(db, time.Minute)
		expect := func(when string, want ...cluster.LeftRelease) {
			t.Helper()
			if o := b.look(); !o.Releases.Known || !slices.Equal(o.Left, want) {
				t.Errorf("%s: %v, want %v", when, o.Left, want)
			}
		}
		expect("all are wanted")
		left := leftRelease("db")
		b.want(web)
		expect("one was removed", left)
		b.want()
		expect("all were removed", left, leftRelease("web"))
		b.stop()
		b.start()
		b.facts.Charts[web.Chart.Ref()] = "a pin shows that there were addons"
		expect("after a restart", left, leftRelease("web"))
		web.Namespace = "elsewhere"
		b.want(web, db)
		expect("one is wanted in another namespace", leftRelease("web"))
	})
}

// leftRelease is a release in namespace default that may be uninstalled.
func leftRelease(name string) cluster.LeftRelease {
	return cluster.LeftRelease{ReleaseName: cluster.ReleaseName{Namespace: "default", Name: name}, Status: "deployed"}
}
