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
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

// mostBytes bounds what is taken of one machine: an etcd takes no object of more than 1.5 MiB, and Talos'
// own manifests are some 60 kB.
const mostBytes = 16 << 20

// Manifests are what one machine renders.
type Manifests struct {
	Objects string // a list as JSON
	// Lacks is what it has not rendered yet of what its config asks for, "" : nothing.
	Lacks string
}

// Read returns the objects in the order in which Talos makes them: that of the ids of its resources
// (Source: Talos v1.14, ManifestApplyController). Two machines that render the same give the same bytes.
func Read(ctx context.Context, machine state.CoreState) (Manifests, error) {
	list, err := machine.List(ctx, resource.NewMetadata(k8s.ControlPlaneNamespaceName, k8s.ManifestType, "", resource.VersionUndefined))
	if err != nil {
		return Manifests{}, fmt.Errorf("list its manifests: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b resource.Resource) int { return cmp.Compare(a.Metadata().ID(), b.Metadata().ID()) })
	objects, ids := []map[string]any{}, []string{}
	for _, r := range list.Items {
		m, ok := r.(*k8s.Manifest)
		if !ok {
			return Manifests{}, fmt.Errorf("%s is a %T", r.Metadata().ID(), r)
		}
		ids = append(ids, r.Metadata().ID())
		for _, item := range m.TypedSpec().Items {
			objects = append(objects, item.Object)
		}
	}
	out, err := json.Marshal(objects)
	switch {
	case err != nil:
		return Manifests{}, fmt.Errorf("its manifests are no JSON: %w", err)
	case len(out) > mostBytes:
		return Manifests{}, fmt.Errorf("its manifests are larger than %d MiB", mostBytes>>20)
	}
	lacks, err := findLack(ctx, machine, ids)
	if err != nil {
		lacks = "something that it does not show"
	}
	return Manifests{Objects: string(out), Lacks: lacks}, nil
}

// findLack is what a machine is to render and has not: Talos lists what it has by now while it downloads the rest, for
// ever where that fails. The ids are those of its own manifests, and of each further one its priority and name.
// Source: Talos v1.14, ManifestController and ExtraManifestController.
func findLack(ctx context.Context, machine state.CoreState, ids []string) (string, error) {
	own, err := safe.StateGetByID[*k8s.BootstrapManifestsConfig](ctx, state.WrapCore(machine), k8s.BootstrapManifestsConfigID)
	switch {
	case state.IsNotFoundError(err):
		return "what Talos itself deploys", nil
	case err != nil:
		return "", fmt.Errorf("read what it is to render: %w", err)
	}
	t := own.TypedSpec()
	for id, asked := range map[string]bool{"05-flannel": t.FlannelEnabled, "10-kube-proxy": t.ProxyEnabled, "11-core-dns": t.CoreDNSEnabled} {
		if asked && !slices.Contains(ids, id) {
			return "what Talos itself deploys", nil
		}
	}
	extra, err := safe.StateGetByID[*k8s.ExtraManifestsConfig](ctx, state.WrapCore(machine), k8s.ExtraManifestsConfigID)
	switch {
	case state.IsNotFoundError(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read which manifests it is to download: %w", err)
	}
	all := extra.TypedSpec().ExtraManifests
	missing := 0
	for _, m := range all {
		if !slices.Contains(ids, m.Priority+"-"+m.Name) {
			missing++ // its name may be a URL with a secret in it
		}
	}
	if missing == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d of the %d further manifests of its machine config", missing, len(all)), nil
}
