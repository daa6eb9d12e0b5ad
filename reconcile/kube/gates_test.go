package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/gate"
	"github.com/talos-agent/talos-agent/internal/worker"
)

// TestCheckGates: a condition is about the objects that it selects and about what the agent knows; what cannot be
// read is unknown, with the reason.
func TestCheckGates(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.addDeployment("aweb", 2, nil)
		for _, name := range []string{"one", "two"} {
			config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"which": name}}, Data: map[string]string{"state": name}}
			if _, err := b.set.CoreV1().ConfigMaps("default").Create(b.Context(), config, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		deployments := cluster.ObjectSelector{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "default"}
		config := func(name, labels string) cluster.ObjectSelector {
			return cluster.ObjectSelector{APIVersion: "v1", Kind: "ConfigMap", Namespace: "default", Name: name, Labels: labels}
		}
		for _, c := range []struct {
			objects   cluster.ObjectSelector
			condition string
			holds     bool
			why       string // that is part of it; "": it is known
		}{
			{deployments, `objects.size() == 1 && objects.all(o, o.spec.replicas == 2)`, true, ""},
			{deployments, `objects.all(o, o.spec.replicas > 2)`, false, ""},
			{config("", ""), `objects.exists(o, o.data.state == "one") && objects.exists(o, o.data.state == "two")`, true, ""},
			{config("two", ""), `objects.size() == 1 && objects[0].data.state == "two"`, true, ""},
			{config("", "which=one"), `objects.size() == 1 && objects[0].data.state == "one"`, true, ""},
			{config("none", ""), `objects.size() == 0`, true, ""},
			{cluster.ObjectSelector{APIVersion: "v1", Kind: "Node"}, `objects.all(o, o.status.conditions.exists(c, c.type == "Ready" && c.status == "True"))`, true, ""},
			{cluster.ObjectSelector{}, `status.nodes["wk-1"].ready && !status.nodes["wk-1"].cordoned && status.nodes["cp-1"].role == "controlplane"`, true, ""},
			{cluster.ObjectSelector{}, `objects.size() == 0 && status.etcd.members == 1`, true, ""},
			{cluster.ObjectSelector{}, `status.addons.all(name, status.addons[name].ready)`, false, "no such key: addons"},
			{cluster.ObjectSelector{}, `status.nodes["wk-1"].talos != "v1.13.9"`, false, "no such key: talos"},
			{config("one", ""), `objects[0].data.phase == "done"`, false, "no such key: phase"},
			{cluster.ObjectSelector{APIVersion: "apps/v1", Kind: "Volume"}, `true`, false, "the cluster has no Volume in apps/v1: install what brings it, or correct kind or api_version of the gate"},
			{cluster.ObjectSelector{APIVersion: "longhorn.io/v1beta2", Kind: "Volume"}, `true`, false, "which objects longhorn.io/v1beta2 has: the cluster has no such API: install what brings it, or correct api_version of the gate"},
		} {
			d, o := b.desired, cluster.Observed{Members: cluster.Saw([]cluster.Member{{ID: 1}})}
			b.cluster.Observe(b.Context(), d, &o)
			d.Spec.Nodes = []cluster.Node{{Name: "cp-1", Role: cluster.ControlPlane}, {Name: "wk-1", Role: cluster.Worker}}
			d.Spec.Gates = []cluster.Gate{{Name: "volumes", Condition: c.condition, Objects: c.objects}, {Name: "always", Condition: "true"}}
			got := b.cluster.CheckGates(b.Context(), d, o)
			if seen := got["volumes"]; seen.Value != c.holds || seen.Known != (c.why == "") || !strings.Contains(seen.Why, c.why) {
				t.Errorf("%s of %+v: %+v", c.condition, c.objects, seen)
			}
			if seen := b.cluster.CheckGates(b.Context(), d, cluster.Observed{})["volumes"]; strings.Contains(c.condition, "status.nodes") && seen.Known {
				t.Errorf("%s is known where no node is: %+v", c.condition, seen)
			}
			if seen := got["always"]; len(got) != 2 || !seen.Known || !seen.Value {
				t.Errorf("after %s of %+v another one is %+v", c.condition, c.objects, seen)
			}
		}
	})
}

// TestStatusFields: the status of which all is known, and each part of it, has the fields that conditions are checked against, and no
// others.
func TestStatusFields(t *testing.T) {
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{{Name: "a"}}, Addons: []cluster.Addon{{Name: "a"}}}}}
	status := statusOf(d, cluster.Observed{Machines: map[string]cluster.Machine{"a": {Talos: "v1.13.9"}},
		Nodes:    cluster.Saw(map[string]cluster.KubeNode{"a": {Kubelet: "v1.36.1"}}),
		Releases: cluster.Saw(map[string]cluster.Release{}), Members: cluster.Saw([]cluster.Member{})})
	part := func(name string) map[string]any { return status[name].(map[string]any) }
	for of, has := range map[string]map[string]any{
		"status":             status,
		`status.nodes["a"]`:  part(gate.StatusNodes)["a"].(map[string]any),
		`status.addons["a"]`: part(gate.StatusAddons)["a"].(map[string]any),
		"status.etcd":        part(gate.StatusEtcd),
	} {
		unknown, ok := errors.AsType[*gate.UnknownField](gate.Check(of + ".nothing == 1"))
		if !ok || !slices.Equal(unknown.Known, slices.Sorted(maps.Keys(has))) {
			t.Errorf("%s has %v, and conditions may ask for %+v", of, has, unknown)
		}
		for field, value := range has {
			_, isFlag := value.(bool)
			if err := gate.Check(of + "." + field); isFlag != (err == nil) {
				t.Errorf("%s.%s is %T: %v", of, field, value, err)
			}
		}
	}
}

// TestCheckManyObjects: a gate sees all objects that it is about, or is unknown.
func TestCheckManyObjects(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		for i := range pageOfObjects + 1 {
			config := &corev1.ConfigMap{Data: map[string]string{"state": string(rune('a' + i%26))}}
			config.Labels = map[string]string{"many": "yes"}
			config.Name = "many-" + strings.Repeat(string(rune('a'+i%26)), 1+i/26)
			if _, err := b.set.CoreV1().ConfigMaps("default").Create(b.Context(), config, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		d := b.desired
		d.Spec.Gates = []cluster.Gate{{Name: "all", Condition: "objects.size() == 501", Objects: cluster.ObjectSelector{APIVersion: "v1", Kind: "ConfigMap", Namespace: "default", Labels: "many"}}}
		if got := b.cluster.CheckGates(b.Context(), d, cluster.Observed{})["all"]; !got.Value {
			t.Errorf("%+v", got)
		}
	})
}

// TestGateThatWaits: the gates behind one that is not answered are looked at in the same pass.
func TestGateThatWaits(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		d := b.desired
		d.Spec.Gates = []cluster.Gate{{Name: "first", Condition: "1 == 1"}, {Name: "slow", Condition: "2 == 2"}, {Name: "late", Condition: "3 == 3"}, {Name: "last", Condition: "4 == 4"}}
		evaluate := b.cluster.worker
		b.cluster.worker = func(ctx context.Context, job worker.Job, l worker.Limits, request []byte, answer worker.Answer) ([]byte, error) {
			switch {
			case strings.Contains(string(request), "2 == 2"):
				<-ctx.Done()
				return nil, context.Cause(ctx)
			case strings.Contains(string(request), "3 == 3"):
				return nil, &worker.Exceeded{What: worker.Time, Limit: l.Wall.String()}
			}
			return evaluate(ctx, job, l, request, answer)
		}
		ctx, cancel := context.WithTimeout(b.Context(), 15*time.Second)
		defer cancel()
		got := b.cluster.CheckGates(ctx, d, cluster.Observed{})
		for _, g := range d.Spec.Gates {
			seen, known := got[g.Name], g.Name == "first" || g.Name == "last"
			if seen.Known != known || seen.Value != known || known != (seen.Why == "") {
				t.Errorf("%s: %+v", g.Name, seen)
			}
		}
		if why := got["slow"].Why; why != "it was not looked at to its end in 7.5s" {
			t.Error(why)
		}
	})
}

// TestGateThatTakesTooMuch: what a gate is about is read within a bound, and the gates behind one whose condition takes too much are not
// looked at: each would hold up the pass.
func TestGateThatTakesTooMuch(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		for i := range mostObjectBytes>>20 + 1 {
			config := &corev1.ConfigMap{Data: map[string]string{"state": strings.Repeat("a", 1<<20)}}
			config.Name, config.Labels = fmt.Sprint("large-", i), map[string]string{"large": "yes", "number": fmt.Sprint(i)}
			if _, err := b.set.CoreV1().ConfigMaps("default").Create(b.Context(), config, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		d, all := b.desired, cluster.ObjectSelector{APIVersion: "v1", Kind: "ConfigMap", Namespace: "default", Labels: "large"}
		one := all
		one.Labels = "number=1"
		d.Spec.Gates = []cluster.Gate{{Name: "all", Condition: "true", Objects: all}, {Name: "one", Condition: "objects.size() == 1", Objects: one}, {Name: "fast", Condition: "true"}}
		got := b.cluster.CheckGates(b.Context(), d, cluster.Observed{})
		if seen := got["all"]; seen.Known || !strings.Contains(seen.Why, "those of ConfigMap have more than 16 MiB") {
			t.Errorf("%+v", seen)
		}
		if !got["one"].Value || !got["fast"].Value {
			t.Errorf("behind one that is not read they are %+v", got)
		}
		b.cluster.worker = func(ctx context.Context, job worker.Job, l worker.Limits, request []byte, answer worker.Answer) ([]byte, error) {
			return nil, &worker.Exceeded{What: worker.CPU, Limit: l.CPU.String()}
		}
		got = b.cluster.CheckGates(b.Context(), d, cluster.Observed{})
		if seen := got["one"]; seen.Known || seen.Why != "it takes more than 2s of processor time" {
			t.Errorf("%+v", seen)
		}
		if seen := got["fast"]; seen.Known || seen.Why != "it was not looked at, because the gate one takes too much" {
			t.Errorf("%+v", seen)
		}
	})
}
