package helm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/release"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// human is Helm in the hands of a person.
func (b *bench) human(namespace string) *action.Configuration {
	b.Helper()
	conn, err := connectServer(*b.server.Load(), b.desired.Access.Kube, b.world.Net.DialContext, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Close)
	w, err := newWorkshop(ctx, conn, namespace)
	if err != nil {
		b.Fatal(err)
	}
	return w.helm
}

// loadChart is the chart of an addon, as Helm reads it.
func (b *bench) loadChart(a cluster.Addon) *chart.Chart {
	b.Helper()
	var files []*loader.BufferedFile
	for _, name := range sortedNames(a.Chart.Files) {
		files = append(files, &loader.BufferedFile{Name: name, Data: a.Chart.Files[name]})
	}
	made, err := loader.LoadFiles(files)
	if err != nil {
		b.Fatal(err)
	}
	return made
}

// installByHand installs the chart of an addon without the agent.
func (b *bench) installByHand(a cluster.Addon) *release.Release {
	b.Helper()
	made := b.loadChart(a)
	install := action.NewInstall(b.human(a.Namespace))
	install.ReleaseName, install.Namespace = a.Name, a.Namespace
	rel, err := install.Run(made, map[string]any{})
	if err != nil {
		b.Fatal(err)
	}
	return rel
}

// upgradeByHand upgrades the release of an addon without the agent.
func (b *bench) upgradeByHand(a cluster.Addon, values map[string]any) *release.Release {
	b.Helper()
	made := b.loadChart(a)
	upgrade := action.NewUpgrade(b.human(a.Namespace))
	upgrade.Namespace = a.Namespace
	rel, err := upgrade.Run(a.Name, made, values)
	if err != nil {
		b.Fatal(err)
	}
	return rel
}

// install installs an addon as it is wanted now.
func (b *bench) install(a cluster.Addon) error {
	b.Helper()
	return b.releaser.Install(ctx, b.desired, a, b.digest(a))
}

// config is a chart of one ConfigMap.
func (b *bench) configAddon(name string, values map[string]any) cluster.Addon {
	return b.local(name, "default", values, map[string]string{
		"templates/conf.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-conf}\ndata: {message: {{ .Values.message | default \"none\" | quote }}}\n",
	})
}

// message is the text in the ConfigMap of such a chart, "" without one.
func (b *bench) message(name string) string {
	for _, o := range b.objects("", "v1", "configmaps", "default") {
		if o.GetName() == name+"-conf" {
			data, _ := o.Object["data"].(map[string]any)
			s, _ := data["message"].(string)
			return s
		}
	}
	return ""
}

func TestReleaseOfSomebodyElse(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.configAddon("web", map[string]any{"message": "ours"})
		b.want(a)
		b.installByHand(a)
		synctest.Wait()
		rel := b.look().Releases.Value["web"]
		if rel.Status != "deployed" || rel.Digest != "" || !rel.Ready || rel.Revision != 1 {
			b.Errorf("the release is %+v", rel)
		}
		mustFail(b, b.install(a), "somebody else has installed a release of that name", "bootstrap-only")
		if got := b.message("web"); got != "none" {
			b.Errorf("the message is %q", got)
		}
	})
}

func TestObjectOfSomebodyElse(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		if _, err := b.client().CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "web-conf"}}, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		a := b.configAddon("web", nil)
		b.want(a)
		mustFail(b, b.install(a), `ConfigMap "web-conf" in namespace "default" exists and cannot be imported into the current release`, "something else made this object")
		if rel, ok := b.look().Releases.Value["web"]; ok {
			b.Errorf("the release is %+v", rel)
		}
	})
}

// TestUpgradeByHand: who manages a release decides what somebody's upgrade of
// it means. Helm carries our labels over to it.
func TestUpgradeByHand(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.configAddon("web", map[string]any{"message": "ours"})
		b.want(a)
		first := b.settle(a, time.Minute)
		if rel := b.upgradeByHand(a, map[string]any{"message": "mine"}); rel.Version != 2 || rel.Labels[labelDigest] != first.Digest {
			b.Fatalf("Helm does not carry labels over: %+v", rel.Labels)
		}
		synctest.Wait()
		if rel := b.look().Releases.Value["web"]; rel.Digest != changed || rel.Revision != 2 {
			b.Errorf("managed, the release is %+v", rel)
		} else if rel.OtherValues != "message" || !strings.HasPrefix(rel.EditedBy, "revision 2 ") || !strings.HasSuffix(rel.EditedBy, ": Upgrade complete") {
			b.Errorf("what somebody changed of it is %q, by %q", rel.OtherValues, rel.EditedBy)
		}
		theirs := a
		theirs.Ownership = cluster.BootstrapOnly
		b.want(theirs)
		if rel := b.look().Releases.Value["web"]; rel.Digest != "" || rel.Status != "deployed" || !rel.Ready {
			b.Errorf("bootstrap-only, the release is %+v", rel)
		}
		b.want(a)
		if rel := b.settle(a, time.Minute); rel.Revision != 3 || rel.Digest != first.Digest || b.message("web") != "ours" {
			b.Errorf("healed, the release is %+v with %q", rel, b.message("web"))
		}
		// A rollback by hand is no different.
		rollback := action.NewRollback(b.human("default"))
		rollback.Version = 2
		if err := rollback.Run("web"); err != nil {
			b.Fatal(err)
		}
		synctest.Wait()
		if rel := b.look().Releases.Value["web"]; rel.Digest != changed || rel.Revision != 4 || b.message("web") != "mine" {
			b.Errorf("rolled back, the release is %+v", rel)
		} else if rel.OtherValues != "message" || !strings.HasSuffix(rel.EditedBy, ": Rollback to 2") {
			b.Errorf("what somebody changed of it is %q, by %q", rel.OtherValues, rel.EditedBy)
		}
		if rel := b.settle(a, time.Minute); rel.Digest != first.Digest || b.message("web") != "ours" {
			b.Errorf("healed, the release is %+v", rel)
		}
	})
}

// mark sets the status of the newest revision, as a process does that dies.
func (b *bench) mark(a cluster.Addon, status release.Status, at time.Time) {
	b.Helper()
	helm := b.human(a.Namespace)
	last, err := helm.Releases.Last(a.Name)
	if err != nil {
		b.Fatal(err)
	}
	last.Info.Status, last.Info.LastDeployed.Time = status, at
	if status == release.StatusUninstalling {
		last.Info.Deleted.Time = at
	}
	if err := helm.Releases.Update(last); err != nil {
		b.Fatal(err)
	}
}

func TestTakesUpWhatWasInterrupted(t *testing.T) {
	for _, status := range []release.Status{release.StatusPendingInstall, release.StatusPendingUpgrade, release.StatusPendingRollback, release.StatusFailed, release.StatusUninstalled, release.StatusSuperseded, release.StatusUnknown} {
		t.Run(string(status), func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.serve("flannel")
				a := b.configAddon("web", map[string]any{"message": "ours"})
				b.want(a)
				for range 2 {
					b.settle(a, time.Minute)
					b.mark(a, status, time.Now())
					synctest.Wait()
					rel := b.look().Releases.Value["web"]
					if rel.Status != string(status) || rel.Ready || rel.Why != "its release is "+string(status) {
						b.Errorf("the release is %+v", rel)
					}
					if rel := b.settle(a, time.Minute); rel.Status != "deployed" || b.message("web") != "ours" {
						b.Errorf("the release is %+v", rel)
					}
					a = b.configAddon("web", map[string]any{"message": "ours", "other": 1})
					b.want(a)
				}
			})
		})
	}
}

// TestUninstallationLeftBehind: an addon that comes back after its uninstallation was
// interrupted is installed again, and not while it may be under way.
func TestUninstallationLeftBehind(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.configAddon("web", map[string]any{"message": "ours"})
		b.want(a)
		b.settle(a, time.Minute)
		b.mark(a, release.StatusUninstalling, time.Now())
		if err := b.client().CoreV1().ConfigMaps("default").Delete(ctx, "web-conf", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		mustFail(b, b.install(a), "its release is being uninstalled", "")
		time.Sleep(pendingFor)
		if rel := b.settle(a, time.Minute); rel.Status != "deployed" || b.message("web") != "ours" {
			t.Errorf("%+v", rel)
		}
	})
}

// TestPendingByHand: somebody's upgrade that is under way is not disturbed, one
// that was left behind is.
func TestPendingByHand(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.configAddon("web", map[string]any{"message": "ours"})
		b.want(a)
		b.settle(a, time.Minute)
		b.upgradeByHand(a, map[string]any{"message": "mine"})
		b.mark(a, release.StatusPendingUpgrade, time.Now())
		mustFail(b, b.install(a), "somebody else has changed its release for", "")
		time.Sleep(pendingFor)
		if err := b.install(a); err != nil || b.message("web") != "ours" {
			b.Errorf("error is %v, message %q", err, b.message("web"))
		}
		b.mark(a, release.StatusUninstalling, time.Now())
		mustFail(b, b.install(a), "being uninstalled", "")
	})
}

// TestFailedInstallThatIsFixed: what the first attempt left behind and the
// second does not want is removed.
func TestFailedInstallThatIsFixed(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.configAddon("web", map[string]any{"message": "ours"})
		a.Chart.Files["templates/extra.yaml"] = []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: extra}\n")
		b.world.Inject(world.Fault{Op: "POST /api/v1/namespaces/{namespace}/configmaps", Subject: "default/web-conf", Kind: world.Answer, Status: 403, Text: "no"})
		b.want(a)
		mustFail(b, b.install(a), "no", "")
		synctest.Wait()
		rel := b.look().Releases.Value["web"]
		if rel.Status != "failed" || rel.Digest == "" || rel.Ready {
			b.Errorf("the release is %+v", rel)
		}
		b.world.Heal()
		delete(a.Chart.Files, "templates/extra.yaml")
		b.want(a)
		b.settle(a, time.Minute)
		for _, o := range b.objects("", "v1", "configmaps", "default") {
			if o.GetName() == "extra" {
				b.Error("an object of the failed attempt is left")
			}
		}
	})
}

// TestFirstInstallIsDoneAgain: an interrupted installation is not an upgrade
// when it is taken up, and its hooks run.
func TestFirstInstallIsDoneAgain(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.configAddon("web", nil)
		a.Chart.Files["templates/hook.yaml"] = []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hook, annotations: {helm.sh/hook: pre-install}}\ndata: {first: \"{{ .Release.IsInstall }}\"}\n")
		b.want(a)
		b.world.Inject(world.Fault{Op: "POST /api/v1/namespaces/{namespace}/configmaps", Subject: "default/hook", Nth: 1, Kind: world.LoseRequest})
		if err := b.install(a); err == nil {
			b.Fatal("installed without an answer")
		}
		b.settle(a, time.Minute)
		for _, o := range b.objects("", "v1", "configmaps", "default") {
			if data, _ := o.Object["data"].(map[string]any); o.GetName() == "hook" && data["first"] == "true" {
				return
			}
		}
		b.Error("the hook has not run, or as one of an upgrade")
	})
}

func TestWorkloadThatIsDeleted(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		a := b.addon("web", "apps", "podinfo", "6.9.0", nil)
		b.want(a)
		b.settle(a, 5*time.Minute)
		changes := b.changes.Load()
		if err := b.client().AppsV1().Deployments("apps").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		time.Sleep(time.Second)
		if b.changes.Load() == changes {
			b.Error("no one was notified")
		}
		if rel := b.look().Releases.Value["web"]; rel.Ready || rel.Why != "deployment apps/web is not there" {
			b.Errorf("the release is %+v", rel)
		}
	})
}

// TestUninstalledByHand: a release that is deleted is absent, and made again as
// the first of its name.
func TestUninstalledByHand(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		a := b.addon("web", "apps", "podinfo", "6.9.0", nil)
		b.want(a)
		b.settle(a, 5*time.Minute)
		if _, err := action.NewUninstall(b.human("apps")).Run("web"); err != nil {
			b.Fatal(err)
		}
		synctest.Wait()
		if rel, ok := b.look().Releases.Value["web"]; ok {
			b.Errorf("the release is %+v", rel)
		}
		if rel := b.settle(a, 5*time.Minute); rel.Revision != 1 {
			b.Errorf("the release is %+v", rel)
		}
	})
}

func TestNeverReady(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(2)
		a := b.addon("stuck", "apps", "stuck", "0.1.0", nil)
		b.want(a)
		began := time.Now()
		if err := b.install(a); err != nil {
			b.Fatal(err)
		}
		if took := time.Since(began); took > 10*time.Second {
			b.Errorf("Install waited %v", took)
		}
		time.Sleep(time.Hour)
		if rel := b.look().Releases.Value["stuck"]; rel.Ready || rel.Status != "deployed" || !strings.HasPrefix(rel.Why, "deployment apps/stuck: ") {
			b.Errorf("the release is %+v", rel)
		}
	})
}

// TestNotReadyTooSoon: after an upgrade, the state before it is not taken for
// the result.
func TestNotReadyTooSoon(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(2)
		a := b.addon("web", "apps", "podinfo", "6.9.0", nil)
		b.want(a)
		b.settle(a, 5*time.Minute)
		for i := range 5 {
			a.Values = b.values(map[string]any{"message": fmt.Sprint(i)})
			b.want(a)
			if err := b.install(a); err != nil {
				b.Fatal(err)
			}
			if rel := b.look().Releases.Value["web"]; rel.Status != "deployed" || rel.Revision != i+2 || rel.Ready {
				b.Errorf("just upgraded, the release is %+v", rel)
			}
			b.settle(a, 5*time.Minute)
		}
	})
}

// TestQuiet: looking at a cluster in which nothing happens costs no call.
func TestQuiet(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("none")
		b.join(2)
		cilium, web := b.cilium(), b.addon("web", "apps", "podinfo", "6.9.0", nil)
		b.want(cilium, web)
		b.settle(cilium, 5*time.Minute)
		b.settle(web, 5*time.Minute)
		b.world.ForgetCalls()
		for range 20 {
			o := b.look()
			for _, name := range []string{"cilium", "web"} {
				if !o.Charts[name].Known || !o.Releases.Value[name].Ready {
					b.Fatalf("%+v, %+v", o.Charts[name], o.Releases)
				}
			}
			time.Sleep(10 * time.Second)
		}
		if calls := b.world.Calls(); len(calls) != 0 {
			b.Errorf("calls: %v", calls)
		}
		time.Sleep(time.Hour)
		if !b.look().Releases.Value["cilium"].Ready {
			b.Error("lost after an hour")
		}
		if calls := b.calls("kube"); calls["GET /api/v1/secrets"]+calls["GET /apis/apps/v1/daemonsets"] != 0 {
			b.Errorf("calls: %v", calls)
		}
	})
}

// TestAPIThatMoves: another kube-apiserver takes over, or none.
func TestAPIThatMoves(t *testing.T) {
	bubble(t, func(b *bench) {
		stop := b.serve("flannel")
		b.join(1)
		a := b.addon("web", "apps", "podinfo", "6.9.0", nil)
		b.want(a)
		b.settle(a, 5*time.Minute)
		second := b.desired.Spec.Nodes[0]
		second.Name, second.IP = "cp-2", second.IP.Next().Next().Next()
		b.desired.Spec.Nodes[0] = second
		b.serve("flannel")
		changes := b.changes.Load()
		stop()
		time.Sleep(time.Second)
		if b.changes.Load() == changes {
			b.Error("no one was notified that the API is lost")
		}
		if o := b.look(); o.Releases.Known {
			b.Errorf("releases seen through a dead API: %+v", o.Releases)
		}
		b.dead.Store(true)
		if o := b.look(); o.Releases.Known || !strings.Contains(o.Releases.Why, "no kube-apiserver is ready") {
			b.Errorf("releases are %+v", o.Releases)
		}
		mustFail(b, b.releaser.Install(ctx, b.desired, a, b.digest(a)), "no kube-apiserver is ready", "")
		b.dead.Store(false)
		b.setServer(second.IP.String())
		if o := b.look(); !o.Releases.Known || !o.Releases.Value["web"].Ready {
			b.Errorf("releases are %+v", o.Releases)
		}
	})
}

// TestUnknownIsNotAbsent: whatever goes wrong with one call, a release that is
// there is never reported absent.
func TestUnknownIsNotAbsent(t *testing.T) {
	for _, fault := range []world.Fault{
		{Kind: world.LoseRequest}, {Kind: world.LoseReply}, {Kind: world.Slow, Delay: 20 * time.Second}, {Kind: world.Answer, Status: 500, Text: "no"},
		{Kind: world.Answer, Status: 410, Text: "too old"}, {Kind: world.Answer, Status: 429, Text: "too many"}, {Kind: world.Answer, Status: 401, Text: "Unauthorized"},
	} {
		for _, op := range []string{"WATCH /api/v1/secrets", "GET /api/v1/secrets", "WATCH /apis/apps/v1/deployments", "GET /apis/apps/v1/deployments", "GET /api/v1/namespaces/{namespace}/secrets/{name}"} {
			t.Run(fmt.Sprintf("%s %d %s", fault.Kind, fault.Status, strings.ReplaceAll(op, "/", "_")), func(t *testing.T) {
				bubble(t, func(b *bench) {
					b.serve("flannel")
					b.join(1)
					a := b.addon("web", "apps", "podinfo", "6.9.0", nil)
					b.want(a)
					b.settle(a, 5*time.Minute)
					b.stop()
					b.start()
					fault := fault
					fault.Op, fault.Nth = op, 1
					b.world.Inject(fault)
					for range 20 {
						if o := b.look(); o.Releases.Known && o.Releases.Value["web"].Status != "deployed" {
							b.Fatalf("releases are %+v", o.Releases)
						}
						time.Sleep(5 * time.Second)
					}
					if o := b.look(); !o.Releases.Known || !o.Releases.Value["web"].Ready {
						b.Errorf("releases are %+v", o.Releases)
					}
				})
			})
		}
	}
}

// TestRefused: whoever looks learns that the API refuses to be looked at, and
// no one is called to look again for it, or the two would never stop.
func TestRefused(t *testing.T) {
	for _, op := range []string{"* /api/v1/secrets", "* /apis/apps/v1/deployments"} {
		t.Run(strings.ReplaceAll(op, "/", "_"), func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.serve("flannel")
				b.want(b.addon("web", "apps", "podinfo", "6.9.0", nil))
				b.world.Inject(world.Fault{Op: op, Kind: world.Answer, Status: 403, Text: "this is forbidden"})
				for range 3 {
					if o := b.look(); o.Releases.Known || !strings.Contains(o.Releases.Why, "it does not accept the agent's certificate: this is forbidden") {
						b.Errorf("releases are %+v", o.Releases)
					}
					time.Sleep(time.Minute)
				}
				if n := b.changes.Load(); n != 0 {
					b.Errorf("somebody was called to look again %d times", n)
				}
				b.world.Heal()
				if o := b.look(); !o.Releases.Known {
					b.Errorf("releases are %+v", o.Releases)
				}
			})
		})
	}
}

// TestEmptyList: a release that an API's empty answer hides is not made twice.
func TestEmptyList(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.configAddon("web", map[string]any{"message": "ours"})
		b.want(a)
		b.settle(a, time.Minute)
		b.world.Inject(world.Fault{Op: "* /api/v1/*secrets", Kind: world.EmptyList}, world.Fault{Op: "GET /api/v1/namespaces/{namespace}/secrets", Kind: world.EmptyList})
		err := b.install(a)
		mustFail(b, err, "already exists", "")
		b.world.Heal()
		if secrets := b.objects("", "v1", "secrets", "default"); len(secrets) != 1 {
			b.Errorf("%d revisions are there", len(secrets))
		}
		if rel := b.settle(a, time.Minute); rel.Revision != 1 {
			b.Errorf("the release is %+v", rel)
		}
	})
}

// TestOneActionPerRelease: a second installation of a release waits for the
// first; others do not.
func TestOneActionPerRelease(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a, other := b.configAddon("web", map[string]any{"message": "ours"}), b.configAddon("other", nil)
		b.want(a, other)
		digest, otherDigest := b.digest(a), b.digest(other)
		b.world.Inject(world.Fault{Op: "POST /api/v1/namespaces/{namespace}/secrets", Subject: "default/sh.helm.release.v1.web.v1", Kind: world.Slow, Delay: 20 * time.Second})
		var wg sync.WaitGroup
		errs := make(chan error, 10)
		for range 5 {
			wg.Go(func() { errs <- b.releaser.Install(ctx, b.desired, a, digest) })
		}
		began := time.Now()
		if err := b.releaser.Install(ctx, b.desired, other, otherDigest); err != nil {
			b.Error(err)
		}
		if took := time.Since(began); took > 5*time.Second {
			b.Errorf("another release waited %v", took)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := b.releaser.Install(short, b.desired, a, digest); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("who has no time gets %v", err)
		}
		wg.Wait()
		for range 5 {
			if err := <-errs; err != nil {
				b.Error(err)
			}
		}
		if secrets := b.objects("", "v1", "secrets", "default"); len(secrets) != 2 {
			b.Errorf("%d revisions are there", len(secrets))
		}
	})
}

// TestCancelled: when the context of an installation ends, or the Releaser is
// closed, Install returns soon, nothing goes on behind its back, and what was
// begun is taken up later.
func TestCancelled(t *testing.T) {
	for _, closing := range []bool{false, true} {
		for _, after := range []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 30 * time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second} {
			t.Run(fmt.Sprint(closing, after), func(t *testing.T) {
				bubble(t, func(b *bench) {
					a := b.preparedInstall(false)
					digest := b.digest(a)
					acting, cancel := context.WithCancel(ctx)
					defer cancel()
					done := make(chan error, 1)
					go func() { done <- b.releaser.Install(acting, b.desired, a, digest) }()
					time.Sleep(after)
					synctest.Wait()
					b.world.ForgetCalls()
					began := time.Now()
					if closing {
						b.releaser.Close()
					} else {
						cancel()
					}
					err := <-done
					if took := time.Since(began); took > 3*time.Second {
						b.Errorf("it took %v to return", took)
					}
					if closing && !errors.Is(err, errStopping) || !closing && !errors.Is(err, context.Canceled) {
						b.Errorf("error is %v", err)
					}
					time.Sleep(10 * time.Minute)
					for _, c := range b.world.Calls() {
						if c.System == "kube" && !strings.HasPrefix(c.Op, "WATCH") {
							b.Errorf("%s %s afterwards", c.Op, c.Subject)
						}
					}
					if closing {
						b.start()
					}
					b.mustBeWhole(b.settle(a, 20*time.Minute), "new")
				})
			})
		}
	}
}

// TestCancelledWhileTheAPIIsSlow does not wait for its answer.
func TestCancelledWhileTheAPIIsSlow(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.configAddon("web", nil)
		b.want(a)
		digest := b.digest(a)
		b.world.Inject(world.Fault{Op: "POST /api/v1/namespaces/{namespace}/configmaps", Kind: world.Slow, Delay: time.Hour})
		acting, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := b.releaser.Install(acting, b.desired, a, digest); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("error is %v", err)
		}
		if took := time.Since(began); took > 6*time.Second {
			b.Errorf("it took %v", took)
		}
		// An API that never answers is given up without anybody's help.
		began = time.Now()
		if err := b.install(a); err == nil {
			b.Error("installed without an answer")
		}
		if took := time.Since(began); took > 5*time.Minute {
			b.Errorf("it took %v", took)
		}
		b.world.Heal()
		b.settle(a, 10*time.Minute)
	})
}

func TestClosed(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.configAddon("web", nil)
		b.want(a)
		b.settle(a, time.Minute)
		b.releaser.Close()
		b.releaser.Close()
		b.world.ForgetCalls()
		if o := b.look(); o.Releases.Known || !strings.Contains(o.Releases.Why, "stops") {
			b.Errorf("releases are %+v", o.Releases)
		}
		if err := b.releaser.Install(ctx, b.desired, a, "x"); !errors.Is(err, errStopping) {
			b.Error(err)
		}
		if _, err := b.releaser.FetchChart(ctx, a, ""); !errors.Is(err, errStopping) {
			b.Error(err)
		}
		if calls := b.world.Calls(); len(calls) != 0 {
			b.Errorf("calls: %v", calls)
		}
	})
}

func TestWithoutSecretsOrAddons(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		if o := b.look(); !o.Releases.Known || len(o.Releases.Value) != 0 {
			b.Errorf("without addons: %+v", o.Releases)
		}
		if calls := b.world.Calls(); slices.ContainsFunc(calls, func(c world.CallRecord) bool { return c.System == "kube" && strings.Contains(c.Op, "secrets") }) {
			b.Errorf("calls: %v", calls)
		}
		a := b.configAddon("web", nil)
		b.want(a)
		access := b.desired.Access
		b.desired.Access = cluster.Access{}
		if o := b.look(); o.Releases.Known || !strings.Contains(o.Releases.Why, "no secrets") {
			b.Errorf("without secrets: %+v", o.Releases)
		}
		mustFail(b, b.install(a), "no secrets", "")
		b.desired.Access = access
		b.desired.Access.Kube.Key = b.ca.access(time.Hour).Key
		if o := b.look(); o.Releases.Known || !strings.Contains(o.Releases.Why, "do not go together") {
			b.Errorf("with another key: %+v", o.Releases)
		}
		mustFail(b, b.install(a), "do not go together", "")
	})
}

// TestCredentialsAreRenewed: newer ones are taken when the present ones grow
// old, not whenever they are minted.
func TestCredentialsAreRenewed(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.configAddon("web", nil)
		b.want(a)
		b.settle(a, time.Minute)
		first := b.releaser.conn
		for hour := range 48 {
			time.Sleep(time.Hour)
			b.desired.Access.Kube = b.ca.access(24 * time.Hour)
			if o := b.look(); !o.Releases.Known || !o.Releases.Value["web"].Ready {
				b.Fatalf("after %d hours: %+v", hour, o.Releases)
			}
			if hour < 16 && b.releaser.conn != first {
				b.Fatal("credentials with a good part of their life left were thrown away")
			}
		}
		if b.releaser.conn == first {
			b.Error("credentials were kept beyond their life")
		}
		synctest.Wait()
		if n := b.link.Open(); n != 1 {
			b.Errorf("%d connections are open", n)
		}
	})
}

func TestWhatChangedMeanwhile(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.addon("web", "apps", "podinfo", "6.9.0", nil)
		b.want(a)
		digest := b.digest(a)
		a.Values = b.values(map[string]any{"message": "other"})
		mustFail(b, b.releaser.Install(ctx, b.desired, a, digest), "have changed meanwhile", "")
		b.releaser.cache.dir = b.TempDir()
		a.Values = b.values(nil)
		mustFail(b, b.releaser.Install(ctx, b.desired, a, digest), "it is not in the cache", "")
		a.Values = cluster.SecretString("[")
		b.want(a)
		_, err := b.releaser.FetchChart(ctx, a, "")
		if err != nil {
			b.Fatal(err)
		}
		mustFail(b, b.releaser.Install(ctx, b.desired, a, b.digest(a)), "its values cannot be read", "addons/web.yaml")
	})
}

// TestDefinitionsAreUpgraded: what is in crds/ follows the chart.
func TestDefinitionsAreUpgraded(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		a := b.hooked("one")
		b.want(a)
		b.settle(a, 10*time.Minute)
		a = b.hooked("one")
		crd := string(a.Chart.Files["crds/things.yaml"])
		a.Chart.Files["crds/things.yaml"] = []byte(strings.ReplaceAll(crd, "type: object,", "type: object, description: \"newer\","))
		b.want(a)
		b.settle(a, 10*time.Minute)
		crds := b.objects("apiextensions.k8s.io", "v1", "customresourcedefinitions", "")
		if len(crds) != 1 || !strings.Contains(fmt.Sprint(crds[0].Object), "newer") {
			b.Errorf("definitions are %v", crds)
		}
	})
}

// TestManualEditIsReverted by the next upgrade, as Helm does: three ways.
func TestManualEditIsReverted(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		a := b.addon("web", "apps", "podinfo", "6.9.0", nil)
		b.want(a)
		b.settle(a, 5*time.Minute)
		edit := `{"metadata":{"labels":{"by":"hand"}},"spec":{"template":{"spec":{"containers":[{"name":"podinfo","image":"mine:1"}]}}}}`
		if _, err := b.client().AppsV1().Deployments("apps").Patch(ctx, "web", types.StrategicMergePatchType, []byte(edit), metav1.PatchOptions{}); err != nil {
			b.Fatal(err)
		}
		a.Values = b.values(map[string]any{"message": "second"})
		b.want(a)
		b.settle(a, 5*time.Minute)
		d := b.objects("apps", "v1", "deployments", "apps")[0]
		if message, image, _ := nested(d.Object); message != "second" || image == "mine:1" || d.GetLabels()["by"] != "hand" {
			b.Errorf("message %q, image %q, labels %v", message, image, d.GetLabels())
		}
	})
}
