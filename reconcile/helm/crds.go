package helm

import (
	"bytes"
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/talos-agent/talos-agent/internal/retry"
)

const (
	// servedWithin is how long the API may take to serve a new definition.
	servedWithin = 30 * time.Second
	servedEvery  = 200 * time.Millisecond
)

// applyCRDs applies what is in the folders crds/ of the chart. Helm makes these
// once and never changes them, so that a newer version of a chart could find
// older definitions.
func (j *job) applyCRDs(ctx context.Context) error {
	var unserved []*resource.Info
	for _, crd := range j.chart.CRDs {
		objects, err := j.kube.Build(bytes.NewReader(crd.Data), false)
		if err != nil {
			return fmt.Errorf("read %s: %w", crd.Name, err)
		}
		for _, info := range objects {
			served, err := applyCRD(info)
			if err != nil {
				return fmt.Errorf("apply %s: %w", crd.Name, err)
			}
			if !served {
				unserved = append(unserved, info)
			}
		}
	}
	if len(unserved) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, servedWithin)
	defer cancel()
	for _, info := range unserved {
		for served := false; !served; {
			if retry.Sleep(ctx, servedEvery) != nil {
				return fmt.Errorf("%s is not served by the API after %s", info.Name, servedWithin)
			}
			if err := info.Get(); err != nil {
				return err
			}
			var err error
			if served, err = isServed(info.Object); err != nil {
				return err
			}
		}
	}
	// What was learned of the API before does not have the new kinds.
	j.getter.served.Invalidate()
	j.getter.mapper.Reset()
	return nil
}

// applyCRD applies one object and reports whether it needs no waiting for.
func applyCRD(info *resource.Info) (served bool, err error) {
	body, err := runtime.Encode(unstructured.UnstructuredJSONScheme, info.Object)
	if err != nil {
		return false, err
	}
	force := true
	o, err := resource.NewHelper(info.Client, info.Mapping).Patch(info.Namespace, info.Name, types.ApplyPatchType, body,
		&metav1.PatchOptions{FieldManager: fieldManager, Force: &force})
	if err != nil {
		return false, err
	}
	return isServed(o)
}

// isServed reports whether the API serves what a definition defines, or never
// will because its names are taken. What is no definition needs no waiting for.
func isServed(o runtime.Object) (bool, error) {
	if o.GetObjectKind().GroupVersionKind().Kind != "CustomResourceDefinition" {
		return true, nil
	}
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return false, fmt.Errorf("%T is no definition", o)
	}
	// A definition that was just made has null for conditions.
	status, _ := u.Object["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		switch {
		case c["type"] == "Established" && c["status"] == "True":
			return true, nil
		case c["type"] == "NamesAccepted" && c["status"] == "False":
			return false, fmt.Errorf("its names are taken: %v", c["message"])
		}
	}
	return false, nil
}
