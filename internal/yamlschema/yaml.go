package yamlschema

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// The bounds of one YAML file. A cluster of a thousand nodes stays far below
// them; a bomb does not reach the parser or is stopped inside it.
const (
	// MaxFileBytes is the size of the largest file that is parsed.
	MaxFileBytes = 1 << 20

	maxDepth     = 50
	maxMarks     = 250_000 // lines, commas and brackets: what makes values
	maxDocuments = 64
)

// Document is a YAML file as the program reads it: nodes without anchors,
// aliases, tags, merge keys and duplicate keys.
type Document struct {
	// File names the file in problems.
	File string
	// Secret files are never quoted in a problem.
	Secret bool
	*Report
}

// Parse reads the documents of a file. Everything that is wrong with it as
// YAML is recorded; nil means that there is nothing to go on with.
func (d Document) Parse(data []byte) []*yaml.Node {
	if !d.readable(data) {
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithPlugin(bounds{}))
	if err != nil {
		d.Problem(1, 1, "", "cannot be read as YAML", "")
		return nil
	}
	var docs []*yaml.Node
	for {
		var n yaml.Node
		err := loader.Load(&n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			d.syntax(err, data)
			return nil
		}
		if len(docs) == maxDocuments {
			d.Problem(n.Line, n.Column, "", fmt.Sprintf("more than %d documents", maxDocuments), "split the file")
			return nil
		}
		docs = append(docs, contentOf(&n))
	}
	before := len(d.Problems)
	for _, n := range docs {
		d.plain(n)
	}
	if d.Problems[before:].HasErrors() {
		return nil
	}
	return docs
}

// Single reads a file that must hold exactly one document, a mapping.
func (d Document) Single(data []byte) *yaml.Node {
	before := len(d.Problems)
	docs := d.Parse(data)
	switch {
	case d.Problems[before:].HasErrors():
		return nil
	case len(docs) > 1:
		d.Problem(docs[1].Line, docs[1].Column, "", "a second document", "keep one and remove the --- line")
		return nil
	case len(docs) == 0 || IsNull(docs[0]):
		d.Problem(0, 0, "", "the file is empty", "")
		return nil
	case docs[0].Kind != yaml.MappingNode:
		d.Problem(docs[0].Line, docs[0].Column, "", "the file is not a mapping", "write lines of the form key: value")
		return nil
	}
	return docs[0]
}

// Problem records an error at a place of the file; zero means the whole file.
func (d Document) Problem(line, column int, field, message, hint string) {
	d.Add(cluster.Problem{Severity: cluster.Error, File: d.File, Line: line, Column: column, Field: field, Message: message, Hint: hint})
}

// readable refuses what is no text, before the parser sees it.
func (d Document) readable(data []byte) bool {
	if len(data) > MaxFileBytes {
		d.Problem(0, 0, "", fmt.Sprintf("larger than %d KiB", MaxFileBytes>>10), "split it, or check that it is the right file")
		return false
	}
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		d.Problem(1, 1, "", "the file is UTF-16", "save it as UTF-8")
		return false
	}
	line, column, marks := 1, 0, 0
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		i += n
		column++
		switch {
		case r == utf8.RuneError && n == 1:
			d.Problem(line, column, "", "a byte that is not UTF-8", "save the file as UTF-8")
			return false
		case r == '\n':
			line, column = line+1, 0
			marks++
		case r == ',', r == '[', r == '{', r == '-', r == '?', r == ':':
			marks++
		case r < ' ' && r != '\t' && r != '\r', r == 0x7f:
			d.Problem(line, column, "", fmt.Sprintf("control character %U", r), "remove it")
			return false
		}
	}
	if marks > maxMarks {
		d.Problem(0, 0, "", "too many values", "split it, or check that it is the right file")
		return false
	}
	return true
}

// bounds cuts deep nesting off inside the parser. Aliases are refused after
// parsing without ever being followed, so their number does not matter.
type bounds struct{}

func (bounds) CheckDepth(depth int, _ *yaml.DepthContext) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	return nil
}

func (bounds) CheckAlias(int, int) error { return nil }

// contentOf returns the value of a document node.
func contentOf(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
		return n.Content[0]
	}
	return n
}

// plain records every use of YAML's machinery that is refused: it makes one
// text mean another, which is not expected in a file for people.
func (d Document) plain(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		d.Problem(n.Line, n.Column, "", "an alias (*) is not allowed", "write the value out")
		return
	case n.Anchor != "":
		d.Problem(n.Line, n.Column, "", "an anchor (&) is not allowed", "write the value out where it is needed")
	case n.Style&yaml.TaggedStyle != 0:
		d.Problem(n.Line, n.Column, "", "a tag (!) is not allowed", "quote the value if it is a text")
	}
	if n.Kind != yaml.MappingNode {
		for _, c := range n.Content {
			d.plain(c)
		}
		return
	}
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		d.plain(key)
		switch before := first[key.Value]; {
		case key.Kind != yaml.ScalarNode || IsNull(key):
			d.Problem(key.Line, key.Column, "", "a key that is not a text", "write key: value")
		case key.Value == "<<" && key.Style == 0:
			d.Problem(key.Line, key.Column, "", "a merge key (<<) is not allowed", "write the keys out")
		case before != nil:
			d.Problem(key.Line, key.Column, "", fmt.Sprintf("duplicate key %s", d.Show(key.Value)),
				fmt.Sprintf("it stands in line %d already: remove one", before.Line))
		default:
			first[key.Value] = key
		}
		d.plain(n.Content[i+1])
	}
}

// Show quotes a text of the file, unless the file is secret.
func (d Document) Show(s string) string {
	if d.Secret {
		return cluster.Redacted
	}
	return Quote(s)
}

// IsNull reports whether a node is YAML's nothing: empty, ~ or null.
func IsNull(n *yaml.Node) bool {
	return n.Kind == 0 || n.Kind == yaml.ScalarNode && n.Style == 0 && slices.Contains(nulls, n.Value)
}

var nulls = []string{"", "~", "null", "Null", "NULL"}

// Lookup returns the value of a key of a mapping, or nil.
func Lookup(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
