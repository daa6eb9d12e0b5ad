package machineconfig

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"go.yaml.in/yaml/v4"
)

// The settings of the machine and the kinds of documents by which a machine is reached and which
// Talos applies as it runs, so that they can be on trial. (Read in Talos 1.13.9, CanApplyImmediate:
// documents, network and sysctls; 1.14 applies all as it runs.)
var (
	networkSettings = []string{"network", "sysctls"}
	networkKinds    = []string{
		"BGPInstanceConfig", "BlackholeRouteConfig", "BondConfig", "BridgeConfig", "DHCPv4Config", "DHCPv6Config", "DummyLinkConfig", "EthernetConfig",
		"HCloudVIPConfig", "KubeSpanConfig", "Layer2VIPConfig", "LinkAliasConfig", "LinkConfig", "NetworkDefaultActionConfig", "NetworkRuleConfig", "ResolverConfig",
		"RoutingRuleConfig", "SideroLinkConfig", "StaticHostConfig", "SysctlConfig", "VLANConfig", "VRFConfig", "VethConfig", "WireguardConfig",
	}
)

// TakeNetwork returns a config with those settings and documents of another that are about the
// network, also where that has none; nil when both have the same. The error names what is wrong
// without quoting a config.
func TakeNetwork(have, want []byte) ([]byte, error) {
	theirs, err := loadParts(have)
	if err != nil {
		return nil, err
	}
	ours, err := loadParts(want)
	if err != nil {
		return nil, err
	}
	if maps.Equal(theirs.network, ours.network) {
		return nil, nil
	}
	if theirs.machine == nil || ours.machine == nil {
		return nil, errors.New("take the network of a machine config: there is no machine section")
	}
	theirs.machine.Content = append(theirs.machine.Content, ours.settings...)
	var out []byte
	for _, doc := range append(theirs.docs, ours.networkDocs...) {
		text, err := yaml.Marshal(doc)
		if err != nil {
			return nil, errors.New("write machine config: " + explainError(err, want))
		}
		out = append(append(out, "---\n"...), text...)
	}
	p, err := configloader.NewFromBytes(out)
	if err != nil {
		return nil, errors.New("load machine config: " + explainError(err, out))
	}
	return recoverPanic(func() ([]byte, error) { return p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled)) })
}

// parts are a machine config, taken apart into what is about the network and the rest.
type parts struct {
	docs        []*yaml.Node // without what is about the network
	machine     *yaml.Node   // the machine section, in docs; nil: there is none
	settings    []*yaml.Node // of the machine section: keys and values
	networkDocs []*yaml.Node
	network     map[string]string // all of that as text, by name
}

// loadParts takes a config apart.
func loadParts(text []byte) (p parts, err error) {
	cfg, err := configloader.NewFromBytes(text)
	if err != nil {
		return parts{}, errors.New("load machine config: " + explainError(err, text))
	}
	docs, err := encodeDocuments(cfg)
	if err != nil {
		return parts{}, errors.New("encode machine config: " + explainError(err, text))
	}
	p.network = map[string]string{}
	note := func(name string, n *yaml.Node) error {
		b, err := yaml.Marshal(n)
		if err != nil {
			return errors.New("write machine config: " + explainError(err, text))
		}
		p.network[name] += string(b)
		return nil
	}
	for _, doc := range docs {
		name := nameDocument(doc)
		if kind, _, _ := strings.Cut(name, " "); slices.Contains(networkKinds, kind) {
			p.networkDocs = append(p.networkDocs, doc)
			if err := note(name, doc); err != nil {
				return parts{}, err
			}
			continue
		}
		p.docs = append(p.docs, doc)
		if name == "v1alpha1" {
			if err := p.splitMachine(doc, note); err != nil {
				return parts{}, err
			}
		}
	}
	return p, nil
}

// splitMachine takes what is about the network out of the machine section of a document.
func (p *parts) splitMachine(doc *yaml.Node, note func(name string, n *yaml.Node) error) error {
	for i := 0; i+1 < len(doc.Content); i += 2 {
		section := doc.Content[i+1]
		if doc.Content[i].Value != "machine" || section.Kind != yaml.MappingNode {
			continue
		}
		p.machine = section
		var rest []*yaml.Node
		for j := 0; j+1 < len(section.Content); j += 2 {
			key, value := section.Content[j], section.Content[j+1]
			if !slices.Contains(networkSettings, key.Value) {
				rest = append(rest, key, value)
				continue
			}
			p.settings = append(p.settings, key, value)
			if err := note(key.Value, value); err != nil {
				return err
			}
		}
		section.Content = rest
	}
	return nil
}
