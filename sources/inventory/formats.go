package inventory

import (
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// format is the rule of one kind of text. Whatever reaches Proxmox VE, Talos
// or a URL from the inventory is bounded by such a rule: the alphabets leave
// no room for the commas, equal signs and slashes that mean something there.
type format struct {
	what    string // what the text is: "a VMID"
	write   string // a value to show
	pattern *regexp.Regexp
	max     int // characters
}

// formats are the rules by name. For what Proxmox VE names (hosts, storages,
// bridges, pools) they are as narrow as its API's or narrower. No path of a URL
// climbs with dots: the host's policy compares beginnings.
var formats = map[string]format{
	"label":        {"a DNS label (lower-case letters, digits and -, at most 63)", "dev-cp-1", regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`), 63},
	"pattern":      {"a DNS label with {n} for the number of the node", `"dev-wk-{n}"`, regexp.MustCompile(`^([a-z0-9][a-z0-9-]*)?\{n\}([a-z0-9-]*[a-z0-9])?$`), 60},
	"host":         {"a host name or an address", "ntp.example.org", regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?$`), 253},
	"pvenode":      {"the name of a Proxmox VE host", "pve1", regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`), 63},
	"version":      {"a version: v, then three numbers", "v1.13.9", regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(alpha|beta|rc)\.\d+)?$`), 32},
	"contract":     {"a minor version: v, then two numbers", "v1.13", regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)$`), 16},
	"endpoint":     {"an https URL with a port", "https://k8s.example.org:6443", regexp.MustCompile(`^https://[A-Za-z0-9.-]+:[1-9]\d{0,4}$`), 300},
	"macprefix":    {"the first three bytes of a MAC address", `"BC:24:11"`, regexp.MustCompile(`^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){2}$`), 8},
	"mac":          {"a MAC address", `"BC:24:11:00:00:21"`, regexp.MustCompile(`^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$`), 17},
	"storage":      {"the name of a storage", "local-lvm", regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?$`), 100},
	"bridge":       {"the name of a bridge", "vmbr1", regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*$`), 15},
	"pool":         {"the name of a resource pool", "talos-dev", regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+){0,2}$`), 100},
	"tag":          {"a tag (letters, digits and . _ + -)", "team-a", regexp.MustCompile(`^[^,;]+$`), 60},
	"cputype":      {"the name of a processor type", "x86-64-v2-AES", regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`), 60},
	"diskname":     {"the name of a disk (lower-case letters, digits and -, at most 14)", "longhorn", regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`), 14},
	"extension":    {"the name of a system extension", "siderolabs/iscsi-tools", regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*$`), 128},
	"kernelarg":    {"one argument of the kernel", "console=ttyS0", regexp.MustCompile(`^-?[A-Za-z0-9_][!-~]*$`), 256},
	"registry":     {"a registry: a host, with a port if it needs one", "factory.talos.dev", regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?$`), 253},
	"file":         {"a path of the repository", "patches/common.yaml", regexp.MustCompile(`^[A-Za-z0-9._@+ -][A-Za-z0-9._@+ /-]*$`), 300},
	"release":      {"the name of a Helm release (lower-case letters, digits and -, at most 53)", "cilium", regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`), 53},
	"chartname":    {"the name of a chart", "cilium", regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`), 250},
	"chartversion": {"an exact chart version", "1.19.3", regexp.MustCompile(`^v?\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`), 64},
	"https":        {"an https URL without user, query, fragment or escapes", "https://charts.example.org", regexp.MustCompile(`^https://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?(/[A-Za-z0-9_~+-][A-Za-z0-9._~+-]*)*/?$`), 500},
	"oci":          {"the oci URL of a chart", "oci://ghcr.io/org/charts/name", regexp.MustCompile(`^oci://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?(/[a-z0-9][a-z0-9._-]*)+$`), 500},
	"sha256":       {"a SHA-256 in hex (64 digits)", "", regexp.MustCompile(`^[0-9a-f]{64}$`), 64},
	"digest":       {"a digest: sha256: and 64 hex digits", "", regexp.MustCompile(`^sha256:[0-9a-f]{64}$`), 71},
}

// scalar is how a Go type other than a text, a number or a truth value is
// written.
type scalar struct {
	what    string
	write   string
	pattern string // for the JSON Schema
	number  bool   // may be written as a plain number
	parse   func(text string) (any, error)
}

var scalars = map[reflect.Type]scalar{
	reflect.TypeFor[netip.Addr]():    {"an IPv4 address", "10.10.0.11", `^\d{1,3}(\.\d{1,3}){3}$`, false, func(s string) (any, error) { return parseAddr(s) }},
	reflect.TypeFor[netip.Prefix]():  {"a network in CIDR notation", "10.10.0.0/24", `^\d{1,3}(\.\d{1,3}){3}/\d{1,2}$`, false, func(s string) (any, error) { return parsePrefix(s) }},
	reflect.TypeFor[size]():          {"a size", "40G", `^[1-9][0-9]*(MiB|GiB|TiB|[MGT]i?)$`, true, func(s string) (any, error) { return parseSize(s) }},
	reflect.TypeFor[vmids]():         {"a range of VMIDs", "501-599", `^\d+-\d+$`, false, func(s string) (any, error) { return parseVMIDs(s) }},
	reflect.TypeFor[time.Duration](): {"a duration", "15m", `^([0-9]+(h|m|s))+$`, false, func(s string) (any, error) { return parseTimeout(s) }},
}

// cure is an error whose text is what to write instead.
type cure string

func (c cure) Error() string { return string(c) }

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err == nil && a.Is4():
		return a, nil
	case err == nil:
		return netip.Addr{}, cure("nodes have IPv4 addresses only so far")
	case strings.Contains(s, "/"):
		return netip.Addr{}, cure("write the address alone, without the /")
	}
	return netip.Addr{}, cure("write one like 10.10.0.11")
}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return netip.Prefix{}, cure("write one like 10.10.0.0/24")
	case !p.Addr().Is4():
		return netip.Prefix{}, cure("networks are IPv4 only so far")
	case p != p.Masked():
		return netip.Prefix{}, cure("write " + p.Masked().String() + ": the bits after the / must be zero")
	}
	return p, nil
}

// The units of sizes. They are powers of 1024 in every spelling, as in
// Proxmox VE.
var units = []struct {
	name  string
	bytes int64
}{
	{"MiB", mib}, {"GiB", gib}, {"TiB", tib}, {"Mi", mib}, {"Gi", gib}, {"Ti", tib}, {"M", mib}, {"G", gib}, {"T", tib},
}

const (
	mib int64 = 1 << 20
	gib int64 = 1 << 30
	tib int64 = 1 << 40
	// maxSize is the largest disk there is: what a VirtIO disk of Proxmox VE
	// can sensibly be, and far below an overflow of sums.
	maxSize = 128 * tib
)

func parseSize(s string) (size, error) {
	digits := strings.TrimRight(s, "MGTiBKbkmgt ")
	unit := strings.TrimSpace(s[len(digits):])
	n, err := parseDigits(digits)
	if err != nil {
		return 0, cure("write a whole number with a unit, like 40G")
	}
	factor := int64(0)
	if unit == "" {
		factor = gib
	}
	for _, u := range units {
		if u.name == unit {
			factor = u.bytes
		}
	}
	switch {
	case factor == 0 && strings.EqualFold(unit, "gb"), factor == 0 && strings.EqualFold(unit, "g"):
		return 0, cure(fmt.Sprintf("write %dG: sizes are powers of 1024", n))
	case factor == 0:
		return 0, cure("write it with M, G or T, like 40G")
	case n == 0:
		return 0, cure("write more than nothing")
	case n > maxSize/factor:
		return 0, cure("write at most 128T; a plain number counts GiB")
	}
	return size(n * factor), nil
}

// String prints the size the way it is best written.
func (s size) String() string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"T", tib}, {"G", gib}} {
		if int64(s)%u.bytes == 0 {
			return fmt.Sprintf("%d%s", int64(s)/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%dM", int64(s)/mib)
}

const (
	minVMID = 100
	maxVMID = 999999999
)

func parseVMIDs(s string) (vmids, error) {
	a, b, ok := strings.Cut(s, "-")
	first, err1 := parseDigits(strings.TrimSpace(a))
	last, err2 := parseDigits(strings.TrimSpace(b))
	switch {
	case !ok || err1 != nil || err2 != nil:
		return vmids{}, cure("write the first and the last, like 501-599")
	case first > last:
		return vmids{}, cure(fmt.Sprintf("write the lower one first: %d-%d", last, first))
	case first < minVMID || last > maxVMID:
		return vmids{}, cure(fmt.Sprintf("VMIDs go from %d to %d", minVMID, maxVMID))
	}
	return vmids{First: int(first), Last: int(last)}, nil
}

const maxTimeout = 24 * time.Hour

func parseTimeout(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, cure("write a number with h, m or s, like 15m")
	case d < time.Second || d > maxTimeout:
		return 0, cure("write something between 1s and 24h")
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
