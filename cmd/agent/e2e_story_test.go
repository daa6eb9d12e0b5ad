package main

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	labforge "github.com/talos-agent/talos-agent/internal/lab/forge"
)

// addon is the line of the status about one addon.
func addon(s cluster.Status, name string) cluster.AddonStatus {
	i := slices.IndexFunc(s.Addons, func(a cluster.AddonStatus) bool { return a.Name == name })
	if i < 0 {
		return cluster.AddonStatus{}
	}
	return s.Addons[i]
}

// waits tells whether a subject waits for a reason that contains words.
func waits(s cluster.Status, subject, words string) bool {
	return slices.ContainsFunc(s.Waiting, func(w cluster.WaitStatus) bool {
		return w.Subject == subject && strings.Contains(w.Message, words)
	})
}

// bringUp pushes the inventory. Nothing that depends on an addon is installed
// before that addon is seen to be ready.
func (e *endToEnd) bringUp() {
	e.real.hold("kube-system/cilium", true)
	e.real.hold("apps/store", true)
	e.push("bring up the cluster")
	e.status("waiting for Cilium to be ready", func(s cluster.Status) bool {
		return waits(s, "cilium", "becomes ready: daemonset kube-system/cilium") && waits(s, "store", "waits for addon cilium")
	})
	e.wantHistory("store", "")
	e.wantHistory("handover", "")
	e.want("False False False", "get", "nodes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
	e.real.hold("kube-system/cilium", false)
	e.status("waiting for the store to be ready", func(s cluster.Status) bool {
		return waits(s, "store", "becomes ready: deployment apps/store") && waits(s, "login", "waits for addon store")
	})
	e.wantHistory("login", "")
	e.real.hold("apps/store", false)
	s := e.ready()
	for _, n := range s.Nodes {
		if n.Phase != cluster.PhaseReady || n.Kubernetes != "v1.36.1" {
			e.t.Errorf("node %s is %s with Kubernetes %s", n.Name, n.Phase, n.Kubernetes)
		}
	}
	for _, name := range []string{"cilium", "store", "login", "handover"} {
		if a := addon(s, name); a.State != "ready" {
			e.t.Errorf("addon %s is %s: %s", name, a.State, a.Message)
		}
		e.wantHistory(name, "1 deployed")
	}
	e.await("success at the forge", func() (bool, string) {
		all := e.lab.Forge.Statuses()
		return slices.ContainsFunc(all, func(st labforge.Status) bool { return st.Commit == e.head && st.State == "success" }), fmt.Sprint(all)
	})
}

// sources looks at what came from which source.
func (e *endToEnd) sources() {
	e.want("kubernetes", "-n", "kube-system", "get", "configmap", "cilium-config", "-o", "jsonpath={.data.ipam}")
	e.want("first", "-n", "apps", "get", "deployment", "store", "-o", "jsonpath={.spec.template.spec.containers[0].env[0].value}")
	e.want("2", "-n", "apps", "get", "deployment", "store", "-o", "jsonpath={.spec.replicas}")
	e.want(base64.StdEncoding.EncodeToString([]byte(password)), "-n", "apps", "get", "secret", "login", "-o", "jsonpath={.data.password}")
}

// look has people look at the cluster with the kubeconfig they are given.
func (e *endToEnd) look() {
	e.want("e2e-cp-1 e2e-wk-1 e2e-wk-2", "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")
	if have := e.kubectl("get", "nodes", "-o", "wide"); strings.Count(have, " Ready ") != 3 || !strings.Contains(have, e.net+"11") {
		e.t.Errorf("the nodes are\n%s", have)
	}
	if have := e.kubectl("get", "pods", "-A"); strings.Count(have, "1/1") != 3+2+2+1 {
		e.t.Errorf("the pods are\n%s", have)
	}
	e.want("helm.sh/release.v1", "-n", "apps", "get", "secret", "sh.helm.release.v1.store.v1", "-o", "jsonpath={.type}")
	e.want("yes", "auth", "can-i", "*", "*", "--all-namespaces")
	e.want("", "get", "ciliumnetworkpolicies.cilium.io", "-A", "-o", "name")
}

// quiet lets the agent look twice at a cluster that is as it should be.
func (e *endToEnd) quiet() {
	before := len(e.changes())
	if before == 0 {
		e.t.Fatal("the API server's record knows of no change, and there were many")
	}
	for range 2 {
		asked := time.Now()
		e.nudge()
		e.status("looked at again", func(s cluster.Status) bool {
			return len(s.Passes) > 0 && s.Passes[0].At.After(asked) && s.Condition == cluster.Ready
		})
	}
	if all := e.changes(); len(all) != before {
		e.t.Errorf("a quiet pass changed something: %s", strings.Join(all[before:], "\n"))
	}
}

// upgrade pushes other values for one addon.
func (e *endToEnd) upgrade() {
	e.edit("addons/store.yaml", "message: first", "message: second")
	e.real.hold("apps/store", true)
	e.push("say something else")
	e.status("waiting for the upgrade to be ready", func(s cluster.Status) bool {
		return s.Revision.Commit() == e.head && waits(s, "store", "becomes ready: deployment apps/store")
	})
	e.real.hold("apps/store", false)
	e.ready()
	e.wantHistory("store", "1 superseded, 2 deployed")
	e.wantHistory("cilium", "1 deployed")
	e.wantHistory("login", "1 deployed")
	e.want("second", "-n", "apps", "get", "deployment", "store", "-o", "jsonpath={.spec.template.spec.containers[0].env[0].value}")
}

// bootstrapOnly edits what somebody else looks after from now on, in the
// cluster and in the repository.
func (e *endToEnd) bootstrapOnly() {
	e.kubectl("-n", "apps", "patch", "configmap", "handover", "-p", `{"data":{"color":"green"}}`)
	e.edit("addons/handover.yaml", "color: blue", "color: red")
	e.push("paint it red")
	e.ready()
	e.wantHistory("handover", "1 deployed")
	e.want("green", "-n", "apps", "get", "configmap", "handover", "-o", "jsonpath={.data.color}")
}

// cutInstall kills the agent while Helm installs, and starts it again.
func (e *endToEnd) cutInstall() {
	e.gate = newGate(e.t, e.set(), "apps")
	e.files["addons/late.yaml"] = []byte(strings.ReplaceAll(string(e.files["addons/store.yaml"]), "name: store", "name: late"))
	e.edit("cluster.yaml", "addons/handover.yaml]", "addons/handover.yaml, addons/late.yaml]")
	arrived := e.gate.hold("late")
	e.push("one addon more")
	e.cut(arrived)
	e.wantHistory("late", "1 pending-install")
	e.gate.open()
	e.startAgent()
	e.ready()
	e.wantHistory("late", "1 failed, 2 deployed")
}

// cutUpgrade kills the agent while Helm upgrades, and starts it again.
func (e *endToEnd) cutUpgrade() {
	e.edit("addons/late.yaml", "message: second", "message: third")
	arrived := e.gate.hold("late")
	e.push("say a third thing")
	e.cut(arrived)
	e.wantHistory("late", "1 failed, 2 deployed, 3 pending-upgrade")
	e.gate.open()
	e.startAgent()
	e.ready()
	e.wantHistory("late", "1 failed, 2 superseded, 3 failed, 4 deployed")
	e.want("third", "-n", "apps", "get", "deployment", "late", "-o", "jsonpath={.spec.template.spec.containers[0].env[0].value}")
}

// cut kills the agent when it has come so far.
func (e *endToEnd) cut(arrived <-chan struct{}) {
	e.t.Helper()
	e.arrival(arrived)
	e.agent.kill()
	e.agent = nil
}

// arrival waits until the agent's request waits at the gate.
func (e *endToEnd) arrival(arrived <-chan struct{}) {
	e.t.Helper()
	e.await("at the gate", func() (bool, string) {
		select {
		case <-arrived:
			return true, ""
		default:
			return false, "on its way"
		}
	})
}

// away waits until the agent says why it cannot see the cluster, and that it
// does not take what it cannot see for absent.
func (e *endToEnd) away(why string) {
	e.t.Helper()
	s := e.status("telling why the API is away", func(s cluster.Status) bool {
		return s.Condition != cluster.Ready && slices.ContainsFunc(s.Waiting, func(w cluster.WaitStatus) bool { return strings.Contains(w.Message, why) })
	})
	for _, a := range s.Addons {
		if a.State != "unknown" && a.State != "installing" { // that action is still under way
			e.t.Errorf("while the API is away, addon %s is told to be %s", a.Name, a.State)
		}
	}
	if len(s.Blocked) > 0 {
		e.t.Errorf("while the API is away, the agent gave up: %+v", s.Blocked)
	}
}

// apiAway kills the API server, pushes meanwhile, and starts it again.
func (e *endToEnd) apiAway() {
	e.real.api().kill()
	e.away("nothing listens there")
	e.edit("addons/store.yaml", "message: second", "message: third")
	e.push("say a third thing, to nobody")
	e.status("aware of the push", func(s cluster.Status) bool { return s.Revision.Commit() == e.head })
	e.away("nothing listens there")
	e.startAPI(nobody)
	e.ready()
	e.wantHistory("store", "1 superseded, 2 superseded, 3 deployed")
}

// apiDies kills the API server in the middle of an upgrade.
func (e *endToEnd) apiDies() {
	e.edit("addons/store.yaml", "message: third", "message: fourth")
	arrived := e.gate.hold("store")
	e.push("say a fourth thing")
	e.arrival(arrived)
	e.real.api().kill()
	e.away("nothing listens there")
	e.gate.open()
	e.startAPI(nobody)
	e.ready()
	e.wantHistory("store", "1 superseded, 2 superseded, 3 superseded, 4 failed, 5 deployed")
	e.want("fourth", "-n", "apps", "get", "deployment", "store", "-o", "jsonpath={.spec.template.spec.containers[0].env[0].value}")
}

// refused has an addon's workload refused by the cluster, until somebody mends
// it there.
func (e *endToEnd) refused() {
	const words = "images must come from the house's own registry"
	e.gate.refuse("late", words)
	e.edit("addons/late.yaml", "message: third", "message: fourth")
	e.push("say what is not liked")
	// It is tried a few times before people are called.
	s := e.status("Stalled", func(s cluster.Status) bool {
		return s.Condition == cluster.Stalled && strings.Contains(s.Message, words)
	})
	before := e.history("late")
	e.await("another try", func() (bool, string) {
		now := e.history("late")
		return now != before && strings.HasSuffix(now, "failed"), now
	})
	if now := e.status("seen", func(cluster.Status) bool { return true }); !now.Since.Equal(s.Since) {
		e.t.Errorf("while it is tried again, the cluster is %s since %v; it was %s since %v", now.Condition, now.Since, s.Condition, s.Since)
	}
	e.gate.open()
	e.ready()
	e.await("told at the forge as it went", func() (bool, string) {
		var told []string
		for _, st := range e.lab.Forge.Statuses() {
			if st.Commit == e.head {
				told = append(told, st.State)
			}
		}
		// Between the last try and being ready it may be pending once more.
		return slices.Equal(told, []string{"pending", "failure", "pending", "success"}) ||
			slices.Equal(told, []string{"pending", "failure", "success"}), strings.Join(told, ", ")
	})
}

// strangers puts API servers of another cluster in the place of ours.
func (e *endToEnd) strangers() {
	e.real.api().kill()
	e.startAPI(itsClient)
	e.away("does not accept the agent's certificate")
	e.real.api().kill()
	e.startAPI(itself)
	e.away("who answers there has a certificate of another cluster")
	e.real.api().kill()
	e.startAPI(nobody)
	e.ready()
	e.wantHistory("cilium", "1 deployed")
}

func (e *endToEnd) startAPI(strange stranger) {
	e.t.Helper()
	if err := e.real.api().start(strange); err != nil {
		e.t.Fatal(err)
	}
}
