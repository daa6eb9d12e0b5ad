package render

import (
	"context"
	"encoding/json"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/talos-agent/talos-agent/internal/worker"
)

// asker has the parent look objects up, for the template function of that name. It
// implements engine.ClientProvider.
type asker struct{ ask worker.Ask }

// GetClientFor implements engine.ClientProvider. Whether a kind has namespaces is known to
// the parent.
func (a asker) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return remote{ask: a.ask, apiVersion: apiVersion, kind: kind}, true, nil
}

// remote reads objects of one kind through the parent. Of the interface it has what the
// template function calls; what else there is, nothing calls.
type remote struct {
	dynamic.NamespaceableResourceInterface
	ask                         worker.Ask
	apiVersion, kind, namespace string
}

// Namespace implements dynamic.NamespaceableResourceInterface.
func (r remote) Namespace(namespace string) dynamic.ResourceInterface {
	r.namespace = namespace
	return r
}

// Get implements dynamic.ResourceInterface.
func (r remote) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	found, err := r.find(name)
	if err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: found}, nil
}

// List implements dynamic.ResourceInterface.
func (r remote) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	found, err := r.find("")
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{Object: found}
	items, _ := found["items"].([]any)
	for _, item := range items {
		object, ok := item.(map[string]any)
		if !ok {
			return nil, errors.New("a list of something else than objects")
		}
		list.Items = append(list.Items, unstructured.Unstructured{Object: object})
	}
	return list, nil
}

func (r remote) find(name string) (map[string]any, error) {
	question, err := json.Marshal(lookupQuestion{r.apiVersion, r.kind, r.namespace, name})
	if err != nil {
		return nil, err
	}
	answer, err := r.ask(question)
	if err != nil {
		return nil, err
	}
	found := map[string]any{}
	if err := utiljson.Unmarshal(answer, &found); err != nil { // whole numbers stay such
		return nil, err
	}
	if len(found) == 0 {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: r.kind}, name)
	}
	return found, nil
}
