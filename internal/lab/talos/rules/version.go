package rules

import (
	"fmt"
	"slices"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/config"
	cfgconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"
)

// A machine judges a config by the rules of its own version. The linked library
// has those of one version, its own.

// NewestMinor is the newest minor of Talos this package simulates.
const NewestMinor = 14

// documentSince is which minor first knew a kind of document. Kinds that are
// not listed are older than every version the lab simulates. Source: the documents
// registered by the config libraries of v1.11.6, v1.12.4, v1.13.9 and v1.14.1;
// below that the releases' own notes.
var documentSince = map[string]int{
	"VolumeConfig": 8,

	"EthernetConfig": 10, "PCIDriverRebindConfig": 10, "UserVolumeConfig": 10,

	"ExistingVolumeConfig": 11, "RawVolumeConfig": 11, "SwapVolumeConfig": 11, "ZswapConfig": 11,

	"BondConfig": 12, "BridgeConfig": 12, "DHCPv4Config": 12, "DHCPv6Config": 12, "DummyLinkConfig": 12, "HCloudVIPConfig": 12,
	"HostnameConfig": 12, "Layer2VIPConfig": 12, "LinkAliasConfig": 12, "LinkConfig": 12, "OOMConfig": 12, "RegistryAuthConfig": 12,
	"RegistryMirrorConfig": 12, "RegistryTLSConfig": 12, "ResolverConfig": 12, "StaticHostConfig": 12, "TimeSyncConfig": 12,
	"VLANConfig": 12, "WireguardConfig": 12,

	"BlackholeRouteConfig": 13, "EnvironmentConfig": 13, "ExternalVolumeConfig": 13, "ImageVerificationConfig": 13,
	"KubeSpanConfig": 13, "RoutingRuleConfig": 13, "TCPProbeConfig": 13, "VRFConfig": 13,

	"BGPInstanceConfig": 14, "CRIBaseRuntimeSpecConfig": 14, "CRICustomizationConfig": 14, "ContainerConfig": 14,
	"DiscoveryIdentityConfig": 14, "DiscoveryServiceConfig": 14, "EtcFileConfig": 14, "FilesystemScrubConfig": 14,
	"FilesystemTrimConfig": 14, "HTTPProbeConfig": 14, "ImageCacheConfig": 14, "KernelModuleConfig": 14, "KubeAPIServerCAConfig": 14,
	"KubeAPIServerConfig": 14, "KubeAdmissionControlConfig": 14, "KubeAggregatorCAConfig": 14, "KubeAuditPolicyConfig": 14,
	"KubeAuthenticationConfig": 14, "KubeAuthorizerConfig": 14, "KubeClusterConfig": 14, "KubeControllerManagerConfig": 14,
	"KubeCoreDNSConfig": 14, "KubeCredentialProviderConfig": 14, "KubeEtcdEncryptionConfig": 14, "KubeExternalManifestConfig": 14,
	"KubeFlannelCNIConfig": 14, "KubeInlineManifestConfig": 14, "KubeNetworkConfig": 14, "KubeNodeConfig": 14, "KubePrismConfig": 14,
	"KubeProxyConfig": 14, "KubeSchedulerConfig": 14, "KubeServiceAccountConfig": 14, "KubeStaticPodConfig": 14,
	"KubeTalosAPIAccessConfig": 14, "KubeletConfig": 14, "LVMLogicalVolumeConfig": 14, "LVMVolumeGroupConfig": 14,
	"RAIDArrayConfig": 14, "SecurityProfileConfig": 14, "SysctlConfig": 14, "SysfsConfig": 14, "UdevRulesConfig": 14,
	"UnattendedInstallConfig": 14, "VethConfig": 14,
}

// RefuseDocuments refuses a config with a document that this version of Talos
// does not know, in the text of the version that refuses it.
func RefuseDocuments(cfg config.Provider, data []byte, minor int) error {
	for _, doc := range cfg.Documents() {
		if documentSince[doc.Kind()] <= minor {
			continue
		}
		name := ""
		if n, ok := doc.(cfgconfig.NamedDocument); ok {
			name = n.Name()
		}
		return fmt.Errorf("error decoding document %s/%s/%s (line %d): %q %q: not registered",
			doc.APIVersion(), doc.Kind(), name, documentLine(data, doc.Kind(), name), doc.Kind(), doc.APIVersion())
	}
	return nil
}

// documentLine finds the line a document begins on, from 1.
func documentLine(data []byte, kind, name string) int {
	begin, line, content := 1, 0, false
	wantKind, wantName := "kind: "+kind, "name: "+name
	seenKind, seenName := false, name == ""
	for text := range strings.Lines(string(data)) {
		line++
		text = strings.TrimSpace(text)
		switch {
		case text == "---":
			begin, content, seenKind, seenName = line+1, false, false, name == ""
			continue
		case !content && (text == "" || strings.HasPrefix(text, "#")):
			begin = line + 1
			continue
		}
		content = true
		seenKind = seenKind || text == wantKind
		seenName = seenName || text == wantName
		if seenKind && seenName {
			return begin
		}
	}
	return 1
}

// Mode is what validation knows of the machine: a cloud machine
// (nocloud is one) is never installed by its config.
type Mode struct{}

func (Mode) String() string        { return "cloud" }
func (Mode) RequiresInstall() bool { return false }
func (Mode) InContainer() bool     { return false }

// Validate judges a config as a version of Talos does. Local leaves out
// the one question that the library would answer with its own version: whether
// Talos runs these images of Kubernetes.
func Validate(cfg config.Provider, version string) (warnings []string, err error) {
	warnings, err = cfg.ValidateAsClient(Mode{}, validation.WithLocal())
	if err != nil {
		return warnings, err
	}
	return warnings, checkKubernetes(cfg, version)
}

// checkKubernetes holds the images of Kubernetes against the window of a version
// of Talos, in the texts of v1.12.7 to v1.14.1: what stands in the main document
// is listed under it.
func checkKubernetes(cfg config.Provider, version string) error {
	talos, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: version})
	if err != nil {
		return fmt.Errorf("failed to parse Talos version: %w", err)
	}
	var main, others []string
	check := func(document, name, ref string) {
		kubernetes, err := compatibility.KubernetesVersionFromImageRef(ref)
		if err != nil {
			err = fmt.Errorf("failed to parse Kubernetes version from image reference %q: %w", ref, err)
		} else {
			err = kubernetes.SupportedWith(talos)
		}
		if err == nil {
			return
		}
		text := fmt.Sprintf("%s image is not valid: %s", name, err)
		if hasDocument(cfg, document) {
			others = append(others, document+": "+text)
		} else {
			main = append(main, text)
		}
	}
	if k := cfg.K8sKubeletConfig(); k != nil {
		check("KubeletConfig", "kubelet", k.Image())
	}
	if cfg.Machine() != nil && cfg.Machine().Type().IsControlPlane() {
		if k := cfg.K8sAPIServerConfig(); k != nil {
			check("KubeAPIServerConfig", "kube-apiserver", k.Image())
		}
		if k := cfg.K8sControllerManagerConfig(); k != nil {
			check("KubeControllerManagerConfig", "kube-controller-manager", k.Image())
		}
		if k := cfg.K8sSchedulerConfig(); k != nil {
			check("KubeSchedulerConfig", "kube-scheduler", k.Image())
		}
	}
	if len(main) > 0 {
		others = slices.Insert(others, 0, "v1alpha1.Config: "+listErrors(main).Error())
	}
	return listErrors(others)
}

func hasDocument(cfg config.Provider, kind string) bool {
	return slices.ContainsFunc(cfg.Documents(), func(d cfgconfig.Document) bool { return d.Kind() == kind })
}

// listErrors writes several errors as the library that Talos uses does.
func listErrors(found []string) error {
	switch len(found) {
	case 0:
		return nil
	case 1:
		//lint:ignore ST1005 the library ends its text so
		return fmt.Errorf("1 error occurred:\n\t* %s\n\n", found[0])
	}
	//lint:ignore ST1005 the library ends its text so
	return fmt.Errorf("%d errors occurred:\n\t* %s\n\n", len(found), strings.Join(found, "\n\t* "))
}
