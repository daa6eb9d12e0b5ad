package contexts

import (
	"errors"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v4"
)

// lists are the parts of a kubeconfig, each a list of entries with a name;
// talosctl has one mapping by name.
var lists = []string{"clusters", "contexts", "users"}

// current are the keys of the context that is in use.
var current = []string{"current-context", "context"}

// Others names the contexts in a file that are not in another, which would take
// its place. One of the same name is another where its cluster has another
// authority.
func Others(have, written []byte) ([]string, error) {
	a, err := parseFile(have)
	if err != nil {
		return nil, err
	}
	b, err := parseFile(written)
	if err != nil {
		return nil, err
	}
	known := listNames(lookup(b, "contexts"))
	var others []string
	for _, name := range listNames(lookup(a, "contexts")) {
		switch {
		case !slices.Contains(known, name):
			others = append(others, name)
		case isOfAnother(a, b, "contexts", name):
			others = append(others, name+" of another cluster")
		}
	}
	return others, nil
}

// Merge puts everything of written into a file, over what has the same name there,
// and makes its context the one in use. It fails where that name is of another
// cluster.
func Merge(have, written []byte) ([]byte, error) {
	a, err := parseFile(have)
	if err != nil {
		return nil, err
	}
	b, err := parseFile(written)
	if err != nil {
		return nil, err
	}
	if err := checkAuthorities(a, b); err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(b.Content); i += 2 {
		key, value := b.Content[i], b.Content[i+1]
		at := lookup(a, key.Value)
		switch {
		case at == nil:
			a.Content = append(a.Content, key, value)
		case slices.Contains(lists, key.Value) && at.Kind == value.Kind:
			mergeEntries(at, value)
		case slices.Contains(lists, key.Value) && (at.Kind != yaml.ScalarNode || at.ShortTag() != "!!null"):
			return nil, fmt.Errorf("%s: it has another form", key.Value)
		case slices.Contains(lists, key.Value), slices.Contains(current, key.Value):
			*at = *value
		}
	}
	return yaml.Dump(a)
}

// mergeEntries lays named entries over others.
func mergeEntries(have, written *yaml.Node) {
	for _, e := range entries(written) {
		i := slices.IndexFunc(entries(have), func(old entry) bool { return old.name == e.name })
		if i >= 0 {
			*entries(have)[i].value = *e.value
			continue
		}
		if e.key != nil {
			have.Content = append(have.Content, e.key)
		}
		have.Content = append(have.Content, e.value)
	}
}

// entry is one of a list or of a mapping, by its name.
type entry struct {
	name       string
	key, value *yaml.Node // key: of a mapping
}

func entries(n *yaml.Node) []entry {
	var out []entry
	switch {
	case n == nil:
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			out = append(out, entry{n.Content[i].Value, n.Content[i], n.Content[i+1]})
		}
	case n.Kind == yaml.SequenceNode:
		for _, c := range n.Content {
			if name := lookup(c, "name"); name != nil {
				out = append(out, entry{name: name.Value, value: c})
			}
		}
	}
	return out
}

func listNames(n *yaml.Node) []string {
	var out []string
	for _, e := range entries(n) {
		out = append(out, e.name)
	}
	slices.Sort(out)
	return out
}

// errForm hides the parser's own words, which quote the text.
var errForm = errors.New("it is neither a kubeconfig nor a talosconfig")

// parseFile reads a file; an empty one has nothing in it.
func parseFile(data []byte) (*yaml.Node, error) {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil {
		return nil, errForm
	}
	if len(doc.Content) == 0 {
		return &yaml.Node{Kind: yaml.MappingNode}, nil
	}
	if root := doc.Content[0]; root.Kind == yaml.MappingNode {
		return root, nil
	}
	return nil, errForm
}

func lookup(n *yaml.Node, key string) *yaml.Node {
	for i := 0; n != nil && n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
