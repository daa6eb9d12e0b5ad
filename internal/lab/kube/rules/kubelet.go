package rules

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Subresource is a part of a resource with an address of its own, as discovery
// shows it.
type Subresource struct {
	Name  string
	Kind  schema.GroupVersionKind
	Verbs []string
}

// DescribeSubresource describes a subresource of a resource of that kind.
func DescribeSubresource(name string, own schema.GroupVersionKind) Subresource {
	core := func(kind string) schema.GroupVersionKind { return schema.GroupVersionKind{Version: "v1", Kind: kind} }
	switch name {
	case "eviction":
		return Subresource{name, schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}, []string{"create"}}
	case "scale":
		return Subresource{name, schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}, []string{"get", "patch", "update"}}
	case "finalize":
		return Subresource{name, own, []string{"update"}}
	case "log":
		return Subresource{name, own, []string{"get"}}
	case "attach":
		return Subresource{name, core("PodAttachOptions"), []string{"create", "get"}}
	case "exec":
		return Subresource{name, core("PodExecOptions"), []string{"create", "get"}}
	case "portforward":
		return Subresource{name, core("PodPortForwardOptions"), []string{"create", "get"}}
	}
	return Subresource{name, own, []string{"get", "patch", "update"}}
}

// KubeletCalls are the subresources of pods that a kube-apiserver has from the kubelet
// of the pod's node.
var KubeletCalls = []string{"attach", "exec", "log", "portforward"}

// AskKubelet answers a call that goes to the kubelet of a pod's node. runs: there is
// one. Logs name the lab, because no program runs there that would log; for
// the others a connection to the kubelet is needed, and none of the lab listens.
func AskKubelet(pod map[string]any, call, method string, query url.Values, runs bool) (text string, err error) {
	if allowed := DescribeSubresource(call, schema.GroupVersionKind{}).Verbs; !slices.Contains(allowed, map[string]string{http.MethodGet: "get", http.MethodPost: "create"}[method]) {
		return "", &apierrors.StatusError{ErrStatus: GenericStatus(http.StatusMethodNotAllowed, "the server does not allow this method on the requested resource")}
	}
	name, node := TextAt(pod, "metadata", "name"), TextAt(pod, "spec", "nodeName")
	container := ""
	if call != "portforward" {
		if container, err = pickContainer(pod, query.Get("container")); err != nil {
			return "", err
		}
	}
	switch {
	case node == "" && call == "log":
		return "", nil
	case node == "":
		return "", apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", name))
	}
	address := TextAt(pod, "status", "hostIP")
	switch {
	case call != "log":
		return "", unreachable("error dialing backend: dial tcp %s:10250: connect: connection refused", address)
	case !runs:
		return "", unreachable("Get %q: dial tcp %s:10250: connect: no route to host",
			fmt.Sprintf("https://%s:10250/containerLogs/%s/%s/%s", address, TextAt(pod, "metadata", "namespace"), name, container), address)
	}
	return readLog(pod, container, query)
}

// unreachable is the answer about a kubelet that cannot be reached.
func unreachable(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: fmt.Sprintf(format, args...)}}
}

// pickContainer finds the container that a call is about; it need not be named where
// there is one.
func pickContainer(pod map[string]any, named string) (string, error) {
	name := TextAt(pod, "metadata", "name")
	lists := map[string][]string{}
	for _, list := range []string{"containers", "initContainers"} {
		for _, c := range MapsAt(pod, "spec", list) {
			lists[list] = append(lists[list], TextAt(c, "name"))
		}
	}
	switch main := lists["containers"]; {
	case named != "" && !slices.Contains(main, named) && !slices.Contains(lists["initContainers"], named):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", named, name))
	case named != "":
		return named, nil
	case len(main) == 1:
		return main[0], nil
	case len(lists["initContainers"]) > 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %v or one of the init containers: %v", name, main, lists["initContainers"]))
	default:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %v", name, main))
	}
}

// readLog is what a container has logged.
func readLog(pod map[string]any, container string, query url.Values) (string, error) {
	name := TextAt(pod, "metadata", "name")
	var state map[string]any
	image := ""
	for _, list := range []string{"containerStatuses", "initContainerStatuses"} {
		for _, c := range MapsAt(pod, "status", list) {
			if TextAt(c, "name") == container {
				state, image = MapAt(c, "state"), TextAt(c, "image")
			}
		}
	}
	if query.Get("previous") == "true" {
		return "", apierrors.NewBadRequest(fmt.Sprintf("previous terminated container %q in pod %q not found", container, name))
	}
	if reason := TextAt(state, "waiting", "reason"); state == nil || reason != "" {
		if strings.HasPrefix(reason, "ImagePull") || strings.HasPrefix(reason, "ErrImage") {
			return "", apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is waiting to start: trying and failing to pull image", container, name))
		}
		if reason == "" {
			reason = "ContainerCreating"
		}
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is waiting to start: %s", container, name, reason))
	}
	line := fmt.Sprintf("container %q of image %q on the lab: no program runs in it, so it logs nothing else\n", container, image)
	if query.Get("timestamps") == "true" {
		started := TextAt(state, "running", "startedAt")
		if started == "" {
			started = TextAt(state, "terminated", "startedAt")
		}
		if at, err := time.Parse(time.RFC3339, started); err == nil {
			line = at.UTC().Format("2006-01-02T15:04:05.000000000Z07:00") + " " + line
		}
	}
	if n, err := strconv.Atoi(query.Get("tailLines")); err == nil && n == 0 {
		return "", nil
	}
	if n, err := strconv.Atoi(query.Get("limitBytes")); err == nil && n > 0 && n < len(line) {
		line = line[:n]
	}
	return line, nil
}
