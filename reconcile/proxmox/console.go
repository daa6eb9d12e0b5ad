package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

const (
	// pingEvery keeps a terminal open: termproxy ends one that is silent for
	// five minutes.
	pingEvery = time.Minute
	// largestFrame is the largest piece of a console that is read.
	largestFrame = 64 << 10
)

// ErrNoConsole means that Proxmox VE does not let the agent at a console. It is
// worth a note, and nothing depends on it.
var ErrNoConsole = errors.New("the console cannot be read")

// Console reads what a VM prints on its serial port and calls each with every
// piece, until ctx ends, which is no error, or each fails. A serial port has one
// reader: while it is read here no other reader sees anything.
//
// What it prints is a guest's, and not to be trusted. Since Proxmox VE 9 an API
// token may open a terminal; before, the ticket of one is never confirmed (POST
// /access/vncticket is only there in 9).
func (c *Client) Console(ctx context.Context, host string, vmid int, each func([]byte) error) error {
	vm := fmt.Sprintf("/nodes/%s/qemu/%d", url.PathEscape(host), vmid)
	var term struct {
		Port   pveconf.Scalar `json:"port"`
		Ticket string         `json:"ticket"`
		User   string         `json:"user"`
	}
	if err := c.post(ctx, vm+"/termproxy", params{"serial": "serial0"}, &term); err != nil {
		return c.noConsole(vmid, err)
	}
	query := url.Values{"port": {string(term.Port)}, "vncticket": {term.Ticket}}.Encode()
	dialer := websocket.Dialer{
		NetDialContext: c.transport.DialContext, TLSClientConfig: c.transport.TLSClientConfig.Clone(),
		HandshakeTimeout: readWithin, Subprotocols: []string{"binary"},
	}
	dialer.TLSClientConfig.NextProtos = []string{"http/1.1"}
	conn, resp, err := dialer.DialContext(ctx, strings.Replace(c.base, "https://", "wss://", 1)+vm+"/vncwebsocket?"+query,
		http.Header{"Authorization": {c.header.RevealString()}})
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil && resp != nil:
		return c.noConsole(vmid, fmt.Errorf("%d %s", resp.StatusCode, sanitize(reasonOf(resp))))
	case err != nil:
		return c.noConsole(vmid, err)
	}
	return c.read(ctx, conn, vmid, term.User+":"+term.Ticket+"\n", each)
}

// read has a terminal confirm who asks, and reads it to its end.
func (c *Client) read(ctx context.Context, conn *websocket.Conn, vmid int, who string, each func([]byte) error) error {
	conn.SetReadLimit(largestFrame)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	var pings sync.WaitGroup
	done := make(chan struct{})
	defer func() {
		stop()
		close(done)
		_ = conn.Close()
		pings.Wait()
	}()
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte(who)); err != nil {
		return c.ended(ctx, vmid, err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(writeWithin)); err != nil {
		return c.ended(ctx, vmid, err)
	}
	_, first, err := conn.ReadMessage()
	if rest, ok := strings.CutPrefix(string(first), "OK"); err == nil && ok {
		first = []byte(rest) // the guest may have begun to speak
	} else if ctx.Err() != nil {
		return nil
	} else {
		return fault.WithHint(fmt.Errorf("%w: Proxmox VE does not take the agent's token for a terminal of vm %d; its versions 8.4.21 and 9 do", ErrNoConsole, vmid),
			fmt.Sprintf("look at it on the host: `qm terminal %d`", vmid))
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return c.ended(ctx, vmid, err)
	}
	pings.Go(func() {
		tick := time.NewTicker(pingEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if conn.WriteMessage(websocket.BinaryMessage, []byte("2")) != nil {
					return // whoever reads hears of it
				}
			}
		}
	})
	for piece := first; ; {
		if len(piece) > 0 {
			if err := each(piece); err != nil {
				return err
			}
		}
		if _, piece, err = conn.ReadMessage(); err != nil {
			return c.ended(ctx, vmid, err)
		}
	}
}

// ended explains the end of a terminal.
func (c *Client) ended(ctx context.Context, vmid int, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("%w: the terminal of vm %d has ended: %w", ErrNoConsole, vmid, err)
}

// noConsole explains why there is no terminal.
func (c *Client) noConsole(vmid int, err error) error {
	hint := fault.HintOf(err)
	if errors.Is(err, errForbidden) {
		hint = fmt.Sprintf("give VM.Console on /pool/%s to the user %s and to the token %s, or look at it on the host: `qm terminal %s`",
			c.pool, c.token.User(), c.token, strconv.Itoa(vmid))
	}
	return fault.WithHint(fmt.Errorf("%w: %w", ErrNoConsole, err), hint)
}
