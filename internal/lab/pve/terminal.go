package pve

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"github.com/talos-agent/talos-agent/internal/lab/pve/serial"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// The times of a terminal. Those that a client has to meet are in its time, at
// whatever speed the host is simulated.
const (
	termWait  = 10 * time.Second       // termproxy waits so long for its client
	termPrint = 500 * time.Millisecond // between two looks at what a guest prints
)

// terminal is a termproxy that waits for its client, or serves it.
type terminal struct {
	vmid   int
	who    identity
	ticket string
	taken  chan struct{} // closed when the client has come
	ended  chan struct{} // closed when it has ended
	seen   int           // the number of the last line that was printed when it was read
}

// firstTermPort is the first of the ports that terminals and screens share.
const firstTermPort = 5900

// termProxy starts a terminal on a guest's serial port.
func termProxy(c *call) (any, error) {
	s := c.s
	s.mu.Lock()
	v, err := s.vmAt(c.node, c.vmid())
	port := firstTermPort
	for s.terminals[port] != nil {
		port++
	}
	serial := c.str("serial")
	switch {
	case err != nil:
	case serial != "" && v.conf.base[serial] == "", v.conf.base["serial0"] == "":
		err = perlError("unable to find a serial interface")
	}
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	var random [24]byte
	// crypto/rand.Read never fails: it crashes the program instead.
	_, _ = rand.Read(random[:])
	t := &terminal{vmid: v.id, who: c.who, taken: make(chan struct{}), ended: make(chan struct{}),
		ticket: fmt.Sprintf("PVEVNC:%08X::%s", time.Now().Unix(), base64.StdEncoding.EncodeToString(random[:]))}
	s.terminals[port] = t
	s.mu.Unlock()
	upid, err := s.forkTask(c.who, c.node, "vncproxy", strconv.Itoa(v.id), world.Fault{}, func(task *task) error { return s.attendTerminal(task, port, t) })
	if err != nil {
		return nil, err
	}
	return row{"user": c.who.id, "ticket": t.ticket, "port": port, "upid": upid}, nil
}

// attendTerminal is the worker of a terminal: it ends with its client, or without
// one.
func (s *Server) attendTerminal(task *task, port int, t *terminal) error {
	defer func() {
		s.mu.Lock()
		delete(s.terminals, port)
		s.mu.Unlock()
	}()
	wait, cancel := context.WithTimeout(task.ctx, termWait)
	defer cancel()
	select {
	case <-t.taken:
	case <-wait.Done():
		if task.ctx.Err() != nil {
			return context.Cause(task.ctx)
		}
		return perlError("command '/usr/bin/termproxy %d --path /vms/%d --perm VM.Console -- /usr/sbin/qm terminal %d -escape 0 -iface serial0' failed: exit code 1", port, t.vmid, t.vmid)
	}
	select {
	case <-t.ended:
		return nil
	case <-task.ctx.Done():
		return context.Cause(task.ctx)
	}
}

// upgrade is an answer that takes the connection over.
type upgrade func(http.ResponseWriter, *http.Request)

// vncWebsocket hands a client to the terminal it has a ticket for.
func vncWebsocket(c *call) (any, error) {
	s := c.s
	s.mu.Lock()
	t := s.terminals[c.num("port", 0)]
	s.mu.Unlock()
	if t == nil || t.vmid != c.vmid() || t.ticket != c.str("vncticket") || t.who != c.who {
		return nil, &failure{status: http.StatusUnauthorized, text: "permission denied - invalid PVEVNC ticket", slow: true}
	}
	return upgrade(func(w http.ResponseWriter, r *http.Request) {
		up := websocket.Upgrader{Subprotocols: []string{"binary"}, CheckOrigin: func(*http.Request) bool { return true }}
		conn, err := up.Upgrade(w, r, nil)
		if err != nil {
			s.log.Debug("upgrade to a terminal", "err", err)
			return
		}
		close(t.taken)
		defer close(t.ended)
		if err := errors.Join(s.serveTerminal(conn, t), conn.Close()); err != nil {
			s.log.Debug("a terminal ended", "vmid", t.vmid, "err", err)
		}
	}), nil
}

// isOlder reports whether the host calls itself an earlier 8 than the one that is
// simulated.
func (s *Server) isOlder() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.HasPrefix(s.called, "8.")
}

// serveTerminal is a terminal's conversation with its client.
func (s *Server) serveTerminal(conn *websocket.Conn, t *terminal) error {
	t.seen = s.consoleOf(t.vmid).Last
	return serial.Serve(s.ctx, conn, func(first string) bool {
		// termproxy has the API confirm the ticket. Before 8.4.21 that takes no token for
		// a user, and the client sees the connection end.
		return first == t.who.id+":"+t.ticket+"\n" && (t.who.token == "" || !s.isOlder())
	}, func(ctx context.Context, i int) (string, error) {
		if err := s.world.Sleep(ctx, termPrint); err != nil {
			return "", err
		}
		line := s.nextOutput(t, i)
		if line == "" {
			return "", nil
		}
		switch s.world.Deliver(world.Call{System: "pve", Op: "GET /nodes/{node}/qemu/{vmid}/vncwebsocket line", Subject: strconv.Itoa(t.vmid)}) {
		case world.DropEvent:
			return "", nil
		case world.BreakEvent:
			return "", world.ErrBroken
		}
		return line, nil
	})
}

// nextOutput is what a guest prints next, "" for nothing. A serial port has one
// reader: whoever came first.
func (s *Server) nextOutput(t *terminal, i int) string {
	s.mu.Lock()
	v := s.vms[t.vmid]
	runs := v != nil && v.running
	if s.readers[t.vmid] == nil {
		s.readers[t.vmid] = t
	}
	first := s.readers[t.vmid]
	select {
	case <-first.ended:
		s.readers[t.vmid], first = t, t
	default:
	}
	s.mu.Unlock()
	p := s.consoleOf(t.vmid)
	seen := t.seen
	if t.seen = p.Last; !runs || first != t {
		return ""
	}
	return p.Next(seen, i)
}

// consoleOf is what a guest prints, nothing where none of them does.
func (s *Server) consoleOf(vmid int) (p world.Printed) {
	if guests, ok := s.guests.(world.Consoles); ok {
		p = guests.Console(vmid)
	}
	return p
}
