package gitserver

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/transport"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/go-git/go-git/v5/storage/memory"
	"golang.org/x/crypto/ssh"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice/servicetest"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// sshAuth is go-git's login with a key, and trust in a known_hosts file.
func sshAuth(b *servicetest.Bench, s *SSH, key []byte) transport.AuthMethod {
	b.Helper()
	known := filepath.Join(b.TempDir(), "known_hosts")
	if err := os.WriteFile(known, s.KnownHosts(), 0o600); err != nil {
		b.Fatal(err)
	}
	auth := must[*gitssh.PublicKeys](b)(gitssh.NewPublicKeys("git", key, ""))
	auth.HostKeyCallback = must[ssh.HostKeyCallback](b)(gitssh.NewKnownHostsCallback(known))
	return auth
}

func TestSSHWithGoGit(t *testing.T) {
	servicetest.OnLoopback(t, func(b *servicetest.Bench) {
		g, r := newGit(b, "sesame")
		s := servicetest.Opened[*SSH](b)(NewSSH(SSHConfig{World: b.World, Addr: "127.0.0.1:0", Server: g}))
		one := must[string](b)(r.Commit("main", content("a", "1"), "one"))
		store := memory.NewStorage()
		local := must[*git.Repository](b)(git.Init(store, nil))
		at := func(url string) *git.Remote {
			b.Helper()
			return must[*git.Remote](b)(local.CreateRemoteAnonymous(&config.RemoteConfig{Name: "anonymous", URLs: []string{url}}))
		}
		auth := sshAuth(b, s, s.ClientKey())
		fetch := func(want string) error {
			b.Helper()
			err := at(s.URL("org/infra")).FetchContext(b.Context(), &git.FetchOptions{
				Auth: auth, RefSpecs: []config.RefSpec{"+refs/heads/main:refs/remotes/origin/main"}, Tags: git.NoTags, Force: true,
			})
			if err == nil {
				if ref, err := store.Reference("refs/remotes/origin/main"); err != nil || ref.Hash().String() != want {
					b.Errorf("fetched %v (%v), want %s", ref, err, want)
				}
			}
			return err
		}
		if err := fetch(one); err != nil {
			b.Fatal(err)
		}
		two := must[string](b)(r.Commit("main", content("a", "2"), "two"))
		if err := fetch(two); err != nil {
			b.Fatal(err)
		}
		if _, err := at(s.URL("org/nothing")).ListContext(b.Context(), &git.ListOptions{Auth: auth}); err == nil {
			b.Error("a repository that is not there was listed")
		}
		_, unknown, err := newKey()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := at(s.URL("org/infra")).ListContext(b.Context(), &git.ListOptions{Auth: sshAuth(b, s, unknown)}); err == nil || !strings.Contains(err.Error(), "unable to authenticate") {
			b.Errorf("an unknown key got %v", err)
		}

		const op = "SSH git-upload-pack"
		for _, kind := range []world.FaultKind{world.LoseRequest, world.Answer, world.LoseReply} {
			three := must[string](b)(r.Commit("main", content("a", string(kind)), "more"))
			b.World.Inject(world.Fault{System: "git", Op: op, Subject: "org/infra", Kind: kind, Text: "the disk is full", Times: 1})
			err := fetch(three)
			if kind == world.LoseReply {
				// go-git takes an answer that broke off before its first byte
				// for one with nothing in it, and moves the reference.
				if store.HasEncodedObject(plumbing.NewHash(three)) == nil {
					b.Error("the pack of a lost servicetest.Reply arrived")
				}
				if err := store.RemoveReference("refs/remotes/origin/main"); err != nil {
					b.Fatal(err)
				}
			} else if err == nil {
				b.Errorf("%s: the fetch went through", kind)
			}
			b.World.Heal()
			if err := fetch(three); err != nil {
				b.Errorf("after %s: %v", kind, err)
			}
			if err := store.HasEncodedObject(plumbing.NewHash(three)); err != nil {
				b.Errorf("after %s: %v", kind, err)
			}
		}
	})
}

// A session lasts until the client has closed its side of it, however late that
// is: go-git takes one that ended before for a fetch that failed.
func TestSSHWaitsForItsClient(t *testing.T) {
	servicetest.OnLoopback(t, func(b *servicetest.Bench) {
		g, r := newGit(b, "")
		s := servicetest.Opened[*SSH](b)(NewSSH(SSHConfig{World: b.World, Addr: "127.0.0.1:0", Server: g}))
		head := must[string](b)(r.Commit("main", content("a", "1"), "one"))
		signer := must[ssh.Signer](b)(ssh.ParsePrivateKey(s.ClientKey()))
		client := must[*ssh.Client](b)(ssh.Dial("tcp", s.host, &ssh.ClientConfig{
			User: "git", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.FixedHostKey(s.hostKey.PublicKey()),
		}))
		defer client.Close()
		for range 20 {
			session := must[*ssh.Session](b)(client.NewSession())
			in, out := must[io.WriteCloser](b)(session.StdinPipe()), must[io.Reader](b)(session.StdoutPipe())
			if err := session.Start("git-upload-pack '/org/infra.git'"); err != nil {
				b.Fatal(err)
			}
			if _, err := fmt.Fprintf(in, "0040want %s side-band-64k\n00000009done\n", head); err != nil {
				b.Fatal(err)
			}
			lines := pktline.NewScanner(out)
			for flushes := 0; flushes < 2 && lines.Scan(); { // after the references, and after the pack
				if len(lines.Bytes()) == 0 {
					flushes++
				}
			}
			if err := lines.Err(); err != nil {
				b.Fatal(err)
			}
			// There and back, so that a server in a hurry has had its time.
			if _, _, err := client.SendRequest("keepalive", true, nil); err != nil {
				b.Fatal(err)
			}
			if err := in.Close(); err != nil {
				b.Errorf("the server ended the session before its client: %v", err)
			}
			if err := session.Wait(); err != nil {
				b.Error(err)
			}
		}
	})
}

func TestSSHWithRealGit(t *testing.T) {
	servicetest.OnLoopback(t, func(b *servicetest.Bench) {
		if _, err := exec.LookPath("ssh"); err != nil {
			b.Skip("no ssh here")
		}
		g, r := newGit(b, "")
		s := servicetest.Opened[*SSH](b)(NewSSH(SSHConfig{World: b.World, Addr: "127.0.0.1:0", Server: g}))
		base := must[string](b)(r.Commit("main", content("a", "1"), "base"))
		user := newRealGit(b)
		key, known := filepath.Join(user.dir, "key"), filepath.Join(user.dir, "known_hosts")
		if err := os.WriteFile(key, s.ClientKey(), 0o600); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(known, s.KnownHosts(), 0o600); err != nil {
			b.Fatal(err)
		}
		user.env = append(user.env, "GIT_SSH_COMMAND=ssh -F none -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile="+known+" -i "+key)
		user.run("clone", "-q", s.URL("org/infra"), "work")
		user.dir = filepath.Join(user.dir, "work")
		if head := user.run("rev-parse", "HEAD"); head != base {
			b.Errorf("cloned %s, want %s", head, base)
		}
		for range 20 {
			user.run("commit", "-q", "--allow-empty", "-m", "own")
		}
		must[string](b)(r.Commit("main", content("b", "2"), "by the lab"))
		user.run("pull", "-q", "--rebase")
		user.run("push", "-q", "origin", "main")
		if head := must[string](b)(r.Head("main")); head != user.run("rev-parse", "HEAD") {
			b.Errorf("main is at %s after the push", head)
		}
		if out, err := user.try("ls-remote", s.URL("org/nothing")); err == nil || !strings.Contains(out, "does not appear to be a git repository") {
			b.Errorf("a repository that is not there: %s (%v)", out, err)
		}

		// A push whose servicetest.Reply is lost has happened.
		pushed := user.write("c", "3")
		b.World.Inject(world.Fault{System: "git", Op: "SSH git-receive-pack", Kind: world.LoseReply})
		if out, err := user.try("push", "-q", "origin", "main"); err == nil {
			b.Errorf("the push knows of its success: %s", out)
		}
		if head := must[string](b)(r.Head("main")); head != pushed {
			b.Errorf("main is at %s, want %s", head, pushed)
		}
		b.World.Heal()
		b.World.Inject(world.Fault{System: "git", Op: "SSH git-receive-pack", Kind: world.Answer, Text: "repository is read-only"})
		if out, err := user.try("push", "origin", "main:other"); err == nil || !strings.Contains(out, "repository is read-only") {
			b.Errorf("a refused push says %s (%v)", out, err)
		}
	})
}

// A client that hangs is no reason not to close.
func TestSSHClosesOnAHangingClient(t *testing.T) {
	servicetest.OnLoopback(t, func(b *servicetest.Bench) {
		g, _ := newGit(b, "")
		s, err := NewSSH(SSHConfig{World: b.World, Addr: "127.0.0.1:0", Server: g})
		if err != nil {
			b.Fatal(err)
		}
		host := strings.TrimSuffix(strings.TrimPrefix(s.URL(""), "ssh://git@"), "/.git")
		c, err := b.World.Net.DialContext(b.Context(), "tcp", host)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Read(make([]byte, 1)); err != nil { // the server's greeting
			b.Fatal(err)
		}
		for range 2 {
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
	if _, err := NewSSH(SSHConfig{}); err == nil {
		t.Error("an ssh server opened without a world")
	}
}

func TestParseCommand(t *testing.T) {
	for line, want := range map[string]string{
		"git-upload-pack '/org/infra.git'": "git-upload-pack /org/infra.git",
		"git-receive-pack 'infra'":         "git-receive-pack infra",
		"git-upload-pack /org/infra.git":   "", "git-upload-pack ''": "", "git-upload-pack '": "",
		"rm -rf '/'": "", "": "",
	} {
		service, path, err := parseCommand(line)
		if got := strings.TrimSpace(service + " " + path); got != want || (err == nil) != (want != "") {
			t.Errorf("%q was read as %q (%v)", line, got, err)
		}
	}
}
