package kube

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// admit completes an object with the defaults and allocations of the server
// and refuses what the server would refuse. was is the version before, nil for
// a new object.
func (s *store) admit(res *resource, body, was map[string]any) error {
	if d := defaults[res]; d != nil {
		d(body)
	}
	name := text(body, "metadata", "name")
	errs := checkName(res, name)
	if c := checks[res]; c != nil {
		errs = append(errs, c(body, was)...)
	}
	if res == resServices && len(errs) == 0 {
		errs = s.allocate(body, was)
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(res.gk(), name, errs)
	}
	return nil
}

// defaults are what the server fills in, by resource.
var defaults = map[*resource]func(map[string]any){
	builtin("", "secrets"): func(o map[string]any) {
		fill(o, "type", "Opaque")
		plain, _ := o["stringData"].(map[string]any)
		for k, v := range plain {
			if s, ok := v.(string); ok {
				ensure(o, "data")[k] = base64.StdEncoding.EncodeToString([]byte(s))
			}
		}
		delete(o, "stringData")
	},
	resNamespaces: func(o map[string]any) {
		ensure(o, "metadata", "labels")["kubernetes.io/metadata.name"] = text(o, "metadata", "name")
		fill(ensure(o, "spec"), "finalizers", []any{"kubernetes"})
		fill(ensure(o, "status"), "phase", "Active")
	},
	resPods: func(o map[string]any) {
		spec := ensure(o, "spec")
		defaultPod(spec)
		for _, c := range children(spec, "containers") {
			for _, p := range children(c, "ports") {
				if flag(spec, "hostNetwork") {
					fill(p, "hostPort", p["containerPort"])
				}
			}
		}
		fill(spec, "enableServiceLinks", true)
		fill(spec, "preemptionPolicy", "PreemptLowerPriority")
		fill(spec, "priority", int64(0))
		for _, key := range []string{taintNotReady, taintUnreachable} {
			tolerateAWhile(spec, key)
		}
		status := ensure(o, "status")
		fill(status, "phase", "Pending")
		fill(status, "qosClass", quality(spec))
	},
	resClaims: func(o map[string]any) {
		fill(ensure(o, "spec"), "volumeMode", "Filesystem")
		fill(ensure(o, "status"), "phase", "Pending")
	},
	resServices: func(o map[string]any) {
		spec := ensure(o, "spec")
		fill(spec, "type", "ClusterIP")
		fill(spec, "sessionAffinity", "None")
		fill(ensure(o, "status"), "loadBalancer", map[string]any{})
		if text(spec, "type") != "ExternalName" {
			fill(spec, "internalTrafficPolicy", "Cluster")
			fill(spec, "ipFamilies", []any{"IPv4"})
			fill(spec, "ipFamilyPolicy", "SingleStack")
		}
		for _, p := range children(spec, "ports") {
			fill(p, "protocol", "TCP")
			if p["targetPort"] == nil || p["targetPort"] == int64(0) || p["targetPort"] == "" {
				p["targetPort"] = p["port"]
			}
		}
	},
	resDeployments: func(o map[string]any) {
		spec := ensure(o, "spec")
		fill(spec, "replicas", int64(1))
		fill(spec, "revisionHistoryLimit", int64(10))
		fill(spec, "progressDeadlineSeconds", int64(600))
		strategy := ensure(spec, "strategy")
		fill(strategy, "type", "RollingUpdate")
		if text(strategy, "type") == "RollingUpdate" {
			fill(ensure(strategy, "rollingUpdate"), "maxUnavailable", "25%")
			fill(ensure(strategy, "rollingUpdate"), "maxSurge", "25%")
		}
		defaultPod(ensure(spec, "template", "spec"))
	},
	resReplicaSets: func(o map[string]any) {
		fill(ensure(o, "spec"), "replicas", int64(1))
		defaultPod(ensure(o, "spec", "template", "spec"))
	},
	resDaemonSets: func(o map[string]any) {
		spec := ensure(o, "spec")
		fill(spec, "revisionHistoryLimit", int64(10))
		strategy := ensure(spec, "updateStrategy")
		fill(strategy, "type", "RollingUpdate")
		if text(strategy, "type") == "RollingUpdate" {
			fill(ensure(strategy, "rollingUpdate"), "maxUnavailable", int64(1))
			fill(ensure(strategy, "rollingUpdate"), "maxSurge", int64(0))
		}
		defaultPod(ensure(spec, "template", "spec"))
	},
	resStatefulSets: func(o map[string]any) {
		spec := ensure(o, "spec")
		fill(spec, "replicas", int64(1))
		fill(spec, "revisionHistoryLimit", int64(10))
		fill(spec, "podManagementPolicy", "OrderedReady")
		fill(spec, "persistentVolumeClaimRetentionPolicy", map[string]any{"whenDeleted": "Retain", "whenScaled": "Retain"})
		strategy := ensure(spec, "updateStrategy")
		fill(strategy, "type", "RollingUpdate")
		if text(strategy, "type") == "RollingUpdate" {
			fill(ensure(strategy, "rollingUpdate"), "partition", int64(0))
		}
		defaultPod(ensure(spec, "template", "spec"))
	},
	resJobs: func(o map[string]any) {
		spec := ensure(o, "spec")
		if spec["completions"] == nil && spec["parallelism"] == nil {
			spec["completions"] = int64(1)
		}
		fill(spec, "parallelism", int64(1))
		fill(spec, "backoffLimit", int64(6))
		fill(spec, "completionMode", "NonIndexed")
		fill(spec, "manualSelector", false)
		fill(spec, "podReplacementPolicy", "TerminatingOrFailed")
		fill(spec, "suspend", false)
		uid := text(o, "metadata", "uid")
		if spec["selector"] == nil && uid != "" {
			own := map[string]any{"batch.kubernetes.io/controller-uid": uid}
			spec["selector"] = map[string]any{"matchLabels": own}
			for _, ls := range []map[string]any{ensure(o, "metadata", "labels"), ensure(spec, "template", "metadata", "labels")} {
				ls["batch.kubernetes.io/controller-uid"], ls["controller-uid"] = uid, uid
				ls["batch.kubernetes.io/job-name"], ls["job-name"] = at(o, "metadata", "name"), at(o, "metadata", "name")
			}
		}
		defaultPod(ensure(spec, "template", "spec"))
	},
	resCRDs: func(o map[string]any) {
		names := ensure(o, "spec", "names")
		fill(names, "singular", strings.ToLower(text(names, "kind")))
		fill(names, "listKind", text(names, "kind")+"List")
		fill(ensure(o, "spec", "conversion"), "strategy", "None")
		for _, v := range children(o, "spec", "versions") {
			if flag(v, "storage") && items(o, "status", "storedVersions") == nil {
				ensure(o, "status")["storedVersions"] = []any{v["name"]}
			}
		}
	},
}

// defaultPod fills in the spec of a pod or a pod template.
func defaultPod(spec map[string]any) {
	fill(spec, "restartPolicy", "Always")
	fill(spec, "dnsPolicy", "ClusterFirst")
	fill(spec, "schedulerName", "default-scheduler")
	fill(spec, "terminationGracePeriodSeconds", int64(30))
	fill(spec, "securityContext", map[string]any{})
	if sa := text(spec, "serviceAccountName"); sa != "" {
		fill(spec, "serviceAccount", sa)
	}
	for _, list := range []string{"containers", "initContainers"} {
		for _, c := range children(spec, list) {
			policy := "IfNotPresent"
			if image := text(c, "image"); strings.HasSuffix(image, ":latest") || !strings.ContainsAny(image[strings.LastIndexByte(image, '/')+1:], ":@") {
				policy = "Always"
			}
			fill(c, "imagePullPolicy", policy)
			fill(c, "terminationMessagePath", "/dev/termination-log")
			fill(c, "terminationMessagePolicy", "File")
			fill(c, "resources", map[string]any{})
			for _, p := range children(c, "ports") {
				fill(p, "protocol", "TCP")
			}
		}
	}
}

// tolerateAWhile lets a pod stay on a node that is in trouble for a time, if
// it says nothing about that itself.
func tolerateAWhile(spec map[string]any, key string) {
	for _, t := range children(spec, "tolerations") {
		k, effect := text(t, "key"), text(t, "effect")
		if (k == key || k == "") && (effect == "NoExecute" || effect == "") {
			return
		}
	}
	spec["tolerations"] = append(items(spec, "tolerations"), map[string]any{
		"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": int64(evictAfter.Seconds()),
	})
}

// quality is a pod's quality of service. (Nobody asks for Guaranteed.)
func quality(spec map[string]any) string {
	for _, c := range children(spec, "containers") {
		if len(child(c, "resources", "requests"))+len(child(c, "resources", "limits")) > 0 {
			return "Burstable"
		}
	}
	return "BestEffort"
}

// checks are the refusals beyond names, by resource. was is nil for a new
// object.
var checks = map[*resource]func(body, was map[string]any) field.ErrorList{
	resPods: func(body, was map[string]any) field.ErrorList {
		return checkPod(child(body, "spec"), field.NewPath("spec"))
	},
	resDeployments:  checkWorkload,
	resReplicaSets:  checkWorkload,
	resDaemonSets:   checkWorkload,
	resStatefulSets: checkWorkload,
	resJobs: func(body, was map[string]any) field.ErrorList {
		spec := field.NewPath("spec")
		errs := checkPod(child(body, "spec", "template", "spec"), spec.Child("template", "spec"))
		if text(body, "spec", "template", "spec", "restartPolicy") == "Always" {
			errs = append(errs, field.Required(spec.Child("template", "spec", "restartPolicy"), `valid values: "OnFailure", "Never"`))
		}
		if was != nil && !reflect.DeepEqual(at(body, "spec", "template"), at(was, "spec", "template")) {
			errs = append(errs, field.Invalid(spec.Child("template"), "", "field is immutable"))
		}
		return errs
	},
	resServices: func(body, was map[string]any) field.ErrorList {
		if len(items(body, "spec", "ports")) == 0 && text(body, "spec", "type") != "ExternalName" && text(body, "spec", "clusterIP") != "None" {
			return field.ErrorList{field.Required(field.NewPath("spec", "ports"), "")}
		}
		return nil
	},
	resConfigMaps:          checkImmutable,
	builtin("", "secrets"): checkImmutable,
	resCRDs: func(body, was map[string]any) field.ErrorList {
		var errs field.ErrorList
		want := text(body, "spec", "names", "plural") + "." + text(body, "spec", "group")
		if name := text(body, "metadata", "name"); name != want {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), name, `must be spec.names.plural+"."+spec.group`))
		}
		stored := 0
		for _, v := range children(body, "spec", "versions") {
			if flag(v, "storage") {
				stored++
			}
		}
		if stored != 1 {
			errs = append(errs, field.Invalid(field.NewPath("spec", "versions"), stored, "must have exactly one version marked as storage version"))
		}
		return errs
	},
}

// checkName applies the rules for names of a resource.
func checkName(res *resource, name string) field.ErrorList {
	var said []string
	switch {
	case res == resNamespaces:
		said = validation.IsDNS1123Label(name)
	case res == resServices:
		said = validation.IsDNS1035Label(name)
	case res.group == "rbac.authorization.k8s.io":
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/%") {
			said = []string{"must be a path segment"}
		}
	default:
		said = validation.IsDNS1123Subdomain(name)
	}
	var errs field.ErrorList
	for _, s := range said {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), name, s))
	}
	return errs
}

// checkWorkload wants a selector that finds the workload's own pods and never
// changes.
func checkWorkload(body, was map[string]any) field.ErrorList {
	spec := field.NewPath("spec")
	errs := checkPod(child(body, "spec", "template", "spec"), spec.Child("template", "spec"))
	sel, err := selectorAt(body)
	if err != nil {
		return append(errs, field.Invalid(spec.Child("selector"), at(body, "spec", "selector"), err.Error()))
	}
	if sel.Empty() {
		errs = append(errs, field.Required(spec.Child("selector"), ""))
		sel = labels.Nothing()
	}
	ls := stringsAt(body, "spec", "template", "metadata", "labels")
	if !sel.Matches(labels.Set(ls)) {
		errs = append(errs, field.Invalid(spec.Child("template", "metadata", "labels"), ls, "`selector` does not match template `labels`"))
	}
	if was != nil && !reflect.DeepEqual(at(body, "spec", "selector"), at(was, "spec", "selector")) {
		errs = append(errs, field.Invalid(spec.Child("selector"), at(body, "spec", "selector"), "field is immutable"))
	}
	return errs
}

// selectorAt reads spec.selector of a workload.
func selectorAt(body map[string]any) (labels.Selector, error) {
	sel := &metav1.LabelSelector{MatchLabels: stringsAt(body, "spec", "selector", "matchLabels")}
	for _, e := range children(body, "spec", "selector", "matchExpressions") {
		var values []string
		for _, v := range items(e, "values") {
			values = append(values, fmt.Sprint(v))
		}
		sel.MatchExpressions = append(sel.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: text(e, "key"), Operator: metav1.LabelSelectorOperator(text(e, "operator")), Values: values,
		})
	}
	return metav1.LabelSelectorAsSelector(sel)
}

func checkPod(spec map[string]any, at *field.Path) field.ErrorList {
	containers := children(spec, "containers")
	if len(containers) == 0 {
		return field.ErrorList{field.Required(at.Child("containers"), "")}
	}
	var errs field.ErrorList
	for i, c := range containers {
		if text(c, "name") == "" {
			errs = append(errs, field.Required(at.Child("containers").Index(i).Child("name"), ""))
		}
		if text(c, "image") == "" {
			errs = append(errs, field.Required(at.Child("containers").Index(i).Child("image"), ""))
		}
	}
	return errs
}

func checkImmutable(body, was map[string]any) field.ErrorList {
	if was == nil || !flag(was, "immutable") {
		return nil
	}
	for _, k := range []string{"immutable", "data", "binaryData"} {
		if !reflect.DeepEqual(body[k], was[k]) {
			return field.ErrorList{field.Forbidden(field.NewPath(k), "field is immutable when `immutable` is set")}
		}
	}
	return nil
}

// allocate gives a service its address and node ports.
func (s *store) allocate(body, was map[string]any) field.ErrorList {
	spec := child(body, "spec")
	kind, ip := text(spec, "type"), text(spec, "clusterIP")
	if kind == "ExternalName" {
		return nil
	}
	had := text(was, "spec", "clusterIP")
	switch {
	case had != "" && ip == "":
		ip = had
	case had != "" && ip != had:
		return field.ErrorList{field.Invalid(field.NewPath("spec", "clusterIPs").Index(0), []string{ip}, "may not change once set")}
	case ip == "":
		if ip = s.freeServiceIP(); ip == "" {
			return field.ErrorList{field.InternalError(field.NewPath("spec", "clusterIPs"), errors.New("failed to allocate a serviceIP: range is full"))}
		}
	case ip != "None" && had == "" && !s.inServices(ip):
		return field.ErrorList{field.Invalid(field.NewPath("spec", "clusterIPs"), []string{ip},
			fmt.Sprintf("failed to allocate IP %s: the provided network does not match the current range", ip))}
	}
	spec["clusterIP"], spec["clusterIPs"] = ip, []any{ip}
	if kind == "NodePort" || kind == "LoadBalancer" {
		for _, p := range children(spec, "ports") {
			if number(p, "nodePort") == 0 {
				p["nodePort"] = 30000 + int64(s.serial.Add(1))%2768
			}
		}
		fill(spec, "externalTrafficPolicy", "Cluster")
	}
	if kind == "LoadBalancer" {
		fill(spec, "allocateLoadBalancerNodePorts", true)
	}
	return nil
}

func (s *store) inServices(ip string) bool {
	addr, err := netip.ParseAddr(ip)
	return err == nil && s.services.Contains(addr)
}

// freeServiceIP returns an address no service has, "" if there is none. The
// first ones of the range, which clusters give out by hand (DNS is the tenth),
// come last, as in life.
func (s *store) freeServiceIP() string {
	taken := map[string]bool{}
	services, _ := s.list(resServices, "")
	for _, o := range services {
		taken[text(o.body, "spec", "clusterIP")] = true
	}
	for _, part := range [2][2]int{{256, 1 << 16}, {1, 256}} {
		for n := part[0]; n < part[1]; n++ {
			ip := nth(s.services, n)
			if !ip.IsValid() || !s.services.Contains(ip) {
				break
			}
			if !taken[ip.String()] {
				return ip.String()
			}
		}
	}
	return ""
}

// firstRange reads the first of several ranges separated by commas; the zero
// Prefix if that is none.
func firstRange(cidrs string) netip.Prefix {
	first, _, _ := strings.Cut(cidrs, ",")
	p, err := netip.ParsePrefix(strings.TrimSpace(first))
	if err != nil {
		return netip.Prefix{}
	}
	return p.Masked()
}

// nth is the n-th address of a range, which may lie behind its end; the zero
// Addr if the range is none.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().AsSlice()
	for i := len(b) - 1; i >= 0 && n > 0; i-- {
		n += int(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
