package helm

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func nothing(string) bool { return false }

func TestScrub(t *testing.T) {
	secrets := secretsIn([]byte(`{"password":"hunter2 is mine","pin":48291,"big":1234567890,"short":"abc","on":true,"url":"postgres://app:s3cr3tpw@db/x","pem":"-----BEGIN KEY-----\nMIIBWzCCAQGgAwIB\n-----END KEY-----\n","list":[{"token":"tok-12345"}],"mode":"vxlan"}`))
	public := func(s string) bool { return s == "vxlan" }
	b64 := base64.StdEncoding.EncodeToString([]byte("hunter2 is mine"))
	for _, c := range []struct{ in, want string }{
		{"no secret here", "no secret here"},
		{"the password hunter2 is mine is too short", "the password [redacted] is too short"},
		{"hunter2 alone", "[redacted] alone"},
		{"pin 48291 at x.yaml:48291:3", "pin [redacted] at x.yaml:[redacted]:3"},
		{"number 1.23456789e+09", "number [redacted]"},
		{"abcdef is not abc", "abcdef is not [redacted]"},
		{"s3cr3tpw@db", "[redacted]@db"},
		{"cannot read MIIBWzCCAQGgAwIB here", "cannot read [redacted] here"},
		{`"-----BEGIN KEY-----\nMIIBWzCCAQGgAwIB\n-----END KEY-----\n"`, `"[redacted]"`},
		{"data " + b64, "data [redacted]"},
		{"map[password:x token:tok-12345]", "map[password:x token:[redacted]]"},
		{"map[a:" + strings.Repeat("x", 100) + "] is wrong", "map[...] is wrong"},
		{`Invalid value: v1.PodSpec{Volumes:[]v1.Volume{` + strings.Repeat("y", 100) + `}}: no`, "Invalid value: v1.PodSpec{...}: no"},
		{"invalid: [spec.a: Required value, spec.b: Invalid value: {" + strings.Repeat("w", 100) + "}: no]", "invalid: [spec.a: Required value, spec.b: Invalid value: {...}: no]"},
		{"unclosed {" + strings.Repeat("z", 100), "unclosed {...}"},
		{`services "web" is invalid`, `services "web" is invalid`},
		{`quoted "` + strings.Repeat("q", 100) + `" text`, `quoted "..." text`},
		{"lines \"a\nb\" end", `lines "..." end`},
		{"one `" + strings.Repeat("q", 100), "one `..."},
		{"mode vxlan\n\tis\x00 known", "mode vxlan is known"},
		{"\xff\xfe", "?"},
	} {
		if got := scrubText(c.in, secrets, public); got != c.want {
			t.Errorf("%q becomes %q, want %q", c.in, got, c.want)
		}
	}
	if got := scrubText(strings.Repeat("long ", 1000), nil, nothing); len(got) > maxWords+10 {
		t.Errorf("%d bytes are left", len(got))
	}
	if got := secretsIn([]byte("{")); got != nil {
		t.Errorf("secrets in what is no JSON: %v", got)
	}
}

// TestScrubHidesEveryValue: whatever a value is and however a message wraps it,
// it is not in what is shown.
func TestScrubHidesEveryValue(t *testing.T) {
	wraps := []string{"%s", "%q", "value %s: wrong", "map[a:%s b:c]", `{"a": %q}`, "execution error at (x.yaml:1:2): got %s", "a\n%s\nb"}
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.StringMatching(`[A-Za-z0-9+/=_.-]{8,60}`).Draw(t, "secret")
		around := rapid.StringMatching(`[ -~]{0,20}`)
		value := around.Draw(t, "before") + "\n" + secret + "\n" + around.Draw(t, "after")
		values, err := json.Marshal(map[string]any{"a": []any{secret, map[string]any{"b": value}}})
		if err != nil {
			t.Fatal(err)
		}
		text := rapid.SampledFrom([]string{secret, value, base64.StdEncoding.EncodeToString([]byte(secret))}).Draw(t, "text")
		message := fmt.Sprintf(rapid.SampledFrom(wraps).Draw(t, "wrap"), text)
		got := scrubText(message, secretsIn(values), nothing)
		if strings.Contains(got, secret) || strings.Contains(got, base64.StdEncoding.EncodeToString([]byte(secret))) {
			t.Fatalf("%q is in %q", secret, got)
		}
	})
}

func FuzzScrub(f *testing.F) {
	f.Add("a [b] {c} \"d\" `e", `{"a":"secret"}`)
	f.Fuzz(func(t *testing.T, words, values string) {
		got := scrubText(words, secretsIn([]byte(values)), nothing)
		if strings.ContainsAny(got, "\n\r\x00") || len(got) > maxWords+10 {
			t.Errorf("%q", got)
		}
	})
}

func TestHints(t *testing.T) {
	if findHint("something nobody has met") != "" {
		t.Error("there is a hint for everything")
	}
	for _, c := range hints {
		if c.words == "" || c.seen == "" || c.hint == "" {
			t.Errorf("row %+v is not complete", c)
		}
		if got := findHint("x: " + c.words + " y"); got == "" {
			t.Errorf("no hint for %q", c.words)
		}
	}
}

func TestReason(t *testing.T) {
	for in, want := range map[string]string{"a\nb\x00c": "a b c", "": ""} {
		if got := sanitize(in); got != want {
			t.Errorf("%q becomes %q", in, got)
		}
	}
}
