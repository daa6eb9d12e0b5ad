package machineconfig

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// misfit is why a patch cannot be decoded, and where in its text; line 0 is the
// whole of it.
type misfit struct {
	field, message, hint string
	line, column         int
}

// What the machine library's errors about a patch have in common.
var (
	decoding     = pattern.New(`^error decoding document \S* \(line (\d+)\): `)
	unregistered = pattern.New(`^"([^"]*)" "([^"]*)": not registered`)
	constructing = pattern.New(`^error decoding \S* ?to \S+: yaml: construct errors: `)
	lineOf       = pattern.New(`^line (\d+): `)
	unfit        = pattern.New(`^cannot construct (!!\w+)(?: ` + regexp.QuoteMeta(masked) + `)? into (\S+)`)
)

// explainPatch rewrites the error of a patch that the machine library cannot
// decode, as explainError does, without what only its authors understand.
func explainPatch(err error, text []byte) []misfit {
	raw := err.Error()
	head := decoding.FindStringSubmatch(raw)
	if head == nil {
		return []misfit{{message: explainError(err, text)}}
	}
	start, rest := parseLine(head[1]), raw[len(head[0]):]
	docs := parseDocs(text)
	if _, unknown, ok := strings.Cut(rest, unknownKeys); ok {
		at := findKey(docs, start, unknownPaths(unknown))
		return []misfit{{message: "there is no setting " + strings.Join(keysIn(unknown), ", "), hint: "check the spelling and the indentation",
			line: at.Line, column: at.Column}}
	}
	rest = flattenList(maskValues(rest, [][]byte{text}))
	if m := unregistered.FindStringSubmatch(rest); m != nil {
		at := findKind(docs, m[1])
		return []misfit{{message: fmt.Sprintf("%s (%s) is no document of a machine config", m[1], m[2]), hint: "check its kind and apiVersion", line: at.Line, column: at.Column}}
	}
	rest = constructing.ReplaceAllString(rest, "")
	var out []misfit
	for part := range strings.SplitSeq(rest, "; ") {
		m := lineOf.FindStringSubmatch(part)
		if m == nil {
			return []misfit{{message: rest}}
		}
		out = append(out, describeMisfit(docs, parseLine(m[1]), part[len(m[0]):]))
	}
	return out
}

// describeMisfit explains a value that does not fit, by its line.
func describeMisfit(docs []*yaml.Node, line int, message string) misfit {
	tag := ""
	m := unfit.FindStringSubmatch(message)
	if m != nil {
		tag = m[1]
	}
	at, path := findValue(docs, line, tag)
	out := misfit{field: strings.Join(path, "."), message: message, line: at.Line, column: at.Column}
	if m != nil {
		out.message = fmt.Sprintf("is %s, and Talos wants %s", kinds[m[1]], describeType(m[2]))
	}
	return out
}

// kinds are YAML's tags in words.
var kinds = map[string]string{"!!str": "a text", "!!int": "a number", "!!float": "a number", "!!bool": "true or false",
	"!!seq": "a list", "!!map": "a mapping", "!!null": "nothing"}

// types are the types of settings in words.
var types = map[string]string{"bool": "true or false", "string": "a text", "time.Duration": "a duration like 30s",
	"block.ByteSize": "a size like 10GiB", "v1alpha1.FileMode": "permissions like 0o644", "v1alpha1.Endpoint": "a URL"}

var numeric = pattern.New(`^u?int\d*$|^float\d+$`)

// describeType puts the Go type of a setting in words.
func describeType(name string) string {
	name = strings.TrimLeft(name, "*")
	switch {
	case types[name] != "":
		return types[name]
	case numeric.MatchString(name):
		return "a number"
	case strings.HasPrefix(name, "["):
		return "a list"
	case strings.HasPrefix(name, "map["), strings.HasSuffix(name, "Config"):
		return "a mapping with keys of its own"
	}
	return "something else"
}

func parseLine(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// parseDocs parses what can be parsed of a text.
func parseDocs(text []byte) []*yaml.Node {
	var out []*yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		if dec.Decode(&doc) != nil {
			return out
		}
		out = append(out, &doc)
	}
}

// findKey returns the key that the first of the paths leads to, in the first
// document from a line on that has it.
func findKey(docs []*yaml.Node, start int, paths [][]string) yaml.Node {
	if len(paths) == 0 {
		return yaml.Node{}
	}
	var find func(n *yaml.Node, path []string) *yaml.Node
	find = func(n *yaml.Node, path []string) *yaml.Node {
		for i, c := range n.Content {
			switch {
			case n.Kind != yaml.MappingNode:
				if found := find(c, path); found != nil {
					return found
				}
			case i%2 == 0 && c.Value == path[0] && len(path) == 1:
				return c
			case i%2 == 0 && c.Value == path[0]:
				return find(n.Content[i+1], path[1:])
			}
		}
		return nil
	}
	for _, doc := range docs {
		if len(doc.Content) == 0 || doc.Content[0].Line < start {
			continue
		}
		if found := find(doc, paths[0]); found != nil {
			return *found
		}
	}
	return yaml.Node{}
}

// findKind returns the kind of the first document of that kind.
func findKind(docs []*yaml.Node, kind string) yaml.Node {
	for _, doc := range docs {
		for _, root := range doc.Content {
			for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
				if root.Content[i].Value == "kind" && root.Content[i+1].Value == kind {
					return *root.Content[i+1]
				}
			}
		}
	}
	return yaml.Node{}
}

// findValue returns the first value of a line, with the path of keys to it; with a
// tag, the first of that tag.
func findValue(docs []*yaml.Node, line int, tag string) (yaml.Node, []string) {
	var value yaml.Node
	var at []string
	var walk func(n *yaml.Node, path []string) bool
	walk = func(n *yaml.Node, path []string) bool {
		if n.Line == line && len(path) > 0 && (tag == "" && n.Kind == yaml.ScalarNode || n.ShortTag() == tag) {
			value, at = *n, path
			return true
		}
		for i, c := range n.Content {
			below := path
			if n.Kind == yaml.MappingNode {
				if i%2 == 0 {
					continue
				}
				below = append(path[:len(path):len(path)], n.Content[i-1].Value)
			}
			if walk(c, below) {
				return true
			}
		}
		return false
	}
	for _, doc := range docs {
		if walk(doc, nil) {
			return value, at
		}
	}
	return yaml.Node{Line: line, Column: 1}, nil
}
