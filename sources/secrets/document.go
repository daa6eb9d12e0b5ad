package secrets

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	// The YAML package that sops itself parses with: another one might see
	// another document in the same bytes.
	"go.yaml.in/yaml/v3"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Limits of a document.
const (
	maxDocument = 1 << 20 // bytes
	maxDepth    = 32      // of mappings and sequences in each other
)

// metadataKey is where sops keeps what it needs.
const metadataKey = "sops"

// parseDocument reads the one mapping a document must be, without anything
// that sops and the reader of the result might understand differently: a
// second document, anchors, merge keys, duplicate or non-string keys.
func parseDocument(b []byte) (*yaml.Node, *Error) {
	if len(b) > maxDocument {
		return nil, newError(ErrMalformed, "split the document", "has %d bytes, the limit is %d", len(b), maxDocument)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, newError(ErrPlaintext, "encrypt a document with sops, or make one with: talos-agent secrets new", "is empty")
	} else if err != nil {
		return nil, badYAML(err)
	}
	if err := dec.Decode(&second); err == nil {
		return nil, newError(ErrMalformed, "keep one document per file", "holds more than one YAML document")
	} else if !errors.Is(err, io.EOF) {
		return nil, badYAML(err)
	}
	if len(doc.Content) == 0 {
		return nil, newError(ErrMalformed, "write keys and values at the top level", "holds no YAML document")
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, newError(ErrMalformed, "write keys and values at the top level", "is no YAML mapping")
	}
	return root, checkShape(root, nil, 0)
}

// badYAML keeps the line of a syntax error and drops its text, which may quote
// the document.
func badYAML(err error) *Error {
	const hint = "fix the YAML syntax"
	var line int
	if n, serr := fmt.Sscanf(err.Error(), "yaml: line %d:", &line); serr == nil && n == 1 {
		return newError(ErrMalformed, hint, "is not valid YAML near line %d", line)
	}
	return newError(ErrMalformed, hint, "is not valid YAML")
}

// path is where a value stands.
type path []string

func (p path) String() string {
	var b strings.Builder
	for i, e := range p {
		if i > 0 && !strings.HasPrefix(e, "[") {
			b.WriteByte('.')
		}
		b.WriteString(e)
	}
	return formatRecipient(b.String())
}

func (p path) key(k string) path { return append(p[:len(p):len(p)], k) }
func (p path) index(i int) path  { return p.key(fmt.Sprintf("[%d]", i)) }

func checkShape(n *yaml.Node, at path, depth int) *Error {
	const hint = "write every value out where it belongs"
	if depth > maxDepth {
		return newError(ErrMalformed, "", "%s is nested more than %d deep", at, maxDepth)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return newError(ErrMalformed, hint, "%s is an alias, line %d", at, n.Line)
	case yaml.SequenceNode:
		for i, item := range n.Content {
			if err := checkShape(item, at.index(i), depth+1); err != nil {
				return err
			}
		}
	case yaml.MappingNode:
		seen := map[string]bool{}
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
				return newError(ErrMalformed, "quote the key", "a key in line %d is no string", key.Line)
			}
			here := at.key(key.Value)
			if seen[key.Value] {
				return newError(ErrMalformed, "remove one of them", "%s is there twice, line %d", here, key.Line)
			}
			seen[key.Value] = true
			if err := checkShape(n.Content[i+1], here, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// findMetadata gives the value of the key sops, nil if there is none.
func findMetadata(root *yaml.Node) *yaml.Node {
	for i := 0; i < len(root.Content); i += 2 {
		if root.Content[i].Value == metadataKey {
			return root.Content[i+1]
		}
	}
	return nil
}

// checkEncrypted refuses the first value outside the metadata that is in
// clear. Null and the empty string are: sops has no encrypted form of them.
func checkEncrypted(root *yaml.Node) *Error {
	for i := 0; i < len(root.Content); i += 2 {
		if key := root.Content[i].Value; key != metadataKey {
			if err := checkCipher(root.Content[i+1], path{key}); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkCipher(n *yaml.Node, at path) *Error {
	switch n.Kind {
	case yaml.SequenceNode:
		for i, item := range n.Content {
			if err := checkCipher(item, at.index(i)); err != nil {
				return err
			}
		}
	case yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			if err := checkCipher(n.Content[i+1], at.key(n.Content[i].Value)); err != nil {
				return err
			}
		}
	default:
		tag := n.ShortTag()
		if tag == "!!null" || tag == "!!str" && (n.Value == "" || cipherText.MatchString(n.Value)) {
			return nil
		}
		if strings.HasPrefix(n.Value, "ENC[") {
			return newError(ErrTampered, tamperedHint, "%s is not as sops writes an encrypted value, line %d", at, n.Line)
		}
		return newError(ErrPlaintext, clearHint, "%s is not encrypted, line %d", at, n.Line)
	}
	return nil
}

const clearHint = "remove encrypted_regex, encrypted_suffix and the unencrypted_ settings from the rule in .sops.yaml, then decrypt and encrypt the file again; take a value that was published for lost"

// cipherText is an encrypted value exactly as sops writes it. sops 3.13 itself
// takes more: the type bytes, which it never writes, makes it panic.
var cipherText = pattern.New(`^ENC\[AES256_GCM,data:[A-Za-z0-9+/=]+,iv:[A-Za-z0-9+/=]+,tag:[A-Za-z0-9+/=]+,type:(str|int|float|bool|time|comment)\]$`)
