// Package rendered reads the bootstrap manifests that the machine of a control plane renders from its
// config: the objects of Kubernetes that Talos makes where they are missing.
//
// It asks one machine over a connection that it is handed, and knows no cluster.
package rendered

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

// mostBytes bounds what is taken of one machine: an etcd takes no object of more than 1.5 MiB, and Talos'
// own manifests are some 60 kB.
const mostBytes = 16 << 20

// Read returns the objects as a list in JSON, in the order in which Talos makes them: that of the ids
// of its resources (Source: Talos v1.14, ManifestApplyController). Two machines that render the same give the same bytes.
func Read(ctx context.Context, machine state.CoreState) ([]byte, error) {
	list, err := machine.List(ctx, resource.NewMetadata(k8s.ControlPlaneNamespaceName, k8s.ManifestType, "", resource.VersionUndefined))
	if err != nil {
		return nil, fmt.Errorf("list its manifests: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b resource.Resource) int { return cmp.Compare(a.Metadata().ID(), b.Metadata().ID()) })
	objects := []map[string]any{}
	for _, r := range list.Items {
		m, ok := r.(*k8s.Manifest)
		if !ok {
			return nil, fmt.Errorf("%s is a %T", r.Metadata().ID(), r)
		}
		for _, item := range m.TypedSpec().Items {
			objects = append(objects, item.Object)
		}
	}
	out, err := json.Marshal(objects)
	switch {
	case err != nil:
		return nil, fmt.Errorf("its manifests are no JSON: %w", err)
	case len(out) > mostBytes:
		return nil, fmt.Errorf("its manifests are larger than %d MiB", mostBytes>>20)
	}
	return out, nil
}
