package rules

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Column is one column of what "kubectl get" shows. Columns with Wide are
// shown with -o wide only.
type Column struct {
	Name string
	Kind string // string, integer, date
	Wide bool
	Cell func(o map[string]any) any
}

// PartialMetadata is the metadata of an object alone, as clients may ask for it.
func PartialMetadata(body map[string]any) map[string]any {
	return map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}
}

// DefineColumns is the head of a table with these columns.
func DefineColumns(columns []Column) (out []metav1.TableColumnDefinition) {
	for _, c := range columns {
		def := metav1.TableColumnDefinition{Name: c.Name, Type: c.Kind}
		if c.Name == "Name" {
			def.Format = "name"
		}
		if c.Wide {
			def.Priority = 1
		}
		out = append(out, def)
	}
	return out
}

// ColumnsOf are the columns of a resource, which may be a custom one.
func ColumnsOf(of schema.GroupResource, custom bool) []Column {
	columns := columnsOf[resourceKey(of)]
	if columns == nil {
		columns = []Column{colName, colAge}
		if custom {
			columns[1].Kind = "date"
		}
	}
	return columns
}

var (
	colName    = Column{"Name", "string", false, func(o map[string]any) any { return TextAt(o, "metadata", "name") }}
	colCreated = Column{"Created At", "date", false, textCell("metadata", "creationTimestamp")}
	colRole    = Column{"Role", "string", false, func(o map[string]any) any { return TextAt(o, "roleRef", "kind") + "/" + TextAt(o, "roleRef", "name") }}
	colAge     = Column{"Age", "string", false, func(o map[string]any) any { return formatAge(TextAt(o, "metadata", "creationTimestamp")) }}
)

// formatAge is the age of something, as kubectl writes it.
func formatAge(at string) string {
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t))
}

// a number or text at a path of the object.
func numberCell(path ...string) func(map[string]any) any {
	return func(o map[string]any) any { return NumberAt(o, path...) }
}

func textCell(path ...string) func(map[string]any) any {
	return func(o map[string]any) any { return orNone(TextAt(o, path...)) }
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

// ofPods are the columns a workload shows of its pod template, and of its
// selector.
var ofPods = []Column{
	{"Containers", "string", true, func(o map[string]any) any { return joinContainers(o, "name") }},
	{"Images", "string", true, func(o map[string]any) any { return joinContainers(o, "image") }},
	{"Selector", "string", true, func(o map[string]any) any {
		sel, err := SelectorAt(o)
		if err != nil {
			return "<invalid>"
		}
		return orNone(sel.String())
	}},
}

func joinContainers(o map[string]any, field string) string {
	var all []string
	for _, c := range MapsAt(o, "spec", "template", "spec", "containers") {
		all = append(all, TextAt(c, field))
	}
	return strings.Join(all, ",")
}

// columnsOf are the columns of the resources that show more than name and age.
var columnsOf = map[string][]Column{
	"nodes": {
		colName,
		{"Status", "string", false, nodeStatus},
		{"Roles", "string", false, nodeRoles},
		colAge,
		{"Version", "string", false, textCell("status", "nodeInfo", "kubeletVersion")},
		{"Internal-IP", "string", true, nodeAddress("InternalIP")},
		{"External-IP", "string", true, nodeAddress("ExternalIP")},
		{"OS-Image", "string", true, textCell("status", "nodeInfo", "osImage")},
		{"Kernel-Version", "string", true, textCell("status", "nodeInfo", "kernelVersion")},
		{"Container-Runtime", "string", true, textCell("status", "nodeInfo", "containerRuntimeVersion")},
	},
	"pods": {
		colName,
		{"Ready", "string", false, podReady},
		{"Status", "string", false, podStatus},
		{"Restarts", "string", false, podRestarts},
		colAge,
		{"IP", "string", true, textCell("status", "podIP")},
		{"Node", "string", true, textCell("spec", "nodeName")},
		{"Nominated Node", "string", true, textCell("status", "nominatedNodeName")},
		{"Readiness Gates", "string", true, func(map[string]any) any { return "<none>" }},
	},
	"apps/deployments": append([]Column{
		colName,
		{"Ready", "string", false, func(o map[string]any) any {
			return fmt.Sprintf("%d/%d", NumberAt(o, "status", "readyReplicas"), NumberAt(o, "spec", "replicas"))
		}},
		{"Up-to-date", "string", false, numberCell("status", "updatedReplicas")},
		{"Available", "string", false, numberCell("status", "availableReplicas")},
		colAge,
	}, ofPods...),
	"apps/daemonsets": append([]Column{
		colName,
		{"Desired", "integer", false, numberCell("status", "desiredNumberScheduled")},
		{"Current", "integer", false, numberCell("status", "currentNumberScheduled")},
		{"Ready", "integer", false, numberCell("status", "numberReady")},
		{"Up-to-date", "integer", false, numberCell("status", "updatedNumberScheduled")},
		{"Available", "integer", false, numberCell("status", "numberAvailable")},
		{"Node Selector", "string", false, func(o map[string]any) any {
			return orNone(joinMap(StringsAt(o, "spec", "template", "spec", "nodeSelector")))
		}},
		colAge,
	}, ofPods...),
	"apps/statefulsets": append([]Column{
		colName,
		{"Ready", "string", false, func(o map[string]any) any {
			return fmt.Sprintf("%d/%d", NumberAt(o, "status", "readyReplicas"), NumberAt(o, "spec", "replicas"))
		}},
		colAge,
	}, ofPods[:2]...),
	"apps/replicasets": append([]Column{
		colName,
		{"Desired", "integer", false, numberCell("spec", "replicas")},
		{"Current", "integer", false, numberCell("status", "replicas")},
		{"Ready", "integer", false, numberCell("status", "readyReplicas")},
		colAge,
	}, ofPods...),
	"batch/jobs": append([]Column{
		colName,
		{"Status", "string", false, jobStatus},
		{"Completions", "string", false, func(o map[string]any) any {
			return fmt.Sprintf("%d/%d", NumberAt(o, "status", "succeeded"), max(1, NumberAt(o, "spec", "completions")))
		}},
		{"Duration", "string", false, jobDuration},
		colAge,
	}, ofPods...),
	"services": {
		colName,
		{"Type", "string", false, textCell("spec", "type")},
		{"Cluster-IP", "string", false, textCell("spec", "clusterIP")},
		{"External-IP", "string", false, serviceExternal},
		{"Port(s)", "string", false, servicePorts},
		colAge,
		{"Selector", "string", true, func(o map[string]any) any { return orNone(joinMap(StringsAt(o, "spec", "selector"))) }},
	},
	"events": {
		{"Last Seen", "string", false, func(o map[string]any) any { return formatAge(eventTime(o, "lastTimestamp")) }},
		{"Type", "string", false, func(o map[string]any) any { return TextAt(o, "type") }},
		{"Reason", "string", false, func(o map[string]any) any { return TextAt(o, "reason") }},
		{"Object", "string", false, eventObject},
		{"Subobject", "string", true, func(o map[string]any) any { return TextAt(o, "involvedObject", "fieldPath") }},
		{"Source", "string", true, eventSource},
		{"Message", "string", false, func(o map[string]any) any { return strings.TrimSpace(TextAt(o, "message")) }},
		{"First Seen", "string", true, func(o map[string]any) any { return formatAge(eventTime(o, "firstTimestamp")) }},
		{"Count", "string", true, func(o map[string]any) any {
			return max(1, NumberAt(o, "count"), NumberAt(o, "series", "count"))
		}},
		{"Name", "string", true, func(o map[string]any) any { return TextAt(o, "metadata", "name") }},
	},
	"namespaces": {colName, {"Status", "string", false, textCell("status", "phase")}, colAge},
	"configmaps": {
		colName,
		{"Data", "string", false, func(o map[string]any) any { return len(MapAt(o, "data")) + len(MapAt(o, "binaryData")) }},
		colAge,
	},
	"secrets": {
		colName,
		{"Type", "string", false, textCell("type")},
		{"Data", "string", false, func(o map[string]any) any { return len(MapAt(o, "data")) }},
		colAge,
	},
	"persistentvolumeclaims": {
		colName,
		{"Status", "string", false, textCell("status", "phase")},
		{"Volume", "string", false, textCell("spec", "volumeName")},
		{"Capacity", "string", false, func(o map[string]any) any { return TextAt(o, "status", "capacity", "storage") }},
		{"Access Modes", "string", false, func(o map[string]any) any { return accessModes(ListAt(o, "status", "accessModes")) }},
		{"StorageClass", "string", false, func(o map[string]any) any { return TextAt(o, "spec", "storageClassName") }},
		{"VolumeAttributesClass", "string", false, func(map[string]any) any { return "<unset>" }},
		colAge,
		{"VolumeMode", "string", true, textCell("spec", "volumeMode")},
	},
	"policy/poddisruptionbudgets": {
		colName,
		{"Min Available", "string", false, budgetCell("minAvailable")},
		{"Max Unavailable", "string", false, budgetCell("maxUnavailable")},
		{"Allowed Disruptions", "integer", false, numberCell("status", "disruptionsAllowed")},
		colAge,
	},
	"endpoints": {colName, {"Endpoints", "string", false, endpointAddresses}, colAge},
	"discovery.k8s.io/endpointslices": {
		colName,
		{"AddressType", "string", false, textCell("addressType")},
		{"Ports", "string", false, slicePorts},
		{"Endpoints", "string", false, sliceAddresses},
		colAge,
	},
	"networking.k8s.io/ingresses": {
		colName,
		{"Class", "string", false, textCell("spec", "ingressClassName")},
		{"Hosts", "string", false, ingressHosts},
		{"Address", "string", false, func(map[string]any) any { return "" }}, // nothing serves them
		{"Ports", "string", false, func(o map[string]any) any {
			if len(ListAt(o, "spec", "tls")) > 0 {
				return "80, 443"
			}
			return "80"
		}},
		colAge,
	},
	"coordination.k8s.io/leases":                     {colName, {"Holder", "string", false, func(o map[string]any) any { return TextAt(o, "spec", "holderIdentity") }}, colAge},
	"rbac.authorization.k8s.io/roles":                {colName, colCreated},
	"rbac.authorization.k8s.io/clusterroles":         {colName, colCreated},
	"rbac.authorization.k8s.io/rolebindings":         {colName, colRole, colAge},
	"rbac.authorization.k8s.io/clusterrolebindings":  {colName, colRole, colAge},
	"apiextensions.k8s.io/customresourcedefinitions": {colName, colCreated},
}

func budgetCell(key string) func(map[string]any) any {
	return func(o map[string]any) any {
		if v := ValueAt(o, "spec", key); v != nil {
			return fmt.Sprint(v)
		}
		return "N/A"
	}
}

// eventTime is when an event was seen first or last.
func eventTime(o map[string]any, key string) string {
	if last := TextAt(o, "series", "lastObservedTime"); last != "" && key == "lastTimestamp" {
		return last
	}
	return cmp.Or(TextAt(o, key), TextAt(o, "firstTimestamp"), TextAt(o, "eventTime"))
}

func eventObject(o map[string]any) any {
	kind := strings.ToLower(TextAt(o, "involvedObject", "kind"))
	if name := TextAt(o, "involvedObject", "name"); name != "" {
		return kind + "/" + name
	}
	return kind
}

// eventSource is who reports an event, and where it runs.
func eventSource(o map[string]any) any {
	who := cmp.Or(TextAt(o, "source", "component"), TextAt(o, "reportingComponent"))
	if where := cmp.Or(TextAt(o, "source", "host"), TextAt(o, "reportingInstance")); where != "" {
		return who + ", " + where
	}
	return who
}

func nodeStatus(o map[string]any) any {
	out := "Unknown"
	for _, c := range MapsAt(o, "status", "conditions") {
		if TextAt(c, "type") != "Ready" {
			continue
		}
		out = "NotReady"
		if TextAt(c, "status") == "True" {
			out = "Ready"
		}
	}
	if BoolAt(o, "spec", "unschedulable") {
		out += ",SchedulingDisabled"
	}
	return out
}

func nodeRoles(o map[string]any) any {
	var roles []string
	for l := range StringsAt(o, "metadata", "labels") {
		if role, ok := strings.CutPrefix(l, "node-role.kubernetes.io/"); ok && role != "" {
			roles = append(roles, role)
		}
	}
	slices.Sort(roles)
	return orNone(strings.Join(roles, ","))
}

func nodeAddress(kind string) func(map[string]any) any {
	return func(o map[string]any) any { return orNone(NodeAddress(o, kind)) }
}

// NodeAddress is the address of a kind that a node has, "" if it has none.
func NodeAddress(node map[string]any, kind string) string {
	for _, a := range MapsAt(node, "status", "addresses") {
		if TextAt(a, "type") == kind {
			return TextAt(a, "address")
		}
	}
	return ""
}

func podReady(o map[string]any) any {
	ready := 0
	for _, c := range MapsAt(o, "status", "containerStatuses") {
		if BoolAt(c, "ready") {
			ready++
		}
	}
	return fmt.Sprintf("%d/%d", ready, len(ListAt(o, "spec", "containers")))
}

func podRestarts(o map[string]any) any {
	var n int64
	for _, c := range MapsAt(o, "status", "containerStatuses") {
		n = max(n, NumberAt(c, "restartCount"))
	}
	return fmt.Sprint(n)
}

func podStatus(o map[string]any) any {
	if TextAt(o, "metadata", "deletionTimestamp") != "" {
		return "Terminating"
	}
	for _, c := range MapsAt(o, "status", "containerStatuses") {
		if why := TextAt(c, "state", "waiting", "reason"); why != "" {
			return why
		}
		if why := TextAt(c, "state", "terminated", "reason"); why != "" {
			return why
		}
	}
	return TextAt(o, "status", "phase")
}

func jobStatus(o map[string]any) any {
	for _, c := range MapsAt(o, "status", "conditions") {
		if kind := TextAt(c, "type"); TextAt(c, "status") == "True" && (kind == "Complete" || kind == "Failed" || kind == "Suspended") {
			return kind
		}
	}
	return "Running"
}

func jobDuration(o map[string]any) any {
	start, err := time.Parse(time.RFC3339, TextAt(o, "status", "startTime"))
	if err != nil {
		return ""
	}
	end, err := time.Parse(time.RFC3339, TextAt(o, "status", "completionTime"))
	if err != nil {
		end = time.Now()
	}
	return duration.HumanDuration(end.Sub(start))
}

func serviceExternal(o map[string]any) any {
	switch TextAt(o, "spec", "type") {
	case "LoadBalancer":
		return "<pending>"
	case "ExternalName":
		return TextAt(o, "spec", "externalName")
	}
	return "<none>"
}

func servicePorts(o map[string]any) any {
	var ports []string
	for _, p := range MapsAt(o, "spec", "ports") {
		s := fmt.Sprint(NumberAt(p, "port"))
		if n := NumberAt(p, "nodePort"); n > 0 {
			s += fmt.Sprintf(":%d", n)
		}
		ports = append(ports, s+"/"+TextAt(p, "protocol"))
	}
	return orNone(strings.Join(ports, ","))
}

// slicePorts are the ports of an EndpointSlice.
func slicePorts(o map[string]any) any {
	var ports []string
	for _, p := range MapsAt(o, "ports") {
		ports = append(ports, fmt.Sprint(NumberAt(p, "port")))
	}
	return shortenList(ports)
}

func sliceAddresses(o map[string]any) any {
	var all []string
	for _, e := range MapsAt(o, "endpoints") {
		for _, a := range ListAt(e, "addresses") {
			all = append(all, fmt.Sprint(a))
		}
	}
	return shortenList(all)
}

// endpointAddresses are where Endpoints lead to, each address with each port.
// Source: kubernetes v1.36, pkg/printers/internalversion, formatEndpoints.
func endpointAddresses(o map[string]any) any {
	var all []string
	for _, s := range MapsAt(o, "subsets") {
		ports := MapsAt(s, "ports")
		for _, a := range MapsAt(s, "addresses") {
			if len(ports) == 0 {
				all = append(all, TextAt(a, "ip"))
			}
		}
		for _, p := range ports {
			for _, a := range MapsAt(s, "addresses") {
				all = append(all, net.JoinHostPort(TextAt(a, "ip"), fmt.Sprint(NumberAt(p, "port"))))
			}
		}
	}
	switch {
	case len(ListAt(o, "subsets")) == 0:
		return "<none>"
	case len(all) == 0:
		return "" // all of them not ready
	}
	return shortenList(all)
}

func ingressHosts(o map[string]any) any {
	var hosts []string
	for _, r := range MapsAt(o, "spec", "rules") {
		if host := TextAt(r, "host"); host != "" {
			hosts = append(hosts, host)
		}
	}
	if len(hosts) == 0 {
		return "*"
	}
	return shortenList(hosts)
}

// shortenList shows the first three of a list.
func shortenList(all []string) string {
	switch n := len(all); {
	case n == 0:
		return "<unset>"
	case n > 3:
		return fmt.Sprintf("%s + %d more...", strings.Join(all[:3], ","), n-3)
	}
	return strings.Join(all, ",")
}

func accessModes(modes []any) string {
	short := map[any]string{"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
	var out []string
	for _, m := range modes {
		out = append(out, short[m])
	}
	return strings.Join(out, ",")
}

func joinMap(m map[string]string) string {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, k+"="+m[k])
	}
	return strings.Join(pairs, ",")
}
