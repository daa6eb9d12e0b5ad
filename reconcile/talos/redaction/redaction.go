// Package redaction takes out of what a machine answers about a machine config whatever could be a
// secret of that.
//
// It is pure: it knows no machine.
package redaction

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/text"
)

// MaxWords is how much of a message is left at most, in bytes.
const MaxWords = 600

// masked stands where something of a machine config was.
const masked = "[...]"

// The answer of Talos to a config it refuses may quote the config: the rest of
// a document that has settings it does not know, values and all; the difference
// between two configs; single values (recorded).
const unknownKeys = "unknown keys found during decoding:"

var (
	difference = pattern.New(`(?s)\s*(Config diff|\bdiff):\s*\n.*`)
	countLine  = pattern.New(`\d+ errors? occurred:`)
)

// Message writes a machine's message about a machine config in one line,
// without anything of the configs that could be a secret.
func Message(message string, configs ...[]byte) string {
	var values []string
	for _, c := range configs {
		more, ok := ListScalars(c)
		if !ok {
			return "(its words are left out: they may quote the config, which cannot be read here)"
		}
		values = append(values, more...)
	}
	slices.SortFunc(values, longestFirst)
	message = difference.ReplaceAllString(message, "")
	message, rest, unknown := strings.Cut(message, unknownKeys)
	if unknown {
		message += "there is no setting " + strings.Join(listPaths(rest), ", ")
	}
	for _, v := range values {
		message = maskValue(message, v)
	}
	message = countLine.ReplaceAllString(message, "")
	var parts []string
	for line := range strings.Lines(message) {
		if line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "* ")); line != "" {
			parts = append(parts, line)
		}
	}
	return text.Sanitize(strings.ReplaceAll(strings.Join(parts, "; "), ":; ", ": "), MaxWords)
}

// maskValue takes a value out of a message: anywhere when it is long, as a word of
// its own when it is short.
func maskValue(message, value string) string {
	if len(value) >= 8 {
		return strings.ReplaceAll(message, value, masked)
	}
	var b strings.Builder
	for {
		i := strings.Index(message, value)
		if i < 0 {
			return b.String() + message
		}
		end := i + len(value)
		b.WriteString(message[:i])
		if (i == 0 || !isWordByte(message[i-1])) && (end == len(message) || !isWordByte(message[end])) {
			b.WriteString(masked)
		} else {
			b.WriteString(value)
		}
		message = message[end:]
	}
}

func isWordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// identifying are the keys whose values identify the document. Messages are not
// understood without them.
var identifying = []string{"apiVersion", "kind", "version", "type"}

// ListScalars lists the values of a config, and their lines, that are kept out of
// messages, longest first. ok is false when the config is not YAML.
func ListScalars(config []byte) (values []string, ok bool) {
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode {
			if isPublic(n.Value) {
				return
			}
			for line := range strings.Lines(n.Value) {
				values = append(values, strings.TrimSpace(line))
			}
			values = append(values, strings.FieldsFunc(n.Value, func(r rune) bool { return strings.ContainsRune(" \t\r\n=,;:@&?\"'", r) })...)
		}
		for i, c := range n.Content {
			if n.Kind != yaml.MappingNode || i%2 == 1 && !slices.Contains(identifying, n.Content[i-1].Value) {
				walk(c)
			}
		}
	}
	for dec := yaml.NewDecoder(bytes.NewReader(config)); ; {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if err != nil {
			ok = errors.Is(err, io.EOF)
			break
		}
		walk(&doc)
	}
	values = slices.DeleteFunc(values, isPublic)
	slices.SortFunc(values, longestFirst)
	return slices.Compact(values), ok
}

func longestFirst(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }

// isPublic reports whether a value is too plain to be a secret: a person needs
// these to understand a message.
func isPublic(v string) bool {
	if len(v) < 4 {
		return true
	}
	if len(v) <= 12 && strings.IndexFunc(v, func(r rune) bool { return r < 'a' || r > 'z' }) < 0 {
		return true // controlplane
	}
	if _, err := netip.ParseAddr(v); err == nil {
		return true
	}
	if _, err := netip.ParsePrefix(v); err == nil {
		return true
	}
	u, err := url.Parse(v)
	return err == nil && u.Scheme == "https" && u.User == nil && u.RawQuery == "" && (u.Path == "" || u.Path == "/")
}

// listPaths lists the settings in a piece of YAML without their values: three of
// them, and how many more there are.
func listPaths(yamlText string) []string {
	var doc yaml.Node
	if yaml.Unmarshal([]byte(yamlText), &doc) != nil || len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return []string{masked}
	}
	var out []string
	var walk func(n *yaml.Node, path string)
	walk = func(n *yaml.Node, path string) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := path+n.Content[i].Value, n.Content[i+1]
			if value.Kind == yaml.MappingNode && len(value.Content) > 0 {
				walk(value, key+".")
			} else {
				out = append(out, key)
			}
		}
	}
	walk(doc.Content[0], "")
	if more := len(out) - 3; more > 0 {
		out = append(out[:3], fmt.Sprintf("and %d more", more))
	}
	return out
}
