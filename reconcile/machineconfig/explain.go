package machineconfig

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// unknownKeys begins the library's message about settings that do not exist.
// After it comes the rest of the document that was not understood, values and
// all.
const unknownKeys = "unknown keys found during decoding:\n"

// identity are the keys at the top of a document whose values identify it.
// Messages need them, and the inventory lets no secrets stand there.
var identity = []string{"apiVersion", "kind", "name", "type"}

// masked stands where a value of the text was.
const masked = "[...]"

// explainError rewrites an error of the machine library about a text on one
// line, without anything of the text that could be a secret. The library quotes
// freely: the value it cannot decode, the part of a document it does not know,
// the key that has the wrong length.
func explainError(err error, texts ...[]byte) string {
	message := err.Error()
	if head, rest, ok := strings.Cut(message, unknownKeys); ok {
		return flattenList(maskValues(head, texts)) + ": there is no setting " + strings.Join(keysIn(rest), ", ")
	}
	// The document of the settings that are no document of their own has a Go name.
	return strings.ReplaceAll(flattenList(maskValues(message, texts)), "v1alpha1.Config: ", "")
}

// flattenList turns the library's list of errors, one to a line and nested, into
// one line.
func flattenList(message string) string {
	var b strings.Builder
	join := ""
	for line := range strings.Lines(message) {
		line = strings.TrimSpace(line)
		line = strings.TrimSpace(strings.TrimPrefix(line, "* "))
		head, list := listHead(line)
		if head != "" {
			b.WriteString(join + head)
			join = "; "
		}
		if list && b.Len() > 0 && head != "" {
			join = ": "
		}
	}
	return strings.TrimSuffix(b.String(), ":")
}

// listHead takes "N errors occurred:" from the end of a line.
func listHead(line string) (head string, list bool) {
	for _, suffix := range []string{" error occurred:", " errors occurred:"} {
		if head, ok := strings.CutSuffix(line, suffix); ok {
			head = strings.TrimRight(head, "0123456789")
			return strings.TrimSuffix(strings.TrimSpace(head), ":"), true
		}
	}
	return line, false
}

// keysIn lists the paths of the settings in a piece of YAML, without values:
// three of them, and how many more there are.
func keysIn(text string) []string {
	var paths []string
	for _, path := range unknownPaths(text) {
		if p := strings.Join(path, "."); !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	if paths == nil {
		return []string{masked}
	}
	if more := len(paths) - 3; more > 0 {
		paths = append(paths[:3], fmt.Sprintf("and %d more", more))
	}
	return paths
}

// unknownPaths lists the paths of the settings in a piece of YAML, key by key.
func unknownPaths(text string) [][]string {
	var doc yaml.Node
	if yaml.Unmarshal([]byte(text), &doc) != nil {
		return nil
	}
	var paths [][]string
	var walk func(n *yaml.Node, path []string)
	walk = func(n *yaml.Node, path []string) {
		leaf := true
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				leaf = false
				walk(n.Content[i+1], append(path[:len(path):len(path)], n.Content[i].Value))
			}
		case yaml.DocumentNode, yaml.SequenceNode:
			for _, c := range n.Content {
				if c.Kind == yaml.MappingNode {
					leaf = false
					walk(c, path)
				}
			}
		}
		if leaf && len(path) > 0 {
			paths = append(paths, path)
		}
	}
	walk(&doc, nil)
	return paths
}

// maskValues takes every value of the texts out of a message. Keys stay, and so do
// values too short or too plain to be a secret unless they are quoted.
func maskValues(message string, texts [][]byte) string {
	// The YAML decoder quotes the beginning of a value in backticks.
	for i := 0; ; {
		start := strings.IndexByte(message[i:], '`')
		if start < 0 {
			break
		}
		start += i
		end := strings.IndexByte(message[start+1:], '`')
		if end < 0 {
			message = message[:start] + masked
			break
		}
		message = message[:start] + masked + message[start+1+end+1:]
		i = start + len(masked)
	}
	for _, v := range listValues(texts) {
		if len(v) >= 8 && strings.ContainsFunc(v, isLetter) {
			message = strings.ReplaceAll(message, v, masked)
		}
		for _, quote := range []string{`"`, `'`} {
			message = strings.ReplaceAll(message, quote+v+quote, masked)
		}
	}
	return message
}

func isLetter(r rune) bool { return 'a' <= r|0x20 && r|0x20 <= 'z' }

// listValues lists the values in the texts and the words they consist of, longest
// first.
func listValues(texts [][]byte) []string {
	var out []string
	var walk func(n *yaml.Node, top bool)
	walk = func(n *yaml.Node, top bool) {
		if n.Kind == yaml.ScalarNode {
			out = append(out, n.Value)
			out = append(out, strings.FieldsFunc(n.Value, func(r rune) bool { return strings.ContainsRune(" \t\r\n=,;:@/?&\"'", r) })...)
		}
		for i, c := range n.Content {
			if n.Kind != yaml.MappingNode || i%2 == 1 && !(top && slices.Contains(identity, n.Content[i-1].Value)) {
				walk(c, n.Kind == yaml.DocumentNode)
			}
		}
	}
	for _, text := range texts {
		dec := yaml.NewDecoder(bytes.NewReader(text))
		for {
			var doc yaml.Node
			if dec.Decode(&doc) != nil {
				break // the end, or what the message is about
			}
			walk(&doc, false)
		}
	}
	out = slices.DeleteFunc(out, func(v string) bool { return len(v) < 4 })
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return slices.Compact(out)
}
