package yamlschema

import (
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/dualstack"
)

// scalars are the types that every language has.
var scalars = map[reflect.Type]Scalar{
	reflect.TypeFor[netip.Addr]():        {"an IPv4 address", "10.10.0.11", `^\d{1,3}(\.\d{1,3}){3}$`, false, func(s string) (any, error) { return parseAddr(s) }},
	reflect.TypeFor[netip.Prefix]():      {"a network in CIDR notation", "10.10.0.0/24", `^\d{1,3}(\.\d{1,3}){3}/\d{1,2}$`, false, func(s string) (any, error) { return parsePrefix(s) }},
	reflect.TypeFor[dualstack.Address](): {"an IPv6 address", dualstack.ExampleAddress, dualstack.AddressPattern, false, func(s string) (any, error) { return dualstack.ParseAddress(s) }},
	reflect.TypeFor[dualstack.Prefix]():  {"an IPv6 network in CIDR notation", dualstack.ExamplePrefix, dualstack.PrefixPattern, false, func(s string) (any, error) { return dualstack.ParsePrefix(s) }},
	reflect.TypeFor[Size]():              {"a size", "40G", `^[1-9][0-9]*(MiB|GiB|TiB|[MGT]i?)$`, true, func(s string) (any, error) { return ParseSize(s) }},
	reflect.TypeFor[cluster.Range]():     {"a range of VMIDs", "501-599", `^\d+-\d+$`, false, func(s string) (any, error) { return parseVMIDs(s) }},
	reflect.TypeFor[time.Duration]():     {"a duration", "15m", `^([0-9]+(h|m|s))+$`, false, func(s string) (any, error) { return parseDuration(s) }},
}

// Hint is an error whose text is what to write instead.
type Hint string

// Error implements error.
func (c Hint) Error() string { return string(c) }

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err == nil && a.Is4():
		return a, nil
	case err == nil:
		return netip.Addr{}, Hint("write an IPv4 address; IPv6 has keys of its own")
	case strings.Contains(s, "/"):
		return netip.Addr{}, Hint("write the address alone, without the /")
	}
	return netip.Addr{}, Hint("write one like 10.10.0.11")
}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return netip.Prefix{}, Hint("write one like 10.10.0.0/24")
	case !p.Addr().Is4():
		return netip.Prefix{}, Hint("write an IPv4 network; IPv6 has keys of its own")
	case p != p.Masked():
		return netip.Prefix{}, Hint("write " + p.Masked().String() + ": the bits after the / must be zero")
	}
	return p, nil
}

// Size is a number of bytes, written with a unit: 40G. The units are powers of
// 1024 in every spelling, as in Proxmox VE.
type Size int64

// The units of sizes.
const (
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
	// maxSize is the largest disk there is: what a VirtIO disk of Proxmox VE
	// can sensibly be, and far below an overflow of sums.
	maxSize = 128 * TiB
)

var units = []struct {
	name  string
	bytes Size
}{
	{"MiB", MiB}, {"GiB", GiB}, {"TiB", TiB}, {"Mi", MiB}, {"Gi", GiB}, {"Ti", TiB}, {"M", MiB}, {"G", GiB}, {"T", TiB},
}

// ParseSize reads a size; a plain number counts GiB. Its error is a Hint.
func ParseSize(s string) (Size, error) {
	digits := strings.TrimRight(s, "MGTiBKbkmgt ")
	unit := strings.TrimSpace(s[len(digits):])
	n, err := parseDigits(digits)
	if err != nil {
		return 0, Hint("write a whole number with a unit, like 40G")
	}
	factor := Size(0)
	if unit == "" {
		factor = GiB
	}
	for _, u := range units {
		if u.name == unit {
			factor = u.bytes
		}
	}
	switch {
	case factor == 0 && strings.EqualFold(unit, "gb"), factor == 0 && strings.EqualFold(unit, "g"):
		return 0, Hint(fmt.Sprintf("write %dG: sizes are powers of 1024", n))
	case factor == 0:
		return 0, Hint("write it with M, G or T, like 40G")
	case n == 0:
		return 0, Hint("write more than nothing")
	case n > int64(maxSize/factor):
		return 0, Hint("write at most 128T; a plain number counts GiB")
	}
	return Size(n) * factor, nil
}

// String prints the size the way it is best written.
func (s Size) String() string {
	for _, u := range []struct {
		name  string
		bytes Size
	}{{"T", TiB}, {"G", GiB}} {
		if s%u.bytes == 0 {
			return fmt.Sprintf("%d%s", int64(s/u.bytes), u.name)
		}
	}
	return fmt.Sprintf("%dM", int64(s/MiB))
}

// The VMIDs of Proxmox VE.
const (
	MinVMID = 100
	MaxVMID = 999999999
)

func parseVMIDs(s string) (cluster.Range, error) {
	a, b, ok := strings.Cut(s, "-")
	first, err1 := parseDigits(strings.TrimSpace(a))
	last, err2 := parseDigits(strings.TrimSpace(b))
	switch {
	case !ok || err1 != nil || err2 != nil:
		return cluster.Range{}, Hint("write the first and the last, like 501-599")
	case first > last:
		return cluster.Range{}, Hint(fmt.Sprintf("write the lower one first: %d-%d", last, first))
	case first < MinVMID || last > MaxVMID:
		return cluster.Range{}, Hint(fmt.Sprintf("VMIDs go from %d to %d", MinVMID, MaxVMID))
	}
	return cluster.Range{First: int(first), Last: int(last)}, nil
}

const (
	maxDuration    = 24 * time.Hour
	durationBounds = "write something between 1s and 24h"
)

// outOfBounds is a value of the right form that is out of bounds: which, and what to write.
type outOfBounds struct{ is, write string }

// Error implements error.
func (e outOfBounds) Error() string { return e.write }

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, Hint("write a number with h, m or s, like 15m")
	case d < time.Second:
		return 0, outOfBounds{"is too short", durationBounds}
	case d > maxDuration:
		return 0, outOfBounds{"is too long", durationBounds}
	}
	return d, nil
}

// parseDigits reads a plain decimal number: no sign, no leading zero, no
// underscore, no other base, because YAML's dialects disagree about them.
func parseDigits(s string) (int64, error) {
	if s == "" || len(s) > 1 && s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(s, 10, 64)
}
