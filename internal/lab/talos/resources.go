package talos

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/talos/pkg/machinery/config"
	machinetype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	timeres "github.com/siderolabs/talos/pkg/machinery/resources/time"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"

	"github.com/talos-agent/talos-agent/internal/lab/talos/manifests"
	"github.com/talos-agent/talos-agent/internal/lab/talos/services"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
)

// linkName is what Talos calls the first network card of a q35 machine.
const linkName = "ens18"

// resourceRule guards a machine's resources.
func (b *boot) resourceRule(ctx context.Context, a state.Access) error {
	return b.f.kinds.Check(ctx, a, b.minor())
}

// putResource writes a resource, made or changed by set. Nothing happens, and no
// watcher notices, when set changes nothing.
func putResource[R resource.Resource](b *boot, owner string, empty R, set func(R)) {
	err := b.state.Modify(context.Background(), empty, func(r resource.Resource) error {
		set(r.(R))
		return nil
	}, state.WithUpdateOwner(owner))
	if err != nil {
		b.f.world.Log.Error("write resource", "node", b.hostname(), "resource", resource.String(empty), "err", err)
	}
}

// dropResource removes a resource if it is there.
func dropResource(b *boot, owner string, which resource.Pointer) {
	err := b.state.Destroy(context.Background(), which, state.WithDestroyOwner(owner))
	if err != nil && !state.IsNotFoundError(err) {
		b.f.world.Log.Error("remove resource", "node", b.hostname(), "resource", which.Type()+"/"+which.ID(), "err", err)
	}
}

// openState makes the machine's resources and those that do not depend on a
// config.
func (b *boot) openState() {
	b.state = state.WrapCore(namespaced.NewState(func(ns resource.Namespace) state.CoreState {
		if ns == meta.NamespaceName {
			return b.f.kinds.Definitions
		}
		return inmem.NewStateWithOptions(inmem.WithHistoryInitialCapacity(8), inmem.WithHistoryMaxCapacity(256), inmem.WithHistoryGap(4))(ns)
	}))
	g, img := b.m.guest, b.image
	if b.minor() >= 10 {
		putResource(b, "runtime.VersionController", runtime.NewVersion(), func(r *runtime.Version) {
			r.TypedSpec().Name, r.TypedSpec().Version = "Talos", img.Version
		})
	}
	putResource(b, "hardware.SystemInfoController", hardware.NewSystemInformation(hardware.SystemInformationID), func(r *hardware.SystemInformation) {
		s := r.TypedSpec()
		s.Manufacturer, s.ProductName, s.UUID, s.WakeUpType = "QEMU", "Standard PC (Q35 + ICH9, 2009)", g.UUID, "Power Switch"
	})
	putResource(b, "runtime.SecurityStateController", runtime.NewSecurityStateSpec(runtime.NamespaceName), func(r *runtime.SecurityState) { r.TypedSpec().SecureBoot = b.verified })
	putResource(b, "network.PlatformConfigApplyController", runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID), func(r *runtime.PlatformMetadata) {
		s := r.TypedSpec()
		s.Platform, s.Hostname, s.InstanceType = img.Platform, g.Name, fmt.Sprintf("%dCPU-%dRAM", g.Cores, g.MemoryMiB)
	})
	if b.minor() >= 14 {
		putResource(b, "runtime.BootIDController", runtime.NewBootID(), func(r *runtime.BootID) { r.TypedSpec().BootID = b.id })
		putResource(b, "runtime.ImageFactorySchematicController", runtime.NewImageFactorySchematic(runtime.NamespaceName, runtime.ImageFactorySchematicID),
			func(r *runtime.ImageFactorySchematic) { r.TypedSpec().SchematicID = img.Schematic })
	}
	b.writeExtensions()
	b.writeDisks()
	putResource(b, "time.SyncController", timeres.NewStatus(), func(r *timeres.Status) { r.TypedSpec().Synced = !b.m.timeless })
}

// writeExtensions lists the extensions of the image.
func (b *boot) writeExtensions() {
	for i, md := range system.ListLayers(b.image) {
		putResource(b, "runtime.ExtensionStatusController", runtime.NewExtensionStatus(runtime.NamespaceName, strconv.Itoa(i)), func(r *runtime.ExtensionStatus) {
			r.TypedSpec().Image, r.TypedSpec().Metadata = fmt.Sprintf("%d.%s.sqsh", i, md.Name), md
		})
	}
}

// writeMaintenance writes what a machine without a config shows of itself.
func (b *boot) writeMaintenance() {
	putResource(b, "config.MachineTypeController", configres.NewMachineType(), func(r *configres.MachineType) { r.SetMachineType(machinetype.TypeUnknown) })
	b.writeNetwork()
}

// writeKubernetes writes what the kubelet and the static pods are to be.
func (b *boot) writeKubernetes() {
	cfg := b.set.provider
	putResource(b, "k8s.KubeletConfigController", k8s.NewKubeletConfig(k8s.NamespaceName, k8s.KubeletID), func(r *k8s.KubeletConfig) { manifests.FillKubelet(r.TypedSpec(), cfg) })
	if b.set.control {
		putResource(b, "k8s.ControlPlaneAPIServerController", k8s.NewAPIServerConfig(k8s.APIServerConfigID), func(r *k8s.APIServerConfig) { manifests.FillAPIServer(r.TypedSpec(), cfg) })
		putResource(b, "k8s.ControlPlaneControllerManagerController", k8s.NewControllerManagerConfig(k8s.ControllerManagerConfigID), func(r *k8s.ControllerManagerConfig) { manifests.FillManager(r.TypedSpec(), cfg) })
		putResource(b, "k8s.ControlPlaneSchedulerController", k8s.NewSchedulerConfig(k8s.SchedulerConfigID), func(r *k8s.SchedulerConfig) { manifests.FillScheduler(r.TypedSpec(), cfg) })
	}
}

// writeConfigured writes what follows from the active machine config.
func (b *boot) writeConfigured() {
	s := b.set
	b.writeConfig(s.provider, configres.ActiveID)
	if !b.bare && b.minor() >= 14 {
		b.writeInstall(runtime.UnattendedInstallPhaseInstalled, nil)
	}
	putResource(b, "config.MachineTypeController", configres.NewMachineType(), func(r *configres.MachineType) {
		r.SetMachineType(s.provider.Machine().Type())
	})
	putResource(b, "secrets.RootOSController", secrets.NewOSRoot(secrets.OSRootID), func(r *secrets.OSRoot) {
		r.TypedSpec().IssuingCA, r.TypedSpec().AcceptedCAs = s.provider.Machine().Security().IssuingCA(), s.provider.Machine().Security().AcceptedCAs()
		r.TypedSpec().Token = s.provider.Machine().Security().Token()
	})
	if p := s.plane; s.control {
		putResource(b, "k8s.ControlPlaneBootstrapManifestsController", k8s.NewBootstrapManifestsConfig(), func(r *k8s.BootstrapManifestsConfig) {
			t := r.TypedSpec()
			t.PodCIDRs, t.CNIName = strings.Split(p.PodCIDR, ","), p.CNI
			t.FlannelEnabled, t.ProxyEnabled, t.CoreDNSEnabled = p.CNI == "flannel", p.KubeProxy, !p.NoDNS
		})
		putResource(b, "k8s.ControlPlaneExtraManifestsController", k8s.NewExtraManifestsConfig(), func(r *k8s.ExtraManifestsConfig) { manifests.FillExtra(r.TypedSpec(), s.provider) })
		keepResources(b, "k8s.ManifestController", func(id string) *k8s.Manifest { return k8s.NewManifest(k8s.ControlPlaneNamespaceName, id) }, manifests.Bootstrap(p, s.provider))
	}
	b.writeKubernetes()
	b.writeVolumes()
	b.writeNetwork()
	b.writeNodeSpecs()
	if s.homeless {
		return
	}
	putResource(b, "k8s.NodenameController", k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID), func(r *k8s.Nodename) {
		r.TypedSpec().Nodename, r.TypedSpec().HostnameVersion = s.kubelet.Node, "1"
	})
	putResource(b, "cluster.MemberController", cluster.NewMember(cluster.NamespaceName, b.hostname()), func(r *cluster.Member) {
		t := r.TypedSpec()
		t.NodeID, t.Addresses, t.Hostname = b.m.guest.UUID, []netip.Addr{b.address.Addr()}, b.hostname()
		t.MachineType, t.OperatingSystem = s.provider.Machine().Type(), fmt.Sprintf("Talos (%s)", b.image.Version)
		t.ControlPlane = nil
		if s.control {
			t.ControlPlane = &cluster.ControlPlane{APIServerPort: 6443}
		}
	})
}

// writeNodeSpecs writes what the config wants of the Node and of the kernel. That it is there
// does not mean that anybody has done it (recorded of the taints of a worker).
func (b *boot) writeNodeSpecs() {
	labels, taints, sysctls := map[string]func(*k8s.NodeLabelSpec){}, map[string]func(*k8s.NodeTaintSpec){}, map[string]func(*runtime.KernelParamStatus){}
	for key, value := range b.set.kubelet.NodeLabels() {
		labels[key] = func(r *k8s.NodeLabelSpec) { r.TypedSpec().Key, r.TypedSpec().Value = key, value }
	}
	for _, taint := range b.set.kubelet.NodeTaints() {
		pair, effect, _ := strings.Cut(taint, ":")
		key, value, _ := strings.Cut(pair, "=")
		taints[key] = func(r *k8s.NodeTaintSpec) {
			r.TypedSpec().Key, r.TypedSpec().Value, r.TypedSpec().Effect = key, value, effect
		}
	}
	for key, value := range b.set.provider.SysctlConfig() {
		sysctls["proc.sys."+key] = func(r *runtime.KernelParamStatus) {
			r.TypedSpec().Current, r.TypedSpec().Default = value, system.DefaultSysctl(key)
		}
	}
	keepResources(b, "k8s.NodeLabelSpecController", k8s.NewNodeLabelSpec, labels)
	keepResources(b, "k8s.NodeTaintSpecController", k8s.NewNodeTaintSpec, taints)
	keepResources(b, "runtime.KernelParamSpecController", func(id string) *runtime.KernelParamStatus {
		return runtime.NewKernelParamStatus(runtime.NamespaceName, id)
	}, sysctls)
}

// keepResources writes resources of a type, by id, and removes the others.
func keepResources[R resource.Resource](b *boot, owner string, empty func(id string) R, want map[string]func(R)) {
	have, err := b.state.List(context.Background(), resource.NewMetadata(empty("").Metadata().Namespace(), empty("").Metadata().Type(), "", resource.VersionUndefined))
	if err != nil {
		b.f.world.Log.Error("list resources", "node", b.hostname(), "type", empty("").Metadata().Type(), "err", err)
		return
	}
	for _, r := range have.Items {
		if want[r.Metadata().ID()] == nil {
			dropResource(b, owner, r.Metadata())
		}
	}
	for id, set := range want {
		putResource(b, owner, empty(id), set)
	}
}

// writeConfig writes a machine config. Even one without a change makes a new
// version.
func (b *boot) writeConfig(cfg config.Provider, id resource.ID) {
	ctx := context.Background()
	fresh := configres.NewMachineConfigWithID(cfg, id)
	old, err := b.state.Get(ctx, fresh.Metadata())
	switch {
	case state.IsNotFoundError(err):
		err = b.state.Create(ctx, fresh)
	case err == nil:
		fresh.Metadata().SetVersion(old.Metadata().Version())
		fresh.Metadata().SetCreated(old.Metadata().Created())
		err = b.state.Update(ctx, fresh)
	}
	if err != nil {
		b.f.world.Log.Error("write machine config", "node", b.hostname(), "id", id, "err", err)
	}
}

// writePersistent writes the saved config, which v1.10 and newer show from the
// first apply of a boot on, and never before it.
func (b *boot) writePersistent(cfg config.Provider) {
	if b.minor() >= 10 {
		b.writeConfig(cfg, configres.PersistentID)
	}
}

// writeNetwork writes the links, the addresses and the name.
func (b *boot) writeNetwork() {
	link := system.NewLink(linkName, b.m.guest.MAC)
	if b.set != nil {
		link.TypedSpec().Alias = b.set.alias
	}
	for _, l := range []*network.LinkStatus{link, system.NewLoopback()} {
		putResource(b, "network.LinkStatusController", network.NewLinkStatus(network.NamespaceName, l.Metadata().ID()), func(r *network.LinkStatus) {
			*r.TypedSpec() = *l.TypedSpec()
		})
	}
	putResource(b, "network.HostnameSpecController", network.NewHostnameStatus(network.NamespaceName, network.HostnameID), func(r *network.HostnameStatus) {
		r.TypedSpec().Hostname = b.hostname()
	})
	putResource(b, "network.StatusController", network.NewStatus(network.NamespaceName, network.StatusID), func(r *network.Status) {
		s := r.TypedSpec()
		s.AddressReady, s.ConnectivityReady, s.HostnameReady, s.EtcFilesReady = b.address.IsValid(), b.address.IsValid(), true, true
	})
	b.writeAddress("lo", 1, netip.MustParsePrefix("127.0.0.1/8"), nethelpers.ScopeHost)
	b.writeAddress("lo", 1, netip.MustParsePrefix("::1/128"), nethelpers.ScopeHost)
	if b.set != nil {
		if dns := b.set.provider.NetworkHostDNSConfig(); dns != nil && dns.HostDNSEnabled() {
			b.writeAddress("lo", 1, netip.MustParsePrefix(constants.HostDNSAddress+"/32"), nethelpers.ScopeHost)
		}
	}
	if mac := link.TypedSpec().HardwareAddr; len(mac) == 6 {
		local := [16]byte{0xfe, 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]}
		b.writeAddress(linkName, 2, netip.PrefixFrom(netip.AddrFrom16(local), 64), nethelpers.ScopeLink)
	}
	if !b.address.IsValid() {
		return
	}
	all := system.ListAddresses(b.m.guest, b.image, b.address)
	if b.set != nil {
		all = system.ListAddresses(b.m.guest, b.image, b.address, b.set.others...)
	}
	for _, other := range b.others {
		dropResource(b, "network.AddressStatusController", network.NewAddressStatus(network.NamespaceName, linkName+"/"+other.String()).Metadata())
	}
	b.others = all[1:]
	for _, address := range all {
		b.writeAddress(linkName, 2, address, nethelpers.ScopeGlobal)
	}
	for _, id := range []string{network.NodeAddressAccumulativeID, network.NodeAddressCurrentID, network.NodeAddressDefaultID, network.NodeAddressRoutedID} {
		if id == network.NodeAddressDefaultID {
			b.writeAddresses(id, b.address)
			continue
		}
		b.writeAddresses(id, all...)
		if b.set == nil {
			continue
		}
		// Addresses inside the pod or service network are Kubernetes' own.
		ours, theirs := all, []netip.Prefix{}
		if b.set.homeless {
			ours, theirs = theirs, ours
		}
		b.writeAddresses(network.FilteredNodeAddressID(id, k8s.NodeAddressFilterNoK8s), ours...)
		b.writeAddresses(network.FilteredNodeAddressID(id, k8s.NodeAddressFilterOnlyK8s), theirs...)
	}
}

func (b *boot) writeAddress(link string, index uint32, address netip.Prefix, scope nethelpers.Scope) {
	putResource(b, "network.AddressStatusController", network.NewAddressStatus(network.NamespaceName, link+"/"+address.String()), func(r *network.AddressStatus) {
		s := r.TypedSpec()
		s.Address, s.LinkIndex, s.LinkName, s.Scope = address, index, link, scope
		s.Family = nethelpers.FamilyInet4
		if address.Addr().Is6() {
			s.Family = nethelpers.FamilyInet6
		}
		s.Flags = nethelpers.AddressFlags(nethelpers.AddressPermanent)
	})
}

func (b *boot) writeAddresses(id string, addresses ...netip.Prefix) {
	putResource(b, "network.NodeAddressController", network.NewNodeAddress(network.NamespaceName, id), func(r *network.NodeAddress) {
		r.TypedSpec().Addresses = addresses
	})
}

// WriteService implements services.Watcher: it shows a service that runs; others are not there.
func (b *boot) WriteService(s *services.Service) {
	const owner = "v1alpha1.ServiceController"
	if s.State != "Running" {
		dropResource(b, owner, v1alpha1.NewService(s.ID).Metadata())
		return
	}
	putResource(b, owner, v1alpha1.NewService(s.ID), func(r *v1alpha1.Service) {
		r.TypedSpec().Running, r.TypedSpec().Healthy, r.TypedSpec().Unknown = true, s.Healthy, s.Unknown
	})
}
