package gitserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// SSHConfig sizes an ssh server for the repositories of a Server.
type SSHConfig struct {
	World  *world.World // required
	Addr   string       // host:port to listen at
	Server *Server      // whose repositories are served; required
	// Admits decides who may log in, as a forge with a list of deploy keys does;
	// nil: whoever has the private key that ClientKey returns.
	Admits func(ssh.PublicKey) bool
}

// SSH serves a Server's repositories over ssh, to whoever has the client's key. A
// lost reply is a connection that breaks once the command was carried out, the
// references still being shown; a client that is refused gets the text on
// standard error and exit status 1.
type SSH struct {
	world     *world.World
	git       *Server
	listener  net.Listener
	host      string // host:port
	hostKey   ssh.Signer
	clientKey []byte
	config    *ssh.ServerConfig
	ctx       context.Context
	stop      context.CancelFunc

	mu      sync.Mutex
	closed  bool
	conns   map[net.Conn]struct{}
	running sync.WaitGroup
}

// NewSSH opens an ssh server.
func NewSSH(c SSHConfig) (*SSH, error) {
	if c.World == nil || c.Server == nil {
		return nil, errors.New("open ssh server: no world or no git server")
	}
	s := &SSH{world: c.World, git: c.Server, conns: map[net.Conn]struct{}{}}
	var err error
	if s.hostKey, _, err = newKey(); err != nil {
		return nil, fmt.Errorf("open ssh server: %w", err)
	}
	admits := c.Admits
	if admits == nil {
		signer, private, err := newKey()
		if err != nil {
			return nil, fmt.Errorf("open ssh server: %w", err)
		}
		s.clientKey = private
		admits = func(key ssh.PublicKey) bool { return bytes.Equal(key.Marshal(), signer.PublicKey().Marshal()) }
	}
	s.config = &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if !admits(key) {
			return nil, errors.New("unknown key")
		}
		return nil, nil
	}}
	s.config.AddHostKey(s.hostKey)

	if s.listener, err = c.World.Net.Listen(c.Addr); err != nil {
		return nil, fmt.Errorf("open ssh server: %w", err)
	}
	host, port, err := httpservice.HostPort(c.Addr, s.listener.Addr())
	if err != nil {
		return nil, errors.Join(err, s.listener.Close())
	}
	s.host = net.JoinHostPort(host, port)
	s.ctx, s.stop = context.WithCancel(c.World.Context())
	s.running.Go(s.acceptConns)
	return s, nil
}

// newKey makes an ed25519 key; private is in OpenSSH's own format.
func newKey() (signer ssh.Signer, private []byte, err error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if signer, err = ssh.NewSignerFromKey(key); err != nil {
		return nil, nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "talos-agent lab")
	if err != nil {
		return nil, nil, err
	}
	return signer, pem.EncodeToMemory(block), nil
}

// URL is where a repository ("org/infra") is reached.
func (s *SSH) URL(repo string) string { return "ssh://git@" + s.host + "/" + repo + ".git" }

// ClientKey is the private key of the pair made for the client, in OpenSSH's
// format; nil when the caller decides who may log in.
func (s *SSH) ClientKey() []byte { return s.clientKey }

// KnownHosts is the line a client's known_hosts file needs.
func (s *SSH) KnownHosts() []byte {
	return []byte(knownhosts.Line([]string{s.host}, s.hostKey.PublicKey()) + "\n")
}

// Close stops listening, breaks the connections and waits until nothing runs.
func (s *SSH) Close() error {
	s.mu.Lock()
	s.closed = true
	conns := s.conns
	s.conns = map[net.Conn]struct{}{}
	s.mu.Unlock()
	s.stop()
	err := s.listener.Close()
	for c := range conns {
		_ = c.Close()
	}
	s.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil // closed before
	}
	return err
}

func (s *SSH) acceptConns() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return // closed
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = c.Close()
			return
		}
		s.conns[c] = struct{}{}
		s.running.Go(func() { s.serveConn(c) })
		s.mu.Unlock()
	}
}

// serveConn carries one connection to its end.
func (s *SSH) serveConn(c net.Conn) {
	defer func() {
		_ = c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	conn, channels, requests, err := ssh.NewServerConn(c, s.config)
	if err != nil {
		s.world.Log.Debug("ssh client did not get in", "err", err)
		return
	}
	defer func() { _ = conn.Close() }()
	s.running.Go(func() { ssh.DiscardRequests(requests) })
	for offered := range channels {
		if offered.ChannelType() != "session" {
			if offered.Reject(ssh.UnknownChannelType, "only sessions are served") != nil {
				return
			}
			continue
		}
		ch, requests, err := offered.Accept()
		if err != nil {
			return
		}
		s.running.Go(func() { s.serveSession(c, ch, requests) })
	}
}

// serveSession waits for the command of a session and runs it.
func (s *SSH) serveSession(c net.Conn, ch ssh.Channel, requests <-chan *ssh.Request) {
	defer func() { _ = ch.Close() }()
	for r := range requests {
		if r.Type != "exec" {
			// env (a protocol version we do not speak) may be refused; a shell
			// or a terminal is.
			if r.WantReply && r.Reply(false, nil) != nil {
				return
			}
			continue
		}
		var command struct{ Line string }
		if err := ssh.Unmarshal(r.Payload, &command); err != nil || r.WantReply && r.Reply(true, nil) != nil {
			return
		}
		s.running.Go(func() { ssh.DiscardRequests(requests) })
		status := uint32(0)
		switch err := s.runCommand(ch, command.Line); {
		case errors.Is(err, errLost):
			_ = c.Close()
			return
		case err != nil:
			_, _ = fmt.Fprintln(ch.Stderr(), err)
			status = 1
		}
		_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
		return
	}
}

// errLost is a connection that the world breaks.
var errLost = errors.New("the connection is lost")

// runCommand carries out one command with the world's latency and faults.
func (s *SSH) runCommand(ch ssh.Channel, line string) error {
	service, path, err := parseCommand(line)
	if err != nil {
		return err
	}
	call := world.Call{System: "git", Op: "SSH " + service, Subject: repoName(path)}
	v := s.world.Begin(call, service == receivePack)
	delay := s.world.Latency.Call
	switch v.Fault.Kind {
	case world.LoseRequest, world.CrashBefore:
		return errLost
	case world.Answer:
		return errors.New(cmp.Or(v.Fault.Text, "remote error"))
	case world.Slow:
		delay += v.Fault.Delay
	}
	if s.world.Sleep(s.ctx, delay) != nil {
		return errLost
	}
	repo := s.git.findRepo(path)
	if repo == nil {
		return fmt.Errorf("fatal: '%s' does not appear to be a git repository", path)
	}
	if err := repo.advertiseRefs(ch, service, false); err != nil {
		return err
	}
	lost := v.Fault.Kind == world.LoseReply || v.Fault.Kind == world.CrashAfter
	out := io.Writer(ch)
	if lost {
		out = io.Discard
	}
	if service == uploadPack {
		// A client without answers would wait for ever: end at the first.
		err = repo.uploadPack(ch, out, lost)
		if err == nil && !lost {
			// It has its pack, and closes its side. Not before: go-git takes a
			// session that has ended by then for a fetch that failed.
			_, err = io.Copy(io.Discard, ch)
		}
	} else {
		err = repo.receivePack(ch, out)
	}
	s.world.End(call, v)
	if lost {
		return errLost
	}
	return err
}

// parseCommand reads the one form git sends: git-upload-pack '/org/infra.git'.
func parseCommand(line string) (service, path string, err error) {
	service, quoted, _ := strings.Cut(line, " ")
	if service != uploadPack && service != receivePack {
		return "", "", fmt.Errorf("fatal: unrecognized command '%.60s'", line)
	}
	path, ok := strings.CutPrefix(quoted, "'")
	if ok {
		path, ok = strings.CutSuffix(path, "'")
	}
	if !ok || path == "" {
		return "", "", fmt.Errorf("fatal: unrecognized command '%.60s'", line)
	}
	return service, path, nil
}
