package helm

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// mustKeep fails unless a release is reported as left, and is kept for a reason with
// these words, in what is observed and right before it would be uninstalled.
func (b *bench) mustKeep(n cluster.ReleaseName, why string) {
	b.Helper()
	found := false
	for _, r := range b.look().Left {
		if r.ReleaseName == n {
			found = true
			if !strings.Contains(r.Kept, why) || why == "" && r.Kept != "" {
				b.Errorf("%s is kept because it %q, want %q", n, r.Kept, why)
			}
		}
	}
	if !found {
		b.Errorf("%s is not left: %v", n, b.look().Left)
	}
	if why != "" {
		mustFail(b, b.releaser.Uninstall(ctx, b.desired, n), why, "helm -n "+n.Namespace+" uninstall "+n.Name)
	}
}

// names are those of the objects of a resource.
func (b *bench) names(group, version, resource, namespace string) string {
	var out []string
	for _, o := range b.objects(group, version, resource, namespace) {
		if o.GetName() != "kube-root-ca.crt" {
			out = append(out, o.GetName())
		}
	}
	return strings.Join(out, " ")
}

// TestUninstall: a release of ours that the inventory no longer has is removed with its
// objects; its namespace and its definitions stay, and to do it again changes nothing.
func TestUninstall(t *testing.T) {
	bubble(t, func(b *bench) {
		a := b.preparedInstall(true) // two revisions
		b.settle(a, 5*time.Minute)
		n := cluster.ReleaseName{Namespace: a.Namespace, Name: a.Name}
		b.desired.Spec.Prune = true
		mustFail(b, b.releaser.Uninstall(ctx, b.desired, n), "the inventory does not want it removed", "")
		b.want()
		b.desired.Spec.Prune = false
		mustFail(b, b.releaser.Uninstall(ctx, b.desired, n), "the inventory does not want it removed", "")
		b.mustBeWhole(cluster.Release{Ready: true, Digest: "as before"}, "new")
		b.desired.Spec.Prune = true
		b.mustKeep(n, "")
		for range 2 {
			if err := b.releaser.Uninstall(ctx, b.desired, n); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if o := b.look(); !o.Releases.Known || len(o.Left) > 0 {
				t.Errorf("left: %v", o.Left)
			}
			for _, r := range []struct{ group, version, resource, want string }{
				{"", "v1", "secrets", ""}, {"", "v1", "configmaps", ""}, {"apps", "v1", "deployments", ""}, {"example.org", "v1", "things", ""}, {"batch", "v1", "jobs", "after before"},
			} {
				if got := b.names(r.group, r.version, r.resource, "apps"); got != r.want {
					t.Errorf("%s: %q, want %q", r.resource, got, r.want)
				}
			}
			if got := b.names("apiextensions.k8s.io", "v1", "customresourcedefinitions", ""); got != "things.example.org" {
				t.Errorf("definitions: %q", got)
			}
			if got := b.names("", "v1", "namespaces", ""); !strings.Contains(got, "apps") {
				t.Errorf("namespaces: %q", got)
			}
		}
	})
}

// TestUninstallKeeps: what is not ours, not this cluster's, not as we made it or the
// container network is never uninstalled.
func TestUninstallKeeps(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.desired.Spec.Prune = true
		web, handed, upgraded := b.configAddon("web", nil), b.configAddon("handed", nil), b.configAddon("upgraded", nil)
		handed.Ownership = cluster.BootstrapOnly
		network := b.local("overlay", "default", nil, map[string]string{"templates/ds.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: overlay-conf}\ndata: {path: /etc/cni/net.d}\n"})
		all := []cluster.Addon{web, handed, upgraded, network}
		b.want(all...)
		for _, a := range all {
			b.settle(a, time.Minute)
		}
		theirs := b.configAddon("theirs", nil)
		b.installByHand(theirs)
		b.upgradeByHand(upgraded, nil)
		synctest.Wait()
		b.want()
		in := func(a cluster.Addon) cluster.ReleaseName {
			return cluster.ReleaseName{Namespace: a.Namespace, Name: a.Name}
		}
		b.mustKeep(in(handed), keptUnmanaged)
		b.mustKeep(in(upgraded), keptChanged)
		b.mustKeep(in(network), keptNetwork)
		mustFail(b, b.releaser.Uninstall(ctx, b.desired, in(theirs)), "is somebody else's", "")
		id := b.desired.Spec.ID
		b.desired.Spec.ID = cluster.ClusterID("another agent", "dev")
		b.mustKeep(in(web), keptUnmanaged)
		b.desired.Spec.ID = id
		b.mustKeep(in(web), "")
		for _, a := range append(all, theirs) {
			if b.names("", "v1", "configmaps", "default") == "" || b.message(a.Name) == "" && a.Name != "overlay" {
				t.Errorf("%s was removed", a.Name)
			}
		}
	})
}

// TestUninstallSparesOthers: a namespace of the chart and what is in it, a definition of
// its templates, and an object that another release has taken over stay.
func TestUninstallSparesOthers(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.desired.Spec.Prune = true
		a := b.local("shop", "default", nil, map[string]string{
			"templates/ns.yaml":   "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop-data}\n",
			"templates/crd.yaml":  "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: carts.example.org}\nspec:\n  group: example.org\n  scope: Namespaced\n  names: {kind: Cart, listKind: CartList, plural: carts, singular: cart}\n  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]\n",
			"templates/conf.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: moved}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: own}\n",
			"templates/kept.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, annotations: {helm.sh/resource-policy: keep}}\n",
		})
		b.want(a)
		b.settle(a, time.Minute)
		adopt := `{"metadata":{"annotations":{"meta.helm.sh/release-name":"another"}}}`
		if _, err := b.client().CoreV1().ConfigMaps("default").Patch(ctx, "moved", types.MergePatchType, []byte(adopt), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		b.want()
		if err := b.releaser.Uninstall(ctx, b.desired, cluster.ReleaseName{Namespace: "default", Name: "shop"}); err != nil {
			t.Fatal(err)
		}
		if got := b.names("", "v1", "configmaps", "default"); got != "kept moved" {
			t.Errorf("config maps: %q", got)
		}
		if got := b.names("", "v1", "namespaces", ""); !strings.Contains(got, "shop-data") {
			t.Errorf("namespaces: %q", got)
		}
		if got := b.names("apiextensions.k8s.io", "v1", "customresourcedefinitions", ""); got != "carts.example.org" {
			t.Errorf("definitions: %q", got)
		}
	})
}

// TestMark: who manages an addon is noted in its release, is carried over to later
// revisions, and is taken back.
func TestMark(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.configAddon("web", nil)
		b.want(a)
		expect := func(when string, managed bool, revision int) {
			t.Helper()
			rel := b.look().Releases.Value["web"]
			if rel.Managed != managed || rel.Revision != revision || (rel.Kept == "") != managed {
				t.Errorf("%s: %+v", when, rel)
			}
		}
		b.settle(a, time.Minute)
		expect("installed", true, 1)
		mark := func() {
			t.Helper()
			b.want(a)
			if err := b.releaser.Mark(ctx, b.desired, a, false); err != nil {
				t.Fatal(err)
			}
		}
		a.Ownership = cluster.BootstrapOnly
		mark()
		expect("handed over", false, 1)
		a.Ownership = cluster.Managed
		mark()
		expect("taken back", true, 1)
		a.Values = b.values(map[string]any{"message": "new"})
		b.want(a)
		b.settle(a, time.Minute)
		expect("upgraded", true, 2)
		a.Ownership, a.Values = cluster.BootstrapOnly, b.values(map[string]any{"message": "newer"})
		b.want(a)
		if err := b.install(a); err != nil {
			t.Fatal(err)
		}
		expect("upgraded and handed over", false, 3)
		b.installByHand(b.configAddon("theirs", nil))
		if err := b.releaser.Mark(ctx, b.desired, b.configAddon("theirs", nil), false); err != nil {
			t.Fatal(err)
		}
		for _, s := range b.objects("", "v1", "secrets", "default") {
			if l := s.GetLabels(); l["name"] == "theirs" && l[labelManager] != "" {
				t.Errorf("somebody else's release is marked: %v", l)
			}
		}
	})
}

// leaving is a chart whose hooks run when it is uninstalled.
func (b *bench) leaving() cluster.Addon {
	hook := func(name, when string) string {
		return "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: " + name + "\n  annotations: {helm.sh/hook: " + when + ", helm.sh/hook-delete-policy: \"before-hook-creation,hook-succeeded\"}\nspec:\n  template:\n    spec: {restartPolicy: Never, containers: [{name: c, image: \"i:1\"}]}\n"
	}
	return b.local("leaving", "apps", nil, map[string]string{
		"templates/before.yaml": hook("before", "pre-delete"),
		"templates/after.yaml":  hook("after", "post-delete"),
		"templates/conf.yaml":   "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\n",
	})
}

// TestUninstallInterrupted cuts an uninstallation off at every call it makes: it is
// finished, and nothing is left.
func TestUninstallInterrupted(t *testing.T) {
	n := cluster.ReleaseName{Namespace: "apps", Name: "leaving"}
	prepare := func(b *bench) {
		b.serve("flannel")
		b.join(1)
		a := b.leaving()
		b.want(a)
		b.settle(a, 5*time.Minute)
		time.Sleep(2 * time.Minute) // until the nodes are Ready
		b.want()
		b.desired.Spec.Prune = true
		b.facts.Charts["a"] = "pin shows that there were addons"
		b.look()
		b.world.ForgetCalls()
	}
	var calls []world.CallRecord
	bubble(t, func(b *bench) {
		prepare(b)
		if err := b.releaser.Uninstall(ctx, b.desired, n); err != nil {
			t.Fatal(err)
		}
		for _, c := range b.world.Calls() {
			if c.System == "kube" && !strings.HasPrefix(c.Op, "WATCH") {
				calls = append(calls, c)
			}
		}
	})
	t.Logf("%d calls", len(calls))
	for i, c := range calls {
		if testing.Short() && i%3 != 0 {
			continue
		}
		for _, fault := range []world.FaultKind{world.LoseRequest, world.LoseReply, world.CrashBefore, world.CrashAfter} {
			t.Run(fmt.Sprintf("%d %s", i+1, fault), func(t *testing.T) {
				bubble(t, func(b *bench) {
					prepare(b)
					nth := 1
					for _, earlier := range calls[:i] {
						if earlier.Call == c.Call {
							nth++
						}
					}
					b.world.Inject(world.Fault{System: c.System, Op: c.Op, Subject: c.Subject, Nth: nth, Kind: fault})
					link := b.link
					b.world.OnCrash(func(world.Call) { link.Cut() })
					first := b.releaser.Uninstall(ctx, b.desired, n)
					if link.IsCut() {
						b.stop()
						b.start()
					}
					synctest.Wait()
					for range 10 {
						o := b.look()
						if o.Releases.Known && len(o.Left) == 0 {
							break
						}
						for _, r := range o.Left {
							if r.Kept != "" {
								t.Errorf("%v", r)
							}
							first = b.releaser.Uninstall(ctx, b.desired, r.ReleaseName)
						}
						time.Sleep(time.Second)
					}
					if got := b.names("", "v1", "secrets", "apps") + b.names("", "v1", "configmaps", "apps"); got != "" {
						t.Errorf("left: %q, the last error is %v", got, first)
					}
				})
			})
		}
	}
}
