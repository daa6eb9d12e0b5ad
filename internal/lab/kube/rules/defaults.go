package rules

import (
	"encoding/base64"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// unreachableToleration is how long pods stay on a node that is not ready or cannot
// be reached, unless they have a toleration of their own.
// Source: kubernetes v1.36, plugin/pkg/admission/defaulttolerationseconds.
const unreachableToleration = 5 * time.Minute

// SetDefaults fills in what the server fills in.
func SetDefaults(of schema.GroupResource, body map[string]any) {
	if fill := defaults[resourceKey(of)]; fill != nil {
		fill(body)
	}
}

// resourceKey is the name of a resource in the tables of this package.
func resourceKey(of schema.GroupResource) string {
	if of.Group == "" {
		return of.Resource
	}
	return of.Group + "/" + of.Resource
}

// defaults are what the server fills in, by resource.
var defaults = map[string]func(map[string]any){
	"secrets": func(o map[string]any) {
		FillMissing(o, "type", "Opaque")
		plain, _ := o["stringData"].(map[string]any)
		for k, v := range plain {
			if s, ok := v.(string); ok {
				EnsureMap(o, "data")[k] = base64.StdEncoding.EncodeToString([]byte(s))
			}
		}
		delete(o, "stringData")
	},
	"namespaces": func(o map[string]any) {
		EnsureMap(o, "metadata", "labels")["kubernetes.io/metadata.name"] = TextAt(o, "metadata", "name")
		FillMissing(EnsureMap(o, "spec"), "finalizers", []any{"kubernetes"})
		FillMissing(EnsureMap(o, "status"), "phase", "Active")
	},
	"pods": func(o map[string]any) {
		spec := EnsureMap(o, "spec")
		defaultPod(spec)
		for _, c := range MapsAt(spec, "containers") {
			// Who is limited asks for no less.
			for key, most := range MapAt(c, "resources", "limits") {
				FillMissing(EnsureMap(c, "resources", "requests"), key, most)
			}
			for _, p := range MapsAt(c, "ports") {
				if BoolAt(spec, "hostNetwork") {
					FillMissing(p, "hostPort", p["containerPort"])
				}
			}
		}
		FillMissing(spec, "enableServiceLinks", true)
		FillMissing(spec, "preemptionPolicy", "PreemptLowerPriority")
		FillMissing(spec, "priority", int64(0))
		for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
			tolerateAWhile(spec, key)
		}
		status := EnsureMap(o, "status")
		FillMissing(status, "phase", "Pending")
		FillMissing(status, "qosClass", rateQuality(spec))
	},
	"persistentvolumeclaims": func(o map[string]any) {
		FillMissing(EnsureMap(o, "spec"), "volumeMode", "Filesystem")
		FillMissing(EnsureMap(o, "status"), "phase", "Pending")
	},
	"services": func(o map[string]any) {
		spec := EnsureMap(o, "spec")
		FillMissing(spec, "type", "ClusterIP")
		FillMissing(spec, "sessionAffinity", "None")
		FillMissing(EnsureMap(o, "status"), "loadBalancer", map[string]any{})
		if TextAt(spec, "type") != "ExternalName" {
			FillMissing(spec, "internalTrafficPolicy", "Cluster")
			FillMissing(spec, "ipFamilies", []any{"IPv4"})
			FillMissing(spec, "ipFamilyPolicy", "SingleStack")
		}
		for _, p := range MapsAt(spec, "ports") {
			FillMissing(p, "protocol", "TCP")
			if p["targetPort"] == nil || p["targetPort"] == int64(0) || p["targetPort"] == "" {
				p["targetPort"] = p["port"]
			}
		}
	},
	"apps/deployments": func(o map[string]any) {
		spec := EnsureMap(o, "spec")
		FillMissing(spec, "replicas", int64(1))
		FillMissing(spec, "revisionHistoryLimit", int64(10))
		FillMissing(spec, "progressDeadlineSeconds", int64(600))
		strategy := EnsureMap(spec, "strategy")
		FillMissing(strategy, "type", "RollingUpdate")
		if TextAt(strategy, "type") == "RollingUpdate" {
			FillMissing(EnsureMap(strategy, "rollingUpdate"), "maxUnavailable", "25%")
			FillMissing(EnsureMap(strategy, "rollingUpdate"), "maxSurge", "25%")
		}
		defaultPod(EnsureMap(spec, "template", "spec"))
	},
	"apps/replicasets": func(o map[string]any) {
		FillMissing(EnsureMap(o, "spec"), "replicas", int64(1))
		defaultPod(EnsureMap(o, "spec", "template", "spec"))
	},
	"apps/daemonsets": func(o map[string]any) {
		spec := EnsureMap(o, "spec")
		FillMissing(spec, "revisionHistoryLimit", int64(10))
		strategy := EnsureMap(spec, "updateStrategy")
		FillMissing(strategy, "type", "RollingUpdate")
		if TextAt(strategy, "type") == "RollingUpdate" {
			FillMissing(EnsureMap(strategy, "rollingUpdate"), "maxUnavailable", int64(1))
			FillMissing(EnsureMap(strategy, "rollingUpdate"), "maxSurge", int64(0))
		}
		defaultPod(EnsureMap(spec, "template", "spec"))
	},
	"apps/statefulsets": func(o map[string]any) {
		spec := EnsureMap(o, "spec")
		FillMissing(spec, "replicas", int64(1))
		FillMissing(spec, "revisionHistoryLimit", int64(10))
		FillMissing(spec, "podManagementPolicy", "OrderedReady")
		FillMissing(spec, "persistentVolumeClaimRetentionPolicy", map[string]any{"whenDeleted": "Retain", "whenScaled": "Retain"})
		strategy := EnsureMap(spec, "updateStrategy")
		FillMissing(strategy, "type", "RollingUpdate")
		if TextAt(strategy, "type") == "RollingUpdate" {
			FillMissing(EnsureMap(strategy, "rollingUpdate"), "partition", int64(0))
		}
		defaultPod(EnsureMap(spec, "template", "spec"))
	},
	"batch/jobs": func(o map[string]any) {
		spec := EnsureMap(o, "spec")
		if spec["completions"] == nil && spec["parallelism"] == nil {
			spec["completions"] = int64(1)
		}
		FillMissing(spec, "parallelism", int64(1))
		FillMissing(spec, "backoffLimit", int64(6))
		FillMissing(spec, "completionMode", "NonIndexed")
		FillMissing(spec, "manualSelector", false)
		FillMissing(spec, "podReplacementPolicy", "TerminatingOrFailed")
		FillMissing(spec, "suspend", false)
		uid := TextAt(o, "metadata", "uid")
		if spec["selector"] == nil && uid != "" {
			own := map[string]any{"batch.kubernetes.io/controller-uid": uid}
			spec["selector"] = map[string]any{"matchLabels": own}
			for _, ls := range []map[string]any{EnsureMap(o, "metadata", "labels"), EnsureMap(spec, "template", "metadata", "labels")} {
				ls["batch.kubernetes.io/controller-uid"], ls["controller-uid"] = uid, uid
				ls["batch.kubernetes.io/job-name"], ls["job-name"] = ValueAt(o, "metadata", "name"), ValueAt(o, "metadata", "name")
			}
		}
		defaultPod(EnsureMap(spec, "template", "spec"))
	},
	"apiextensions.k8s.io/customresourcedefinitions": func(o map[string]any) {
		names := EnsureMap(o, "spec", "names")
		FillMissing(names, "singular", strings.ToLower(TextAt(names, "kind")))
		FillMissing(names, "listKind", TextAt(names, "kind")+"List")
		FillMissing(EnsureMap(o, "spec", "conversion"), "strategy", "None")
		for _, v := range MapsAt(o, "spec", "versions") {
			if BoolAt(v, "storage") && ListAt(o, "status", "storedVersions") == nil {
				EnsureMap(o, "status")["storedVersions"] = []any{v["name"]}
			}
		}
	},
}

// defaultPod fills in the spec of a pod or a pod template.
func defaultPod(spec map[string]any) {
	FillMissing(spec, "restartPolicy", "Always")
	FillMissing(spec, "dnsPolicy", "ClusterFirst")
	FillMissing(spec, "schedulerName", "default-scheduler")
	FillMissing(spec, "terminationGracePeriodSeconds", int64(30))
	FillMissing(spec, "securityContext", map[string]any{})
	if sa := TextAt(spec, "serviceAccountName"); sa != "" {
		FillMissing(spec, "serviceAccount", sa)
	}
	for _, list := range []string{"containers", "initContainers"} {
		for _, c := range MapsAt(spec, list) {
			policy := "IfNotPresent"
			if image := TextAt(c, "image"); strings.HasSuffix(image, ":latest") || !strings.ContainsAny(image[strings.LastIndexByte(image, '/')+1:], ":@") {
				policy = "Always"
			}
			FillMissing(c, "imagePullPolicy", policy)
			FillMissing(c, "terminationMessagePath", "/dev/termination-log")
			FillMissing(c, "terminationMessagePolicy", "File")
			FillMissing(c, "resources", map[string]any{})
			for _, p := range MapsAt(c, "ports") {
				FillMissing(p, "protocol", "TCP")
			}
		}
	}
}

// tolerateAWhile lets a pod stay on a node with problems for a time, if
// it has nothing about that itself.
func tolerateAWhile(spec map[string]any, key string) {
	for _, t := range MapsAt(spec, "tolerations") {
		k, effect := TextAt(t, "key"), TextAt(t, "effect")
		if (k == key || k == "") && (effect == "NoExecute" || effect == "") {
			return
		}
	}
	spec["tolerations"] = append(ListAt(spec, "tolerations"), map[string]any{
		"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": int64(unreachableToleration.Seconds()),
	})
}

// rateQuality is a pod's quality of service. (Nobody asks for Guaranteed.)
func rateQuality(spec map[string]any) string {
	for _, c := range MapsAt(spec, "containers") {
		if len(MapAt(c, "resources", "requests"))+len(MapAt(c, "resources", "limits")) > 0 {
			return "Burstable"
		}
	}
	return "BestEffort"
}
