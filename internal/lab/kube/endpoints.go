package kube

import (
	"reflect"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// touchServices has the services looked at again that select a pod, as it was or is.
func (cl *cluster) touchServices(ch change, namespace string) {
	if len(cl.services[namespace]) == 0 {
		return
	}
	var now, before labels.Set
	if p := cl.pods[ch.key]; p != nil {
		now = p.labels
	}
	if ch.old != nil && (ch.new == nil || !reflect.DeepEqual(rules.MapAt(ch.old.body, "metadata", "labels"), rules.MapAt(ch.new.body, "metadata", "labels"))) {
		before = rules.StringsAt(ch.old.body, "metadata", "labels")
	}
	for key, sel := range cl.services[namespace] {
		if now != nil && sel.Matches(now) || before != nil && sel.Matches(before) {
			cl.dirty[ref{resServices, key}] = true
		}
	}
}

// observeService takes in what a service selects.
func (cl *cluster) observeService(ch change, namespace string) {
	delete(cl.services[namespace], ch.key)
	if ch.new == nil || rules.TextAt(ch.new.body, "spec", "type") == "ExternalName" {
		return
	}
	if sel := rules.StringsAt(ch.new.body, "spec", "selector"); len(sel) > 0 {
		if cl.services[namespace] == nil {
			cl.services[namespace] = map[string]labels.Selector{}
		}
		cl.services[namespace][ch.key] = labels.SelectorFromSet(sel)
	}
}

// tendService keeps the EndpointSlice and the Endpoints of a service that selects pods.
func (cl *cluster) tendService(key string) {
	ns, name := splitKey(key)
	o, sel := cl.store.getObject(resServices, key), cl.services[ns][key]
	if o == nil {
		cl.store.removeObject(resEndpoints, key) // it has no owner
	}
	if o == nil || sel == nil {
		return
	}
	var pods []map[string]any
	for _, p := range byKey(cl.pods) {
		if in, _ := splitKey(p.key); in != ns || !sel.Matches(labels.Set(p.labels)) {
			continue
		}
		if pod := cl.store.getObject(resPods, p.key); pod != nil {
			pods = append(pods, pod.body)
		}
	}
	cl.fillObject(resEndpoints, ns, map[string]any{"name": name}, func(have map[string]any) { rules.FillEndpoints(have, o.body, pods) })
	meta := map[string]any{"generateName": name + "-", "ownerReferences": []any{ownedBy(resServices, o)}}
	existing, _ := cl.store.listObjects(resSlices, ns)
	for _, s := range existing {
		of := rules.StringsAt(s.body, "metadata", "labels")
		if of[discoveryv1.LabelServiceName] == name && of[discoveryv1.LabelManagedBy] == rules.SliceController {
			meta["name"] = rules.TextAt(s.body, "metadata", "name")
		}
	}
	cl.fillObject(resSlices, ns, meta, func(have map[string]any) { rules.FillSlice(have, o.body, pods) })
}

// fillObject has an object filled in, which is made when there is none of its name.
func (cl *cluster) fillObject(res *resource, ns string, meta map[string]any, fill func(map[string]any)) {
	key := objectKey(ns, rules.TextAt(meta, "name"))
	if cl.store.getObject(res, key) == nil {
		meta["namespace"] = ns
		body := map[string]any{"metadata": meta}
		fill(body)
		cl.store.createObject(res, body)
		return
	}
	cl.store.updateObject(res, key, func(have map[string]any) bool { return rules.IsChangedBy(have, fill) })
}
