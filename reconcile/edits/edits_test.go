package edits

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

var noon = metav1.NewTime(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))

// entry is one of managedFields; fields are those of FieldsV1.
func entry(manager, subresource, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: subresource,
		APIVersion: "v1", Time: &noon, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func format(all []Edit) string {
	var out []string
	for _, e := range all {
		line := e.Path
		if e.Has != "" {
			line += " " + e.Wants + " -> " + e.Has
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

const ofContainer = `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:name":{},%s}}}}}}`

// TestFind: the fields that somebody else set, that the manifest sets, too, and that have
// another value now.
func TestFind(t *testing.T) {
	for name, c := range map[string]struct{ wants, has, fields, want string }{
		"number":             {"spec: {replicas: 2}", "spec: {replicas: 0}", `{"f:spec":{"f:replicas":{}}}`, "spec.replicas 2 -> 0"},
		"same":               {"spec: {replicas: 2}", "spec: {replicas: 2}", `{"f:spec":{"f:replicas":{}}}`, ""},
		"not set":            {"spec: {}", "spec: {replicas: 2}", `{"f:spec":{"f:replicas":{}}}`, ""},
		"not theirs":         {"spec: {replicas: 2}", "spec: {replicas: 3}", `{"f:spec":{"f:paused":{}}}`, ""},
		"unset":              {"spec: {paused: true}", "spec: {}", `{"f:spec":{"f:paused":{}}}`, "spec.paused true -> nothing"},
		"off is absent":      {"spec: {paused: false, size: 0}", "spec: {}", `{"f:spec":{"f:paused":{},"f:size":{}}}`, ""},
		"text":               {"data: {a: b}", "data: {a: c}", `{"f:data":{"f:a":{}}}`, "data.a"},
		"yes is no text":     {"data: {a: yes}", `data: {a: "true"}`, `{"f:data":{"f:a":{}}}`, ""},
		"odd keys":           {"metadata: {annotations: {a.b/c: d}}", "metadata: {annotations: {a.b/c: e}}", `{"f:metadata":{"f:annotations":{"f:a.b/c":{}}}}`, "metadata.annotations[a.b/c]"},
		"quantity":           {"spec: {template: {spec: {containers: [{name: c, resources: {requests: {cpu: 1000m}}}]}}}", "spec: {template: {spec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}}}", fmt.Sprintf(ofContainer, `"f:resources":{"f:requests":{"f:cpu":{}}}`), ""},
		"less of it":         {"spec: {template: {spec: {containers: [{name: c, resources: {requests: {cpu: 1000m}}}]}}}", "spec: {template: {spec: {containers: [{name: c, resources: {requests: {cpu: 10m}}}]}}}", fmt.Sprintf(ofContainer, `"f:resources":{"f:requests":{"f:cpu":{}}}`), "spec.template.spec.containers[c].resources.requests.cpu 1000m -> 10m"},
		"image":              {"spec: {template: {spec: {containers: [{name: b, image: 'x:1'}, {name: c, image: 'i:1'}]}}}", "spec: {template: {spec: {containers: [{name: c, image: 'i:2'}]}}}", fmt.Sprintf(ofContainer, `"f:image":{}`), "spec.template.spec.containers[c].image i:1 -> i:2"},
		"other item":         {"spec: {template: {spec: {containers: [{name: b, image: 'x:1'}]}}}", "spec: {template: {spec: {containers: [{name: c, image: 'i:2'}]}}}", fmt.Sprintf(ofContainer, `"f:image":{}`), ""},
		"key by default":     {"spec: {ports: [{port: 80, targetPort: 8080}]}", "spec: {ports: [{port: 80, protocol: TCP, targetPort: 9090}]}", `{"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{"f:targetPort":{}}}}}`, "spec.ports[80,TCP].targetPort 8080 -> 9090"},
		"whole list":         {"rules: [{verbs: [get]}]", "rules: [{verbs: [get, list]}]", `{"f:rules":{}}`, "rules"},
		"defaults in list":   {"rules: [{verbs: [get]}]", "rules: [{verbs: [get], more: 1}]", `{"f:rules":{}}`, ""},
		"left to be filled":  {"rules: []", "rules: [{verbs: [get]}]", `{"f:rules":{}}`, ""},
		"authority":          {"webhooks: [{name: a, clientConfig: {caBundle: Cg==}}]", "webhooks: [{name: a, clientConfig: {caBundle: eHh4}}]", `{"f:webhooks":{"k:{\"name\":\"a\"}":{"f:clientConfig":{"f:caBundle":{}}}}}`, ""},
		"one of a set":       {"metadata: {finalizers: [a]}", "metadata: {finalizers: [a, b]}", `{"f:metadata":{"f:finalizers":{".":{},"v:\"a\"":{},"v:\"b\"":{}}}}`, ""},
		"secret":             {"kind: Secret\nstringData: {a: b}\ndata: {m: MQ==}", "kind: Secret\ndata: {a: Yw==, m: MQ==}", `{"f:data":{"f:a":{},"f:m":{}}}`, "data.a"},
		"removed data":       {"apiVersion: v1\nkind: ConfigMap\ndata: {a: b, c: '', d: null}", "data: {}", `{}`, "data.a (removed)"},
		"removed secret":     {"apiVersion: v1\nkind: Secret\nstringData: {a: b}", "kind: Secret", `{}`, "data.a (removed)"},
		"dropped field":      {"apiVersion: v1\nkind: Service\nspec: {a: b}", "spec: {}", `{}`, ""},
		"switch of a secret": {"kind: Secret\nimmutable: true", "kind: Secret", `{"f:immutable":{}}`, "immutable"},
		"duration":           {"spec: {every: 1h}", "spec: {every: 1h0m0s}", `{"f:spec":{"f:every":{}}}`, ""},
		"control character":  {`metadata: {labels: {"a\u001b[1mb": c}}`, `metadata: {labels: {"a\u001b[1mb": d}}`, `{"f:metadata":{"f:labels":{"f:a\u001b[1mb":{}}}}`, "metadata.labels[a?[1mb]"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Find(parse(t, c.wants), parse(t, c.has), []metav1.ManagedFieldsEntry{entry("kubectl-edit", "", c.fields)})
			if format(got) != c.want {
				t.Errorf("got %q, want %q", format(got), c.want)
			}
			for _, e := range got {
				if e.Manager == "" && strings.HasSuffix(e.Path, " (removed)") {
					continue
				}
				if e.Manager != "kubectl-edit" || !e.At.Equal(noon.Time) {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}

// TestFindNewest: of two who set a field the last one is named.
func TestFindNewest(t *testing.T) {
	later := metav1.NewTime(noon.Add(time.Minute))
	all := []metav1.ManagedFieldsEntry{entry("a", "", `{"f:size":{}}`), entry("b", "", `{"f:size":{}}`), entry("c", "", `{"f:size":{}}`)}
	all[1].Time = &later
	got := Find(parse(t, "size: 1"), parse(t, "size: 2"), append(all, entry("d", "", `no JSON`)))
	if len(got) != 1 || got[0].Manager != "b" {
		t.Errorf("%+v", got)
	}
}

// TestForeign: what is ours, and what controllers write through subresources, is no edit.
func TestForeign(t *testing.T) {
	all := []metav1.ManagedFieldsEntry{
		entry("helm", "", `{}`), entry("kubectl-edit", "", `{}`), entry("kube-controller-manager", "status", `{}`),
		entry("kube-controller-manager", "scale", `{}`), entry("kubectl", "scale", `{}`), entry("keda", "scale", `{}`), entry("kubectl", "status", `{}`),
	}
	var got []string
	for _, e := range Foreign(all, func(m string) bool { return m == "helm" }) {
		got = append(got, e.Manager+"/"+e.Subresource)
	}
	if fmt.Sprint(got) != "[kubectl-edit/ kubectl/scale]" {
		t.Errorf("%v", got)
	}
}

// TestWriters: whoever has written a field last is named, and a list without keys is one
// field.
func TestWriters(t *testing.T) {
	later := metav1.NewTime(noon.Add(time.Minute))
	all := []metav1.ManagedFieldsEntry{entry("a", "", `{"f:metadata":{"f:labels":{".":{},"f:example.org/zone":{}}},"f:spec":{"f:taints":{}}}`),
		entry("b", "", `{"f:metadata":{"f:labels":{"f:example.org/zone":{}}}}`), entry("c", "", `no JSON`), {Manager: "d"}}
	all[0].Time = &later
	w := ReadWriters(all)
	for path, want := range map[string]string{"metadata labels example.org/zone": "a", "spec taints": "a", "metadata labels zone": "", "spec": "", "metadata annotations example.org/zone": ""} {
		if manager, at := w.Of(strings.Fields(path)...); manager != want || manager != "" && !at.Equal(later.Time) {
			t.Errorf("%s: %q at %v, want %q", path, manager, at, want)
		}
	}
}

// FuzzFind: whatever a server sends, nothing panics.
func FuzzFind(f *testing.F) {
	f.Add(`{"spec":{"replicas":2}}`, `{"spec":{"replicas":3}}`, `{"f:spec":{"f:replicas":{}}}`)
	f.Add(`{"a":[{"name":1}]}`, `{"a":[null,{"name":"1"}]}`, `{"f:a":{"k:{\"name\":1}":{".":{}},"v:1":{},"i:0":{}}}`)
	f.Fuzz(func(t *testing.T, wants, has, fields string) {
		var a, b map[string]any
		if json.Unmarshal([]byte(wants), &a) != nil || json.Unmarshal([]byte(has), &b) != nil {
			return
		}
		for _, e := range Find(a, b, []metav1.ManagedFieldsEntry{entry("x", "", fields)}) {
			if e.Path == "" || len(e.Path) > 2*maxShown {
				t.Errorf("path %q", e.Path)
			}
		}
	})
}
