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

// tendService keeps the EndpointSlice of a service that selects pods.
func (cl *cluster) tendService(key string) {
	ns, name := splitKey(key)
	o, sel := cl.store.getObject(resServices, key), cl.services[ns][key]
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
	slice := map[string]any{}
	rules.SliceOf(slice, o.body, pods)
	existing, _ := cl.store.listObjects(resSlices, ns)
	for _, s := range existing {
		of := rules.StringsAt(s.body, "metadata", "labels")
		if of[discoveryv1.LabelServiceName] != name || of[discoveryv1.LabelManagedBy] != rules.SliceController {
			continue
		}
		cl.store.updateObject(resSlices, objectKey(ns, rules.TextAt(s.body, "metadata", "name")), func(have map[string]any) bool {
			was := s.body
			rules.SliceOf(have, o.body, pods)
			return !reflect.DeepEqual(was["endpoints"], have["endpoints"]) || !reflect.DeepEqual(was["ports"], have["ports"]) ||
				!reflect.DeepEqual(rules.MapAt(was, "metadata", "labels"), rules.MapAt(have, "metadata", "labels"))
		})
		return
	}
	meta := rules.MapAt(slice, "metadata")
	meta["generateName"], meta["namespace"] = name+"-", ns
	meta["ownerReferences"] = []any{ownedBy(resServices, o)}
	cl.store.createObject(resSlices, slice)
}
