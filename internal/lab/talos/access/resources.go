package access

import (
	"context"
	"fmt"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	etcdres "github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	timeres "github.com/siderolabs/talos/pkg/machinery/resources/time"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kinds are the types of resources that a machine has. Types of which there never is one
// here are listed where a client may ask for them.
type Kinds struct {
	// Definitions describe them, in the namespace meta: talosctl looks there what a word
	// means before it asks for anything.
	Definitions state.CoreState

	sensitive map[string]bool // whether only administrators may read one
}

// NewKinds lists the types.
func NewKinds() (*Kinds, error) {
	k := &Kinds{Definitions: inmem.NewState(meta.NamespaceName), sensitive: map[string]bool{}}
	for _, r := range []meta.ResourceWithRD{
		&block.Disk{}, &block.DiscoveredVolume{}, &block.SystemDisk{}, &block.VolumeStatus{},
		&cluster.Affiliate{}, &cluster.Member{},
		&configres.MachineConfig{}, &configres.MachineType{},
		&etcdres.Member{}, &etcdres.Spec{},
		&hardware.SystemInformation{}, &hardware.Processor{}, &hardware.MemoryModule{},
		&k8s.APIServerConfig{}, &k8s.BootstrapManifestsConfig{}, &k8s.ControllerManagerConfig{}, &k8s.ExtraManifestsConfig{}, &k8s.KubeletConfig{}, &k8s.KubeletSpec{}, &k8s.Manifest{}, &k8s.Nodename{}, &k8s.NodeLabelSpec{}, &k8s.NodeStatus{}, &k8s.NodeTaintSpec{}, &k8s.SchedulerConfig{}, &k8s.StaticPod{}, &k8s.StaticPodStatus{},
		&network.AddressStatus{}, &network.HostnameStatus{}, &network.LinkStatus{}, &network.NodeAddress{},
		&network.ResolverStatus{}, &network.RouteStatus{}, &network.Status{}, &network.TimeServerStatus{},
		&runtime.BootID{}, &runtime.Diagnostic{}, &runtime.ExtensionStatus{}, &runtime.ImageFactorySchematic{}, &runtime.KernelParamStatus{},
		&runtime.MachineStatus{}, &runtime.MetaKey{}, &runtime.PlatformMetadata{}, &runtime.SecurityState{}, &runtime.UnattendedInstallStatus{},
		&runtime.Version{}, &secrets.OSRoot{}, &timeres.Status{}, &v1alpha1.Service{},
		&meta.ResourceDefinition{},
	} {
		rd, err := meta.NewResourceDefinition(r.ResourceDefinition())
		if err == nil {
			err = k.Definitions.Create(context.Background(), rd)
		}
		if err != nil {
			return nil, fmt.Errorf("define a type of resources: %w", err)
		}
		k.sensitive[rd.TypedSpec().Type] = rd.TypedSpec().Sensitivity == meta.Sensitive
	}
	return k, nil
}

// Check guards the resources of a machine of Talos 1.minor.
func (k *Kinds) Check(ctx context.Context, a state.Access, minor int) error {
	if !a.Verb.Readonly() {
		return status.Error(codes.PermissionDenied, "write access is not allowed")
	}
	sensitive, known := k.sensitive[a.ResourceType]
	switch {
	case !known, a.ResourceType == runtime.VersionType && minor < 10:
		return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", a.ResourceType)
	case sensitive && !RolesOf(ctx).Includes(role.Admin):
		return ErrNotAuthorized
	case !namespaces[a.ResourceNamespace]:
		return status.Errorf(codes.PermissionDenied, "namespace %q is not supported", a.ResourceNamespace)
	}
	return nil
}

// namespaces are the namespaces resources live in.
var namespaces = map[resource.Namespace]bool{
	cluster.NamespaceName: true, configres.NamespaceName: true, etcdres.NamespaceName: true, hardware.NamespaceName: true,
	k8s.NamespaceName: true, k8s.ControlPlaneNamespaceName: true, network.NamespaceName: true, runtime.NamespaceName: true, secrets.NamespaceName: true,
	meta.NamespaceName: true,
}
