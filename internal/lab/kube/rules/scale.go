package rules

import (
	"encoding/json"
	"reflect"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ScaleType is the type of the scale of a workload.
var ScaleType = reflect.TypeFor[autoscalingv1.Scale]()

// ScaleOf is the scale of a workload.
func ScaleOf(workload map[string]any) (*autoscalingv1.Scale, error) {
	sel, err := SelectorAt(workload)
	if err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{
		Name: TextAt(workload, "metadata", "name"), Namespace: TextAt(workload, "metadata", "namespace"),
		UID: types.UID(TextAt(workload, "metadata", "uid")), ResourceVersion: TextAt(workload, "metadata", "resourceVersion"),
	}
	if err := meta.CreationTimestamp.UnmarshalQueryParameter(TextAt(workload, "metadata", "creationTimestamp")); err != nil {
		return nil, err
	}
	return &autoscalingv1.Scale{
		TypeMeta:   metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
		ObjectMeta: meta,
		Spec:       autoscalingv1.ScaleSpec{Replicas: int32(NumberAt(workload, "spec", "replicas"))},
		Status:     autoscalingv1.ScaleStatus{Replicas: int32(NumberAt(workload, "status", "replicas")), Selector: sel.String()},
	}, nil
}

// Rescale returns the workload with the scale that a body holds.
func Rescale(workload map[string]any, body []byte) (map[string]any, error) {
	var scale autoscalingv1.Scale
	if err := json.Unmarshal(body, &scale); err != nil {
		return nil, apierrors.NewBadRequest("read Scale: " + err.Error())
	}
	if scale.Spec.Replicas < 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: "autoscaling", Kind: "Scale"}, scale.Name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), scale.Spec.Replicas, "must be greater than or equal to 0")})
	}
	next := runtime.DeepCopyJSON(workload)
	EnsureMap(next, "spec")["replicas"] = int64(scale.Spec.Replicas)
	meta := EnsureMap(next, "metadata")
	meta["name"], meta["resourceVersion"] = scale.Name, scale.ResourceVersion
	if scale.UID != "" {
		meta["uid"] = string(scale.UID)
	}
	return next, nil
}

// EncodeScale is the scale of an object as JSON.
func EncodeScale(o map[string]any) ([]byte, error) {
	scale, err := ScaleOf(o)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	body, err := json.Marshal(scale)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return body, nil
}
