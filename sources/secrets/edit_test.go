package secrets

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/getsops/sops/v3"
)

// TestSetValues: values come to a document that sops wrote, whoever could read it still
// can, and what is not changed is not written again.
func TestSetValues(t *testing.T) {
	ours, other := newMember(), newMember()
	before := sopsFile(t, "# what it is\ncluster: {id: one}\nvalues:\n    # of a person\n    old: \"1\"\n    kept: same\n", func(m *sops.Metadata) {
		m.UnencryptedSuffix = "_plain"
	}, ours.public, other.public)
	after, err := SetValues(t.Context(), "s.yaml", before, identities(t, ours), map[string]string{"old": "2", "new_b": "x", "new_a": "two\nlines"})
	check(t, err)
	for _, m := range []member{ours, other} {
		plain, err := Decrypt(t.Context(), "s.yaml", after, identities(t, m))
		check(t, err)
		want := map[string]any{"cluster": map[string]any{"id": "one"}, "values": map[string]any{"old": "2", "kept": "same", "new_a": "two\nlines", "new_b": "x"}}
		if got := decode(t, plain); !reflect.DeepEqual(got, want) {
			t.Errorf("it holds %v, and not %v", got, want)
		}
	}
	kept := func(doc []byte, key string) string {
		_, rest, ok := strings.Cut(string(doc), key+": ")
		if !ok {
			t.Fatalf("no %s in %s", key, doc)
		}
		line, _, _ := strings.Cut(rest, "\n")
		return line
	}
	for _, key := range []string{"kept", "id"} {
		if was, is := kept(before, key), kept(after, key); was != is {
			t.Errorf("%s was written anew: %s, then %s", key, was, is)
		}
	}
	if kept(before, "old") == kept(after, "old") {
		t.Error("a value that changed has its old ciphertext")
	}
	if strings.Count(string(after), "#ENC[") != 2 || strings.Contains(string(after), "of a person") {
		t.Errorf("the comments are not there, or in clear:\n%s", after)
	}
	if !strings.Contains(string(after), "unencrypted_suffix: _plain") || strings.Index(string(after), "new_a") > strings.Index(string(after), "new_b") {
		t.Errorf("settings or order are not as they should be:\n%s", after)
	}
	// A second edit of the same values changes neither.
	again, err := SetValues(t.Context(), "s.yaml", after, identities(t, other), map[string]string{"new_a": "two\nlines"})
	check(t, err)
	if a, b, _ := bytes.Cut(again, []byte("\nsops:")); len(b) == 0 || !bytes.HasPrefix(after, a) {
		t.Error("setting what is so already wrote it anew")
	}
}

// TestSetValuesMakesTheMapping: a document without values gets them.
func TestSetValuesMakesTheMapping(t *testing.T) {
	m := newMember()
	for _, text := range []string{"cluster: {id: one}\n", "values:\ncluster: {id: one}\n", "values: {}\ncluster: {id: one}\n"} {
		after, err := SetValues(t.Context(), "s.yaml", encrypt(t, text, m.public), identities(t, m), map[string]string{"a": "b"})
		check(t, err)
		plain, err := Decrypt(t.Context(), "s.yaml", after, identities(t, m))
		check(t, err)
		want := map[string]any{"cluster": map[string]any{"id": "one"}, "values": map[string]any{"a": "b"}}
		if got := decode(t, plain); !reflect.DeepEqual(got, want) {
			t.Errorf("%q became %v", text, got)
		}
	}
}

// TestSetValuesRefuses: nothing is changed in what cannot be proven, and what the agent
// could not read afterwards is not written.
func TestSetValuesRefuses(t *testing.T) {
	m := newMember()
	good := encrypt(t, "values: {a: b}\n", m.public)
	one := map[string]string{"c": "d"}
	_, err := SetValues(t.Context(), "s.yaml", good, identities(t, newMember()), one)
	wantKind(t, err, ErrNoKey, "s.yaml")
	_, err = SetValues(t.Context(), "s.yaml", bytes.Replace(good, []byte(" a: ENC"), []byte(" b: ENC"), 1), identities(t, m), one)
	wantKind(t, err, ErrTampered, "s.yaml")
	_, err = SetValues(t.Context(), "s.yaml", []byte("values: {a: b}\n"), identities(t, m), one)
	wantKind(t, err, ErrPlaintext, "s.yaml")
	_, err = SetValues(t.Context(), "s.yaml", encrypt(t, "values: [a]\n", m.public), identities(t, m), one)
	wantKind(t, err, ErrMalformed, "s.yaml", "values is not a mapping")
	_, err = SetValues(t.Context(), "s.yaml", good, identities(t, m), map[string]string{"x_unencrypted": "y"})
	wantKind(t, err, ErrUnsupported, "s.yaml", "x_unencrypted")
}
