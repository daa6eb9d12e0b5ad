package access

import (
	"context"

	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Router carries out the calls that a machine takes, or passes them on to others.
type Router interface {
	Unary(ctx context.Context, req any, method string, handler grpc.UnaryHandler) (any, error)
	Stream(srv any, ss grpc.ServerStream, method string, handler grpc.StreamHandler) error
}

// Gate finds out who calls the API of a machine and whether they may, and where the call goes.
type Gate struct {
	Maintenance bool
	Minor       int // of its version
	Router      Router
}

func (g *Gate) admitCall(ctx context.Context, method string) (context.Context, error) {
	roles := role.MakeSet(role.Reader)
	if !g.Maintenance {
		roles = CallerRoles(ctx)
	}
	if g.Maintenance && g.Minor < 13 {
		// The maintenance service of old knows no roles; it implements little.
		return WithRoles(ctx, roles), nil
	}
	return WithRoles(ctx, roles), Authorize(roles, method)
}

// InterceptUnary guards the calls of one answer.
func (g *Gate) InterceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := g.admitCall(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if g.Maintenance {
		return handler(ctx, req)
	}
	return g.Router.Unary(ctx, req, info.FullMethod, handler)
}

// InterceptStream guards the others.
func (g *Gate) InterceptStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := g.admitCall(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	ss = &serverStream{ServerStream: ss, ctx: ctx}
	if g.Maintenance {
		err = handler(srv, ss)
	} else {
		err = g.Router.Stream(srv, ss, info.FullMethod, handler)
	}
	if err == nil && ctx.Err() != nil {
		// A watch that ends because its caller's time is over did not end well.
		err = status.FromContextError(ctx.Err()).Err()
	}
	return err
}

// serverStream is a stream with another context.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }
