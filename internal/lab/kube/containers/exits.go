package containers

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// Exit is how the containers of an image end that are not meant to run for ever. The zero value is at once, and well.
type Exit struct {
	Code    int64
	Message string        // that the container leaves for its kubelet
	After   time.Duration // how long they run
	Hangs   bool          // they never end
}

// Finish writes that the containers of a pod that is not meant to run for ever have ended by themselves.
func Finish(pod map[string]any, e Exit) {
	status := rules.EnsureMap(pod, "status")
	phase, reason := "Succeeded", "Completed"
	if e.Code != 0 {
		phase, reason = "Failed", "Error"
	}
	status["phase"] = phase
	condition := map[string]string{"Succeeded": "PodCompleted", "Failed": "PodFailed"}[phase]
	setConditions(status, "False", condition, "Ready", "ContainersReady")
	had := rules.MapsAt(status, "containerStatuses")
	states := States(pod, "containers", false, nil)
	for i, s := range states {
		state := ending(statusAt(had, i), reason, e.Code)
		ended := rules.MapAt(state, "terminated")
		rules.FillMissing(ended, "startedAt", rules.FormatNow())
		if e.Message != "" {
			ended["message"] = e.Message
		}
		s.(map[string]any)["state"] = state
	}
	status["containerStatuses"] = states
}

// RunsForEver reports whether the containers of a pod are started again when they end.
func RunsForEver(pod map[string]any) bool {
	policy := rules.TextAt(pod, "spec", "restartPolicy")
	return policy == "" || policy == "Always"
}

// EndOf is when the last container of a pod that failed has ended; of one that never ran, when its kubelet looked at it.
func EndOf(pod map[string]any) time.Time {
	end := timeAt(rules.MapAt(pod, "status"), "startTime")
	for _, s := range rules.MapsAt(pod, "status", "containerStatuses") {
		if at := timeAt(rules.MapAt(s, "state", "terminated"), "finishedAt"); at.After(end) {
			end = at
		}
	}
	if end.IsZero() {
		end = timeAt(rules.MapAt(pod, "metadata"), "creationTimestamp")
	}
	return end
}
