package rules

import (
	"encoding/json"
	"math"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ReadDeletion reads the options of a deletion: those of its body, and over them those of its URL.
func ReadDeletion(body []byte, query url.Values) (metav1.DeleteOptions, error) {
	var opts metav1.DeleteOptions
	if len(body) > 0 {
		if err := json.Unmarshal(body, &opts); err != nil {
			return opts, apierrors.NewBadRequest("read DeleteOptions: " + err.Error())
		}
	}
	if p := metav1.DeletionPropagation(query.Get("propagationPolicy")); p != "" {
		opts.PropagationPolicy = &p
	}
	if text := query.Get("gracePeriodSeconds"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return opts, apierrors.NewBadRequest("read gracePeriodSeconds: " + err.Error())
		}
		opts.GracePeriodSeconds = &seconds
	}
	if query.Get("dryRun") == metav1.DryRunAll {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	return opts, nil
}

// How long a container takes to end.
const (
	// endsAfter is how long one takes that ends when it is asked to.
	// Recorded: a pod is at an end less than half a second after its deletion.
	endsAfter = 500 * time.Millisecond
	// leastGrace is what a kubelet leaves a container after its preStop hook, even if
	// the hook used all of the grace up.
	// Source: kubernetes v1.36, pkg/kubelet/kuberuntime, minimumGracePeriodInSeconds.
	leastGrace = 2 * time.Second

	// stubbornDomain is where images come from whose processes take no notice of
	// SIGTERM and are killed at the end of the grace.
	stubbornDomain = ".stubborn.test"
)

// StopTime is how long the containers of a pod take to end when they have grace to
// do so, and whether one of them has to be killed. Containers end side by side.
func StopTime(pod map[string]any, grace time.Duration) (took time.Duration, killed bool) {
	for _, c := range MapsAt(pod, "spec", "containers") {
		hook := min(hookTime(c), grace)
		left := max(leastGrace, grace-hook)
		ends := endsAfter
		if name, _, _ := strings.Cut(RegistryOf(TextAt(c, "image")), ":"); strings.HasSuffix("."+name, stubbornDomain) {
			ends = math.MaxInt64
		}
		killed = killed || ends > left
		took = max(took, hook+min(ends, left))
	}
	return took, killed
}

// RegistryOf is the registry that an image with a full name comes from.
func RegistryOf(image string) string {
	host, _, _ := strings.Cut(image, "/")
	return host
}

// hookTime is how long the preStop hook of a container takes: one that sleeps, by
// itself or by a command.
func hookTime(container map[string]any) time.Duration {
	hook := MapAt(container, "lifecycle", "preStop")
	if seconds := NumberAt(hook, "sleep", "seconds"); seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	var words []string
	for _, w := range ListAt(hook, "exec", "command") {
		text, _ := w.(string)
		words = append(words, strings.Fields(text)...)
	}
	for i, w := range words {
		if (w == "sleep" || strings.HasSuffix(w, "/sleep")) && i+1 < len(words) {
			n, err := strconv.ParseFloat(strings.TrimRight(words[i+1], "s;&"), 64)
			if err == nil && n > 0 {
				return time.Duration(n * float64(time.Second))
			}
		}
	}
	return 0
}

// DeletionGrace is how many seconds a pod has to end when it is deleted; asked is
// what the request names. A pod on no node, or that has ended, needs none.
// Source: kubernetes v1.36, pkg/registry/core/pod, CheckGracefulDelete.
func DeletionGrace(pod map[string]any, asked *int64) int64 {
	grace := NumberAt(pod, "spec", "terminationGracePeriodSeconds")
	if had, ok := ValueAt(pod, "metadata", "deletionGracePeriodSeconds").(int64); ok {
		grace = had
	}
	if asked != nil {
		grace = *asked
	}
	phase := TextAt(pod, "status", "phase")
	switch {
	case TextAt(pod, "spec", "nodeName") == "" || phase == "Succeeded" || phase == "Failed":
		return 0
	case grace < 0:
		return 1
	}
	return grace
}

// MarkDeleted puts the mark of deletion on an object of a resource. grace is what a pod has,
// in seconds; a pod that is marked already gets less of it. counted are resources that count
// what their spec has been.
func MarkDeleted(o map[string]any, resource schema.GroupResource, grace int64, counted bool) map[string]any {
	meta := MapAt(o, "metadata")
	meta["deletionTimestamp"] = FormatNow()
	status := EnsureMap(o, "status")
	switch resource.String() {
	case "namespaces":
		status["phase"] = "Terminating"
		return o
	case "customresourcedefinitions.apiextensions.k8s.io":
		meta["finalizers"] = []any{apiextensionsv1.CustomResourceCleanupFinalizer}
		status["conditions"] = SetCondition(ListAt(status, "conditions"), string(apiextensionsv1.Terminating), "True",
			"InstanceDeletionPending", "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon")
		return o
	case "pods":
		// It is the time by which the pod is to have ended.
		meta["deletionTimestamp"] = time.Now().Add(time.Duration(grace) * time.Second).UTC().Format(time.RFC3339)
		meta["deletionGracePeriodSeconds"] = grace
	default:
		meta["deletionGracePeriodSeconds"] = int64(0)
	}
	if len(status) == 0 {
		delete(o, "status")
	}
	if counted {
		meta["generation"] = NumberAt(meta, "generation") + 1
	}
	return o
}

// DiffersInSpec reports whether anything but metadata and status differs.
func DiffersInSpec(a, b map[string]any) bool {
	for _, m := range [2]map[string]any{a, b} {
		for k := range m {
			if k != "metadata" && k != "status" && !reflect.DeepEqual(a[k], b[k]) {
				return true
			}
		}
	}
	return false
}
