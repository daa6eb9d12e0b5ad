package redaction

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/text"
)

const sample = `version: v1alpha1
machine:
  type: controlplane
  token: abcdef.0123456789abcdef
  certSANs: [10.5.0.11, k8s.example.org]
  env: {HTTPS_PROXY: "http://user:hunter22@proxy.example.org:3128", PIN: "1234"}
  files:
    - content: |
        first line of a secret
        s3cond
      path: /var/etc/x
cluster:
  id: "1"
  controlPlane: {endpoint: "https://10.5.0.11:6443"}
`

func TestRedacted(t *testing.T) {
	for _, tc := range []struct{ message, want string }{
		{"1 error occurred:\n\t* v1alpha1.Config: 2 errors occurred:\n\t* cluster controlplane endpoint is required\n\t* b\n\n\n\n", "v1alpha1.Config: cluster controlplane endpoint is required; b"},
		{`invalid endpoint "https://10.5.0.11:6443" at 10.5.0.11`, `invalid endpoint "https://10.5.0.11:6443" at 10.5.0.11`},
		{"bad token abcdef.0123456789abcdef", "bad token [...]"},
		{`parse "http://user:hunter22@proxy.example.org:3128": no`, `parse "[...]": no`},
		{"password hunter22, pin 1234, port 12345", "password [...], pin [...], port 12345"},
		{"found `s3cond` and first line of a secret", "found `[...]` and [...]"},
		{"can't be applied in immediate mode\ndiff:\n-  a: abcdef\n", "can't be applied in immediate mode"},
		{"Dry run summary:\nx\nConfig diff:\n\n--- a\n+++ b\n", "Dry run summary: x"},
		{"line 1: unknown keys found during decoding:\nmachine:\n    tokn: anything at all\n    a: {b: 1, c: 2, d: 3}\n", "line 1: there is no setting machine.tokn, machine.a.b, machine.a.c, and 1 more"},
		{"unknown keys found during decoding:\n\tnot: [yaml", "there is no setting [...]"},
		{"", ""},
	} {
		if got := Message(tc.message, []byte(sample)); got != tc.want {
			t.Errorf("%q\nis reported as %q,\nwant       %q", tc.message, got, tc.want)
		}
	}
	if got := Message("anything", []byte("a: [")); strings.Contains(got, "anything") {
		t.Errorf("without a config to compare with: %q", got)
	}
}

// TestRedactedKeepsSecrets: whatever is put together from a config's secrets,
// none of them comes through.
func TestRedactedKeepsSecrets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.OneOf(
			rapid.Custom(func(t *rapid.T) string { return hex.EncodeToString(rapid.SliceOfN(rapid.Byte(), 8, 40).Draw(t, "hex")) }),
			rapid.Custom(func(t *rapid.T) string {
				return base64.StdEncoding.EncodeToString(rapid.SliceOfN(rapid.Byte(), 8, 40).Draw(t, "base64"))
			}),
			rapid.StringMatching(`[a-z]{2,10}[0-9A-Z][a-zA-Z0-9_.-]{5,30}`),
		)
		secrets := rapid.SliceOfN(secret, 1, 5).Draw(t, "secrets")
		config := "version: v1alpha1\nmachine:\n  type: worker\n"
		for i, s := range secrets {
			config += fmt.Sprintf("  key%d: %q\n", i, s)
		}
		glue := rapid.SampledFrom([]string{" ", "\n", "\"", ": ", "`", "unknown keys found during decoding:\n", "* ", "machine:\n  a: ", "x", "\ndiff:\n", "|\n  ", "'"})
		message := ""
		for range rapid.IntRange(1, 12).Draw(t, "pieces") {
			message += glue.Draw(t, "glue") + rapid.SampledFrom(secrets).Draw(t, "secret")
		}
		got := Message(message, []byte(config))
		for _, s := range secrets {
			if strings.Contains(got, s) {
				t.Fatalf("%q of %q comes through: %q", s, message, got)
			}
		}
	})
}

func FuzzRedacted(f *testing.F) {
	f.Add("bad token abcdef.0123456789abcdef", sample)
	f.Add("unknown keys found during decoding:\nmachine: {a: &a [*a]}", sample)
	f.Add("diff:\n", "a: &a [b]\nc: *a\n---\n")
	f.Fuzz(func(t *testing.T, message, config string) {
		got := Message(message, []byte(config))
		if len(got) > MaxWords+3 || strings.ContainsFunc(got, unicode.IsControl) {
			t.Errorf("not fit for one line: %q", got)
		}
		values, ok := ListScalars([]byte(config))
		if !ok {
			return
		}
		for _, v := range values {
			if len(v) >= 16 && v != masked && strings.Contains(got, v) && !strings.Contains(message, unknownKeys) && !strings.Contains(v, masked) && !strings.Contains(" there is no setting its words are left out", v) && text.Sanitize(v, MaxWords) == v && !stitched(message, v) {
				t.Errorf("%q comes through: %q", v, got)
			}
		}
	})
}

// stitched reports whether a value is not in the message as it stands: then it
// came about only by taking other parts out.
func stitched(message, v string) bool { return !strings.Contains(message, v) }
