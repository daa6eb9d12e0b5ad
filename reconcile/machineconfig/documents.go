package machineconfig

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Document is one document of a machine config.
type Document struct {
	Name string // its kind and name; "v1alpha1" is the one that has no kind
	Text string // YAML
}

// Scalar is one value in a machine config.
type Scalar struct {
	// Document is the name of the document, and Path leads to the value in it:
	// "machine.files[].content", whichever element of the list it is.
	Document, Path string
	Text           string
	Secret         bool // the machine library takes it for a secret
}

// Rewrite writes a machine config down document by document, in their order, without
// comments and in the one spelling that equal configs have, with every value replaced by
// what rewrite returns for it. The error names what is wrong without quoting the config.
func Rewrite(text []byte, rewrite func(Scalar) string) ([]Document, error) {
	plain, hidden, err := encodeHidden(text)
	if err != nil {
		return nil, err
	}
	if len(hidden) != len(plain) {
		return nil, errors.New("hide the secrets of a machine config: the documents do not match")
	}
	var out []Document
	for i, doc := range plain {
		name := nameDocument(doc)
		rewriteNode(doc, hidden[i], Scalar{Document: name}, rewrite)
		b, err := yaml.Marshal(doc) // as the machine library does
		if err != nil {
			return nil, errors.New("write machine config: " + explainError(err, text))
		}
		out = append(out, Document{name, string(b)})
	}
	return out, nil
}

// hiddenMark stands for what the library takes for a secret. No secret is like it.
const hiddenMark = "talos-agent hides this"

// encodeHidden returns the documents of a config as they are, and once more with the
// secrets that the library knows of hidden.
func encodeHidden(text []byte) (plain, hidden []*yaml.Node, err error) {
	p, err := configloader.NewFromBytes(text)
	if err != nil {
		return nil, nil, errors.New("load machine config: " + explainError(err, text))
	}
	if plain, err = encodeDocuments(p); err == nil {
		hidden, err = encodeDocuments(p.RedactSecrets(hiddenMark))
	}
	if err != nil {
		return nil, nil, errors.New("encode machine config: " + explainError(err, text))
	}
	return plain, hidden, nil
}

// encodeDocuments returns the documents of a config, without comments.
func encodeDocuments(p config.Provider) ([]*yaml.Node, error) {
	b, err := recoverPanic(func() ([]byte, error) { return p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled)) })
	if err != nil {
		return nil, err
	}
	return decodeDocuments(b)
}

// decodeDocuments reads the documents of a text.
func decodeDocuments(text []byte) ([]*yaml.Node, error) {
	var out []*yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		case doc.Kind == yaml.DocumentNode && len(doc.Content) == 1:
			out = append(out, doc.Content[0])
		}
	}
}

// nameDocument is what a document is called.
func nameDocument(doc *yaml.Node) string {
	var kind, name string
	for i := 0; i+1 < len(doc.Content); i += 2 {
		switch doc.Content[i].Value {
		case "kind":
			kind = doc.Content[i+1].Value
		case "name":
			name = doc.Content[i+1].Value
		}
	}
	if kind == "" {
		return "v1alpha1"
	}
	return strings.TrimSpace(kind + " " + name)
}

// rewriteNode rewrites the values below a node. Where the same node is another with its
// secrets hidden, or has another shape, it is a secret.
func rewriteNode(n, hidden *yaml.Node, at Scalar, rewrite func(Scalar) string) {
	at.Secret = at.Secret || hidden == nil || hidden.Kind != n.Kind || len(hidden.Content) != len(n.Content)
	below := func(i int) *yaml.Node {
		if at.Secret {
			return nil
		}
		return hidden.Content[i]
	}
	switch n.Kind {
	case yaml.ScalarNode:
		at.Text, at.Secret = n.Value, at.Secret || hidden.Value != n.Value
		if text := rewrite(at); text != n.Value {
			n.SetString(text)
			if strings.TrimSpace(text) != text {
				n.Style = yaml.DoubleQuotedStyle // the library writes blocks that it cannot read
			}
		}
	case yaml.MappingNode:
		path := at.Path
		for i := 0; i+1 < len(n.Content); i += 2 {
			at.Path = strings.TrimPrefix(path+"."+n.Content[i].Value, ".")
			rewriteNode(n.Content[i+1], below(i+1), at, rewrite)
		}
	default:
		at.Path += "[]"
		for i, c := range n.Content {
			rewriteNode(c, below(i), at, rewrite)
		}
	}
}

// Secrets lists what of a bundle is secret, in every form in which a machine config has
// it; with public, its certificates and the cluster's id as well.
func (b *Bundle) Secrets(public bool) ([]cluster.Secret, error) {
	text, err := yaml.Marshal(b.parsed)
	if err != nil {
		return nil, fmt.Errorf("encode secrets bundle: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, errors.New("read secrets bundle: it is not whole")
	}
	var out []cluster.Secret
	add := func(form string) {
		if form = strings.TrimSpace(form); form != "" {
			out = append(out, cluster.SecretString(form))
		}
	}
	var walk func(n *yaml.Node, key string)
	walk = func(n *yaml.Node, key string) {
		switch {
		case n.Kind == yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				walk(n.Content[i+1], n.Content[i].Value)
			}
		case n.Kind != yaml.ScalarNode:
			for _, c := range n.Content {
				walk(c, key)
			}
		case public || !slices.Contains([]string{"crt", "id"}, key):
			add(n.Value)
			if pem, err := base64.StdEncoding.DecodeString(n.Value); err == nil && bytes.Contains(pem, []byte("-----BEGIN")) {
				add(string(pem))
			}
			if _, secret, isToken := strings.Cut(n.Value, "."); isToken {
				add(secret) // kinds of documents have a token in two parts
			}
		}
	}
	walk(&doc, "")
	return out, nil
}
