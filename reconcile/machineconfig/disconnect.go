package machineconfig

import (
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"go.yaml.in/yaml/v4"
)

// reachable are the settings and the kinds of documents that have nothing to do with how
// the Talos API of a machine is reached. All others may: what a later version of Talos
// adds is among them until it is listed here.
var (
	reachableSettings = []string{
		"version", "debug", "cluster",
		"machine.baseRuntimeSpecOverrides", "machine.controlPlane", "machine.files", "machine.install", "machine.kubelet", "machine.logging",
		"machine.nodeAnnotations", "machine.nodeLabels", "machine.nodeTaints", "machine.pods", "machine.registries", "machine.seccompProfiles",
	}
	reachableKinds = []string{
		"CRIBaseRuntimeSpecConfig", "CRICustomizationConfig", "ExistingVolumeConfig", "ExternalVolumeConfig", "FilesystemScrubConfig",
		"FilesystemTrimConfig", "ImageCacheConfig", "ImageVerificationConfig", "KmsgLogConfig", "KubeAPIServerConfig", "KubeAdmissionControlConfig",
		"KubeAuditPolicyConfig", "KubeAuthenticationConfig", "KubeAuthorizerConfig", "KubeControllerManagerConfig", "KubeCoreDNSConfig",
		"KubeCredentialProviderConfig", "KubeExternalManifestConfig", "KubeFlannelCNIConfig", "KubeInlineManifestConfig", "KubeNodeConfig",
		"KubeProxyConfig", "KubeSchedulerConfig", "KubeStaticPodConfig", "KubeletConfig", "OOMConfig", "RawVolumeConfig", "RegistryAuthConfig",
		"RegistryMirrorConfig", "RegistryTLSConfig", "SwapVolumeConfig", "UserVolumeConfig", "VolumeConfig", "ZswapConfig",
	}
)

// MayDisconnect reports whether a config in the place of another may make the machine
// unreachable: when they differ in anything but what cannot. A config that cannot be read
// may.
func MayDisconnect(have, want []byte) bool {
	theirs, err := splitSettings(have)
	if err != nil {
		return true
	}
	ours, err := splitSettings(want)
	if err != nil {
		return true
	}
	for _, m := range []map[string]string{theirs, ours} {
		for name := range m {
			kind, _, _ := strings.Cut(name, " ")
			if theirs[name] != ours[name] && !slices.Contains(reachableSettings, name) && !slices.Contains(reachableKinds, kind) {
				return true
			}
		}
	}
	return false
}

// splitSettings returns the documents of a config by their names, and instead of the one
// that has none, its settings: "cluster", and one level deeper "machine.kubelet".
func splitSettings(text []byte) (map[string]string, error) {
	p, err := configloader.NewFromBytes(text)
	if err != nil {
		return nil, err
	}
	docs, err := encodeDocuments(p)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	add := func(name string, n *yaml.Node) error {
		b, err := yaml.Marshal(n)
		out[name] += string(b)
		return err
	}
	for _, doc := range docs {
		if name := nameDocument(doc); name != "v1alpha1" {
			if err := add(name, doc); err != nil {
				return nil, err
			}
			continue
		}
		if err := addSettings(doc, "", add); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// addSettings adds the settings of a mapping under their names; those of the machine one by
// one.
func addSettings(n *yaml.Node, prefix string, add func(name string, n *yaml.Node) error) error {
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := prefix+n.Content[i].Value, n.Content[i+1]
		var err error
		if name == "machine" && value.Kind == yaml.MappingNode {
			err = addSettings(value, "machine.", add)
		} else {
			err = add(name, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
