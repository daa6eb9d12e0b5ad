package edits

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// touched is what is kept of an object of which somebody else has set a field.
type touched struct {
	By     []metav1.ManagedFieldsEntry `json:"by"`
	Object map[string]any              `json:"object"`
}

// Touched is what is kept of an object of which somebody else has set a field, as JSON: it is compared,
// and changes when it matters. It is "" while no one else has.
func Touched(o metav1.Object, ours func(manager string) bool) string {
	foreign := Foreign(o.GetManagedFields(), ours)
	if len(foreign) == 0 {
		return ""
	}
	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		panic(err) // the types of the API always convert
	}
	delete(body, "status")
	if meta, ok := body["metadata"].(map[string]any); ok {
		for _, k := range []string{"managedFields", "resourceVersion", "generation"} {
			delete(meta, k)
		}
	}
	out, err := json.Marshal(touched{foreign, body})
	if err != nil {
		panic(err) // it was JSON
	}
	return string(out)
}

// FindTouched compares what Touched has kept of an object with the document of the manifest that
// describes it.
func FindTouched(document, kept string) []Edit {
	var has touched
	var wants map[string]any
	// Both were read before; what cannot be read was not changed.
	if json.Unmarshal([]byte(kept), &has) != nil || yaml.Unmarshal([]byte(document), &wants) != nil {
		return nil
	}
	return Find(wants, has.Object, has.By)
}
