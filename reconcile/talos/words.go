package talos

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/text"
)

// maxWords is how much of a machine's message is repeated, in bytes.
const maxWords = 600

// sanitize makes foreign words fit for one line of a log or a terminal.
func sanitize(s string) string { return text.Sanitize(s, maxWords) }

// noise is what errors carry that people do not need: gRPC's preamble, and the
// addresses of a connection, whose port is another one every time.
var noise = regexp.MustCompile(`rpc error: code = \w+ desc = |\w+ tcp \S+->\S+: |dial tcp \S+: `)

// late is what a time that is over is called: gRPC has several texts for it
// (recorded).
const late = "no answer in time"

// expired is what is left of an error when the machine refused the agent's
// certificate for its dates. clockHint is what to do about it.
const (
	expired   = "it refuses the agent's certificate as expired or not yet valid"
	clockHint = "compare the clocks: `timedatectl` on this host must show the right time; the agent's certificates are good for a day before and after it"
)

var expiredAlert = regexp.MustCompile(`(connection error: desc = )?"?([^":]*: )*remote error: ` + text.Expired + `"?`)

// formatError returns an error in one line, and the same words for the same
// error.
func formatError(err error) string {
	words := err.Error()
	var answer interface{ GRPCStatus() *status.Status }
	if errors.As(err, &answer) {
		if st := answer.GRPCStatus(); st.Code() == codes.DeadlineExceeded && st.Message() != "" {
			words = strings.ReplaceAll(words, st.Message(), late)
		}
	}
	words = expiredAlert.ReplaceAllString(noise.ReplaceAllString(words, ""), expired)
	return sanitize(strings.ReplaceAll(words, context.DeadlineExceeded.Error(), late))
}

// worded is an error whose message is its words.
type worded struct{ error }

func (w worded) Error() string { return formatError(w.error) }
func (w worded) Unwrap() error { return w.error }

// masked stands where something of a machine config was.
const masked = "[...]"

// The answer of Talos to a config it refuses may quote the config: the rest of
// a document that has settings it does not know, values and all; the difference
// between two configs; single values (recorded).
const unknownKeys = "unknown keys found during decoding:"

var (
	difference = regexp.MustCompile(`(?s)\s*(Config diff|\bdiff):\s*\n.*`)
	countLine  = regexp.MustCompile(`\d+ errors? occurred:`)
)

// redactMessage writes a machine's message about a machine config in one line,
// without anything of the configs that could be a secret.
func redactMessage(message string, configs ...[]byte) string {
	var values []string
	for _, c := range configs {
		more, ok := listScalars(c)
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
	return sanitize(strings.ReplaceAll(strings.Join(parts, "; "), ":; ", ": "))
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

// listScalars lists the values of a config, and their lines, that are kept out of
// messages, longest first. ok is false when the config is not YAML.
func listScalars(config []byte) (values []string, ok bool) {
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
func listPaths(text string) []string {
	var doc yaml.Node
	if yaml.Unmarshal([]byte(text), &doc) != nil || len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
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
