package inventory

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// Secrets is what secrets.sops.yaml holds, decrypted.
type Secrets struct {
	// Bundle is the Talos secrets bundle in the shape of `talosctl gen secrets`,
	// as YAML; empty when the file has none.
	Bundle cluster.Secret
	values map[string]cluster.Secret
	// keys are hashes of the private keys of the bundle's authorities, by name.
	keys map[string][sha256.Size]byte
}

// authorities are those that open a cluster, as a bundle names them.
var authorities = []string{"etcd", "k8s", "os"}

// bundleKeys are the top-level keys of a Talos secrets bundle.
var bundleKeys = []string{"cluster", "secrets", "trustdinfo", "certs"}

var valueName = pattern.New(`^[A-Za-z_][A-Za-z0-9_.-]{0,99}$`)

// ParseSecrets splits decrypted secrets into the Talos bundle and the values
// for patches and addons. No problem shows a piece of the text; name is the
// file they point at.
func ParseSecrets(name string, plain []byte) (Secrets, cluster.Problems) {
	d := yamlschema.Document{File: name, Secret: true, Report: yamlschema.NewReport()}
	d.Where[""] = cluster.Position{File: name}
	n := d.Single(plain)
	if n == nil {
		return Secrets{}, d.Finish()
	}
	var out Secrets
	bundle := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.Value == "values":
			out.values = secretValues(d, value)
		case slices.Contains(bundleKeys, key.Value):
			bundle.Content = append(bundle.Content, key, value)
		default:
			d.Problem(key.Line, key.Column, "", "an unknown key at the top level",
				"known are "+strings.Join(bundleKeys, ", ")+" (as `talosctl gen secrets` writes them) and values; secrets of your own belong under values")
		}
	}
	wholeBundle(d, n, bundle)
	if !d.Problems.HasErrors() && len(bundle.Content) > 0 {
		var err error
		if out.Bundle, err = encodeDocs([]*yaml.Node{bundle}); err != nil {
			// The encoder's words could hold pieces of what it encodes.
			d.Problem(0, 0, "", "the Talos secrets cannot be written as YAML", "make them anew with talos-agent secrets new")
		}
	}
	problems := d.Finish()
	if problems.HasErrors() {
		return Secrets{}, problems
	}
	out.keys = keysOf(bundle)
	return out, problems
}

// keysOf hashes the private keys of a bundle's authorities.
func keysOf(bundle *yaml.Node) map[string][sha256.Size]byte {
	out := map[string][sha256.Size]byte{}
	certs := yamlschema.Lookup(bundle, "certs")
	for _, name := range authorities {
		if key := yamlschema.Lookup(yamlschema.Lookup(certs, name), "key"); key != nil && key.Value != "" {
			out[name] = sha256.Sum256([]byte(key.Value))
		}
	}
	return out
}

// wholeBundle refuses half a bundle: a cluster would be made from it that no
// one can open.
func wholeBundle(d yamlschema.Document, n, bundle *yaml.Node) {
	var missing []string
	for _, key := range bundleKeys {
		if yamlschema.Lookup(bundle, key) == nil {
			missing = append(missing, key)
		}
	}
	if len(missing) > 0 && len(missing) < len(bundleKeys) {
		d.Problem(n.Line, n.Column, "", "the Talos secrets lack "+strings.Join(missing, ", "),
			"copy them whole from the output of `talosctl gen secrets`, or make the file with `talos-agent secrets new`")
	}
}

func secretValues(d yamlschema.Document, n *yaml.Node) map[string]cluster.Secret {
	if yamlschema.IsNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		d.Problem(n.Line, n.Column, "values", "needs keys of its own", "write lines of the form name: text below it")
		return nil
	}
	out := map[string]cluster.Secret{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		field := fmt.Sprintf("values[%d]", i/2)
		switch {
		case !valueName.MatchString(key.Value):
			d.Problem(key.Line, key.Column, field, "its name is not one", "use letters, digits and - _ . , beginning with a letter")
		case value.Kind != yaml.ScalarNode || yamlschema.IsNull(value):
			d.Problem(key.Line, key.Column, "values."+key.Value, "is not a text", "write one text; a file fits behind a |")
		default:
			out[key.Value] = cluster.SecretString(value.Value)
		}
	}
	return out
}
