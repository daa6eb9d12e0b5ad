package access

import (
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
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
)

// ResourceKinds are the types of resources a machine has, with whether only
// administrators may read them. Types of which there never is one here are
// listed where a client may ask for them.
func ResourceKinds() map[string]bool {
	kinds := map[string]bool{}
	for _, r := range []meta.ResourceWithRD{
		&block.Disk{}, &block.DiscoveredVolume{}, &block.SystemDisk{}, &block.VolumeStatus{},
		&cluster.Affiliate{}, &cluster.Member{},
		&configres.MachineConfig{}, &configres.MachineType{},
		&etcdres.Member{}, &etcdres.Spec{},
		&hardware.SystemInformation{}, &hardware.Processor{}, &hardware.MemoryModule{},
		&k8s.BootstrapManifestsConfig{}, &k8s.KubeletSpec{}, &k8s.Nodename{}, &k8s.NodeLabelSpec{}, &k8s.NodeStatus{}, &k8s.NodeTaintSpec{}, &k8s.StaticPod{}, &k8s.StaticPodStatus{},
		&network.AddressStatus{}, &network.HostnameStatus{}, &network.LinkStatus{}, &network.NodeAddress{},
		&network.ResolverStatus{}, &network.RouteStatus{}, &network.Status{}, &network.TimeServerStatus{},
		&runtime.BootID{}, &runtime.Diagnostic{}, &runtime.ExtensionStatus{}, &runtime.ImageFactorySchematic{}, &runtime.KernelParamStatus{},
		&runtime.MachineStatus{}, &runtime.MetaKey{}, &runtime.PlatformMetadata{}, &runtime.SecurityState{},
		&runtime.Version{}, &secrets.OSRoot{}, &timeres.Status{}, &v1alpha1.Service{},
	} {
		rd := r.ResourceDefinition()
		kinds[rd.Type] = rd.Sensitivity == meta.Sensitive
	}
	return kinds
}

// Namespaces are the namespaces resources live in.
var Namespaces = map[resource.Namespace]bool{
	cluster.NamespaceName: true, configres.NamespaceName: true, etcdres.NamespaceName: true, hardware.NamespaceName: true,
	k8s.NamespaceName: true, k8s.ControlPlaneNamespaceName: true, network.NamespaceName: true, runtime.NamespaceName: true, secrets.NamespaceName: true,
}
