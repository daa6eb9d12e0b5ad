package git

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/worker/workertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// origin is a bare repository made and changed by the real git.
type origin struct {
	t   testing.TB
	dir string // bare
	tmp string // work tree to commit from
}

func newOrigin(t testing.TB, initArgs ...string) *origin {
	t.Helper()
	o := &origin{t: t, dir: filepath.Join(t.TempDir(), "infra.git"), tmp: t.TempDir()}
	o.run(append([]string{"init", "-q", "--bare", "-b", "main"}, append(initArgs, o.dir)...)...)
	o.run("config", "uploadpack.allowFilter", "true")
	return o
}

// run runs git on the bare repository, without anybody's configuration.
func (o *origin) run(args ...string) string {
	o.t.Helper()
	if args[0] != "init" && args[0] != "clone" {
		args = append([]string{"--git-dir=" + o.dir, "--work-tree=" + o.tmp}, args...)
	}
	cmd := exec.Command("git", args...)
	cmd.Dir = o.tmp
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + o.tmp, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=c", "GIT_COMMITTER_EMAIL=c@example.org",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		o.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit replaces all files by the given ones and commits to main.
func (o *origin) commit(msg string, files map[string]string) string {
	o.t.Helper()
	for _, e := range must(os.ReadDir(o.tmp)) {
		check(o.t, os.RemoveAll(filepath.Join(o.tmp, e.Name())))
	}
	for name, text := range files {
		p := filepath.Join(o.tmp, name)
		check(o.t, os.MkdirAll(filepath.Dir(p), 0o755))
		check(o.t, os.WriteFile(p, []byte(text), 0o644))
	}
	o.run("add", "-A")
	o.run("commit", "-q", "--allow-empty", "-m", msg)
	return o.run("rev-parse", "HEAD")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// httpOrigin serves an origin with git's own smart HTTP program.
type httpOrigin struct {
	*httptest.Server
	requests atomic.Int32
	// front, when set, answers a request in the origin's place if it returns true.
	mu    sync.Mutex
	front func(w http.ResponseWriter, r *http.Request) bool
}

func serveHTTP(t testing.TB, o *origin, tls bool) *httpOrigin {
	t.Helper()
	h := &httpOrigin{}
	backend := &cgi.Handler{
		Stderr: io.Discard, Logger: log.New(io.Discard, "", 0),
		Path: "/usr/lib/git-core/git-http-backend",
		Env:  []string{"GIT_PROJECT_ROOT=" + filepath.Dir(o.dir), "GIT_HTTP_EXPORT_ALL=1", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	if out, err := exec.Command("git", "--exec-path").Output(); err == nil {
		backend.Path = filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.requests.Add(1)
		h.mu.Lock()
		front := h.front
		h.mu.Unlock()
		if front != nil && front(w, r) {
			return
		}
		backend.ServeHTTP(w, r)
	})
	h.Server = httptest.NewUnstartedServer(handler)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	if tls {
		h.StartTLS()
	} else {
		h.Start()
	}
	t.Cleanup(h.Close)
	return h
}

func (h *httpOrigin) setFront(f func(w http.ResponseWriter, r *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.front = f
}

func (h *httpOrigin) url() string { return h.URL + "/infra.git" }

func (h *httpOrigin) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
}

// sshOrigin serves an origin over ssh with git's own upload-pack.
type sshOrigin struct {
	addr       string
	host       ssh.Signer
	clientKey  []byte // PEM
	knownHosts []byte
	commands   chan string
	wrap       atomic.Pointer[string] // shell around the command, as "%s | dd bs=1 count=9"
	sent       atomic.Int64           // bytes of all connections
	cut        atomic.Int64           // closes a connection when sent reaches it
}

// cutConn counts what it sends, and may go away in the middle.
type cutConn struct {
	net.Conn
	s *sshOrigin
}

func (c cutConn) Write(b []byte) (int, error) {
	if cut := c.s.cut.Load(); cut > 0 && c.s.sent.Load()+int64(len(b)) > cut {
		b = b[:max(0, cut-c.s.sent.Load())]
		n, _ := c.Conn.Write(b)
		_ = c.Conn.Close()
		return n, net.ErrClosed
	}
	c.s.sent.Add(int64(len(b)))
	return c.Conn.Write(b)
}

func newKey(t testing.TB) (ssh.Signer, []byte) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	block, err := ssh.MarshalPrivateKey(key, "")
	check(t, err)
	return must(ssh.NewSignerFromKey(key)), pem.EncodeToMemory(block)
}

func serveSSH(t testing.TB, hostKeys ...ssh.Signer) *sshOrigin {
	t.Helper()
	client, clientPEM := newKey(t)
	if len(hostKeys) == 0 {
		host, _ := newKey(t)
		hostKeys = []ssh.Signer{host}
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if string(key.Marshal()) != string(client.PublicKey().Marshal()) {
			return nil, errors.New("unknown key")
		}
		return nil, nil
	}}
	for _, k := range hostKeys {
		config.AddHostKey(k)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	s := &sshOrigin{addr: l.Addr().String(), host: hostKeys[0], clientKey: clientPEM, commands: make(chan string, 100)}
	s.knownHosts = []byte(knownhosts.Line([]string{s.addr}, s.host.PublicKey()) + "\n")
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.serve(cutConn{conn, s}, config) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return s
}

func (s *sshOrigin) serve(conn net.Conn, config *ssh.ServerConfig) {
	defer conn.Close()
	_, chans, reqs, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { ssh.DiscardRequests(reqs) })
	for nc := range chans {
		ch, reqs, err := nc.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			for req := range reqs {
				if req.Type != "exec" {
					_ = req.Reply(false, nil)
					continue
				}
				var payload struct{ Command string }
				_ = ssh.Unmarshal(req.Payload, &payload)
				s.commands <- payload.Command
				_ = req.Reply(true, nil)
				if w := s.wrap.Load(); w != nil {
					payload.Command = fmt.Sprintf(*w, payload.Command)
				}
				cmd := exec.Command("sh", "-c", payload.Command)
				cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "HOME=/nonexistent", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}
				stdin := must(cmd.StdinPipe())
				cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
				check := cmd.Start()
				if check == nil {
					wg.Go(func() { _, _ = io.Copy(stdin, ch); _ = stdin.Close() })
					check = cmd.Wait()
				}
				status := struct{ Status uint32 }{0}
				if check != nil {
					status.Status = 1
				}
				_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(status))
				_ = ch.Close()
			}
		})
	}
}

// config makes a Config for an origin behind this server.
func (s *sshOrigin) config(o *origin) Config {
	return Config{URL: "ssh://git@" + s.addr + o.dir, SSHKey: s.clientKey, KnownHosts: s.knownHosts}
}

// open opens a store and closes it with the test.
func open(t testing.TB, c Config) *Store {
	t.Helper()
	if c.Worker == nil {
		c.Worker = workertest.Run
	}
	s, err := Open(c)
	check(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// head reads the head, which must work.
func head(t testing.TB, s interface {
	Head(context.Context) (Commit, error)
}) Commit {
	t.Helper()
	c, err := s.Head(t.Context())
	if err != nil {
		t.Fatalf("Head: %v", err)
	}
	return c
}

// readAll reads all files of a state.
func readAll(t testing.TB, s interface {
	Tree(context.Context, Commit) (fs.FS, error)
}, c Commit) map[string]string {
	t.Helper()
	fsys, err := s.Tree(t.Context(), c)
	check(t, err)
	files := map[string]string{}
	check(t, fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(fsys, p)
		files[p] = string(b)
		return err
	}))
	return files
}

func equal(t testing.TB, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("files %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

// wantKind checks an error's kind, a word in it, and that its hint is there
// when a person can do something.
func wantKind(t testing.TB, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want kind %v", err, kind)
	}
	text := err.Error()
	if hint := fault.HintOf(err); hint != "" {
		text += " | " + hint
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("error %q does not contain %q", text, w)
		}
	}
}

// object writes one loose object into the bare origin and gives its id.
func (o *origin) object(kind string, body []byte) string {
	o.t.Helper()
	cmd := exec.Command("git", "hash-object", "-t", kind, "-w", "--literally", "--stdin")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + o.tmp, "GIT_CONFIG_NOSYSTEM=1", "GIT_DIR=" + o.dir}
	cmd.Stdin = strings.NewReader(string(body))
	out, err := cmd.Output()
	check(o.t, err)
	return strings.TrimSpace(string(out))
}

// treeEntry is one line of a tree object in its raw form.
func treeEntry(mode, name, id string) []byte {
	h := plumbing.NewHash(id)
	return append(fmt.Appendf(nil, "%s %s\x00", mode, name), h[:]...)
}

// commitTree makes main point at a commit of a tree made by hand.
func (o *origin) commitTree(entries ...[]byte) string {
	o.t.Helper()
	var body []byte
	for _, e := range entries {
		body = append(body, e...)
	}
	id := o.run("commit-tree", "-m", "by hand", o.object("tree", body))
	o.run("update-ref", "refs/heads/main", id)
	return id
}
