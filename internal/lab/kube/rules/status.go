package rules

import (
	"fmt"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// GenericStatus is a failure that is about the request, not about an object.
func GenericStatus(code int, text string) metav1.Status {
	s := NewRefusal(code, text)
	s.Details = &metav1.StatusDetails{}
	return s
}

// NewRefusal is a failure without details.
func NewRefusal(code int, text string) metav1.Status {
	reasons := map[int]metav1.StatusReason{
		http.StatusBadRequest:           metav1.StatusReasonBadRequest,
		http.StatusUnauthorized:         metav1.StatusReasonUnauthorized,
		http.StatusForbidden:            metav1.StatusReasonForbidden,
		http.StatusNotFound:             metav1.StatusReasonNotFound,
		http.StatusMethodNotAllowed:     metav1.StatusReasonMethodNotAllowed,
		http.StatusNotAcceptable:        metav1.StatusReasonNotAcceptable,
		http.StatusConflict:             metav1.StatusReasonConflict,
		http.StatusGone:                 metav1.StatusReasonExpired,
		http.StatusUnsupportedMediaType: metav1.StatusReasonUnsupportedMediaType,
		http.StatusUnprocessableEntity:  metav1.StatusReasonInvalid,
		http.StatusTooManyRequests:      metav1.StatusReasonTooManyRequests,
		http.StatusInternalServerError:  metav1.StatusReasonInternalError,
		http.StatusServiceUnavailable:   metav1.StatusReasonServiceUnavailable,
		http.StatusGatewayTimeout:       metav1.StatusReasonTimeout,
	}
	return metav1.Status{Status: metav1.StatusFailure, Message: text, Reason: reasons[code], Code: int32(code)}
}

// DeploymentConditions are those of a Deployment whose newest ReplicaSet is set.
func DeploymentConditions(deployment map[string]any, set string, available, complete bool) []any {
	conditions := slices.DeleteFunc(slices.Clone(ListAt(deployment, "status", "conditions")), func(c any) bool {
		m, _ := c.(map[string]any)
		return TextAt(m, "type") == "ReplicaFailure" // its ReplicaSet's
	})
	if available {
		conditions = SetCondition(conditions, "Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
	} else {
		conditions = SetCondition(conditions, "Available", "False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
	}
	reason, message := "ReplicaSetUpdated", "ReplicaSet %q is progressing."
	if complete {
		reason, message = "NewReplicaSetAvailable", "ReplicaSet %q has successfully progressed."
	}
	return SetCondition(conditions, "Progressing", "True", reason, fmt.Sprintf(message, set))
}

// Count is how many one thing is: 1 if it counts.
func Count(counts bool) int64 {
	if counts {
		return 1
	}
	return 0
}

// RoomOfDaemons is how many pods of a DaemonSet may be missing, less those that it is to have: with those that are ready it is
// how many more may be replaced. Source: Kubernetes, the default of maxUnavailable and rollingUpdate of its DaemonSet controller.
func RoomOfDaemons(o map[string]any) int64 {
	wants, most := NumberAt(o, "status", "desiredNumberScheduled"), int64(1)
	switch v := ValueAt(o, "spec", "updateStrategy", "rollingUpdate", "maxUnavailable").(type) {
	case int64:
		most = v
	case string:
		if n, err := intstr.GetScaledValueFromIntOrPercent(new(intstr.Parse(v)), int(wants), true); err == nil {
			most = int64(max(n, 1))
		}
	}
	return most - wants
}
