package gate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// volumes are objects with a state each.
func volumes(states ...string) []map[string]any {
	var out []map[string]any
	for _, s := range states {
		out = append(out, map[string]any{"metadata": map[string]any{"name": s, "creationTimestamp": "2026-11-27T11:50:00Z"}, "status": map[string]any{"robustness": s, "replicas": int64(3)}})
	}
	return out
}

// TestEvaluate: a condition is about objects, the status and the time.
func TestEvaluate(t *testing.T) {
	in := Input{Objects: volumes("healthy", "degraded"), Now: now,
		Status: map[string]any{"nodes": map[string]any{"dev-cp-1": map[string]any{"ready": true}}}}
	for _, c := range []struct {
		condition string
		want      bool
	}{
		{`size(status) > 0`, true},
		{`objects.all(o, o.status.robustness == "healthy")`, false},
		{`objects.exists(o, o.status.robustness == "healthy")`, true},
		{`objects.size() == 2 && objects.all(o, o.status.replicas >= 3)`, true},
		{`objects.all(o, o.?status.?conditions.hasValue())`, false},
		{`status.nodes["dev-cp-1"].ready`, true},
		{`status.nodes.all(name, status.nodes[name].ready)`, true},
		{`now - timestamp(objects[0].metadata.creationTimestamp) > duration("5m")`, true},
		{`now - timestamp(objects[0].metadata.creationTimestamp) > duration("15m")`, false},
	} {
		if err := Check(c.condition); err != nil {
			t.Errorf("%s: %v", c.condition, err)
		}
		if got, err := Evaluate(t.Context(), c.condition, in); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", c.condition, got, err)
		}
	}
}

// TestCheck: what is wrong with a condition is reported when it is read, in one line.
func TestCheck(t *testing.T) {
	for condition, want := range map[string]string{
		`objcts.all(o, true)`:      "line 1, column 1: undeclared reference to 'objcts'",
		"true &&\n  objects.all(o": "line 2, column 16: Syntax error",
		`objects.size()`:           "it is of type int, and not true or false",
		`"yes"`:                    "it is of type string, and not true or false",
	} {
		if err := Check(condition); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", condition, err)
		}
		if _, err := Evaluate(t.Context(), condition, Input{}); err == nil {
			t.Errorf("%s was evaluated", condition)
		}
	}
}

// TestCheckFields: a condition that asks the status for what no status has is wrong where it is read, and names the place.
func TestCheckFields(t *testing.T) {
	for condition, want := range map[string]string{
		`status.node.all(n, true)`:                                        `line 1, column 7: status has no "node", but addons, etcd, nodes`,
		"now > now ||\n  status.etc.members == 3":                         `line 2, column 9: status has no "etc", but addons, etcd, nodes`,
		`!has(status.node) || status.nodes["a"].ready`:                    `line 1, column 5: status has no "node", but addons, etcd, nodes`,
		`status["node"].size() == 1`:                                      `line 1, column 7: status has no "node", but addons, etcd, nodes`,
		`status.?node.hasValue()`:                                         `line 1, column 7: status has no "node", but addons, etcd, nodes`,
		`status[?"node"].hasValue()`:                                      `line 1, column 7: status has no "node", but addons, etcd, nodes`,
		`objects.all(o, status.node[o.metadata.name].ready)`:              `line 1, column 22: status has no "node", but addons, etcd, nodes`,
		`status.nodes["lab-wk-1"].redy`:                                   `line 1, column 25: a node of status has no "redy", but cordoned, kubernetes, ready, role, talos`,
		`status.nodes.all(n, status.nodes[n].redy)`:                       `line 1, column 36: a node of status has no "redy", but cordoned, kubernetes, ready, role, talos`,
		`status.nodes.wk.redy`:                                            `line 1, column 16: a node of status has no "redy", but cordoned, kubernetes, ready, role, talos`,
		`has(status.node.a) && !status.node.a`:                            `line 1, column 11: status has no "node", but addons, etcd, nodes`,
		`has(status.etcd.learners) && status.etcd.member == 3`:            `line 1, column 41: status.etcd has no "member", but members`,
		`has(status.etcd.learners.old)`:                                   `line 1, column 16: status.etcd has no "learners", but members`,
		`has(status.etcd.zone) && status.nodes["a"].zone == "x"`:          `line 1, column 43: a node of status has no "zone", but cordoned, kubernetes, ready, role, talos`,
		`status["nodes"]["a"]["redy"] == true`:                            `line 1, column 21: a node of status has no "redy", but cordoned, kubernetes, ready, role, talos`,
		`objects.all(o, status.addons[o.metadata.name].redy)`:             `line 1, column 46: an addon of status has no "redy", but ready, status`,
		`status.etcd.member == 3`:                                         `line 1, column 12: status.etcd has no "member", but members`,
		`status.nodes["a"].role`:                                          "line 1, column 18: it is a text, and not true or false",
		`status.nodes.all(n, status.nodes[n].talos)`:                      "line 1, column 36: it is a text, and not true or false",
		`status.nodes.exists_one(n, status.nodes[n].talos)`:               "line 1, column 43: it is a text, and not true or false",
		`status.nodes.filter(n, status.nodes[n].talos).size() == 0`:       "line 1, column 39: it is a text, and not true or false",
		`status.nodes.all(n, status.nodes[n])`:                            "line 1, column 33: it is an object, and not true or false",
		`!status.etcd.members || now > now`:                               "line 1, column 13: it is a number, and not true or false",
		`status.nodes`:                                                    "line 1, column 7: it is a map by name, and not true or false",
		`status.nodes["a"].ready ? status.nodes["a"].role == "x" : false`: "",
		`status.nodes.all(n, has(status.nodes[n].talos) && status.nodes[n].talos.startsWith("v1.14"))`: "",
		`status.addons.all(name, status.addons[name].ready && status.addons[name].status == "x")`:      "",
		`status.nodes.all(n, status.nodes[n].?cordoned.orValue(false))`:                                "",
		`status.etcd.members == 3`: "",
		`false`:                    "it is a constant, about nothing of the cluster: always false",
		`true`:                     "it is a constant, about nothing of the cluster: always true",
		`status.nodes.all(n, status.nodes[n].ready)`:           "",
		`has(status.nodes) && status["nodes"]["a"].ready`:      "",
		`status.?addons.hasValue() && status[?"etcd"] != null`: "",
		`objects.all(status, status.ready)`:                    "",
		`objects.all(o, o.status.node == "a")`:                 "",
		`objects.all(o, status[o.kind].ready)`:                 "",
		`"node" in status`:                                     "",
		`status == {"node": true}`:                             "",
	} {
		got := ""
		if err := Check(condition); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q instead of %q", condition, got, want)
		}
	}
}

// TestCheckGuarded: a field that a condition asks for with has() or .? may be one that no status has, and the condition is evaluated.
func TestCheckGuarded(t *testing.T) {
	in := Input{Now: now, Status: map[string]any{StatusEtcd: map[string]any{"members": int64(3)}, StatusNodes: map[string]any{"a": map[string]any{"ready": true}}}}
	for condition, want := range map[string]bool{
		`!has(status.etcd.learners) || status.etcd.learners == 0`:                                    true,
		`has(status.etcd.learners) ? status.etcd["learners"] == 0 : now > now`:                       false,
		`status.nodes.all(n, status.nodes[n].?zone.orValue("") != "x")`:                              true,
		`status.nodes.all(n, !has(status.nodes[n].zone) || status.nodes[n].zone.startsWith("eu"))`:   true,
		`status.nodes["a"][?"zone"].orValue("x") == "x"`:                                             true,
		`status.?etcd.learners.orValue(0) == 0`:                                                      true,
		`status.?nodes[?"a"].?redy.hasValue()`:                                                       false,
		`has(status.nodes["a"].redy)`:                                                                false,
		`status.nodes.exists(n, status.nodes[n].?zone.?name.hasValue() || !status.nodes[n].ready)`:   false,
		`status.nodes.all(n, status.nodes[n].?zone.hasValue() ? status.nodes[n].zone == "x" : true)`: true,
	} {
		if err := Check(condition); err != nil {
			t.Errorf("%s: %v", condition, err)
		}
		if holds, err := Evaluate(t.Context(), condition, in); err != nil || holds != want {
			t.Errorf("%s: %v, %v", condition, holds, err)
		}
	}
}

// TestAsksObjects: it is seen whether a condition asks for the objects that are selected, and not for a field or a text of that name.
func TestAsksObjects(t *testing.T) {
	for condition, want := range map[string]bool{
		`objects.all(o, o.status.ready)`:                               true,
		`status.nodes.all(name, status.nodes[name].ready)`:             false,
		`status.nodes.all(name, objects.exists(o, o.name == name))`:    true,
		`status.objects == 3`:                                          false,
		`"objects" in status`:                                          false,
		`now > timestamp("2027-01-01T00:00:00Z") || size(objects) > 0`: true,
		`objects.all(`: false,
	} {
		if got := AsksObjects(condition); got != want {
			t.Errorf("%s: %v", condition, got)
		}
	}
}

// TestUnknown: what cannot be found out is an error, and never false or true.
func TestUnknown(t *testing.T) {
	in := Input{Objects: volumes("healthy"), Now: now}
	for condition, want := range map[string]string{
		`objects.all(o, o.status.state == "attached")`: "no such key: state",
		`objects[0].status.robustness`:                 "it is neither true nor false",
		`objects[3].status.ok`:                         "index out of bounds: 3",
	} {
		if holds, err := Evaluate(t.Context(), condition, in); err == nil || !strings.Contains(err.Error(), want) || holds {
			t.Errorf("%s: %v, %v", condition, holds, err)
		}
	}
}

// TestBounds: a condition that would take the agent's time for ever is given up.
func TestBounds(t *testing.T) {
	list := "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30]"
	long := "true"
	for _, v := range strings.Split("abcdefg", "") {
		long = list + ".all(" + v + ", " + long + ")"
	}
	if _, err := Evaluate(t.Context(), long, Input{Now: now}); err == nil || !strings.Contains(err.Error(), "cost limit exceeded") {
		t.Errorf("it ended with %v", err)
	}
	gaveUp := errors.New("given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gaveUp)
	if _, err := Evaluate(ctx, long, Input{Now: now}); !errors.Is(err, gaveUp) {
		t.Errorf("it ended with %v", err)
	}
}
