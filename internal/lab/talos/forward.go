//lint:file-ignore SA1019 every version the lab simulates shows by the deprecated metadata which machine an answer is from

package talos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// A configured machine passes calls on: metadata "node" sends one to another
// machine, "nodes" to several whose answers are put together. A worker passes
// nothing on. In maintenance mode the headers are ignored.

// readTargets reads where a call is to go; nil: here.
func (b *boot) readTargets(ctx context.Context, method string) (nodes []string, many bool, err error) {
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return nil, false, nil
	}
	node, nodes := md.Get("node"), md.Get("nodes")
	local, control := b.whoAmI()
	switch {
	case len(node) > 1:
		return nil, false, status.Error(codes.InvalidArgument, "node metadata must be single-valued")
	case len(nodes) > 0 && !(len(nodes) == 1 && !control && nodes[0] == local):
		if !slices.ContainsFunc([]string{"/machine.MachineService/", "/storage.StorageService/", "/time.TimeService/"}, func(service string) bool { return strings.HasPrefix(method, service) }) {
			return nil, true, status.Errorf(codes.InvalidArgument, "one-2-many proxying is not supported for method %s", method)
		}
	case len(node) == 1 && node[0] != local:
		nodes = node
	default:
		return nil, false, nil
	}
	if !control {
		return nil, false, status.Error(codes.PermissionDenied, "no request forwarding")
	}
	return nodes, len(md.Get("nodes")) > 0, nil
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
	var all protoreflect.Message
	for _, node := range nodes {
		resp, empty, err := b.callAt(ctx, node, req, method)
		if err != nil {
			resp = empty
		}
		all = mergeAnswer(all, resp, node, err)
	}
	return all.Interface(), nil
}

// callAt carries out a unary call on another machine. empty is an answer
// without content, for an error to be put into.
func (b *boot) callAt(ctx context.Context, node string, req any, method string) (resp, empty proto.Message, err error) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	for _, d := range serviceDescs {
		if d.ServiceName != service {
			continue
		}
		for _, m := range d.Methods {
			if m.MethodName != name {
				continue
			}
			empty, err = emptyAnswer(service, name)
			if err != nil {
				return nil, nil, err
			}
			impl, err := b.serviceAt(ctx, node, service)
			if err != nil {
				return nil, empty, err
			}
			answer, err := m.Handler(impl, ctx, func(into any) error {
				proto.Merge(into.(proto.Message), req.(proto.Message))
				return nil
			}, nil)
			if err != nil {
				return nil, empty, err
			}
			return answer.(proto.Message), empty, nil
		}
	}
	return nil, nil, status.Errorf(codes.Unimplemented, "unknown method %s for service %s", name, service)
}

// mergeAnswer puts one machine's answer, or its error, into the common one.
func mergeAnswer(all protoreflect.Message, one proto.Message, node string, err error) protoreflect.Message {
	msg := one.ProtoReflect()
	if all == nil {
		all = msg.New()
	}
	field := msg.Descriptor().Fields().ByName("messages")
	list := all.Mutable(field).List()
	if err != nil {
		element := list.NewElement()
		markNode(element.Message(), node, err)
		list.Append(element)
		return all
	}
	for i := range msg.Get(field).List().Len() {
		element := msg.Get(field).List().Get(i)
		markNode(element.Message(), node, nil)
		list.Append(element)
	}
	return all
}

// markNode sets in a message which machine it is from.
func markNode(msg protoreflect.Message, node string, err error) {
	md := &common.Metadata{Hostname: node}
	if err != nil {
		st := status.Convert(err)
		md.Error, md.Status = err.Error(), st.Proto()
	}
	msg.Set(msg.Descriptor().Fields().ByName("metadata"), protoreflect.ValueOfMessage(md.ProtoReflect()))
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
	request := &sharedStream{ServerStream: ss, turn: make(chan struct{}, 1)}
	if !many {
		impl, err := b.serviceAt(ss.Context(), nodes[0], service)
		if err != nil {
			return err
		}
		return handler(impl, &replay{sharedStream: request})
	}
	failed := make([]error, len(nodes))
	ask := func(i int) {
		impl, err := b.serviceAt(ss.Context(), nodes[i], service)
		if err == nil {
			err = handler(impl, &replay{sharedStream: request, node: nodes[i]})
		}
		if err != nil && ss.Context().Err() == nil {
			data := &common.Data{}
			markNode(data.ProtoReflect(), nodes[i], err)
			failed[i] = request.send(data)
		}
	}
	var all sync.WaitGroup
	for i := range nodes {
		if slices.Contains(endless, method) {
			all.Go(func() { ask(i) })
		} else {
			ask(i)
		}
	}
	all.Wait()
	return errors.Join(failed...)
}

// endless are the streams that may not end, so that machines are asked side by side.
var endless = []string{"/machine.MachineService/Events", "/machine.MachineService/Dmesg", "/machine.MachineService/Logs"}

// sharedStream is the stream of a client that several machines answer.
type sharedStream struct {
	grpc.ServerStream
	turn chan struct{} // holds one value while it is read or written
	sent []proto.Message
}

func (s *sharedStream) send(m any) error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return s.ServerStream.SendMsg(m)
}

// replay gives every machine the requests the client sent and marks what they send
// back.
type replay struct {
	*sharedStream
	node string // "" : do not mark
	read int
}

func (r *replay) RecvMsg(m any) error {
	into, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("pass on a %T: not a protobuf message", m)
	}
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	if r.read == len(r.sent) {
		if err := r.ServerStream.RecvMsg(m); err != nil {
			return err
		}
		r.sent = append(r.sent, proto.Clone(into))
	} else {
		proto.Merge(into, r.sent[r.read])
	}
	r.read++
	return nil
}

func (r *replay) SendMsg(m any) error {
	if msg, ok := m.(proto.Message); ok && r.node != "" {
		markNode(msg.ProtoReflect(), r.node, nil)
	}
	return r.send(m)
}

// emptyAnswer makes the answer message of a method.
func emptyAnswer(service, method string) (proto.Message, error) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, fmt.Errorf("find service %s: %w", service, err)
	}
	sd, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("find service %s: it is a %T", service, d)
	}
	md := sd.Methods().ByName(protoreflect.Name(method))
	if md == nil {
		return nil, fmt.Errorf("find method %s of %s: there is none", method, service)
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(md.Output().FullName())
	if err != nil {
		return nil, fmt.Errorf("find answer of %s: %w", method, err)
	}
	return t.New().Interface(), nil
}
