package talos

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state"
	cosiclient "github.com/cosi-project/runtime/pkg/state/protobuf/client"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// The deadlines of a connection.
const (
	dialWithin  = 3 * time.Second // a first packet that is lost is sent again after one second
	greetWithin = 5 * time.Second // the TLS handshake
	callWithin  = 5 * time.Second // a call that only reads
)

// A dead peer is noticed within idle + count*interval = 15 s. The kernel does
// this, not gRPC: Talos sets no keepalive policy on its server, so that gRPC's
// default holds there, which hangs up on clients that ping more often than
// every five minutes.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 6 * time.Second, Interval: 3 * time.Second, Count: 3}

// The caps on what a machine may send. The largest honest message is the watch
// event of a machine config, which carries it four times.
const (
	maxMessage = 8 << 20
	maxHeader  = 1 << 20 // errors travel in headers, and some carry a diff of two configs
)

// link is one connection to one machine, from its handshake to its end. It is
// never dialled again.
type link struct {
	standing standing
	conn     net.Conn
	grpc     *grpc.ClientConn
	machine  machineapi.MachineServiceClient
	cosi     state.CoreState
}

// unreached is why there is no link, and what that makes of the machine.
type unreached struct {
	reach cluster.Reach
	why   string
	err   error // nil: why is complete
}

func (u *unreached) Error() string {
	if u.err == nil {
		return u.why
	}
	return u.why + ": " + formatError(u.err)
}

func (u *unreached) Unwrap() error { return u.err }

// connect dials a machine and finds out whom it speaks with. Any error is an
// *unreached.
func (f *Fleet) connect(ctx context.Context, ip netip.Addr, k keys) (*link, error) {
	addr := netip.AddrPortFrom(ip, constants.ApidPort).String()
	dialing, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	raw, err := f.dial(dialing, "tcp", addr)
	if err != nil {
		if isSilence(err) {
			return nil, &unreached{cluster.Silent, "nothing answers at " + addr, err}
		}
		return nil, &unreached{cluster.ReachUnknown, "cannot reach " + addr, err}
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		if err := tcp.SetKeepAliveConfig(keepAlive); err != nil {
			_ = raw.Close()
			return nil, &unreached{cluster.ReachUnknown, "cannot watch over the connection to " + addr, err}
		}
	}
	v := &vetting{keys: k, address: ip}
	conn := tls.Client(raw, v.config())
	greeting, cancel := context.WithTimeout(ctx, greetWithin)
	defer cancel()
	if err := conn.HandshakeContext(greeting); err != nil {
		_ = raw.Close()
		return nil, v.refused(addr, err)
	}
	l := &link{standing: v.standing, conn: &outspoken{conn}}
	if err := l.speak(addr, f.options); err != nil {
		_ = conn.Close()
		return nil, &unreached{cluster.ReachUnknown, "cannot speak gRPC with " + addr, err}
	}
	return l, nil
}

// outspoken is a connection that reports why the other side closed it. With TLS 1.3 a
// machine judges the client's certificate after the client's handshake is over: then
// the reason waits to be read while a write only finds the connection closed.
type outspoken struct{ *tls.Conn }

// Write implements net.Conn.
func (c *outspoken) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil {
		return n, nil
	}
	if c.SetReadDeadline(time.Now().Add(time.Second)) == nil {
		var alert *net.OpError
		if _, why := c.Read(make([]byte, 1)); errors.As(why, &alert) && alert.Op == "remote error" {
			return n, why
		}
	}
	return n, err
}

// silent are the errors of a connection that mean that nothing is there (any
// more), and not that the host itself cannot get out.
var silent = []error{
	syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT,
	os.ErrDeadlineExceeded, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed,
}

func isSilence(err error) bool {
	return slices.ContainsFunc(silent, func(s error) bool { return errors.Is(err, s) })
}

var errSpent = errors.New("the connection is over")

// speak puts gRPC on top of the connection. The dialer hands it out once, so
// that nothing is ever sent to anybody but who was vetted.
func (l *link) speak(addr string, more []grpc.DialOption) error {
	once := make(chan net.Conn, 1)
	once <- l.conn
	dial := func(context.Context, string) (net.Conn, error) {
		select {
		case c := <-once:
			return c, nil
		default:
			return nil, errSpent
		}
	}
	c, err := grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
		grpc.WithContextDialer(dial),
		grpc.WithNoProxy(),
		grpc.WithTransportCredentials(vetted{}),
		grpc.WithUserAgent("talos-agent"),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		// Connections by the thousand that carry little: small buffers.
		grpc.WithReadBufferSize(4 << 10), grpc.WithWriteBufferSize(4 << 10),
	}, more...)...)
	if err != nil {
		return err
	}
	l.grpc = c
	l.machine = machineapi.NewMachineServiceClient(c)
	l.cosi = cosiclient.NewAdapter(cosi.NewStateClient(c), cosiclient.WithDisableWatchRetry())
	return nil
}

// close ends the connection and everything that waits on it.
func (l *link) close() {
	// Both mean only that the connection is over already.
	_ = l.grpc.Close()
	_ = l.conn.Close()
}

// vetted are the transport credentials of a connection whose handshake is over.
type vetted struct{}

func (vetted) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, ok := c.(*outspoken)
	if !ok {
		return nil, nil, errors.New("the connection is not encrypted")
	}
	return c, credentials.TLSInfo{
		State:          conn.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

func (vetted) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a client's")
}

func (vetted) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (v vetted) Clone() credentials.TransportCredentials { return v }
func (vetted) OverrideServerName(string) error           { return nil }
