package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"
)

// sshRemote is a repository behind an ssh server that runs git-upload-pack.
type sshRemote struct {
	loc    location
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
	signer ssh.Signer
	hosts  *knownhosts.HostKeyDB
}

func newSSHRemote(l location, c Config, cred credentials) (*sshRemote, error) {
	hosts, err := knownHostsFor(l, c.KnownHosts)
	if err != nil {
		return nil, err
	}
	return &sshRemote{loc: l, dial: c.Dial, signer: cred.signer, hosts: hosts}, nil
}

// knownHostsFor reads host keys, among which there must be one of the server.
func knownHostsFor(l location, b []byte) (*knownhosts.HostKeyDB, error) {
	hosts, err := parseKnownHosts(b)
	if err != nil {
		return nil, err
	}
	if len(hosts.HostKeyAlgorithms(l.server())) == 0 {
		return nil, &FieldError{Field: "known_hosts_file", text: "has no key for " + l.server(), hint: scanHint(l)}
	}
	return hosts, nil
}

// parseKnownHosts hands the bytes to the library, which reads files only.
func parseKnownHosts(b []byte) (_ *knownhosts.HostKeyDB, err error) {
	dir, err := os.MkdirTemp("", "talos-agent-")
	if err != nil {
		return nil, fmt.Errorf("read known hosts: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	name := filepath.Join(dir, "known_hosts")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		return nil, fmt.Errorf("read known hosts: %w", err)
	}
	db, err := knownhosts.NewDB(name)
	if err != nil {
		return nil, &FieldError{Field: "known_hosts_file", text: cleanRemark(strings.ReplaceAll(err.Error(), name, "line")), hint: "each line is as ssh-keyscan prints it"}
	}
	return db, nil
}

func (r *sshRemote) addr() string { return r.loc.server() }

// server is the host:port of a server.
func (l location) server() string { return net.JoinHostPort(l.host, l.port) }

func (r *sshRemote) close() {}

func (r *sshRemote) open(ctx context.Context) (session, error) {
	conn, err := r.dial(ctx, "tcp", r.addr())
	if err != nil {
		return nil, asUnreachable(err, "connect")
	}
	// The library knows no context: closing the connection is how one ends it.
	s := &sshSession{ctx: ctx, stop: context.AfterFunc(ctx, func() { _ = conn.Close() }), conn: conn}
	var hostKey error
	var algorithms *ssh.AlgorithmNegotiationError
	config := &ssh.ClientConfig{
		User:              r.loc.user,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(r.signer)},
		HostKeyAlgorithms: r.hosts.HostKeyAlgorithms(r.addr()),
		HostKeyCallback: func(host string, remote net.Addr, key ssh.PublicKey) error {
			hostKey = r.checkHostKey(host, remote, key)
			return hostKey
		},
		ClientVersion: "SSH-2.0-talos-agent",
	}
	err = conn.SetDeadline(time.Now().Add(patience))
	var c ssh.Conn
	var chans <-chan ssh.NewChannel
	var reqs <-chan *ssh.Request
	if err == nil {
		c, chans, reqs, err = ssh.NewClientConn(conn, r.addr(), config)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
		s.client = ssh.NewClient(c, chans, reqs)
	}
	if err == nil {
		err = s.start("git-upload-pack " + shellQuote(r.loc.path))
	}
	switch {
	case err == nil:
		return s, nil
	case hostKey != nil:
		err = hostKey
	case ctx.Err() != nil:
		err = ctx.Err()
	// golang.org/x/crypto 0.56, ssh/client_auth.go: the only sign of it.
	case strings.Contains(err.Error(), "ssh: unable to authenticate"):
		err = newError(ErrAuth, "add this public key at the forge as a deploy key of the repository: "+publicKey(r.signer), nil, "the server refuses the deploy key for user %s", r.loc.user)
	case errors.As(err, &algorithms) && algorithms.What == "host key":
		err = newError(ErrHostKey, scanHint(r.loc), nil, "the server has none of the kinds of host key that known_hosts_file names for it")
	default:
		// As a line: a server may explain in any bytes why it closes.
		err = newError(ErrUnreachable, "", errors.New(cleanRemark(err.Error())), "open ssh connection")
	}
	s.close()
	return nil, err
}

func (r *sshRemote) checkHostKey(host string, remote net.Addr, key ssh.PublicKey) error {
	// The library looks into remote when host is empty; ours always does, and an
	// in-memory connection's address is none it can parse.
	err := r.hosts.HostKeyCallback()(host, namedAddr(r.addr()), key)
	if err == nil {
		return nil
	}
	var revoked *xknownhosts.RevokedError
	if errors.As(err, &revoked) {
		return newError(ErrHostKey, "ask the server's owner for its new key; this one must not be used any more", nil, "the server's host key %s is revoked in known_hosts_file", ssh.FingerprintSHA256(key))
	}
	return newError(ErrHostKey, "someone may be posing as the server; if its owner did change the key: "+scanHint(r.loc), nil,
		"the server shows another host key than known_hosts_file has for it: %s %s", key.Type(), ssh.FingerprintSHA256(key))
}

type namedAddr string

func (a namedAddr) Network() string { return "tcp" }
func (a namedAddr) String() string  { return string(a) }

func publicKey(s ssh.Signer) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.PublicKey())))
}

// shellQuote quotes a path for the login shell at the other end, as git does.
func shellQuote(s string) string {
	return "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(s) + "'"
}

// sshSession is one run of git-upload-pack at the other end.
type sshSession struct {
	ctx    context.Context // of the Head that opened it
	stop   func() bool
	conn   net.Conn
	client *ssh.Client
	stdin  io.WriteCloser
	stdout io.Reader
	stderr words
	ended  chan struct{} // closed when the command has ended; nil before it started
	exit   error         // what it ended with; after ended
	asked  bool          // for a pack
	closed bool
}

func (s *sshSession) start(command string) error {
	run, err := s.client.NewSession()
	if err != nil {
		return err
	}
	run.Stderr = &s.stderr
	if s.stdin, err = run.StdinPipe(); err != nil {
		return err
	}
	if s.stdout, err = run.StdoutPipe(); err != nil {
		return err
	}
	if err := run.Start(command); err != nil {
		return err
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		s.exit = run.Wait()
	}()
	return nil
}

func (s *sshSession) refs(context.Context) (*packp.AdvRefs, error) {
	refs, err := decodeRefs(&capped{r: s, left: maxRefs, what: "the list of references"})
	return refs, asUnreachable(err, "read the list of references")
}

func (s *sshSession) pack(_ context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error) {
	body, err := encodeRequest(req, len(req.Haves) > 0)
	if err != nil {
		return nil, err
	}
	s.asked = true
	if _, err := s.stdin.Write(body); err != nil {
		return nil, s.end(err)
	}
	return decodePack(req, io.NopCloser(s))
}

// Read reads what the command prints. Its end is an end of file only if the
// command reports success.
func (s *sshSession) Read(p []byte) (int, error) {
	n, err := s.stdout.Read(p)
	if err != nil && n == 0 {
		err = s.end(err)
	}
	return n, err
}

// end reports why there is nothing more to read or no one to write to.
func (s *sshSession) end(err error) error {
	// The command's output is whole when it has ended. A server that does not end
	// it gets a moment.
	t := time.AfterFunc(5*time.Second, func() { _ = s.conn.Close() })
	<-s.ended
	t.Stop()
	switch text := s.stderr.String(); {
	case s.ctx.Err() != nil:
		return s.ctx.Err()
	case s.exit == nil:
		return err
	case cleanRemark(text) != "":
		return readRefusal(text)
	}
	return newError(ErrUnreachable, "", s.exit, "the server ended the connection")
}

// close ends the input of the server, and waits until nothing of the connection
// is left.
func (s *sshSession) close() {
	if s.closed {
		return
	}
	s.closed = true
	if s.ended != nil && !s.asked {
		// A courtesy that lets git-upload-pack end without complaint; that it
		// has ended already is no failure, and neither is the same of Close.
		_, _ = s.stdin.Write(pktline.FlushPkt)
	}
	s.stop()
	_ = s.conn.Close()
	if s.client != nil {
		_ = s.client.Wait()
	}
	if s.ended != nil {
		<-s.ended
	}
}

// words keeps the beginning of what a program prints.
type words struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if left := 4<<10 - w.buf.Len(); left > 0 {
		w.buf.Write(p[:min(left, len(p))])
	}
	return len(p), nil
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
