package rules

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
)

// DeprecatedSince is what a kube-apiserver of a version warns everybody of who asks for a
// resource; "": nothing.
// Source: kubernetes v1.36, staging/src/k8s.io/api/core/v1, Endpoints.
func DeprecatedSince(of schema.GroupResource, kubernetes string) string {
	v, err := version.ParseGeneric(kubernetes)
	if err != nil || resourceKey(of) != "endpoints" || v.LessThan(version.MustParseGeneric("1.33")) {
		return ""
	}
	return "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
}

// IsNewer reports whether a version of Kubernetes is newer than another. What is no version is not.
func IsNewer(a, b string) bool {
	v, err := version.ParseSemantic(a)
	w, err2 := version.ParseSemantic(b)
	return err == nil && err2 == nil && w.LessThan(v)
}

// FillEndpoints writes into Endpoints which pods a service leads to. Pods that end are not among
// them; those that cannot answer yet are kept apart. Pods that have the same ports share a subset.
// Source: kubernetes v1.36, pkg/controller/endpoint.
func FillEndpoints(endpoints, service map[string]any, pods []map[string]any) {
	marks := map[string]any{}
	for k, v := range StringsAt(service, "metadata", "labels") {
		marks[k] = v
	}
	marks["endpoints.kubernetes.io/managed-by"] = "endpoint-controller"
	if TextAt(service, "spec", "clusterIP") == corev1.ClusterIPNone {
		marks[corev1.IsHeadlessService] = ""
	}
	EnsureMap(endpoints, "metadata")["labels"] = marks
	always := BoolAt(service, "spec", "publishNotReadyAddresses")
	var subsets []any
	for _, p := range pods {
		phase, ip := TextAt(p, "status", "phase"), TextAt(p, "status", "podIP")
		if ip == "" || phase == "Succeeded" || phase == "Failed" || ValueAt(p, "metadata", "deletionTimestamp") != nil && !always {
			continue
		}
		ports := portsOf(service, p)
		i := slices.IndexFunc(subsets, func(s any) bool { return reflect.DeepEqual(s.(map[string]any)["ports"], ports) })
		if i < 0 {
			i = len(subsets)
			subsets = append(subsets, map[string]any{"ports": ports})
		}
		subset, list := subsets[i].(map[string]any), "notReadyAddresses"
		if always || IsReady(p) {
			list = "addresses"
		}
		subset[list] = append(ListAt(subset, list), map[string]any{
			"ip": ip, "nodeName": TextAt(p, "spec", "nodeName"), "targetRef": referPod(p),
		})
	}
	fillSubsets(endpoints, subsets)
}

// fillSubsets leaves the field out when there are none, as the server does.
func fillSubsets(endpoints map[string]any, subsets []any) {
	if endpoints["subsets"] = subsets; len(subsets) == 0 {
		delete(endpoints, "subsets")
	}
}

// referPod names the pod behind an address.
func referPod(pod map[string]any) map[string]any {
	return map[string]any{
		"kind": "Pod", "name": TextAt(pod, "metadata", "name"), "namespace": TextAt(pod, "metadata", "namespace"), "uid": TextAt(pod, "metadata", "uid"),
	}
}

// ServerLease is for how long a kube-apiserver that stopped is still listed as one that answers.
// Source: kubernetes v1.36, pkg/controlplane/instance.go, DefaultEndpointReconcilerTTL.
const ServerLease = 15 * time.Second

// IsChangedBy has an object filled in, and reports whether it is another one then.
func IsChangedBy(o map[string]any, fill func(map[string]any)) bool {
	was := runtime.DeepCopyJSON(o)
	fill(o)
	return !reflect.DeepEqual(was, o)
}

// FillServers writes into the Endpoints of the service kubernetes at which addresses an API
// answers. No controller makes a slice of these Endpoints: the API writes its own.
// Source: kubernetes v1.36, pkg/controlplane/reconcilers.
func FillServers(endpoints map[string]any, servers []netip.Addr, port int64) {
	EnsureMap(endpoints, "metadata")["labels"] = map[string]any{discoveryv1.LabelSkipMirror: "true"}
	var addresses, subsets []any
	for _, server := range sortAddresses(servers) {
		addresses = append(addresses, map[string]any{"ip": server.String()})
	}
	if len(addresses) > 0 {
		subsets = []any{map[string]any{"addresses": addresses, "ports": serverPorts(port)}}
	}
	fillSubsets(endpoints, subsets)
}

// FillServerSlice is FillServers for the EndpointSlice.
func FillServerSlice(slice map[string]any, servers []netip.Addr, port int64) {
	EnsureMap(slice, "metadata")["labels"] = map[string]any{discoveryv1.LabelServiceName: "kubernetes"}
	var endpoints []any
	for _, server := range sortAddresses(servers) {
		endpoints = append(endpoints, map[string]any{"addresses": []any{server.String()}, "conditions": map[string]any{"ready": true}})
	}
	slice["addressType"], slice["endpoints"], slice["ports"] = string(discoveryv1.AddressTypeIPv4), endpoints, serverPorts(port)
}

func serverPorts(port int64) []any {
	return []any{map[string]any{"name": "https", "port": port, "protocol": "TCP"}}
}

func sortAddresses(all []netip.Addr) []netip.Addr {
	return slices.SortedFunc(slices.Values(all), netip.Addr.Compare)
}

// FillSlice writes into an EndpointSlice which pods a service leads to. The pods are
// those its selector finds.
// Source: kubernetes v1.36, staging/src/k8s.io/endpointslice.
func FillSlice(slice, service map[string]any, pods []map[string]any) {
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
			"targetRef": referPod(p),
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
