package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// What takes the place of values in a file that is shown to others.
const (
	unknownKey = "(not shown: no key of this file)"
	notShown   = "(not shown)"
)

// showable are the kinds of text that are shown, and how. A kind that is not
// here is not shown: a key that is added later is silent until somebody has
// thought about it.
var showable = map[string]func(dir, text string) string{
	"label": showText, "branch": showText, "folder": showText, "storage": showText, "project": showText, "pool": showText, "bridge": showText, "mapping": showText,
	"macs": showText, "clock": showText, "timezone": showText, "recipient": showRecipient, "transitkey": showText, "namespace": showText,
	"listen": showText, "fingerprint": showText, "absolute": func(_, text string) string { return showPath("/", text) },
	"path": showPath, "giturl": showAddress, "weburl": showAddress, "httpsurl": showAddress, "chartsource": showAddress, "chartorigin": showAddress,
}

// aNumber matches numbers, ranges, sizes and durations.
var aNumber = pattern.New(`^([0-9]+(-[0-9]+)?|[0-9.]+ ?[KMGT]i?B?|([0-9.]+(ns|us|ms|s|m|h))+)$`)

func showText(_, text string) string { return text }

// showRecipient shows a public key without the comment that one of ssh may have.
func showRecipient(_, text string) string {
	fields := strings.Fields(text)
	return strings.Join(fields[:min(2, len(fields))], " ")
}

// showPath shows the path of something that exists. Where the name of a file
// belongs, people paste the secret that should be in it.
func showPath(dir, text string) string {
	if strings.HasPrefix(text, credentialPrefix) {
		return text
	}
	path := text
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	if _, err := os.Lstat(path); err != nil {
		return "(not shown: no file of this name)"
	}
	return text
}

// showAddress shows the part of an address that is no secret.
func showAddress(_, text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		// git@example.org:infra.git, or the path of a repository.
		if user, rest, ok := strings.Cut(text, "@"); ok && !strings.ContainsAny(user, ":/") {
			return user + "@" + rest
		}
		if filepath.IsAbs(text) {
			return showPath("/", text)
		}
		return notShown
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	if u.User != nil {
		shown.User = url.User(u.User.Username())
		if _, secret := u.User.Password(); secret || u.Scheme != "ssh" {
			shown.User = nil
		}
	}
	return shown.String()
}

// RedactConfig is a config.yaml in which only what is known to be no secret is
// shown.
func RedactConfig(path string) ([]byte, error) { return redactFile(path, configFile{}) }

// RedactPolicy is a policy.yaml, shown like a config.
func RedactPolicy(path string) ([]byte, error) { return redactFile(path, policyFile{}) }

// redactFile is a file of the host in which only what is known to be no secret is
// shown. of is a value of the type that describes it.
func redactFile(path string, of any) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("it is no YAML, and not shown (%d bytes)", len(b)) // the error could quote it
	}
	if len(doc.Content) == 0 {
		return []byte("# empty\n"), nil
	}
	out, err := yaml.Marshal(showNode(filepath.Dir(path), doc.Content[0], reflect.TypeOf(of), ""))
	if err != nil {
		return nil, fmt.Errorf("write it without what is not shown: %w", err)
	}
	return out, nil
}

// showNode is what is shown of a node that has a type, and the kind of text
// that its field has. Comments are not shown.
func showNode(dir string, n *yaml.Node, t reflect.Type, is string) any {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Struct:
		out := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			f, ok := findField(t, key)
			switch {
			case !ok:
				out[fmt.Sprintf("unknown-%d", i/2+1)] = unknownKey
			case f.Tag.Get("enum") != "" && n.Content[i+1].Kind == yaml.ScalarNode:
				out[key] = showEnum(n.Content[i+1].Value, f.Tag.Get("enum"))
			default:
				out[key] = showNode(dir, n.Content[i+1], f.Type, f.Tag.Get("is"))
			}
		}
		return out
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Map:
		out := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			out[showMirrorKey(n.Content[i].Value)] = showAddress("", n.Content[i+1].Value)
		}
		return out
	case n.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice:
		out := []any{}
		for _, e := range n.Content {
			out = append(out, showNode(dir, e, t.Elem(), is))
		}
		return out
	case n.Kind != yaml.ScalarNode:
		return notShown
	case t.Kind() == reflect.String:
		// What is wrong is printed by the program in words that show no more than
		// they may.
		f, ok := language.Formats[is]
		if show := showable[is]; show != nil && ok && f.Pattern.MatchString(n.Value) {
			return show(dir, n.Value)
		}
		return notShown
	case t == reflect.TypeFor[netip.Prefix](), t == reflect.TypeFor[anyPrefix]():
		if p, err := netip.ParsePrefix(n.Value); err == nil {
			return p.String()
		}
	case t.Kind() == reflect.Struct || t.Kind() == reflect.Int || t.Kind() == reflect.Int64 || t.Kind() == reflect.Bool:
		if len(n.Value) <= 20 && aNumber.MatchString(n.Value) || n.Value == "true" || n.Value == "false" {
			return n.Value
		}
	}
	return notShown
}

// findField is the field of a YAML key, in embedded structs too.
func findField(t reflect.Type, key string) (reflect.StructField, bool) {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name == key && name != "" {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func showEnum(text, enum string) string {
	for _, v := range strings.Split(enum, ",") {
		if v == text {
			return text
		}
	}
	return notShown
}

// showMirrorKey is the key of a mirror: an address, or the name of a registry.
func showMirrorKey(text string) string {
	if strings.Contains(text, "://") {
		return showAddress("", text)
	}
	if strings.ContainsAny(text, "@ ") {
		return notShown
	}
	return text
}
