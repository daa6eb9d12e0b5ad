package rules

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// SliceOf writes into an EndpointSlice which pods a service leads to. The pods are
// those its selector finds.
// Source: kubernetes v1.36, staging/src/k8s.io/endpointslice.
func SliceOf(slice, service map[string]any, pods []map[string]any) {
	meta := EnsureMap(slice, "metadata")
	labels := map[string]any{}
	for k, v := range StringsAt(service, "metadata", "labels") {
		labels[k] = v
	}
	labels[discoveryv1.LabelServiceName], labels[discoveryv1.LabelManagedBy] = TextAt(service, "metadata", "name"), SliceController
	if TextAt(service, "spec", "clusterIP") == "None" {
		labels["service.kubernetes.io/headless"] = ""
	}
	meta["labels"] = labels
	slice["addressType"] = string(discoveryv1.AddressTypeIPv4)
	var endpoints []any
	var first map[string]any
	for _, p := range pods {
		phase, ip := TextAt(p, "status", "phase"), TextAt(p, "status", "podIP")
		if ip == "" || phase == "Succeeded" || phase == "Failed" {
			continue
		}
		if first == nil {
			first = p
		}
		serving, ending := IsReady(p), ValueAt(p, "metadata", "deletionTimestamp") != nil
		endpoints = append(endpoints, map[string]any{
			"addresses": []any{ip}, "nodeName": TextAt(p, "spec", "nodeName"),
			"conditions": map[string]any{
				"ready":   serving && !ending || BoolAt(service, "spec", "publishNotReadyAddresses"),
				"serving": serving, "terminating": ending,
			},
			"targetRef": map[string]any{
				"kind": "Pod", "name": TextAt(p, "metadata", "name"), "namespace": TextAt(p, "metadata", "namespace"), "uid": TextAt(p, "metadata", "uid"),
			},
		})
	}
	slice["endpoints"], slice["ports"] = endpoints, portsOf(service, first)
}

// SliceController is who manages the slices of services with a selector.
const SliceController = "endpointslice-controller.k8s.io"

// portsOf are the ports of a service as a pod of it has them. One that the pod does
// not name is left out.
func portsOf(service, pod map[string]any) []any {
	var out []any
	for _, p := range MapsAt(service, "spec", "ports") {
		port := map[string]any{"name": TextAt(p, "name"), "protocol": TextAt(p, "protocol")}
		switch target := p["targetPort"].(type) {
		case int64:
			port["port"] = target
		case string:
			n := namedPort(pod, target)
			if n == 0 {
				continue
			}
			port["port"] = n
		}
		out = append(out, port)
	}
	return out
}

func namedPort(pod map[string]any, name string) int64 {
	for _, c := range slices.Concat(MapsAt(pod, "spec", "containers"), MapsAt(pod, "spec", "initContainers")) {
		for _, p := range MapsAt(c, "ports") {
			if TextAt(p, "name") == name {
				return NumberAt(p, "containerPort")
			}
		}
	}
	return 0
}
