package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// fromProtobuf turns a body that a typed client sent as protobuf into JSON.
// kubectl drain sends its evictions and deletions so whatever it is given;
// everything is answered in JSON, which such clients take too.
func fromProtobuf(body []byte) ([]byte, error) {
	body, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	var envelope runtime.Unknown
	if !ok {
		return nil, apierrors.NewBadRequest("provided data does not appear to be a protobuf message, expected prefix 6b387300")
	}
	if err := envelope.Unmarshal(body); err != nil {
		return nil, apierrors.NewBadRequest("read protobuf: " + err.Error())
	}
	kind := envelope.GroupVersionKind()
	object := protobufType(kind.Group, kind.Kind)
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
func protobufType(group, kind string) message {
	switch {
	case kind == "DeleteOptions":
		return &metav1.DeleteOptions{}
	case group == "policy" && kind == "Eviction":
		return &policyv1.Eviction{}
	}
	for _, r := range builtins {
		if r.group == group && r.kind == kind {
			object, _ := reflect.New(r.typ).Interface().(message)
			return object
		}
	}
	return nil
}
