package inventory

import (
	"encoding/json"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// ambiguous are words that some YAML readers take for truth values and others
// for texts. Helm is among the former.
var ambiguous = []string{"y", "Y", "n", "N", "yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF",
	"True", "TRUE", "False", "FALSE"}

// plainNumber is a number that every reader of YAML and JSON reads alike.
var plainNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

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
