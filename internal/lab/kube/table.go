package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// column is one column of what "kubectl get" shows. Columns with wide are
// shown with -o wide only.
type column struct {
	name string
	kind string // string, integer, date
	wide bool
	cell func(o map[string]any) any
}

// makeTable renders objects as rows; with head it also names the columns.
func (v view) makeTable(objects []*object, version string, head bool) (*metav1.Table, error) {
	columns := columnsOf[v.res]
	if columns == nil {
		columns = []column{colName, colAge}
		if v.res.typ == nil {
			columns[1].kind = "date"
		}
	}
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: version},
		Rows:     []metav1.TableRow{},
	}
	for _, c := range columns {
		if !head {
			break
		}
		def := metav1.TableColumnDefinition{Name: c.name, Type: c.kind}
		if c.name == "Name" {
			def.Format = "name"
		}
		if c.wide {
			def.Priority = 1
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, def)
	}
	for _, o := range objects {
		raw, err := v.inRow(o)
		if err != nil {
			return nil, err
		}
		row := metav1.TableRow{Object: runtime.RawExtension{Raw: raw}}
		for _, c := range columns {
			row.Cells = append(row.Cells, c.cell(o.body))
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

// encodeTable is a table as JSON.
func (v view) encodeTable(objects []*object, version string, head bool) ([]byte, error) {
	t, err := v.makeTable(objects, version, head)
	if err != nil {
		return nil, err
	}
	return json.Marshal(t)
}

// inRow is the object that goes with a row: its metadata unless the client
// asked for all or nothing of it.
func (v view) inRow(o *object) ([]byte, error) {
	switch v.include {
	case metav1.IncludeNone:
		return nil, nil
	case metav1.IncludeObject:
		return o.encodeTyped(v.res.kind, v.res.versionText(v.version))
	}
	return json.Marshal(partialMetadata(o))
}

var (
	colName = column{"Name", "string", false, func(o map[string]any) any { return rules.TextAt(o, "metadata", "name") }}
	colAge  = column{"Age", "string", false, func(o map[string]any) any { return formatAge(rules.TextAt(o, "metadata", "creationTimestamp")) }}
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
	return func(o map[string]any) any { return rules.NumberAt(o, path...) }
}

func textCell(path ...string) func(map[string]any) any {
	return func(o map[string]any) any { return orNone(rules.TextAt(o, path...)) }
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

// ofPods are the columns a workload shows of its pod template, and of its
// selector.
var ofPods = []column{
	{"Containers", "string", true, func(o map[string]any) any { return joinContainers(o, "name") }},
	{"Images", "string", true, func(o map[string]any) any { return joinContainers(o, "image") }},
	{"Selector", "string", true, func(o map[string]any) any {
		sel, err := rules.SelectorAt(o)
		if err != nil {
			return "<invalid>"
		}
		return orNone(sel.String())
	}},
}

func joinContainers(o map[string]any, field string) string {
	var all []string
	for _, c := range rules.MapsAt(o, "spec", "template", "spec", "containers") {
		all = append(all, rules.TextAt(c, field))
	}
	return strings.Join(all, ",")
}

// columnsOf are the columns of the resources that show more than name and age.
var columnsOf = map[*resource][]column{
	resNodes: {
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
	resPods: {
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
	resDeployments: append([]column{
		colName,
		{"Ready", "string", false, func(o map[string]any) any {
			return fmt.Sprintf("%d/%d", rules.NumberAt(o, "status", "readyReplicas"), rules.NumberAt(o, "spec", "replicas"))
		}},
		{"Up-to-date", "string", false, numberCell("status", "updatedReplicas")},
		{"Available", "string", false, numberCell("status", "availableReplicas")},
		colAge,
	}, ofPods...),
	resDaemonSets: append([]column{
		colName,
		{"Desired", "integer", false, numberCell("status", "desiredNumberScheduled")},
		{"Current", "integer", false, numberCell("status", "currentNumberScheduled")},
		{"Ready", "integer", false, numberCell("status", "numberReady")},
		{"Up-to-date", "integer", false, numberCell("status", "updatedNumberScheduled")},
		{"Available", "integer", false, numberCell("status", "numberAvailable")},
		{"Node Selector", "string", false, func(o map[string]any) any {
			return orNone(joinMap(rules.StringsAt(o, "spec", "template", "spec", "nodeSelector")))
		}},
		colAge,
	}, ofPods...),
	resStatefulSets: append([]column{
		colName,
		{"Ready", "string", false, func(o map[string]any) any {
			return fmt.Sprintf("%d/%d", rules.NumberAt(o, "status", "readyReplicas"), rules.NumberAt(o, "spec", "replicas"))
		}},
		colAge,
	}, ofPods[:2]...),
	resReplicaSets: append([]column{
		colName,
		{"Desired", "integer", false, numberCell("spec", "replicas")},
		{"Current", "integer", false, numberCell("status", "replicas")},
		{"Ready", "integer", false, numberCell("status", "readyReplicas")},
		colAge,
	}, ofPods...),
	resJobs: append([]column{
		colName,
		{"Status", "string", false, jobStatus},
		{"Completions", "string", false, func(o map[string]any) any {
			return fmt.Sprintf("%d/%d", rules.NumberAt(o, "status", "succeeded"), max(1, rules.NumberAt(o, "spec", "completions")))
		}},
		{"Duration", "string", false, jobDuration},
		colAge,
	}, ofPods...),
	resServices: {
		colName,
		{"Type", "string", false, textCell("spec", "type")},
		{"Cluster-IP", "string", false, textCell("spec", "clusterIP")},
		{"External-IP", "string", false, serviceExternal},
		{"Port(s)", "string", false, servicePorts},
		colAge,
		{"Selector", "string", true, func(o map[string]any) any { return orNone(joinMap(rules.StringsAt(o, "spec", "selector"))) }},
	},
	resNamespaces: {colName, {"Status", "string", false, textCell("status", "phase")}, colAge},
	resConfigMaps: {
		colName,
		{"Data", "string", false, func(o map[string]any) any { return len(rules.MapAt(o, "data")) + len(rules.MapAt(o, "binaryData")) }},
		colAge,
	},
	findBuiltin("", "secrets"): {
		colName,
		{"Type", "string", false, textCell("type")},
		{"Data", "string", false, func(o map[string]any) any { return len(rules.MapAt(o, "data")) }},
		colAge,
	},
	resClaims: {
		colName,
		{"Status", "string", false, textCell("status", "phase")},
		{"Volume", "string", false, textCell("spec", "volumeName")},
		{"Capacity", "string", false, func(o map[string]any) any { return rules.TextAt(o, "status", "capacity", "storage") }},
		{"Access Modes", "string", false, func(o map[string]any) any { return accessModes(rules.ListAt(o, "status", "accessModes")) }},
		{"StorageClass", "string", false, func(o map[string]any) any { return rules.TextAt(o, "spec", "storageClassName") }},
		{"VolumeAttributesClass", "string", false, func(map[string]any) any { return "<unset>" }},
		colAge,
		{"VolumeMode", "string", true, textCell("spec", "volumeMode")},
	},
	resBudgets: {
		colName,
		{"Min Available", "string", false, budgetCell("minAvailable")},
		{"Max Unavailable", "string", false, budgetCell("maxUnavailable")},
		{"Allowed Disruptions", "integer", false, numberCell("status", "disruptionsAllowed")},
		colAge,
	},
	resCRDs: {colName, {"Created At", "date", false, textCell("metadata", "creationTimestamp")}},
}

func budgetCell(key string) func(map[string]any) any {
	return func(o map[string]any) any {
		if v := rules.ValueAt(o, "spec", key); v != nil {
			return fmt.Sprint(v)
		}
		return "N/A"
	}
}

func nodeStatus(o map[string]any) any {
	out := "Unknown"
	for _, c := range rules.MapsAt(o, "status", "conditions") {
		if rules.TextAt(c, "type") != "Ready" {
			continue
		}
		out = "NotReady"
		if rules.TextAt(c, "status") == "True" {
			out = "Ready"
		}
	}
	if rules.BoolAt(o, "spec", "unschedulable") {
		out += ",SchedulingDisabled"
	}
	return out
}

func nodeRoles(o map[string]any) any {
	var roles []string
	for l := range rules.StringsAt(o, "metadata", "labels") {
		if role, ok := strings.CutPrefix(l, "node-role.kubernetes.io/"); ok && role != "" {
			roles = append(roles, role)
		}
	}
	slices.Sort(roles)
	return orNone(strings.Join(roles, ","))
}

func nodeAddress(kind string) func(map[string]any) any {
	return func(o map[string]any) any {
		for _, a := range rules.MapsAt(o, "status", "addresses") {
			if rules.TextAt(a, "type") == kind {
				return rules.TextAt(a, "address")
			}
		}
		return "<none>"
	}
}

func podReady(o map[string]any) any {
	ready := 0
	for _, c := range rules.MapsAt(o, "status", "containerStatuses") {
		if rules.BoolAt(c, "ready") {
			ready++
		}
	}
	return fmt.Sprintf("%d/%d", ready, len(rules.ListAt(o, "spec", "containers")))
}

func podRestarts(o map[string]any) any {
	var n int64
	for _, c := range rules.MapsAt(o, "status", "containerStatuses") {
		n = max(n, rules.NumberAt(c, "restartCount"))
	}
	return fmt.Sprint(n)
}

func podStatus(o map[string]any) any {
	if rules.TextAt(o, "metadata", "deletionTimestamp") != "" {
		return "Terminating"
	}
	for _, c := range rules.MapsAt(o, "status", "containerStatuses") {
		if why := rules.TextAt(c, "state", "waiting", "reason"); why != "" {
			return why
		}
		if why := rules.TextAt(c, "state", "terminated", "reason"); why != "" {
			return why
		}
	}
	return rules.TextAt(o, "status", "phase")
}

func jobStatus(o map[string]any) any {
	for _, c := range rules.MapsAt(o, "status", "conditions") {
		if kind := rules.TextAt(c, "type"); rules.TextAt(c, "status") == "True" && (kind == "Complete" || kind == "Failed" || kind == "Suspended") {
			return kind
		}
	}
	return "Running"
}

func jobDuration(o map[string]any) any {
	start, err := time.Parse(time.RFC3339, rules.TextAt(o, "status", "startTime"))
	if err != nil {
		return ""
	}
	end, err := time.Parse(time.RFC3339, rules.TextAt(o, "status", "completionTime"))
	if err != nil {
		end = time.Now()
	}
	return duration.HumanDuration(end.Sub(start))
}

func serviceExternal(o map[string]any) any {
	switch rules.TextAt(o, "spec", "type") {
	case "LoadBalancer":
		return "<pending>"
	case "ExternalName":
		return rules.TextAt(o, "spec", "externalName")
	}
	return "<none>"
}

func servicePorts(o map[string]any) any {
	var ports []string
	for _, p := range rules.MapsAt(o, "spec", "ports") {
		s := fmt.Sprint(rules.NumberAt(p, "port"))
		if n := rules.NumberAt(p, "nodePort"); n > 0 {
			s += fmt.Sprintf(":%d", n)
		}
		ports = append(ports, s+"/"+rules.TextAt(p, "protocol"))
	}
	return orNone(strings.Join(ports, ","))
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
