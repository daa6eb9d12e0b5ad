package git

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/talos-agent/talos-agent/internal/fault"
)

func lockedKey(t testing.TB) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	return pem.EncodeToMemory(must(ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte("x"))))
}

func TestParseURL(t *testing.T) {
	for in, want := range map[string]location{
		"ssh://git@example.org/infra.git":        {"ssh", "git", "example.org", "22", "/infra.git"},
		"ssh://example.org:2222/a/b.git":         {"ssh", "git", "example.org", "2222", "/a/b.git"},
		"ssh://u@[2001:db8::1]:2222/a.git":       {"ssh", "u", "2001:db8::1", "2222", "/a.git"},
		"ssh://u@host/~me/a.git":                 {"ssh", "u", "host", "22", "~me/a.git"},
		"git@example.org:org/infra.git":          {"ssh", "git", "example.org", "22", "org/infra.git"},
		"example.org:/srv/infra.git":             {"ssh", "git", "example.org", "22", "/srv/infra.git"},
		"https://Example.org/org/Infra.git":      {"https", "", "example.org", "", "/org/Infra.git"},
		"https://deploy@example.org:8443/a.git/": {"https", "deploy", "example.org", "8443", "/a.git"},
		"http://127.84.1.9:3000/a.git":           {"http", "", "127.84.1.9", "3000", "/a.git"},
		"/srv/git/../git/infra.git":              {"file", "", "", "", "/srv/git/infra.git"},
		"file:///srv/git/infra.git":              {"file", "", "", "", "/srv/git/infra.git"},
	} {
		got, err := parseURL(in)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "infra.git", "./infra", "git://example.org/x.git", "ftp://example.org/x", "https://example.org", "https:///x", "ssh://example.org/",
		"https://u:s3cret@example.org/x", "https://example.org/x?token=s3cret", "https://example.org/x#s3cret", "https://s3cret\n@example.org/x",
		"file://other/x", "host:", ":path", "@host:x", "u:s3cret@host:x", "https://%zz/s3cret", "ssh://git@host:s3cret/x",
	} {
		if got, err := parseURL(in); err == nil {
			t.Errorf("%q accepted as %+v", in, got)
		} else if strings.Contains(err.Error(), "s3cret") || fault.HintOf(err) == "" {
			t.Errorf("%q: error %q with hint %q", in, err, fault.HintOf(err))
		}
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("ssh://git@example.org:22/infra.git")
	f.Add("git@example.org:infra.git")
	f.Add("https://u:p@[::1]:1/x")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := parseURL(s)
		if err != nil {
			return
		}
		if l.scheme == "file" {
			return
		}
		u, perr := url.Parse(l.String())
		if perr != nil {
			t.Skip("an address that Open refuses when it makes requests of it")
		}
		if _, has := u.User.Password(); has {
			t.Errorf("%q prints a password: %s", s, l)
		}
	})
}

func TestConfigErrorsNameTheField(t *testing.T) {
	_, key := newKey(t)
	host, _ := newKey(t)
	known := []byte(knownhosts.Line([]string{"example.org"}, host.PublicKey()))
	ok := Config{URL: "ssh://example.org/x.git", SSHKey: key, KnownHosts: known}
	with := func(f func(*Config)) Config { c := ok; f(&c); return c }
	check(t, must(Open(ok)).Close())
	for name, tc := range map[string]struct {
		c      Config
		fields []string
	}{
		"nothing":            {Config{}, []string{"url"}},
		"ssh without keys":   {Config{URL: ok.URL}, []string{"ssh_key_file", "known_hosts_file"}},
		"key with a lock":    {with(func(c *Config) { c.SSHKey = lockedKey(t) }), []string{"ssh_key_file"}},
		"public key":         {with(func(c *Config) { c.SSHKey = []byte("ssh-ed25519 AAAA") }), []string{"ssh_key_file"}},
		"known hosts":        {with(func(c *Config) { c.KnownHosts = []byte("example.org ssh-ed25519 AAAA") }), []string{"known_hosts_file"}},
		"branch":             {with(func(c *Config) { c.Branch = "a b" }), []string{"branch"}},
		"branch, refspec":    {with(func(c *Config) { c.Branch = "a:b" }), []string{"branch"}},
		"port":               {with(func(c *Config) { c.URL = "ssh://example.org:99999/x" }), []string{"url"}},
		"token over http":    {Config{URL: "http://127.0.0.1/x", Token: "t"}, []string{"token_file"}},
		"token over ssh":     {with(func(c *Config) { c.Token = "t" }), []string{"token_file"}},
		"token, two lines":   {Config{URL: "https://example.org/x", Token: "t\nu"}, []string{"token_file"}},
		"key over https":     {Config{URL: "https://example.org/x", SSHKey: key}, []string{"ssh_key_file"}},
		"authority":          {Config{URL: "https://example.org/x", CA: []byte("x")}, []string{"ca_file"}},
		"several at once":    {Config{URL: "http://example.org", Branch: "..", CA: []byte("x")}, []string{"url", "branch", "ca_file"}},
		"directory missing":  {Config{URL: "dir"}, []string{"directory"}},
		"directory, nowhere": {Config{URL: "dir", Dir: "/nonexistent/x"}, []string{"directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			if tc.c.URL == "dir" {
				_, err = OpenDir(tc.c)
			} else {
				_, err = Open(tc.c)
			}
			if err == nil {
				t.Fatal("accepted")
			}
			var got []string
			for _, e := range unjoin(err) {
				var fe *FieldError
				if !errors.As(e, &fe) {
					t.Fatalf("error %v names no field", e)
				}
				got = append(got, fe.Field)
			}
			slices.Sort(got)
			slices.Sort(tc.fields)
			if !slices.Equal(got, tc.fields) {
				t.Errorf("fields %v, want %v (%v)", got, tc.fields, err)
			}
		})
	}
}

func TestNothingPrintsACredential(t *testing.T) {
	_, key := newKey(t)
	host, _ := newKey(t)
	known := []byte(knownhosts.Line([]string{"example.org"}, host.PublicKey()))
	var out strings.Builder
	for _, c := range []Config{
		{URL: "https://me@example.org/x.git", Token: "s3cret"},
		{URL: "https://u:s3cret@example.org/x.git", Token: "s3cret"},
		{URL: "ssh://example.org/x.git", SSHKey: key, KnownHosts: known},
	} {
		values := []any{c, &c, struct{ C Config }{c}}
		if s, err := Open(c); err == nil {
			values = append(values, s)
		}
		for _, v := range values {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q"} {
				fmt.Fprintf(&out, verb+"\n", v)
			}
			slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		}
	}
	for _, secret := range []string{"s3cret", fmt.Sprintf("%x", "s3cret"), string(key), fmt.Sprint(key), fmt.Sprintf("%x", key), fmt.Sprintf("%#v", key)} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%.40q is printed", secret)
		}
	}
}

func unjoin(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}

func TestRemark(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"\n\n  one \ntwo":         "one",
		"remote:\nremote: x":      "remote: x",
		"\x1b[31mred\x00\u202eok": "[31mred  ok",
		strings.Repeat("é", 201):  strings.Repeat("é", 200) + "...",
		"bad \xff byte":           "bad \ufffd byte",
	} {
		if got := cleanRemark(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
