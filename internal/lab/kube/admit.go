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

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// admitObject completes an object with the defaults and allocations of the server
// and refuses what the server would refuse. was is the version before, nil for
// a new object.
func (s *store) admitObject(res *resource, body, was map[string]any) error {
	if d := defaults[res]; d != nil {
		d(body)
	}
	name := textAt(body, "metadata", "name")
	errs := checkName(res, name)
	if c := checks[res]; c != nil {
		errs = append(errs, c(body, was)...)
	}
	if res == resServices && len(errs) == 0 {
		errs = s.allocateService(body, was)
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(res.gk(), name, errs)
	}
	if res == resPods && was == nil {
		return s.securePod(body)
	}
	return nil
}

// securePod refuses a pod that its namespace does not allow.
func (s *store) securePod(pod map[string]any) error {
	return s.security.Refuse(s.labelsOf(textAt(pod, "metadata", "namespace")), pod)
}

// labelsOf are the labels of a namespace.
func (s *store) labelsOf(namespace string) map[string]string {
	if space := s.getObject(resNamespaces, objectKey("", namespace)); space != nil {
		return stringsAt(space.body, "metadata", "labels")
	}
	return nil
}

// defaults are what the server fills in, by resource.
var defaults = map[*resource]func(map[string]any){
	findBuiltin("", "secrets"): func(o map[string]any) {
		fillMissing(o, "type", "Opaque")
		plain, _ := o["stringData"].(map[string]any)
		for k, v := range plain {
			if s, ok := v.(string); ok {
				ensureMap(o, "data")[k] = base64.StdEncoding.EncodeToString([]byte(s))
			}
		}
		delete(o, "stringData")
	},
	resNamespaces: func(o map[string]any) {
		ensureMap(o, "metadata", "labels")["kubernetes.io/metadata.name"] = textAt(o, "metadata", "name")
		fillMissing(ensureMap(o, "spec"), "finalizers", []any{"kubernetes"})
		fillMissing(ensureMap(o, "status"), "phase", "Active")
	},
	resPods: func(o map[string]any) {
		spec := ensureMap(o, "spec")
		defaultPod(spec)
		for _, c := range mapsAt(spec, "containers") {
			for _, p := range mapsAt(c, "ports") {
				if boolAt(spec, "hostNetwork") {
					fillMissing(p, "hostPort", p["containerPort"])
				}
			}
		}
		fillMissing(spec, "enableServiceLinks", true)
		fillMissing(spec, "preemptionPolicy", "PreemptLowerPriority")
		fillMissing(spec, "priority", int64(0))
		for _, key := range []string{taintNotReady, taintUnreachable} {
			tolerateAWhile(spec, key)
		}
		status := ensureMap(o, "status")
		fillMissing(status, "phase", "Pending")
		fillMissing(status, "qosClass", rateQuality(spec))
	},
	resClaims: func(o map[string]any) {
		fillMissing(ensureMap(o, "spec"), "volumeMode", "Filesystem")
		fillMissing(ensureMap(o, "status"), "phase", "Pending")
	},
	resServices: func(o map[string]any) {
		spec := ensureMap(o, "spec")
		fillMissing(spec, "type", "ClusterIP")
		fillMissing(spec, "sessionAffinity", "None")
		fillMissing(ensureMap(o, "status"), "loadBalancer", map[string]any{})
		if textAt(spec, "type") != "ExternalName" {
			fillMissing(spec, "internalTrafficPolicy", "Cluster")
			fillMissing(spec, "ipFamilies", []any{"IPv4"})
			fillMissing(spec, "ipFamilyPolicy", "SingleStack")
		}
		for _, p := range mapsAt(spec, "ports") {
			fillMissing(p, "protocol", "TCP")
			if p["targetPort"] == nil || p["targetPort"] == int64(0) || p["targetPort"] == "" {
				p["targetPort"] = p["port"]
			}
		}
	},
	resDeployments: func(o map[string]any) {
		spec := ensureMap(o, "spec")
		fillMissing(spec, "replicas", int64(1))
		fillMissing(spec, "revisionHistoryLimit", int64(10))
		fillMissing(spec, "progressDeadlineSeconds", int64(600))
		strategy := ensureMap(spec, "strategy")
		fillMissing(strategy, "type", "RollingUpdate")
		if textAt(strategy, "type") == "RollingUpdate" {
			fillMissing(ensureMap(strategy, "rollingUpdate"), "maxUnavailable", "25%")
			fillMissing(ensureMap(strategy, "rollingUpdate"), "maxSurge", "25%")
		}
		defaultPod(ensureMap(spec, "template", "spec"))
	},
	resReplicaSets: func(o map[string]any) {
		fillMissing(ensureMap(o, "spec"), "replicas", int64(1))
		defaultPod(ensureMap(o, "spec", "template", "spec"))
	},
	resDaemonSets: func(o map[string]any) {
		spec := ensureMap(o, "spec")
		fillMissing(spec, "revisionHistoryLimit", int64(10))
		strategy := ensureMap(spec, "updateStrategy")
		fillMissing(strategy, "type", "RollingUpdate")
		if textAt(strategy, "type") == "RollingUpdate" {
			fillMissing(ensureMap(strategy, "rollingUpdate"), "maxUnavailable", int64(1))
			fillMissing(ensureMap(strategy, "rollingUpdate"), "maxSurge", int64(0))
		}
		defaultPod(ensureMap(spec, "template", "spec"))
	},
	resStatefulSets: func(o map[string]any) {
		spec := ensureMap(o, "spec")
		fillMissing(spec, "replicas", int64(1))
		fillMissing(spec, "revisionHistoryLimit", int64(10))
		fillMissing(spec, "podManagementPolicy", "OrderedReady")
		fillMissing(spec, "persistentVolumeClaimRetentionPolicy", map[string]any{"whenDeleted": "Retain", "whenScaled": "Retain"})
		strategy := ensureMap(spec, "updateStrategy")
		fillMissing(strategy, "type", "RollingUpdate")
		if textAt(strategy, "type") == "RollingUpdate" {
			fillMissing(ensureMap(strategy, "rollingUpdate"), "partition", int64(0))
		}
		defaultPod(ensureMap(spec, "template", "spec"))
	},
	resJobs: func(o map[string]any) {
		spec := ensureMap(o, "spec")
		if spec["completions"] == nil && spec["parallelism"] == nil {
			spec["completions"] = int64(1)
		}
		fillMissing(spec, "parallelism", int64(1))
		fillMissing(spec, "backoffLimit", int64(6))
		fillMissing(spec, "completionMode", "NonIndexed")
		fillMissing(spec, "manualSelector", false)
		fillMissing(spec, "podReplacementPolicy", "TerminatingOrFailed")
		fillMissing(spec, "suspend", false)
		uid := textAt(o, "metadata", "uid")
		if spec["selector"] == nil && uid != "" {
			own := map[string]any{"batch.kubernetes.io/controller-uid": uid}
			spec["selector"] = map[string]any{"matchLabels": own}
			for _, ls := range []map[string]any{ensureMap(o, "metadata", "labels"), ensureMap(spec, "template", "metadata", "labels")} {
				ls["batch.kubernetes.io/controller-uid"], ls["controller-uid"] = uid, uid
				ls["batch.kubernetes.io/job-name"], ls["job-name"] = valueAt(o, "metadata", "name"), valueAt(o, "metadata", "name")
			}
		}
		defaultPod(ensureMap(spec, "template", "spec"))
	},
	resCRDs: func(o map[string]any) {
		names := ensureMap(o, "spec", "names")
		fillMissing(names, "singular", strings.ToLower(textAt(names, "kind")))
		fillMissing(names, "listKind", textAt(names, "kind")+"List")
		fillMissing(ensureMap(o, "spec", "conversion"), "strategy", "None")
		for _, v := range mapsAt(o, "spec", "versions") {
			if boolAt(v, "storage") && listAt(o, "status", "storedVersions") == nil {
				ensureMap(o, "status")["storedVersions"] = []any{v["name"]}
			}
		}
	},
}

// defaultPod fills in the spec of a pod or a pod template.
func defaultPod(spec map[string]any) {
	fillMissing(spec, "restartPolicy", "Always")
	fillMissing(spec, "dnsPolicy", "ClusterFirst")
	fillMissing(spec, "schedulerName", "default-scheduler")
	fillMissing(spec, "terminationGracePeriodSeconds", int64(30))
	fillMissing(spec, "securityContext", map[string]any{})
	if sa := textAt(spec, "serviceAccountName"); sa != "" {
		fillMissing(spec, "serviceAccount", sa)
	}
	for _, list := range []string{"containers", "initContainers"} {
		for _, c := range mapsAt(spec, list) {
			policy := "IfNotPresent"
			if image := textAt(c, "image"); strings.HasSuffix(image, ":latest") || !strings.ContainsAny(image[strings.LastIndexByte(image, '/')+1:], ":@") {
				policy = "Always"
			}
			fillMissing(c, "imagePullPolicy", policy)
			fillMissing(c, "terminationMessagePath", "/dev/termination-log")
			fillMissing(c, "terminationMessagePolicy", "File")
			fillMissing(c, "resources", map[string]any{})
			for _, p := range mapsAt(c, "ports") {
				fillMissing(p, "protocol", "TCP")
			}
		}
	}
}

// tolerateAWhile lets a pod stay on a node with problems for a time, if
// it has nothing about that itself.
func tolerateAWhile(spec map[string]any, key string) {
	for _, t := range mapsAt(spec, "tolerations") {
		k, effect := textAt(t, "key"), textAt(t, "effect")
		if (k == key || k == "") && (effect == "NoExecute" || effect == "") {
			return
		}
	}
	spec["tolerations"] = append(listAt(spec, "tolerations"), map[string]any{
		"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": int64(evictAfter.Seconds()),
	})
}

// rateQuality is a pod's quality of service. (Nobody asks for Guaranteed.)
func rateQuality(spec map[string]any) string {
	for _, c := range mapsAt(spec, "containers") {
		if len(mapAt(c, "resources", "requests"))+len(mapAt(c, "resources", "limits")) > 0 {
			return "Burstable"
		}
	}
	return "BestEffort"
}

// checks are the refusals beyond names, by resource. was is nil for a new
// object.
var checks = map[*resource]func(body, was map[string]any) field.ErrorList{
	resPods: func(body, was map[string]any) field.ErrorList {
		return checkPod(mapAt(body, "spec"), field.NewPath("spec"))
	},
	resNamespaces:   rules.CheckLabels,
	resDeployments:  checkWorkload,
	resReplicaSets:  checkWorkload,
	resDaemonSets:   checkWorkload,
	resStatefulSets: checkWorkload,
	resJobs: func(body, was map[string]any) field.ErrorList {
		spec := field.NewPath("spec")
		errs := checkPod(mapAt(body, "spec", "template", "spec"), spec.Child("template", "spec"))
		if textAt(body, "spec", "template", "spec", "restartPolicy") == "Always" {
			errs = append(errs, field.Required(spec.Child("template", "spec", "restartPolicy"), `valid values: "OnFailure", "Never"`))
		}
		if was != nil && !reflect.DeepEqual(valueAt(body, "spec", "template"), valueAt(was, "spec", "template")) {
			errs = append(errs, field.Invalid(spec.Child("template"), "", "field is immutable"))
		}
		return errs
	},
	resServices: func(body, was map[string]any) field.ErrorList {
		if len(listAt(body, "spec", "ports")) == 0 && textAt(body, "spec", "type") != "ExternalName" && textAt(body, "spec", "clusterIP") != "None" {
			return field.ErrorList{field.Required(field.NewPath("spec", "ports"), "")}
		}
		return nil
	},
	resConfigMaps:              checkImmutable,
	findBuiltin("", "secrets"): checkImmutable,
	resCRDs: func(body, was map[string]any) field.ErrorList {
		var errs field.ErrorList
		want := textAt(body, "spec", "names", "plural") + "." + textAt(body, "spec", "group")
		if name := textAt(body, "metadata", "name"); name != want {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), name, `must be spec.names.plural+"."+spec.group`))
		}
		stored := 0
		for _, v := range mapsAt(body, "spec", "versions") {
			if boolAt(v, "storage") {
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
	var problems []string
	switch {
	case res == resNamespaces:
		problems = validation.IsDNS1123Label(name)
	case res == resServices:
		problems = validation.IsDNS1035Label(name)
	case res.group == "rbac.authorization.k8s.io":
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/%") {
			problems = []string{"must be a path segment"}
		}
	default:
		problems = validation.IsDNS1123Subdomain(name)
	}
	var errs field.ErrorList
	for _, s := range problems {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), name, s))
	}
	return errs
}

// checkWorkload wants a selector that finds the workload's own pods and never
// changes.
func checkWorkload(body, was map[string]any) field.ErrorList {
	spec := field.NewPath("spec")
	errs := checkPod(mapAt(body, "spec", "template", "spec"), spec.Child("template", "spec"))
	sel, err := selectorAt(body)
	if err != nil {
		return append(errs, field.Invalid(spec.Child("selector"), valueAt(body, "spec", "selector"), err.Error()))
	}
	if sel.Empty() {
		errs = append(errs, field.Required(spec.Child("selector"), ""))
		sel = labels.Nothing()
	}
	ls := stringsAt(body, "spec", "template", "metadata", "labels")
	if !sel.Matches(labels.Set(ls)) {
		errs = append(errs, field.Invalid(spec.Child("template", "metadata", "labels"), ls, "`selector` does not match template `labels`"))
	}
	if was != nil && !reflect.DeepEqual(valueAt(body, "spec", "selector"), valueAt(was, "spec", "selector")) {
		errs = append(errs, field.Invalid(spec.Child("selector"), valueAt(body, "spec", "selector"), "field is immutable"))
	}
	return errs
}

// selectorAt reads spec.selector of a workload.
func selectorAt(body map[string]any) (labels.Selector, error) {
	sel := &metav1.LabelSelector{MatchLabels: stringsAt(body, "spec", "selector", "matchLabels")}
	for _, e := range mapsAt(body, "spec", "selector", "matchExpressions") {
		var values []string
		for _, v := range listAt(e, "values") {
			values = append(values, fmt.Sprint(v))
		}
		sel.MatchExpressions = append(sel.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: textAt(e, "key"), Operator: metav1.LabelSelectorOperator(textAt(e, "operator")), Values: values,
		})
	}
	return metav1.LabelSelectorAsSelector(sel)
}

func checkPod(spec map[string]any, at *field.Path) field.ErrorList {
	containers := mapsAt(spec, "containers")
	if len(containers) == 0 {
		return field.ErrorList{field.Required(at.Child("containers"), "")}
	}
	var errs field.ErrorList
	for i, c := range containers {
		if textAt(c, "name") == "" {
			errs = append(errs, field.Required(at.Child("containers").Index(i).Child("name"), ""))
		}
		if textAt(c, "image") == "" {
			errs = append(errs, field.Required(at.Child("containers").Index(i).Child("image"), ""))
		}
	}
	return errs
}

func checkImmutable(body, was map[string]any) field.ErrorList {
	if was == nil || !boolAt(was, "immutable") {
		return nil
	}
	for _, k := range []string{"immutable", "data", "binaryData"} {
		if !reflect.DeepEqual(body[k], was[k]) {
			return field.ErrorList{field.Forbidden(field.NewPath(k), "field is immutable when `immutable` is set")}
		}
	}
	return nil
}

// allocateService gives a service its address and node ports.
func (s *store) allocateService(body, was map[string]any) field.ErrorList {
	spec := mapAt(body, "spec")
	kind, ip := textAt(spec, "type"), textAt(spec, "clusterIP")
	if kind == "ExternalName" {
		return nil
	}
	had := textAt(was, "spec", "clusterIP")
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
		for _, p := range mapsAt(spec, "ports") {
			if numberAt(p, "nodePort") == 0 {
				p["nodePort"] = 30000 + int64(s.serial.Add(1))%2768
			}
		}
		fillMissing(spec, "externalTrafficPolicy", "Cluster")
	}
	if kind == "LoadBalancer" {
		fillMissing(spec, "allocateLoadBalancerNodePorts", true)
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
	services, _ := s.listObjects(resServices, "")
	for _, o := range services {
		taken[textAt(o.body, "spec", "clusterIP")] = true
	}
	for _, part := range [2][2]int{{256, 1 << 16}, {1, 256}} {
		for n := part[0]; n < part[1]; n++ {
			ip := nthAddr(s.services, n)
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

// nthAddr is the n-th address of a range, which may lie behind its end; the zero
// Addr if the range is none.
func nthAddr(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().AsSlice()
	for i := len(b) - 1; i >= 0 && n > 0; i-- {
		n += int(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
