package secrets

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/talos-agent/talos-agent/internal/text"
)

const recipientsHint = "name age recipients in .sops.yaml: creation_rules: [{path_regex: 'secrets\\.sops\\.yaml$', age: age1...}]"

// creationRule is one entry of creation_rules in .sops.yaml: what is used of
// it, and by key what else it holds.
type creationRule struct {
	PathRegex string               `yaml:"path_regex"`
	Age       yaml.Node            `yaml:"age"`
	KeyGroups []keyGroup           `yaml:"key_groups"`
	Rest      map[string]yaml.Node `yaml:",inline"`
}

type keyGroup struct {
	Age   []string             `yaml:"age"`
	Merge []keyGroup           `yaml:"merge"`
	Rest  map[string]yaml.Node `yaml:",inline"`
}

// harmless are keys of a rule that select a part of a document to encrypt.
// Encrypt encrypts all of it, whatever they select.
var harmless = []string{
	"encrypted_regex", "unencrypted_regex", "encrypted_suffix", "unencrypted_suffix",
	"encrypted_comment_regex", "unencrypted_comment_regex", "mac_only_encrypted", "aws_profile",
}

// Recipients gives the age recipients that a .sops.yaml has for a file: those
// of the first creation rule whose path_regex matches the path, or that has
// none. The path is relative to the directory of .sops.yaml, with slashes. The
// result is without duplicates, in the order of the file.
//
// Errors call the file by the name that is given. They are *Error: ErrMalformed
// if sopsYAML cannot be read, ErrKeys if no rule matches or a recipient is not
// usable, ErrUnsupported if the rule asks for keys that are not age's, which
// would leave somebody unable to read what is encrypted here.
func Recipients(name string, sopsYAML []byte, path string) ([]string, error) {
	rules, bad := parseRules(sopsYAML)
	if bad != nil {
		return nil, bad.in(name)
	}
	for i, r := range rules {
		if r.PathRegex != "" {
			re, err := regexp.Compile(r.PathRegex)
			if err != nil {
				return nil, newError(ErrMalformed, "fix the regular expression", "creation rule %d: path_regex %s does not compile", i+1, formatRecipient(r.PathRegex)).in(name)
			}
			if !re.MatchString(path) {
				continue
			}
		}
		recipients, bad := r.recipients(i + 1)
		if bad != nil {
			return nil, bad.in(name)
		}
		return recipients, nil
	}
	return nil, newError(ErrKeys, recipientsHint, "no creation rule matches %s", formatRecipient(path)).in(name)
}

func parseRules(b []byte) ([]creationRule, *Error) {
	if len(b) > maxKeys {
		return nil, newError(ErrMalformed, "", "is longer than %d bytes", maxKeys)
	}
	var file struct {
		CreationRules []creationRule `yaml:"creation_rules"`
	}
	if err := yaml.Unmarshal(b, &file); err != nil {
		return nil, newError(ErrMalformed, recipientsHint, "cannot be read: %s", formatRecipient(text.OneLine(strings.TrimPrefix(err.Error(), "yaml: "))))
	}
	return file.CreationRules, nil
}

func (r *creationRule) recipients(n int) ([]string, *Error) {
	if bad := onlyAge(r.Rest, n); bad != nil {
		return nil, bad
	}
	var found []string
	switch {
	case len(r.KeyGroups) > 1:
		return nil, newError(ErrUnsupported, "use one key group; each of its keys opens the file", "creation rule %d splits the key over %d key groups", n, len(r.KeyGroups))
	case len(r.KeyGroups) == 1 && !isEmpty(&r.Age):
		return nil, newError(ErrMalformed, "put the recipients of age into the key group", "creation rule %d has both age and key_groups, of which sops uses key_groups only", n)
	case len(r.KeyGroups) == 1:
		var bad *Error
		if found, bad = r.KeyGroups[0].recipients(n); bad != nil {
			return nil, bad
		}
	default:
		list, ok := listOf(&r.Age)
		if !ok {
			return nil, newError(ErrMalformed, recipientsHint, "creation rule %d: age is neither a string nor a list of strings", n)
		}
		found = list
	}
	var out []string
	for _, s := range found {
		for s := range strings.SplitSeq(s, ",") {
			if s = strings.TrimSpace(s); s == "" || slices.Contains(out, s) {
				continue
			}
			if bad := checkRecipient(s); bad != nil {
				return nil, bad
			}
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, newError(ErrKeys, recipientsHint, "creation rule %d names no age recipient", n)
	}
	return out, nil
}

// recipients gives a group's recipients and those of the groups merged in.
func (g *keyGroup) recipients(n int) ([]string, *Error) {
	if bad := onlyAge(g.Rest, n); bad != nil {
		return nil, bad
	}
	out := slices.Clone(g.Age)
	for _, m := range g.Merge {
		more, bad := m.recipients(n)
		if bad != nil {
			return nil, bad
		}
		out = append(out, more...)
	}
	return out, nil
}

// onlyAge refuses what else a rule asks for: another kind of key, a threshold,
// or something of a newer sops.
func onlyAge(rest map[string]yaml.Node, n int) *Error {
	for _, key := range slices.Sorted(maps.Keys(rest)) {
		if v := rest[key]; !slices.Contains(harmless, key) && !isEmpty(&v) {
			return newError(ErrUnsupported, "use age recipients in this rule; the agent decrypts with nothing else", "creation rule %d asks for %s, which is not used here", n, formatRecipient(key))
		}
	}
	return nil
}

// resolveAlias follows an alias; the parser has refused those that lead in circles.
func resolveAlias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func isEmpty(n *yaml.Node) bool {
	n = resolveAlias(n)
	return n.IsZero() || n.Kind == yaml.ScalarNode && (n.Value == "" || n.ShortTag() == "!!null") || n.Kind != yaml.ScalarNode && len(n.Content) == 0
}

// listOf reads a string, or a list of strings.
func listOf(n *yaml.Node) ([]string, bool) {
	switch n = resolveAlias(n); {
	case isEmpty(n):
		return nil, true
	case n.Kind == yaml.ScalarNode:
		return []string{n.Value}, true
	case n.Kind != yaml.SequenceNode:
		return nil, false
	}
	var out []string
	for _, item := range n.Content {
		if item = resolveAlias(item); item.Kind != yaml.ScalarNode {
			return nil, false
		}
		out = append(out, item.Value)
	}
	return out, true
}
