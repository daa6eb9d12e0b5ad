package world

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipeListener accepts connections made of two buffered pipes.
//
// grpc's bufconn looks like it, but a deadline of its that has been lifted can
// still strike: its timer sets a flag, and may do so after SetReadDeadline has
// stopped it. net/http sets and lifts a deadline for every request on a kept
// connection, and takes what follows for a client that went away.
type pipeListener struct {
	size  int
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func listenPipe(size int) *pipeListener {
	return &pipeListener{size: size, conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener; connections already made live on.
func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// DialContext connects once somebody accepts.
func (l *pipeListener) DialContext(ctx context.Context) (net.Conn, error) {
	up, down := newPipe(l.size), newPipe(l.size)
	select {
	case l.conns <- &pipeConn{in: up, out: down}:
		return &pipeConn{in: down, out: up}, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pipeConn is one end of a connection.
type pipeConn struct{ in, out *pipe }

func (c *pipeConn) Read(b []byte) (int, error)  { return c.in.readBytes(b) }
func (c *pipeConn) Write(b []byte) (int, error) { return c.out.writeBytes(b) }

// Close ends both directions; what was written before can still be read.
func (c *pipeConn) Close() error {
	c.in.closeEnd(false)
	c.out.closeEnd(true)
	return nil
}

func (c *pipeConn) LocalAddr() net.Addr  { return memAddr("127.0.0.1:0") }
func (c *pipeConn) RemoteAddr() net.Addr { return memAddr("127.0.0.1:0") }

func (c *pipeConn) SetDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readBy, t)
	c.out.setDeadline(&c.out.writeBy, t)
	return nil
}

func (c *pipeConn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readBy, t)
	return nil
}

func (c *pipeConn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeBy, t)
	return nil
}

// pipe is one direction: a bounded buffer. Waiting is on a sync.Cond, which a
// bubble of virtual time counts as blocked.
type pipe struct {
	mu      sync.Mutex
	changed sync.Cond
	buf     []byte
	size    int
	ended   bool // no more will be written
	closed  bool // nobody will read
	readBy  deadline
	writeBy deadline
}

// deadline is judged by the time it names, never by whether its timer ran; the
// timer only wakes those who wait.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) hasPassed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func newPipe(size int) *pipe {
	p := &pipe{size: size}
	p.changed.L = &p.mu
	return p
}

func (p *pipe) readBytes(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.closed:
			return 0, net.ErrClosed
		case p.readBy.hasPassed():
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case len(p.buf) > 0:
			n := copy(b, p.buf)
			p.buf = p.buf[:copy(p.buf, p.buf[n:])]
			p.changed.Broadcast()
			return n, nil
		case p.ended:
			return 0, io.EOF
		}
		p.changed.Wait()
	}
}

func (p *pipe) writeBytes(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.ended:
			return n, net.ErrClosed
		case p.closed:
			return n, io.ErrClosedPipe
		case p.writeBy.hasPassed():
			return n, os.ErrDeadlineExceeded
		case len(b) == 0:
			return n, nil
		}
		if room := min(p.size-len(p.buf), len(b)); room > 0 {
			p.buf = append(p.buf, b[:room]...)
			b, n = b[room:], n+room
			p.changed.Broadcast()
			continue
		}
		p.changed.Wait()
	}
}

// closeEnd ends a direction from its writing or its reading end.
func (p *pipe) closeEnd(writing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if writing {
		p.ended = true
	} else {
		p.closed = true
	}
	for _, d := range []*deadline{&p.readBy, &p.writeBy} {
		if d.timer != nil && p.closed && p.ended {
			d.timer.Stop()
		}
	}
	p.changed.Broadcast()
}

func (p *pipe) setDeadline(d *deadline, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		d.timer = time.AfterFunc(wait, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.changed.Broadcast()
		})
	}
	p.changed.Broadcast()
}
