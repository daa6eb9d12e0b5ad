package helm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// hooked is a chart with hooks, definitions and an object of a kind it defines
// itself.
func (b *bench) hooked(message string) cluster.Addon {
	hook := func(name, when string) string {
		return "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: " + name + "\n  annotations: {helm.sh/hook: \"" + when + "\"}\nspec:\n  template:\n    spec: {restartPolicy: Never, containers: [{name: c, image: \"i:1\"}]}\n"
	}
	return b.local("hooked", "apps", map[string]any{"message": message}, map[string]string{
		"crds/things.yaml":      "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.example.org}\nspec:\n  group: example.org\n  scope: Namespaced\n  names: {kind: Thing, listKind: ThingList, plural: things, singular: thing}\n  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]\n",
		"templates/before.yaml": hook("before", "pre-install,pre-upgrade,pre-rollback"),
		"templates/after.yaml":  hook("after", "post-install,post-upgrade,post-rollback"),
		"templates/thing.yaml":  "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: one}\nspec: {message: {{ .Values.message | quote }}}\n",
		"templates/conf.yaml":   "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {message: {{ .Values.message | quote }}}\n",
		"templates/deploy.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}, annotations: {message: {{ .Values.message | quote }}}}\n    spec: {containers: [{name: c, image: \"i:1\"}]}\n",
	})
}

// mustBeWhole fails unless the cluster holds one release of the addon, with
// everything it consists of, as its values set.
func (b *bench) mustBeWhole(rel cluster.Release, message string) {
	b.Helper()
	deployed := 0
	for _, s := range b.objects("", "v1", "secrets", "apps") {
		if s.GetLabels()["status"] == "deployed" {
			deployed++
		}
		if strings.HasPrefix(s.GetLabels()["status"], "pending") {
			b.Errorf("%s is left %s", s.GetName(), s.GetLabels()["status"])
		}
	}
	if deployed != 1 {
		b.Errorf("%d revisions are deployed", deployed)
	}
	if !rel.Ready || rel.Digest == "" {
		b.Errorf("the release is %+v", rel)
	}
	for _, o := range []struct{ group, version, resource string }{{"example.org", "v1", "things"}, {"", "v1", "configmaps"}, {"apps", "v1", "deployments"}} {
		found := slices.DeleteFunc(b.objects(o.group, o.version, o.resource, "apps"), func(u unstructured.Unstructured) bool { return u.GetName() == "kube-root-ca.crt" })
		if len(found) != 1 || !strings.Contains(fmt.Sprint(found[0].Object), message) {
			b.Errorf("%s are %v", o.resource, found)
		}
	}
	if jobs := b.objects("batch", "v1", "jobs", "apps"); len(jobs) != 2 {
		b.Errorf("%d hooks ran", len(jobs))
	}
}

// recorded runs a change of a release undisturbed and returns the calls it makes of the
// API, without those of watching.
func recorded(t *testing.T, kind string) (calls []world.CallRecord) {
	t.Helper()
	bubble(t, func(b *bench) {
		do, settle := b.prepared(kind)
		b.world.ForgetCalls()
		if err := do(); err != nil {
			b.Fatal(err)
		}
		for _, c := range b.world.Calls() {
			if c.System == "kube" && !strings.HasPrefix(c.Op, "WATCH") {
				calls = append(calls, c)
			}
		}
		b.mustBeWhole(settle(), "new")
	})
	return calls
}

// prepared brings a cluster to the point where the addon with the message "new" is about
// to be made, in an installation, an upgrade or a rollback. do does that once, settle as
// long as it takes.
func (b *bench) prepared(kind string) (do func() error, settle func() cluster.Release) {
	b.Helper()
	if kind == "roll back" {
		return b.preparedRollback()
	}
	a := b.preparedInstall(kind == "upgrade")
	digest := b.digest(a)
	return func() error { return b.releaser.Install(ctx, b.desired, a, digest) },
		func() cluster.Release { return b.settle(a, 20*time.Minute) }
}

// preparedInstall has an addon with the message "new" that is wanted, and not installed.
func (b *bench) preparedInstall(upgrade bool) cluster.Addon {
	b.Helper()
	b.serve("flannel")
	b.join(1)
	if upgrade {
		old := b.hooked("old")
		b.want(old)
		b.mustBeWhole(b.settle(old, 5*time.Minute), "old")
	} else {
		time.Sleep(2 * time.Minute) // until the nodes are Ready
	}
	a := b.hooked("new")
	b.want(a)
	return a
}

// preparedRollback has a release with the message "new" that was ready, and a revision
// after it.
func (b *bench) preparedRollback() (do func() error, settle func() cluster.Release) {
	b.Helper()
	b.serve("flannel")
	b.join(1)
	a := b.hooked("new")
	a.RollBack = true
	b.want(a)
	b.settle(a, 5*time.Minute)
	b.must(b.releaser.Mark(ctx, b.desired, a, true))
	a.Values = b.values(map[string]any{"message": "bad"})
	b.want(a)
	digest := b.digest(a)
	b.must(b.releaser.Install(ctx, b.desired, a, digest))
	back := func() error {
		return b.releaser.RollBack(ctx, b.desired, a, b.look().Releases.Value[a.Name].Back, digest)
	}
	to := b.look().Releases.Value[a.Name].Back
	return func() error { return b.releaser.RollBack(ctx, b.desired, a, to, digest) }, func() cluster.Release {
		b.Helper()
		var last error
		for end := time.Now().Add(20 * time.Minute); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
			o := b.look()
			rel := o.Releases.Value[a.Name]
			done := rel.RolledBack == digest && rel.Status == "deployed"
			switch {
			case done && rel.Ready && o.Releases.Known:
				return rel
			case !done && o.Releases.Known:
				last = back()
			}
		}
		b.Fatalf("it is not rolled back: %+v, last error %v", b.look().Releases, last)
		return cluster.Release{}
	}
}

// TestCrashAnywhere cuts an installation, an upgrade and a rollback off at every call
// they make: the call or its answer is lost, or the agent dies before or after it.
// Whatever happened, it ends with one release, whole and ready.
func TestCrashAnywhere(t *testing.T) {
	for _, kind := range []string{"install", "upgrade", "roll back"} {
		calls := recorded(t, kind)
		t.Logf("%s makes %d calls", kind, len(calls))
		for i, c := range calls {
			if testing.Short() && i%5 != 0 {
				continue
			}
			for _, fault := range []world.FaultKind{world.LoseRequest, world.LoseReply, world.CrashBefore, world.CrashAfter} {
				t.Run(fmt.Sprintf("%s %d %s", kind, i+1, fault), func(t *testing.T) {
					bubble(t, func(b *bench) {
						do, settle := b.prepared(kind)
						nth := 1
						for _, earlier := range calls[:i] {
							if earlier.Call == c.Call {
								nth++
							}
						}
						b.world.Inject(world.Fault{System: c.System, Op: c.Op, Subject: c.Subject, Nth: nth, Kind: fault})
						link := b.link
						b.world.OnCrash(func(world.Call) { link.Cut() })
						err := do()
						if link.IsCut() {
							b.stop()
							b.start()
						}
						synctest.Wait()
						b.mustBeWhole(settle(), "new")
						if t.Failed() {
							t.Logf("%s %s, it returned %v", c.Op, c.Subject, err)
						}
					})
				})
			}
		}
	}
}
