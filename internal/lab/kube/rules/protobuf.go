package rules

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Protobuf is the media type of such bodies.
const Protobuf = "application/vnd.kubernetes.protobuf"

// FromProtobuf turns a body that a typed client sent as protobuf into JSON; typeOf
// is the Go type of a kind, nil if it is none that is served. kubectl drain sends its evictions and deletions so whatever it is given;
// everything is answered in JSON, which such clients take too.
func FromProtobuf(body []byte, typeOf func(group, kind string) reflect.Type) ([]byte, error) {
	body, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	var envelope runtime.Unknown
	if !ok {
		return nil, apierrors.NewBadRequest("provided data does not appear to be a protobuf message, expected prefix 6b387300")
	}
	if err := envelope.Unmarshal(body); err != nil {
		return nil, apierrors.NewBadRequest("read protobuf: " + err.Error())
	}
	kind := envelope.GroupVersionKind()
	object := protobufType(kind.Group, kind.Kind, typeOf)
	if object == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("no kind %q is registered for version %q", kind.Kind, kind.GroupVersion()))
	}
	if err := object.Unmarshal(envelope.Raw); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("read protobuf of %s: %v", kind.Kind, err))
	}
	object.GetObjectKind().SetGroupVersionKind(kind)
	out, err := json.Marshal(object)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("read protobuf of %s: %v", kind.Kind, err))
	}
	return out, nil
}

// message is what all types of the API can do.
type message interface {
	runtime.Object
	Unmarshal([]byte) error
}

// protobufType returns an empty object of a kind, nil if it is none of ours.
func protobufType(group, kind string, typeOf func(group, kind string) reflect.Type) message {
	switch {
	case kind == "DeleteOptions":
		return &metav1.DeleteOptions{}
	case group == "policy" && kind == "Eviction":
		return &policyv1.Eviction{}
	case group == "autoscaling" && kind == "Scale":
		return &autoscalingv1.Scale{}
	}
	typ := typeOf(group, kind)
	if typ == nil {
		return nil
	}
	object, _ := reflect.New(typ).Interface().(message)
	return object
}
