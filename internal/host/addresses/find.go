package addresses

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Finder finds addresses. Its methods may be called by several goroutines.
type Finder struct {
	files []string // of leases, as dnsmasq writes them
	arp   string
	own   func(context.Context, netip.Prefix) bool // whether this host has an address in a network

	mu    sync.Mutex
	asked map[netip.Prefix]time.Time
}

// neighbours is the kernel's table in the network namespace of this thread: "self" is that of the first thread,
// which a goroutine may have left in another one.
const neighbours = "/proc/thread-self/net/arp"

// New returns a Finder that reads these lease files, besides the kernel's table.
func New(files ...string) *Finder {
	return &Finder{files: files, arp: neighbours, own: isOwn, asked: map[netip.Prefix]time.Time{}}
}

// Where is where it looks, for people.
func (f *Finder) Where() string {
	return strings.Join(append(slices.Clone(f.files), "the table of neighbours (`ip neigh`)"), ", ")
}

// Find returns the addresses that were seen for each MAC, in upper case, the likeliest first: the leases that end
// last, then the neighbours. An error is about what could not be read; the rest is returned with it.
func (f *Finder) Find() (map[string][]netip.Addr, error) {
	out, errs := map[string][]netip.Addr{}, []error(nil)
	add := func(mac string, ip netip.Addr) {
		if mac = strings.ToUpper(mac); !slices.Contains(out[mac], ip) {
			out[mac] = append(out[mac], ip)
		}
	}
	var leases []lease
	for _, file := range f.files {
		text, err := readBounded(file)
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot read the leases: %w", err))
			continue
		}
		leases = append(leases, parseLeases(text)...)
	}
	slices.SortStableFunc(leases, func(a, b lease) int { return cmp.Compare(b.ends, a.ends) })
	for _, l := range leases {
		add(l.mac, l.ip)
	}
	table, err := readBounded(f.arp)
	if err != nil {
		errs = append(errs, fmt.Errorf("cannot read the table of neighbours: %w", err))
	}
	parseNeighbours(table, add)
	return out, errors.Join(errs...)
}

// maxFile bounds what is read of a file: a lease and a neighbour have a line of about a hundred bytes.
const maxFile = 4 << 20

// readBounded reads a file that is no larger than maxFile.
func readBounded(name string) (text string, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", cmp.Or(err, fmt.Errorf("%s is no file", name))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", err
	}
	if len(data) > maxFile {
		return "", fmt.Errorf("%s is larger than %d MiB", name, maxFile>>20)
	}
	return string(data), nil
}

// lease is a lease of a DHCP server.
type lease struct {
	ends uint64 // seconds since 1970; the greatest there is: never
	mac  string
	ip   netip.Addr
}

// parseLeases reads the leases of IPv4 in a file of dnsmasq: when it ends, 0 for never, the MAC, the address, the
// name and the client's id. The lines behind "duid" are of IPv6. Source: dnsmasq 2.90, lease.c, lease_update_file. What
// is no such line is left out: the file may be read while it is written.
func parseLeases(text string) (out []lease) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) > 0 && f[0] == "duid" {
			break
		}
		if len(f) < 3 || !isMAC(f[1]) {
			continue
		}
		ends, err := strconv.ParseUint(f[0], 10, 64)
		ip, err2 := netip.ParseAddr(f[2])
		if err != nil || err2 != nil || !ip.Is4() {
			continue
		}
		out = append(out, lease{ends: ends - 1, mac: f[1], ip: ip}) // 0 becomes the greatest
	}
	return out
}

// isMAC reports whether s is a MAC of Ethernet: dnsmasq puts the type before those of other hardware, as "06-".
func isMAC(s string) bool {
	parts := strings.Split(s, ":")
	return len(parts) == 6 && !slices.ContainsFunc(parts, func(p string) bool {
		_, err := strconv.ParseUint(p, 16, 8)
		return err != nil || len(p) != 2
	})
}

// complete is the flag of a neighbour that has answered (linux/if_arp.h: ATF_COM).
const complete = 0x2

// parseNeighbours reads the kernel's table: IP address, HW type, flags, HW address, mask, device (proc_net(5)).
func parseNeighbours(table string, add func(mac string, ip netip.Addr)) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 6 || !isMAC(f[3]) {
			continue
		}
		flags, err := strconv.ParseUint(f[2], 0, 32)
		ip, err2 := netip.ParseAddr(f[0])
		if err == nil && err2 == nil && flags&complete != 0 {
			add(f[3], ip)
		}
	}
}
