package inventory

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// placeholder stands for a secret value that is not known here, and is
// recognizable where it turns up.
const placeholder = "value-from-secrets-sops-yaml"

// substitute replaces ${values.name} in every text below n by the secret of
// that name, and $${ by ${. It works on parsed scalars: whatever a secret
// holds stays one text and never becomes structure. It reports whether all of
// it could be done; what could not is recorded.
func (l *loader) substitute(d yamlschema.Document, n *yaml.Node) bool {
	switch n.Kind {
	case yaml.ScalarNode:
		return l.substituteText(d, n)
	case yaml.MappingNode:
		ok := true
		for i := 0; i+1 < len(n.Content); i += 2 {
			if key := n.Content[i]; strings.Contains(key.Value, "${") {
				d.Problem(key.Line, key.Column, "", "${ in a key: secrets stand in values only", "write the key out")
				ok = false
			}
			ok = l.substitute(d, n.Content[i+1]) && ok
		}
		return ok
	default:
		ok := true
		for _, c := range n.Content {
			ok = l.substitute(d, c) && ok
		}
		return ok
	}
}

func (l *loader) substituteText(d yamlschema.Document, n *yaml.Node) bool {
	if !strings.Contains(n.Value, "${") {
		return true
	}
	short := false // a secret in it cannot be found by itself
	out, err := expandText(n.Value, func(name string) (string, *refusal) {
		v, err := l.value(name)
		short = short || err == nil && l.opts.Secrets != nil && len(v) < cluster.ShortestFound
		return v, err
	})
	if err != nil {
		d.Problem(n.Line, n.Column, "", err.message, err.hint)
		return false
	}
	if short {
		l.confidential = append(l.confidential, cluster.SecretString(out))
	}
	n.Value, n.Tag, n.Style = out, "!!str", yaml.DoubleQuotedStyle
	return true
}

// listConfidential lists what of a cluster's patches and addons is not to be shown.
func (l *loader) listConfidential() []cluster.Secret {
	var out []cluster.Secret
	for _, name := range slices.Sorted(maps.Keys(l.opts.Secrets.values)) {
		out = append(out, l.opts.Secrets.values[name])
	}
	return append(out, l.confidential...)
}

// refusal is why a text cannot be expanded, and what to write instead.
type refusal struct{ message, hint string }

const literalHint = "write ${values.NAME} for a secret, $${ for a literal ${"

// expandText replaces ${values.name} and $${ in a text, once and from left to
// right: what a value holds is not expanded again.
func expandText(text string, value func(name string) (string, *refusal)) (string, *refusal) {
	var b strings.Builder
	for {
		i := strings.Index(text, "${")
		if i < 0 {
			b.WriteString(text)
			return b.String(), nil
		}
		if i > 0 && text[i-1] == '$' {
			b.WriteString(text[:i-1])
			b.WriteString("${")
			text = text[i+2:]
			continue
		}
		b.WriteString(text[:i])
		inner, rest, closed := strings.Cut(text[i+2:], "}")
		if !closed {
			return "", &refusal{"${ without a closing }", literalHint}
		}
		name, ours := strings.CutPrefix(inner, "values.")
		if !ours {
			return "", &refusal{fmt.Sprintf("%s is not known", yamlschema.Quote("${"+inner+"}")), literalHint}
		}
		v, err := value(name)
		if err != nil {
			return "", err
		}
		b.WriteString(v)
		text = rest
	}
}

// value looks a secret up.
func (l *loader) value(name string) (string, *refusal) {
	if !valueName.MatchString(name) {
		return "", &refusal{fmt.Sprintf("%s is not the name of a value", yamlschema.Quote(name)), literalHint}
	}
	if l.opts.Secrets == nil {
		l.unverified = true
		return placeholder, nil
	}
	known := l.opts.Secrets.values
	v, ok := known[name]
	if !ok {
		names := slices.Sorted(maps.Keys(known))
		hint := "add it under values: in " + SecretsFile
		if len(names) > 0 {
			hint += "; known: " + strings.Join(names, ", ")
		}
		return "", &refusal{fmt.Sprintf("there is no value %s in %s", yamlschema.Quote(name), SecretsFile), hint}
	}
	// A text stands once in the secrets and may be named in every line.
	if why, hint := l.spend.takeYAML(len(v.RevealString())); why != "" {
		return "", &refusal{"with the secrets filled in, " + why, hint}
	}
	return v.RevealString(), nil
}

// encodeDocs writes documents as one YAML file without comments. What it writes
// may hold secrets.
func encodeDocs(docs []*yaml.Node) (cluster.Secret, error) {
	var out []byte
	for i, n := range docs {
		restyleNode(n)
		b, err := yaml.Dump(n, yaml.WithLineWidth(-1))
		if err != nil {
			return cluster.Secret{}, err
		}
		if i > 0 {
			out = append(out, "---\n"...)
		}
		out = append(out, b...)
	}
	return cluster.NewSecret(out), nil
}

// restyleNode drops comments and writes every text that is not plain in double
// quotes, the one style that can hold anything: the library writes blocks that
// begin with white space so that they cannot be read back. It also turns an
// empty value between braces into an empty text, so nothing is written out.
func restyleNode(n *yaml.Node) {
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	switch {
	case yamlschema.IsNull(n):
		n.Value = "null"
	case n.Kind == yaml.ScalarNode && n.Style != 0:
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		restyleNode(c)
	}
}

// ambiguous are words that some YAML readers take for truth values and others
// for texts. Helm is among the former.
var ambiguous = []string{"y", "Y", "n", "N", "yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF",
	"True", "TRUE", "False", "FALSE"}

// plainNumber is a number that every reader of YAML and JSON reads alike.
var plainNumber = pattern.New(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// plainValue turns a tree into the values JSON has. What YAML's dialects read
// differently is recorded and refused: a chart's values must not depend on
// who parses them.
func plainValue(d yamlschema.Document, n *yaml.Node) (any, bool) {
	switch n.Kind {
	case yaml.MappingNode:
		out, ok := map[string]any{}, true
		for i := 0; i+1 < len(n.Content); i += 2 {
			v, fine := plainValue(d, n.Content[i+1])
			out[n.Content[i].Value], ok = v, ok && fine
		}
		return out, ok
	case yaml.SequenceNode:
		out, ok := []any{}, true
		for _, c := range n.Content {
			v, fine := plainValue(d, c)
			out, ok = append(out, v), ok && fine
		}
		return out, ok
	}
	if n.Style&^yaml.TaggedStyle != 0 {
		return n.Value, true
	}
	switch tag := n.ShortTag(); {
	case yamlschema.IsNull(n):
		return nil, true
	case n.Value == "true", n.Value == "false":
		return n.Value == "true", true
	case plainNumber.MatchString(n.Value):
		return json.Number(n.Value), true
	case tag == "!!int", tag == "!!float":
		d.Problem(n.Line, n.Column, "", d.Show(n.Value)+" is read as different numbers by different readers of YAML", "write it as a plain decimal number, or quote it if it is a text")
	case slices.Contains(ambiguous, n.Value):
		d.Problem(n.Line, n.Column, "", d.Show(n.Value)+" is a truth value to some readers of YAML and a text to others", "write true or false, or quote it if it is a text")
	default:
		return n.Value, true
	}
	return nil, false
}
