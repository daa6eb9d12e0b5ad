package secrets

import (
	"fmt"
	"time"

	"github.com/getsops/sops/v3"
	"go.yaml.in/yaml/v3"
)

// emitTree writes a decrypted tree. The store of sops is not used for it: it
// leaves the style of a text to the YAML library, which writes some texts in a
// way it cannot read again, such as one that begins with an empty line and a
// tab.
func emitTree(b sops.TreeBranch) ([]byte, *Error) {
	n, err := toNode(b)
	if err != nil {
		return nil, newError(ErrMalformed, "", "holds a value that YAML cannot")
	}
	out, err := yaml.Marshal(n)
	if err != nil {
		return nil, newError(ErrMalformed, "", "cannot be written as YAML")
	}
	return out, nil
}

func toNode(v any) (*yaml.Node, error) {
	switch v := v.(type) {
	case sops.TreeBranch:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, item := range v {
			value, err := toNode(item.Value)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, quotedNode(fmt.Sprint(item.Key)), value)
		}
		return n, nil
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range v {
			value, err := toNode(item)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, value)
		}
		return n, nil
	case string:
		return quotedNode(v), nil
	case nil, bool, int, float64, time.Time:
		n := new(yaml.Node)
		return n, n.Encode(v)
	}
	return nil, fmt.Errorf("value of type %T", v)
}

func quotedNode(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s, Style: yaml.DoubleQuotedStyle}
}
