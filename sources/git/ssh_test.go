package git

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/talos-agent/talos-agent/internal/fault"
)

func TestSSHTrust(t *testing.T) {
	o := newOrigin(t)
	one := o.commit("one", first)
	unknown, unknownPEM := newKey(t)
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	ec := must(ssh.NewSignerFromKey(ecKey))
	ed, _ := newKey(t)
	s := serveSSH(t, ec, ed) // has two kinds of host key, and prefers the first
	line := func(key ssh.PublicKey, hosts ...string) string { return knownhosts.Line(hosts, key) + "\n" }
	_, port, _ := net.SplitHostPort(s.addr)

	// A certificate for the host's key, signed by an authority.
	ca, _ := newKey(t)
	cert := &ssh.Certificate{Key: ed.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{"127.0.0.1"}, ValidBefore: ssh.CertTimeInfinity}
	check(t, cert.SignCert(rand.Reader, ca))
	certified := serveSSH(t, must(ssh.NewCertSigner(cert, ed)))
	_, certPort, _ := net.SplitHostPort(certified.addr)

	for name, tc := range map[string]struct {
		server *sshOrigin
		known  string
		kind   error // nil: accepted
		words  []string
	}{
		"first kind":            {s, line(ec.PublicKey(), s.addr), nil, nil},
		"second kind only":      {s, line(ed.PublicKey(), s.addr), nil, nil},
		"hashed":                {s, knownhosts.HashHostname(knownhosts.Normalize(s.addr)) + " ssh-ed25519 " + strings.Fields(line(ed.PublicKey(), "x"))[2] + "\n", nil, nil},
		"with comments":         {s, "# the forge\n\n" + line(ed.PublicKey(), s.addr), nil, nil},
		"wildcard":              {s, "*.0.0.1 " + strings.SplitN(line(ed.PublicKey(), "x"), " ", 2)[1], nil, nil},
		"authority":             {certified, "@cert-authority [127.0.0.1]:" + certPort + " " + strings.SplitN(line(ca.PublicKey(), "x"), " ", 2)[1], nil, nil},
		"another key":           {s, line(unknown.PublicKey(), s.addr), ErrHostKey, []string{"another host key", "posing", "ssh-keyscan -p " + port, ssh.FingerprintSHA256(ed.PublicKey())}},
		"revoked":               {s, line(ed.PublicKey(), s.addr) + "@revoked * " + strings.SplitN(line(ed.PublicKey(), "x"), " ", 2)[1], ErrHostKey, []string{"revoked"}},
		"authority of somebody": {certified, "@cert-authority [127.0.0.1]:" + certPort + " " + strings.SplitN(line(unknown.PublicKey(), "x"), " ", 2)[1], ErrHostKey, []string{"another host key"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := tc.server.config(o)
			c.KnownHosts = []byte(tc.known)
			got, err := open(t, c).Head(t.Context())
			if tc.kind == nil {
				check(t, err)
				if got.Hash != one {
					t.Errorf("head %+v, want %s", got, one)
				}
				return
			}
			wantKind(t, err, tc.kind, tc.words...)
		})
	}

	t.Run("no common kind", func(t *testing.T) {
		only := serveSSH(t, ec)
		c := only.config(o)
		c.KnownHosts = []byte(line(ed.PublicKey(), only.addr))
		_, err := open(t, c).Head(t.Context())
		wantKind(t, err, ErrHostKey, "none of the kinds", "ssh-keyscan")
	})
	t.Run("unknown host is refused before anything is sent", func(t *testing.T) {
		c := s.config(o)
		c.KnownHosts = []byte(line(ed.PublicKey(), "other.example.org"))
		_, err := Open(c)
		var fe *FieldError
		if !errors.As(err, &fe) || fe.Field != "known_hosts_file" || !strings.Contains(err.Error(), "no key for "+s.addr) || !strings.Contains(fault.HintOf(fe), "compare the fingerprint") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("deploy key not accepted", func(t *testing.T) {
		c := s.config(o)
		c.KnownHosts, c.SSHKey = []byte(line(ed.PublicKey(), s.addr)), unknownPEM
		_, err := open(t, c).Head(t.Context())
		wantKind(t, err, ErrAuth, "refuses the deploy key for user git", "deploy key", publicKey(unknown))
	})
	t.Run("no such repository", func(t *testing.T) {
		c := s.config(o)
		c.URL += "x"
		c.KnownHosts = []byte(line(ed.PublicKey(), s.addr))
		_, err := open(t, c).Head(t.Context())
		wantKind(t, err, ErrNotFound, "does not appear to be a git repository")
	})
	t.Run("not an ssh server", func(t *testing.T) {
		l := must(net.Listen("tcp", "127.0.0.1:0"))
		done := make(chan struct{})
		go func() {
			defer close(done)
			if c, err := l.Accept(); err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
				_ = c.Close()
			}
		}()
		c := s.config(o)
		c.URL = "ssh://git@" + l.Addr().String() + "/x"
		c.KnownHosts = []byte(line(ed.PublicKey(), l.Addr().String()))
		_, err := open(t, c).Head(t.Context())
		wantKind(t, err, ErrUnreachable)
		check(t, l.Close())
		<-done
	})
}

// TestSSHConnectionCut closes the connection at every stage of a fetch.
func TestSSHConnectionCut(t *testing.T) {
	o := newOrigin(t)
	s := serveSSH(t)
	c := s.config(o)
	noise := make([]byte, 50_000) // so that nearly all that is sent is the pack
	_, _ = rand.Read(noise)
	one := o.commit("one", with(first, "a", string(noise)))
	head(t, open(t, c))
	whole := s.sent.Load()
	for _, part := range []int64{1, 2, 3, 4, 5, 20, 50, 90} {
		s.sent.Store(0)
		s.cut.Store(whole * part / 100)
		_, err := open(t, c).Head(t.Context())
		wantKind(t, err, ErrUnreachable)
	}
	s.cut.Store(0)

	// The command itself fails in the middle of the pack, and reports it.
	wrap := "%s | dd bs=1 count=2000 2>/dev/null; echo went away >&2; exit 1"
	s.wrap.Store(&wrap)
	_, err := open(t, c).Head(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the server answers: went away") {
		t.Errorf("error %v", err)
	}
	s.wrap.Store(nil)
	if got := head(t, open(t, c)); got.Hash != one {
		t.Errorf("head %+v, want %s", got, one)
	}
}

// TestSSHIgnoresTheUser shows that neither the user's configuration nor an
// agent is asked.
func TestSSHIgnoresTheUser(t *testing.T) {
	o := newOrigin(t)
	one := o.commit("one", first)
	s := serveSSH(t)
	home := t.TempDir()
	check(t, os.MkdirAll(filepath.Join(home, ".ssh"), 0o700))
	check(t, os.WriteFile(filepath.Join(home, ".ssh/config"), []byte("Host *\n  Hostname 203.0.113.1\n  Port 1\n  ProxyCommand touch "+home+"/ran\n"), 0o600))
	check(t, os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[url \"ssh://203.0.113.1/\"]\n insteadOf = ssh://\n"), 0o600))
	t.Setenv("HOME", home)
	t.Setenv("SSH_AUTH_SOCK", filepath.Join(home, "agent"))
	t.Setenv("SSH_KNOWN_HOSTS", filepath.Join(home, "none"))
	t.Setenv("GIT_SSH_COMMAND", "touch "+home+"/ran")
	t.Setenv("ALL_PROXY", "socks5://203.0.113.1:1")
	t.Setenv("HTTPS_PROXY", "http://203.0.113.1:1")
	if c := head(t, open(t, s.config(o))); c.Hash != one {
		t.Errorf("head %+v, want %s", c, one)
	}
	if got, want := <-s.commands, "git-upload-pack '"+o.dir+"'"; got != want {
		t.Errorf("ran %q, want %q", got, want)
	}
	if _, err := os.Stat(home + "/ran"); err == nil {
		t.Error("a command of the user's configuration ran")
	}
}

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{
		"/a b.git":        `'/a b.git'`,
		"/a'; rm -rf /'":  `'/a'\''; rm -rf /'\'''`,
		"/a!b":            `'/a'\!'b'`,
		"$(touch x)`y`\\": "'$(touch x)`y`\\'",
	} {
		if got := shellQuote(in); got != want {
			t.Errorf("%q quoted as %s, want %s", in, got, want)
		}
	}
}
