package containers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// statusesOf is where the states of a list of containers are.
var statusesOf = map[string]string{"containers": "containerStatuses", "initContainers": "initContainerStatuses"}

// All are the containers of a pod in the order they start.
func All(pod map[string]any) []map[string]any {
	return slices.Concat(rules.MapsAt(pod, "spec", "initContainers"), rules.MapsAt(pod, "spec", "containers"))
}

// Waiting is the state of a container that will start soon.
func Waiting() map[string]any {
	return map[string]any{"waiting": map[string]any{"reason": "ContainerCreating"}}
}

// States are the states of a pod's containers of a list, all the same.
func States(pod map[string]any, list string, ready bool, state map[string]any) []any {
	var out []any
	had := rules.MapsAt(pod, "status", statusesOf[list])
	for i, c := range rules.MapsAt(pod, "spec", list) {
		restarts, last := rules.NumberAt(statusAt(had, i), "restartCount"), rules.MapAt(statusAt(had, i), "lastState")
		if last == nil {
			last = map[string]any{}
		}
		out = append(out, map[string]any{
			"name": rules.TextAt(c, "name"), "image": rules.TextAt(c, "image"), "imageID": "", "restartCount": restarts,
			"ready": ready, "started": ready, "state": state, "lastState": last,
		})
	}
	return out
}

// setConditions sets some conditions of a pod's status.
func setConditions(status map[string]any, value, reason string, names ...string) {
	for _, c := range names {
		status["conditions"] = rules.SetCondition(rules.ListAt(status, "conditions"), c, value, reason, "")
	}
}

// statusAt is the status of one container of a list, nil if there is none yet.
func statusAt(list []map[string]any, i int) map[string]any {
	if i < len(list) {
		return list[i]
	}
	return nil
}

// ending is the state of a container that ended, which began when it did.
func ending(had map[string]any, reason string, code int64) map[string]any {
	state := map[string]any{"reason": reason, "exitCode": code, "finishedAt": rules.FormatNow()}
	if began := rules.TextAt(had, "state", "running", "startedAt"); began != "" {
		state["startedAt"] = began
	}
	return map[string]any{"terminated": state}
}

// Start writes that a pod runs. own is its address.
func Start(pod map[string]any, host, own string) {
	status, now := rules.EnsureMap(pod, "status"), rules.FormatNow()
	status["hostIP"], status["hostIPs"] = host, []any{map[string]any{"ip": host}}
	status["podIP"], status["podIPs"] = own, []any{map[string]any{"ip": own}}
	rules.FillMissing(status, "startTime", now)
	completed := map[string]any{"terminated": map[string]any{"reason": "Completed", "exitCode": int64(0), "startedAt": now, "finishedAt": now}}
	status["phase"] = "Running"
	setConditions(status, "True", "", "PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
	if len(rules.MapsAt(pod, "spec", "initContainers")) > 0 {
		status["initContainerStatuses"] = States(pod, "initContainers", true, completed)
	}
	status["containerStatuses"] = States(pod, "containers", true, map[string]any{"running": map[string]any{"startedAt": now}})
}

// FailPull writes into a pod's status that an image of a list of its containers cannot
// be pulled: they wait, and those behind them do not begin.
func FailPull(pod, status map[string]any, list, image string) {
	waits := waitForImage(image, PullError(image))
	if list == "initContainers" {
		status["initContainerStatuses"] = States(pod, list, false, waits)
		waits = map[string]any{"waiting": map[string]any{"reason": "PodInitializing"}}
	}
	status["containerStatuses"] = States(pod, "containers", false, waits)
}

// waitForImage is the state of a container whose image cannot be pulled.
func waitForImage(image, why string) map[string]any {
	return map[string]any{"waiting": map[string]any{"reason": "ImagePullBackOff",
		"message": fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %s", image, why)}}
}

// PullError is what containerd answers a kubelet that wants an image from a registry that
// cannot be reached.
func PullError(image string) string {
	host, rest, _ := strings.Cut(image, "/")
	name, tag, _ := strings.Cut(rest, ":")
	return fmt.Sprintf("failed to pull and unpack image %q: failed to resolve reference %q: failed to do request: Head \"https://%s/v2/%s/manifests/%s\": dial tcp: lookup %s: no such host",
		image, image, host, name, tag, host)
}

// Reject writes that a kubelet has not taken a pod.
func Reject(pod map[string]any, reason, message string) {
	status := rules.EnsureMap(pod, "status")
	status["phase"], status["reason"], status["message"] = "Failed", reason, message
	delete(status, "containerStatuses")
	rules.FillMissing(status, "startTime", rules.FormatNow())
}

// End writes that the containers of a pod that is being deleted have ended.
func End(pod map[string]any, killed bool) {
	phase, reason, code := "Succeeded", "Completed", int64(0)
	if killed {
		phase, reason, code = "Failed", "Error", int64(137)
	}
	status := rules.EnsureMap(pod, "status")
	status["phase"] = phase
	setConditions(status, "False", "PodCompleted", "Ready", "ContainersReady")
	had := rules.MapsAt(status, "containerStatuses")
	states := States(pod, "containers", false, nil)
	for i, s := range states {
		s.(map[string]any)["state"] = ending(statusAt(had, i), reason, code)
	}
	status["containerStatuses"] = states
}

// Restart writes that the containers of a pod ended with the machine's last boot and
// wait to be started again.
func Restart(pod map[string]any) {
	status := rules.EnsureMap(pod, "status")
	setConditions(status, "False", "ContainersNotReady", "Ready", "ContainersReady")
	had := rules.MapsAt(status, "containerStatuses")
	states := States(pod, "containers", false, Waiting())
	for i, s := range states {
		s := s.(map[string]any)
		s["restartCount"] = rules.NumberAt(s, "restartCount") + 1
		s["lastState"] = ending(statusAt(had, i), "Unknown", 255)
	}
	status["containerStatuses"] = states
}

// Mirror writes the status of a pod that stands for a static pod of its node; pullError is why
// its image cannot be pulled, "" where it is there.
func Mirror(pod map[string]any, ip string, runs bool, pullError string) {
	status := rules.EnsureMap(pod, "status")
	state, ready, phase := Waiting(), "False", "Running"
	switch {
	case pullError != "":
		state, phase, runs = waitForImage(rules.TextAt(All(pod)[0], "image"), pullError), "Pending", false
	case runs:
		state, ready = map[string]any{"running": map[string]any{"startedAt": rules.FormatNow()}}, "True"
	}
	status["phase"], status["qosClass"] = phase, "Burstable"
	status["hostIP"], status["podIP"] = ip, ip
	status["podIPs"] = []any{map[string]any{"ip": ip}}
	rules.FillMissing(status, "startTime", rules.FormatNow())
	setConditions(status, "True", "", "PodReadyToStartContainers", "Initialized", "PodScheduled")
	setConditions(status, ready, "", "Ready", "ContainersReady")
	status["containerStatuses"] = States(pod, "containers", runs, state)
}
