package secrets

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/getsops/sops/v3/config"
)

func TestRecipients(t *testing.T) {
	a, b, s := newMember().public, newMember().public, newSSHEd25519(t, "").public
	const path = "inventory/dev/secrets.sops.yaml"
	expand := strings.NewReplacer("AAA", a, "BBB", b, "SSS", s)
	for name, tc := range map[string]struct {
		text  string
		want  string // space is a separator; "" is refused
		kind  error
		words []string
	}{
		"one rule for all":       {"creation_rules: [{age: AAA}]", "AAA", nil, nil},
		"a folded list":          {"creation_rules:\n- path_regex: \\.sops\\.yaml$\n  age: >-\n    AAA,\n    BBB,\n", "AAA BBB", nil, nil},
		"a list":                 {"creation_rules: [{age: [AAA, BBB, AAA]}]", "AAA BBB", nil, nil},
		"the first that matches": {"creation_rules:\n- {path_regex: ^inventory/prod/, age: AAA}\n- {path_regex: ^inventory/dev/, age: BBB}\n- {age: AAA}\n", "BBB", nil, nil},
		"the rest":               {"creation_rules: [{path_regex: x, age: AAA}, {age: BBB}]", "BBB", nil, nil},
		"anchors":                {"keys: [&a AAA, &b BBB]\ncreation_rules: [{age: [*a, *b]}]", "AAA BBB", nil, nil},
		"a key group":            {"creation_rules: [{key_groups: [{age: [AAA, BBB]}]}]", "AAA BBB", nil, nil},
		"merged groups":          {"creation_rules: [{key_groups: [{age: [AAA], merge: [{age: [BBB]}, {merge: [{age: [AAA]}]}]}]}]", "AAA BBB", nil, nil},
		"settings of encryption": {"creation_rules: [{age: AAA, encrypted_regex: ^data$, mac_only_encrypted: true}]\nstores: {yaml: {indent: 2}}", "AAA", nil, nil},
		"empty others":           {"creation_rules: [{age: AAA, pgp: '', kms: [], hc_vault_transit_uri: }]", "AAA", nil, nil},

		"an ssh key":          {"creation_rules: [{age: 'SSS me@host'}]", "", nil, nil}, // see below
		"no rules":            {"stores: {}", "", ErrKeys, []string{"no creation rule matches " + path, "creation_rules"}},
		"empty file":          {"", "", ErrKeys, []string{"no creation rule"}},
		"none matches":        {"creation_rules: [{path_regex: prod, age: AAA}]", "", ErrKeys, []string{"no creation rule matches"}},
		"no recipient":        {"creation_rules: [{path_regex: dev}]", "", ErrKeys, []string{"rule 1 names no age recipient"}},
		"pgp too":             {"creation_rules: [{age: AAA, pgp: 85D77543B3D624B63CEA9E6DBC17301B491B3F21}]", "", ErrUnsupported, []string{"asks for pgp"}},
		"kms":                 {"creation_rules: [{path_regex: x}, {kms: arn}]", "", ErrUnsupported, []string{"rule 2 asks for kms"}},
		"vault in a group":    {"creation_rules: [{key_groups: [{age: [AAA], hc_vault: [x]}]}]", "", ErrUnsupported, []string{"hc_vault"}},
		"kms in a merge":      {"creation_rules: [{key_groups: [{merge: [{kms: [{arn: x}]}]}]}]", "", ErrUnsupported, []string{"kms"}},
		"shamir":              {"creation_rules: [{key_groups: [{age: [AAA]}, {age: [BBB]}]}]", "", ErrUnsupported, []string{"2 key groups"}},
		"threshold":           {"creation_rules: [{age: AAA, shamir_threshold: 2}]", "", ErrUnsupported, []string{"shamir_threshold"}},
		"both":                {"creation_rules: [{age: AAA, key_groups: [{age: [BBB]}]}]", "", ErrMalformed, []string{"both age and key_groups"}},
		"something newer":     {"creation_rules: [{age: AAA, quantum: yes}]", "", ErrUnsupported, []string{"quantum"}},
		"a plugin":            {"creation_rules: [{age: age1yubikey1qwerty}]", "", ErrKeys, []string{"plugin"}},
		"a private key":       {"creation_rules: [{age: AGE-SECRET-KEY-1QQQ}]", "", ErrKeys, []string{"private key"}},
		"a bad recipient":     {"creation_rules: [{age: 'AAA,age1nonsense'}]", "", ErrKeys, []string{"age1nonsense"}},
		"a mapping for age":   {"creation_rules: [{age: {x: y}}]", "", ErrMalformed, []string{"neither a string nor a list"}},
		"a bad expression":    {"creation_rules: [{path_regex: '(', age: AAA}]", "", ErrMalformed, []string{"path_regex ("}},
		"no YAML":             {"creation_rules: [", "", ErrMalformed, []string{".sops.yaml: cannot be read"}},
		"rules of wrong kind": {"creation_rules: 5", "", ErrMalformed, []string{"cannot be read"}},
		"a bomb":              {bomb + "creation_rules: [{age: *a6}]", "", ErrMalformed, nil},
	} {
		t.Run(name, func(t *testing.T) {
			text := expand.Replace(tc.text)
			got, err := Recipients(".sops.yaml", []byte(text), path)
			if name == "an ssh key" {
				check(t, err)
				if len(got) != 1 || got[0] != s+" me@host" {
					t.Errorf("recipients %q", got)
				}
				return
			}
			if tc.want == "" {
				wantKind(t, err, tc.kind, tc.words...)
				return
			}
			check(t, err)
			if want := strings.Fields(expand.Replace(tc.want)); !reflect.DeepEqual(got, want) {
				t.Errorf("recipients %v, want %v", got, want)
			}
			// sops chooses the same.
			conf := filepath.Join(t.TempDir(), ".sops.yaml")
			check(t, os.WriteFile(conf, []byte(text), 0o600))
			rule, err := config.LoadCreationRuleForFile(conf, filepath.Join(filepath.Dir(conf), path), nil)
			check(t, err)
			theirs := map[string]bool{}
			for _, g := range rule.KeyGroups {
				for _, k := range g {
					theirs[k.ToString()] = true
				}
			}
			for _, r := range got {
				if !theirs[r] {
					t.Errorf("sops does not encrypt to %s", r)
				}
				delete(theirs, r)
			}
			if len(theirs) > 0 {
				t.Errorf("sops encrypts to %v too", theirs)
			}
		})
	}
}

func FuzzRecipients(f *testing.F) {
	a := newMember().public
	f.Add([]byte("creation_rules: [{path_regex: x, age: "+a+"}]"), "x")
	f.Add([]byte("creation_rules: [{key_groups: [{merge: [{age: ["+a+"]}]}]}]"), "")
	f.Add([]byte(bomb), "x")
	f.Fuzz(func(t *testing.T, text []byte, path string) {
		got, err := Recipients(".sops.yaml", text, path)
		if (err == nil) != (len(got) > 0) {
			t.Errorf("recipients %v, error %v", got, err)
		}
	})
}
