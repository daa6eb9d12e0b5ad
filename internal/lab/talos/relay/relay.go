//lint:file-ignore SA1019 every version the lab simulates shows by the deprecated metadata which machine an answer is from

package relay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Machine is the one that is called.
type Machine interface {
	// Describe returns the machine's address and whether it is a control plane.
	Describe() (address string, control bool)
	// FindService returns what implements a service on the machine of that address in the same cluster.
	FindService(ctx context.Context, target, service string) (any, error)
}

// Router passes calls on: metadata "node" sends one to another machine, "nodes" to several whose
// answers are put together. A worker passes nothing on. A machine in maintenance mode has none: it
// ignores the headers.
type Router struct {
	Machine  Machine
	Services []*grpc.ServiceDesc
}

// Unary has a call answered where it is to be.
func (r Router) Unary(ctx context.Context, req any, method string, handler grpc.UnaryHandler) (any, error) {
	nodes, many, err := r.readTargets(ctx, method)
	if err != nil {
		return nil, err
	}
	if nodes == nil {
		return handler(ctx, req)
	}
	ask := func(node string) (answer, empty proto.Message, err error) {
		return call(ctx, r.Services, req, method, func(service string) (any, error) { return r.Machine.FindService(ctx, node, service) })
	}
	if !many {
		resp, _, err := ask(nodes[0])
		return resp, err
	}
	return askAll(nodes, ask), nil
}

// Stream has a stream answered where it is to be.
func (r Router) Stream(srv any, ss grpc.ServerStream, method string, handler grpc.StreamHandler) error {
	nodes, many, err := r.readTargets(ss.Context(), method)
	if err != nil {
		return err
	}
	if nodes == nil {
		return handler(srv, ss)
	}
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return stream(ss, method, nodes, many, func(node string) (any, error) { return r.Machine.FindService(ss.Context(), node, service) }, handler)
}

func (r Router) readTargets(ctx context.Context, method string) (nodes []string, many bool, err error) {
	local, control := r.Machine.Describe()
	return readTargets(ctx, method, local, control)
}

// readTargets reads from a call which machines it is for; nil: the one at the address local, which
// was asked. A worker passes nothing on.
func readTargets(ctx context.Context, method, local string, control bool) (nodes []string, many bool, err error) {
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return nil, false, nil
	}
	node, nodes := md.Get("node"), md.Get("nodes")
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

// call carries out a unary call on a machine. find returns what implements the service there; empty
// is an answer without content, for an error to be put into.
func call(ctx context.Context, services []*grpc.ServiceDesc, req any, method string, find func(service string) (any, error)) (resp, empty proto.Message, err error) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	for _, d := range services {
		if d.ServiceName != service {
			continue
		}
		for _, m := range d.Methods {
			if m.MethodName != name {
				continue
			}
			if empty, err = emptyAnswer(service, name); err != nil {
				return nil, nil, err
			}
			impl, err := find(service)
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

// askAll asks several machines, one after the other, and puts their answers and errors into one.
// ask returns an answer without content, too, for an error to be put into.
func askAll(nodes []string, ask func(node string) (answer, empty proto.Message, err error)) any {
	var all protoreflect.Message
	for _, node := range nodes {
		resp, empty, err := ask(node)
		if err != nil {
			resp = empty
		}
		all = mergeAnswer(all, resp, node, err)
	}
	return all.Interface()
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

// stream has machines answer a client's stream: one as if it were the one that was called, or
// several whose messages are marked. find returns what implements the service on a machine.
func stream(ss grpc.ServerStream, method string, nodes []string, many bool, find func(node string) (any, error), handler grpc.StreamHandler) error {
	request := &sharedStream{ServerStream: ss, turn: make(chan struct{}, 1)}
	if !many {
		impl, err := find(nodes[0])
		if err != nil {
			return err
		}
		return handler(impl, &replay{sharedStream: request})
	}
	failed := make([]error, len(nodes))
	ask := func(i int) {
		impl, err := find(nodes[i])
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

// CannotDial is the error of a call to a machine that cannot be reached.
func CannotDial(to netip.Addr, reason string) error {
	return status.Errorf(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp %s:50000: connect: %s"`, to, reason)
}
