package talos

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/lab/talos/relay"
)

// router passes calls on for this machine.
func (b *boot) router() relay.Router { return relay.Router{Machine: inside{b}, Services: serviceDescs} }

// Describe implements relay.Machine.
func (i inside) Describe() (address string, control bool) {
	i.b.f.mu.Lock()
	defer i.b.f.mu.Unlock()
	return i.b.address.Addr().String(), i.b.set != nil && i.b.set.control
}

// FindService implements relay.Machine: of a machine in the same cluster.
func (i inside) FindService(ctx context.Context, target, service string) (any, error) {
	b := i.b
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
		return nil, relay.CannotDial(addr, "no route to host")
	}
	return impl, err
}

// arpTimeout is how long Linux looks for a neighbour.
const arpTimeout = 3 * time.Second

var errNoRoute = errors.New("no route to host")

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
			return nil, relay.CannotDial(addr, "connection refused")
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
