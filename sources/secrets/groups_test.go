package secrets

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"filippo.io/age"
	"filippo.io/age/armor"
	"github.com/getsops/sops/v3"
	sopsage "github.com/getsops/sops/v3/age"
)

// groupOf is a key group of some members; as in sopsFile each has a key of its own in
// the file.
func groupOf(members ...member) sops.KeyGroup {
	var group sops.KeyGroup
	for _, m := range members {
		group = append(group, &sopsage.MasterKey{Recipient: m.public})
	}
	return group
}

// split is a file whose key is split over groups, of which so many are needed.
func split(t *testing.T, threshold int, groups ...sops.KeyGroup) []byte {
	t.Helper()
	return sopsFile(t, plain, func(m *sops.Metadata) { m.KeyGroups, m.ShamirThreshold = groups, threshold })
}

// TestKeyGroups: a key that is split is put together from the groups that the agent's
// keys open, and from no fewer than it takes.
func TestKeyGroups(t *testing.T) {
	ours, second, other := newMember(), newHybrid(), newMember()
	for name, c := range map[string]struct {
		file []byte
		ids  *Identities
		says string // "": it is opened
	}{
		"two of three, one key in two":     {split(t, 2, groupOf(other), groupOf(ours, other), groupOf(other, ours)), identities(t, ours), ""},
		"two of three, two keys":           {split(t, 2, groupOf(ours), groupOf(other), groupOf(second)), identities(t, ours, second), ""},
		"all of two, as no threshold is":   {split(t, 0, groupOf(ours), groupOf(second)), identities(t, ours, second), ""},
		"two of two, one is not ours":      {split(t, 2, groupOf(ours), groupOf(other)), identities(t, ours), "2 key groups, of which it takes 2 to open it, and the agent's key opens 1"},
		"three of four, two are not ours":  {split(t, 3, groupOf(ours), groupOf(other), groupOf(ours), groupOf(other)), identities(t, ours), "4 key groups, of which it takes 3 to open it, and the agent's key opens 2"},
		"none is ours, whatever is needed": {split(t, 2, groupOf(other), groupOf(other)), identities(t, ours), "2 key groups, of which it takes 2 to open it, and the agent's key opens 0"},
	} {
		got, err := Decrypt(t.Context(), "s.yaml", c.file, c.ids)
		if c.says != "" {
			wantKind(t, err, ErrNoKey, "s.yaml: ", c.says, "sops updatekeys")
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !reflect.DeepEqual(decode(t, got), decode(t, []byte(plain))) {
			t.Errorf("%s: another document", name)
		}
		// It is edited as well, for all who could read it.
		after, err := SetValues(t.Context(), "s.yaml", c.file, c.ids, map[string]string{"x": "y"})
		check(t, err)
		if _, err := Decrypt(t.Context(), "s.yaml", after, c.ids); err != nil || bytes.Count(after, []byte("recipient: ")) != bytes.Count(c.file, []byte("recipient: ")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestKeyGroupsAreTampered: nobody is led to another key by the settings of the file,
// which nothing authenticates.
func TestKeyGroupsAreTampered(t *testing.T) {
	ours, other := newMember(), newMember()
	file := string(split(t, 3, groupOf(ours), groupOf(other), groupOf(ours)))
	fewer := strings.Replace(file, "shamir_threshold: 3", "shamir_threshold: 2", 1)
	if fewer == file {
		t.Fatal(file)
	}
	_, err := Decrypt(t.Context(), "s.yaml", []byte(fewer), identities(t, ours))
	wantKind(t, err, ErrTampered, "s.yaml: ")
	// One part twice.
	same := split(t, 2, groupOf(ours), groupOf(ours))
	tree, bad := loadTree(same)
	if bad != nil {
		t.Fatal(bad)
	}
	tree.Metadata.KeyGroups[1] = tree.Metadata.KeyGroups[0]
	_, bad = dataKey(t.Context(), tree.Metadata, identities(t, ours))
	wantKind(t, bad, ErrTampered, "do not fit together")
	// A whole key in the place of a part.
	one, bad := loadTree(encrypt(t, plain, ours.public))
	if bad != nil {
		t.Fatal(bad)
	}
	tree.Metadata.KeyGroups[1] = one.Metadata.KeyGroups[0]
	_, bad = dataKey(t.Context(), tree.Metadata, identities(t, ours))
	wantKind(t, bad, ErrTampered, "is damaged")
	for _, n := range []int{0, maxGroups + 1} {
		groups := strings.Repeat("    - age: []\n", n)
		text := "a: " + strings.TrimSpace(cipherOf(t, ours)) + "\nsops:\n  key_groups:\n" + groups + "  lastmodified: \"2026-01-01T00:00:00Z\"\n  mac: " + strings.TrimSpace(cipherOf(t, ours)) + "\n  version: 3.13.3\n"
		_, err := Decrypt(t.Context(), "s.yaml", []byte(text), identities(t, ours))
		wantKind(t, err, ErrMalformed, "s.yaml: ")
	}
}

// cipherOf is an encrypted value.
func cipherOf(t *testing.T, m member) string {
	t.Helper()
	_, rest, _ := strings.Cut(string(encrypt(t, "a: b\n", m.public)), "a: ")
	line, _, _ := strings.Cut(rest, "\n")
	return line
}

// pluginRecipient stands for a recipient that a plugin of age encrypts to, such as a
// YubiKey: its stanza is one that no key of ours opens.
type pluginRecipient struct{}

func (pluginRecipient) Wrap([]byte) ([]*age.Stanza, error) {
	return []*age.Stanza{{Type: "piv-p256", Args: []string{"AAAAAA", "AAAA"}, Body: make([]byte, 32)}}, nil
}

// TestKeysOfPeople: what else a file is encrypted to, for people, keeps the agent from
// nothing: keys of plugins of age, of PGP and of key services are neither used nor
// asked.
func TestKeysOfPeople(t *testing.T) {
	ours := newMember()
	file := string(encrypt(t, plain, ours.public))
	var b bytes.Buffer
	a := armor.NewWriter(&b)
	w, err := age.Encrypt(a, pluginRecipient{})
	check(t, err)
	_, err = w.Write(make([]byte, dataKeySize))
	check(t, err)
	check(t, w.Close())
	check(t, a.Close())
	var others strings.Builder
	others.WriteString("  age:\n    - recipient: age1yubikey1qwerty\n      enc: |\n")
	for line := range strings.Lines(b.String()) {
		others.WriteString("        " + line)
	}
	const rest = `  pgp:
    - created_at: "2026-01-01T00:00:00Z"
      enc: "-----BEGIN PGP MESSAGE-----"
      fp: 85D77543B3D624B63CEA9E6DBC17301B491B3F21
  kms:
    - arn: arn:aws:kms:eu-central-1:111122223333:key/a
      created_at: "2026-01-01T00:00:00Z"
      enc: AAAA
      aws_profile: ""
  hc_vault:
    - vault_address: https://127.0.0.1:1
      engine_path: transit
      key_name: sops
      created_at: "2026-01-01T00:00:00Z"
      enc: vault:v1:AAAA
`
	mixed := strings.Replace(file, "  age:\n", others.String(), 1)
	mixed = strings.Replace(mixed, "  lastmodified:", rest+"  lastmodified:", 1)
	if strings.Count(mixed, "recipient: ") != 2 || !strings.Contains(mixed, "hc_vault") {
		t.Fatal(mixed)
	}
	got, err := Decrypt(t.Context(), "s.yaml", []byte(mixed), identities(t, ours))
	check(t, err)
	if !reflect.DeepEqual(decode(t, got), decode(t, []byte(plain))) {
		t.Error("another document")
	}
	after, err := SetValues(t.Context(), "s.yaml", []byte(mixed), identities(t, ours), map[string]string{"x": "y"})
	check(t, err)
	for _, kept := range []string{"age1yubikey1qwerty", "85D77543B3D624B63CEA9E6DBC17301B491B3F21", "arn:aws:kms", "vault:v1:AAAA"} {
		if !strings.Contains(string(after), kept) {
			t.Errorf("an edit drops %s", kept)
		}
	}
	_, err = Decrypt(t.Context(), "s.yaml", []byte(mixed), identities(t, newMember()))
	wantKind(t, err, ErrNoKey, "age1yubikey1qwerty", fmt.Sprintf("%s (and hc_vault, kms, pgp keys, which are not used)", ours.public))
}
