package world

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
)

// DefaultPrefix is where a lab is that nobody chose a network for.
const DefaultPrefix = "127.84.7.0/24"

// lockPort is the UDP port at x.y.z.254 whose socket is the lock on x.y.z.0/24. It
// is below the ports that the kernel gives out by itself, so that no passing socket
// takes it; the kernel drops the lock with the process.
const lockPort = 28484

// FreePrefix finds a /24 of 127.0.0.0/8 that nobody holds on this machine, and
// holds it until release is called: labs run side by side. It is never
// DefaultPrefix, which is left to people. Linux answers on all of 127.0.0.0/8;
// other systems do not.
func FreePrefix() (prefix netip.Prefix, release func(), err error) {
	// A random beginning, so that many who ask at once seldom meet.
	first := rand.IntN(256)
	for i := range 16 * 256 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{127, byte(84 + i/256), byte(first + i), 0}), 24)
		if p.String() == DefaultPrefix {
			continue
		}
		if release, err := HoldPrefix(p); !errors.Is(err, syscall.EADDRINUSE) {
			return p, release, err
		}
	}
	return netip.Prefix{}, nil, errors.New("find a free /24 from 127.84.0.0 to 127.99.255.0: all are taken")
}

// FreeLargePrefix is FreePrefix for thousands of nodes: it holds a /20 that begins
// at 127.x.0.0.
func FreeLargePrefix() (prefix netip.Prefix, release func(), err error) {
	first := rand.IntN(100)
	for i := range 100 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{127, byte(100 + (first+i)%100), 0, 0}), 20)
		if release, err := HoldPrefix(p); !errors.Is(err, syscall.EADDRINUSE) {
			return p, release, err
		}
	}
	return netip.Prefix{}, nil, errors.New("find a free /20 from 127.100.0.0 to 127.199.0.0: all are taken")
}

// HoldPrefix holds a network of 127.0.0.0/8, a /24 or one of up to 256 of them,
// until release is called: meanwhile nobody else can hold it, or gets it from
// FreePrefix. Where somebody does, the error is syscall.EADDRINUSE and names the
// address.
func HoldPrefix(p netip.Prefix) (release func(), err error) {
	p = p.Masked()
	if p.Bits() < 16 || p.Bits() > 24 || !p.Addr().Is4() || !p.Addr().IsLoopback() {
		return nil, fmt.Errorf("hold %s: want a /16 to /24 of 127.0.0.0/8", p)
	}
	var locks []net.PacketConn
	release = func() {
		for _, l := range locks {
			_ = l.Close()
		}
	}
	for i := range 1 << (24 - p.Bits()) {
		at := p.Addr().As4()
		at[2] += byte(i)
		at[3] = 254
		l, err := net.ListenPacket("udp4", netip.AddrPortFrom(netip.AddrFrom4(at), lockPort).String())
		if err != nil {
			release()
			if errors.Is(err, syscall.EADDRNOTAVAIL) {
				err = fmt.Errorf("%w; labs need Linux, which answers on all of 127.0.0.0/8", err)
			}
			return nil, fmt.Errorf("hold %s for one lab alone: %w", p, err)
		}
		locks = append(locks, l)
	}
	return release, nil
}
