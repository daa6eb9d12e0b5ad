package world

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// Network is where the services listen and their clients dial.
type Network interface {
	// Listen opens a TCP-like listener at host:port.
	Listen(addr string) (net.Listener, error)
	// DialContext has the shape every client library takes.
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
}

// Loopback is the real network, for labs that run beside real programs.
type Loopback struct{}

// Listen implements Network. An address that was closed a moment ago may still
// be taken: a program that this process starts holds a copy of every open
// socket between its fork and the end of its exec, which takes its time on a busy
// machine. So a taken address is tried again for ten seconds before it counts as
// somebody else's.
func (Loopback) Listen(addr string) (net.Listener, error) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		l, err := net.Listen("tcp", addr)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			return l, err
		}
	}
}

// DialContext implements Network.
func (Loopback) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, addr)
}

// Memory is a network of buffered pipes inside this process. Blocking on it is
// durable, so that it lives in a bubble of virtual time.
type Memory struct {
	mu        sync.Mutex
	listeners map[string]*memListener
	dark      map[string]bool // hosts that swallow packets
}

// NewMemory makes an empty network.
func NewMemory() *Memory {
	return &Memory{listeners: map[string]*memListener{}, dark: map[string]bool{}}
}

// Listen implements Network.
func (m *Memory) Listen(addr string) (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: memAddr(addr), Err: syscall.EADDRINUSE}
	}
	l := &memListener{pipeListener: listenPipe(64 << 10), net: m, addr: addr, conns: map[*memConn]struct{}{}}
	m.listeners[addr] = l
	return l, nil
}

// DialContext implements Network.
func (m *Memory) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	l, dark := m.listeners[addr], m.dark[host]
	m.mu.Unlock()
	refuse := func(errno syscall.Errno) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: memAddr(addr), Err: errno}
	}
	switch {
	case dark:
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: memAddr(addr), Err: ctx.Err()}
	case l == nil && m.hasHost(host):
		return nil, refuse(syscall.ECONNREFUSED)
	case l == nil:
		return nil, refuse(syscall.EHOSTUNREACH)
	}
	c, err := l.DialContext(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, refuse(syscall.ECONNREFUSED)
	}
	mc := &memConn{Conn: c, local: memAddr("127.0.0.1:1"), remote: memAddr(addr), listener: l}
	l.mu.Lock()
	l.conns[mc] = struct{}{}
	l.mu.Unlock()
	return mc, nil
}

func (m *Memory) hasHost(host string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for a := range m.listeners {
		if h, _, err := net.SplitHostPort(a); err == nil && h == host {
			return true
		}
	}
	return false
}

// Darken makes a host swallow packets (true) or answer again (false): dials
// hang until their deadline and open connections fall silent by closing.
func (m *Memory) Darken(host string, dark bool) {
	m.mu.Lock()
	m.dark[host] = dark
	var hit []*memListener
	for a, l := range m.listeners {
		if h, _, err := net.SplitHostPort(a); err == nil && h == host {
			hit = append(hit, l)
		}
	}
	m.mu.Unlock()
	if dark {
		for _, l := range hit {
			l.dropConns()
		}
	}
}

type memListener struct {
	*pipeListener
	net  *Memory
	addr string

	mu    sync.Mutex
	conns map[*memConn]struct{}
}

func (l *memListener) Addr() net.Addr { return memAddr(l.addr) }

// Close stops listening and, like a machine that goes down, drops the
// connections that were open.
func (l *memListener) Close() error {
	l.net.mu.Lock()
	if l.net.listeners[l.addr] == l {
		delete(l.net.listeners, l.addr)
	}
	l.net.mu.Unlock()
	return l.pipeListener.Close()
}

func (l *memListener) dropConns() {
	l.mu.Lock()
	conns := l.conns
	l.conns = map[*memConn]struct{}{}
	l.mu.Unlock()
	for c := range conns {
		_ = c.Conn.Close()
	}
}

type memConn struct {
	net.Conn
	local, remote memAddr
	listener      *memListener
}

func (c *memConn) LocalAddr() net.Addr  { return c.local }
func (c *memConn) RemoteAddr() net.Addr { return c.remote }

func (c *memConn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.conns, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// memAddr is an address of the network in memory.
type memAddr string

func (memAddr) Network() string  { return "tcp" }
func (a memAddr) String() string { return string(a) }

// Link is one client's cable into a network. A simulated crash cuts it: from
// that instant on nothing the client still does can reach the world.
type Link struct {
	net Network

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
}

// NewLink plugs a client in.
func NewLink(n Network) *Link { return &Link{net: n, conns: map[net.Conn]struct{}{}} }

// ErrCut is what a dial over a cut link returns.
var ErrCut = errors.New("the cable is cut")

// DialContext dials over the link.
func (l *Link) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if l.IsCut() {
		return nil, ErrCut
	}
	c, err := l.net.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	lc := &linkConn{Conn: c, link: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		_ = c.Close()
		return nil, ErrCut
	}
	l.conns[lc] = struct{}{}
	return lc, nil
}

// IsCut reports whether the link is cut.
func (l *Link) IsCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// Cut cuts the link for good.
func (l *Link) Cut() {
	l.mu.Lock()
	l.cut = true
	conns := l.conns
	l.conns = map[net.Conn]struct{}{}
	l.mu.Unlock()
	for c := range conns {
		_ = c.Close()
	}
}

// Open counts the connections that are open.
func (l *Link) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

type linkConn struct {
	net.Conn
	link *Link
}

func (c *linkConn) Close() error {
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}
