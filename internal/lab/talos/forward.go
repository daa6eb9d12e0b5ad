package talos

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/talos-agent/talos-agent/internal/lab/talos/relay"
)

// A configured machine passes calls on: metadata "node" sends one to another
// machine, "nodes" to several whose answers are put together. A worker passes
// nothing on. In maintenance mode the headers are ignored.

// readTargets reads where a call is to go; nil: here.
func (b *boot) readTargets(ctx context.Context, method string) (nodes []string, many bool, err error) {
	local, control := b.whoAmI()
	return relay.ReadTargets(ctx, method, local, control)
}

// whoAmI returns the machine's address and whether it is a control plane.
func (b *boot) whoAmI() (address string, control bool) {
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	return b.address.Addr().String(), b.set != nil && b.set.control
}

// serviceAt finds the implementation of a service on the machine of that
// address in the same cluster.
func (b *boot) serviceAt(ctx context.Context, target, service string) (any, error) {
	addr, err := netip.ParseAddr(target)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "dns: A record lookup error: lookup %s: no such host", target)
	}
	impl, err := b.findHandler(addr, service)
	if errors.Is(err, errNoRoute) {
		// Nobody answers the question who has the address: that takes a while.
		if err := b.f.world.Sleep(ctx, arpTimeout); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		return nil, cannotDial(addr, "no route to host")
	}
	return impl, err
}

// arpTimeout is how long Linux looks for a neighbour.
const arpTimeout = 3 * time.Second

var errNoRoute = errors.New("no route to host")

func cannotDial(to netip.Addr, reason string) error {
	return status.Errorf(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp %s:50000: connect: %s"`, to, reason)
}

func (b *boot) findHandler(addr netip.Addr, service string) (any, error) {
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	for _, m := range b.f.sortMachines() {
		o := m.boot
		switch {
		case o == nil || o.address.Addr() != addr:
			continue
		case m.dark:
			return nil, errNoRoute
		case o.api == nil:
			return nil, cannotDial(addr, "connection refused")
		case o.set == nil || o.set.machineCA != b.set.machineCA:
			return nil, status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"`)
		}
		if impl, ok := o.api.services[service]; ok {
			return impl, nil
		}
		return nil, status.Errorf(codes.Unimplemented, "unknown service %s", service)
	}
	return nil, errNoRoute
}

func (b *boot) routeUnary(ctx context.Context, req any, method string, handler grpc.UnaryHandler) (any, error) {
	nodes, many, err := b.readTargets(ctx, method)
	if err != nil {
		return nil, err
	}
	if nodes == nil {
		return handler(ctx, req)
	}
	if !many {
		resp, _, err := b.callAt(ctx, nodes[0], req, method)
		return resp, err
	}
	return relay.AskAll(nodes, func(node string) (answer, empty proto.Message, err error) {
		return b.callAt(ctx, node, req, method)
	}), nil
}

// callAt carries out a unary call on another machine. empty is an answer
// without content, for an error to be put into.
func (b *boot) callAt(ctx context.Context, node string, req any, method string) (resp, empty proto.Message, err error) {
	return relay.Call(ctx, serviceDescs, req, method, func(service string) (any, error) { return b.serviceAt(ctx, node, service) })
}

func (b *boot) routeStream(srv any, ss grpc.ServerStream, method string, handler grpc.StreamHandler) error {
	nodes, many, err := b.readTargets(ss.Context(), method)
	if err != nil {
		return err
	}
	if nodes == nil {
		return handler(srv, ss)
	}
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return relay.Stream(ss, method, nodes, many, func(node string) (any, error) { return b.serviceAt(ss.Context(), node, service) }, handler)
}
