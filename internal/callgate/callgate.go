// Package callgate is the one gate that everything passes that the agent asks of
// other systems. It counts, for the metrics, and it closes with a context: from
// then on nothing new is asked of anybody, so that an agent that was asked to
// stop changes nothing any more, whatever its actions were in the middle of.
//
// It knows neither the systems nor what is sent to them.
package callgate

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrClosed is what a call gets that comes too late. It never reached the
// other system.
var ErrClosed = errors.New("the agent stops: nothing new is asked of anybody")

// Outcome is how a call ended.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Refused Outcome = "refused" // the other side answered that it would not: 4xx
	Failed  Outcome = "failed"  // the other side answered that it could not: 5xx
	Lost    Outcome = "lost"    // there was no answer, or its caller did not wait for it
)

// Count is how many calls to a system ended in one way.
type Count struct {
	System  string
	Outcome Outcome
	N       int64
}

// Gate counts calls, and is open as long as its context. Many goroutines may use
// it.
type Gate struct {
	ctx context.Context

	mu     sync.Mutex
	counts map[Count]int64 // N is 0 in the keys
}

// New makes a gate. When ctx ends no further call begins; those in flight are
// not touched.
func New(ctx context.Context) *Gate { return &Gate{ctx: ctx, counts: map[Count]int64{}} }

// Counts returns how many calls ended how so far, in a stable order.
func (g *Gate) Counts() []Count {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]Count, 0, len(g.counts))
	for c, n := range g.counts {
		c.N = n
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Count) int {
		return strings.Compare(a.System+"\x00"+string(a.Outcome), b.System+"\x00"+string(b.Outcome))
	})
	return out
}

// Did counts a call that passed by another way: not through HTTP, not through
// gRPC.
func (g *Gate) Did(system string, err error) {
	if err == nil {
		g.count(system, OK)
	} else {
		g.count(system, Lost)
	}
}

func (g *Gate) count(system string, o Outcome) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counts[Count{System: system, Outcome: o}]++
}

// HTTP returns what puts the gate in front of a transport.
func (g *Gate) HTTP(system string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper { return &transport{g, system, next} }
}

type transport struct {
	gate   *Gate
	system string
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.gate.ctx.Err() != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as every RoundTripper must
		}
		return nil, ErrClosed
	}
	resp, err := t.next.RoundTrip(r)
	switch {
	case err != nil:
		t.gate.count(t.system, Lost)
	case resp.StatusCode >= 500:
		t.gate.count(t.system, Failed)
	case resp.StatusCode >= 400:
		t.gate.count(t.system, Refused)
	default:
		t.gate.count(t.system, OK)
	}
	return resp, err
}

// CloseIdleConnections lets http.Client close the connections behind the gate.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// GRPC returns what puts the gate into a gRPC connection. A stream counts once
// its first answer is there, or it has ended without one.
func (g *Gate) GRPC(system string) []grpc.DialOption {
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if g.ctx.Err() != nil {
			return ErrClosed
		}
		err := invoke(ctx, method, req, reply, cc, opts...)
		g.count(system, outcomeOf(err))
		return err
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if g.ctx.Err() != nil {
			return nil, ErrClosed
		}
		s, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			g.count(system, outcomeOf(err))
			return nil, err
		}
		return &counted{ClientStream: s, gate: g, system: system}, nil
	}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream)}
}

// counted is a stream whose first answer is counted.
type counted struct {
	grpc.ClientStream
	gate   *Gate
	system string
	once   sync.Once
}

// RecvMsg implements grpc.ClientStream.
func (c *counted) RecvMsg(m any) error {
	err := c.ClientStream.RecvMsg(m)
	c.once.Do(func() { c.gate.count(c.system, outcomeOf(err)) })
	return err
}

func outcomeOf(err error) Outcome {
	if err == nil || errors.Is(err, io.EOF) {
		return OK
	}
	switch status.Code(err) {
	case codes.OK:
		return OK
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return Lost
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.ResourceExhausted:
		return Failed
	default:
		return Refused
	}
}
