package rules

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
