package pveconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Scalar is a JSON scalar as text, whatever type Proxmox VE gave it this time:
// one release answers "onboot":1 where another answers "onboot":"1", and
// numbers become strings once a user set them.
type Scalar string

// UnmarshalJSON implements json.Unmarshaler. Objects and arrays are kept as
// their JSON; null is "".
func (t *Scalar) UnmarshalJSON(raw []byte) error {
	switch {
	case bytes.Equal(raw, []byte("null")):
		*t = ""
	case bytes.Equal(raw, []byte("true")):
		*t = "1"
	case bytes.Equal(raw, []byte("false")):
		*t = "0"
	case len(raw) > 1 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw):
		*t = Scalar(raw[1 : len(raw)-1])
	case len(raw) > 0 && raw[0] == '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		*t = Scalar(s)
	default:
		*t = Scalar(raw)
	}
	return nil
}

// On reports whether the text is a boolean that is set, in any of the
// spellings Proxmox VE keeps in its files.
func (t Scalar) On() bool {
	switch strings.ToLower(string(t)) {
	case "1", "true", "yes", "on":
		return true
	}
	return false
}

// Number returns the text as a whole number; 0 when it is none. Statistics may
// come as fractions.
func (t Scalar) Number() int64 {
	if n, err := strconv.ParseInt(string(t), 10, 64); err == nil {
		return n
	}
	f, err := strconv.ParseFloat(string(t), 64)
	if err != nil || math.IsNaN(f) || math.Abs(f) > 1<<62 {
		return 0
	}
	return int64(f)
}

// Options is a VM's configuration, option by option.
type Options map[string]Scalar

// Digest identifies the state of the configuration's file: a write that names
// it is refused if somebody wrote in between.
func (o Options) Digest() string { return string(o["digest"]) }

// Get returns an option, or otherwise, which is what Proxmox VE takes when the option is
// not set.
func (o Options) Get(key, otherwise string) string {
	if v, ok := o[key]; ok && v != "" {
		return string(v)
	}
	return otherwise
}

// FirstBoot is the device that a VM boots from first, by its order; "" where that has none.
//
// Without a list of devices the firmware goes by letters, "cdn" by default, of which c stands for
// the disk that bootdisk names: where it names none no disk is booted from, and the network is.
// Source: PVE 9.2 qemu-server, device_bootorder and bootorder_from_legacy.
func (o Options) FirstBoot() string {
	boot, disk := string(o["boot"]), string(o["bootdisk"])
	order, listed := strings.CutPrefix(strings.TrimPrefix(boot, "legacy="), "order=")
	first, _, _ := strings.Cut(strings.TrimSpace(order), ";")
	if !listed && (boot == "" || strings.HasPrefix(first, "c") && disk != "") {
		return disk
	}
	return first
}

// HasSeed reports whether a VM has a cloud-init drive.
func (o Options) HasSeed() bool {
	for _, value := range o {
		if d := ParseProperties(string(value)); d["media"] == "cdrom" && strings.Contains(d.First("file", ""), "cloudinit") {
			return true
		}
	}
	return false
}

// Pending is a VM's configuration with the changes that wait for its next start,
// option by option.
//
// PVE 9.2 qemu-server: GET config has the changes that wait merged in; GET pending has
// both, option by option, and the digest.
type Pending []struct {
	Key            string
	Value, Pending *Scalar
	Delete         Scalar
}

// Options returns the configuration as it is from the next start on, and the one the VM
// runs with, where changes wait for that; nil: none do.
func (p Pending) Options() (next, active Options) {
	next, active = Options{}, Options{}
	changed := false
	for _, r := range p {
		if r.Value != nil {
			next[r.Key], active[r.Key] = *r.Value, *r.Value
		}
		switch {
		case r.Delete.On(), r.Delete.Number() > 0:
			delete(next, r.Key)
			changed = true
		case r.Pending != nil:
			next[r.Key] = *r.Pending
			changed = true
		}
	}
	if !changed {
		active = nil
	}
	return next, active
}

// Properties is a property string such as "local:9/vm-9-disk-0.raw,size=4G",
// taken apart. The value that has no key of its own is under "".
type Properties map[string]string

// ParseProperties takes a property string apart. Proxmox VE changes the order
// of properties and adds some, so that strings are never compared whole.
func ParseProperties(s string) Properties {
	out := Properties{}
	for part := range strings.SplitSeq(s, ",") {
		k, v, ok := strings.Cut(part, "=")
		if !ok {
			k, v = "", part
		}
		if _, twice := out[k]; !twice && part != "" {
			out[k] = v
		}
	}
	return out
}

// First returns the first of some properties that is there, "" when none is.
func (p Properties) First(keys ...string) string {
	for _, k := range keys {
		if v, ok := p[k]; ok {
			return v
		}
	}
	return ""
}

// Put sets the property that may be written without its key: under its key where it is
// there with it, else without.
func (p Properties) Put(key, value string) {
	if _, named := p[key]; !named {
		key = ""
	}
	p[key] = value
}

// String spells the properties as Proxmox VE reads them: the one without a key first.
func (p Properties) String() string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(p)) {
		if k == "" {
			out = append(out, p[k])
			continue
		}
		out = append(out, k+"="+p[k])
	}
	return strings.Join(out, ",")
}

// macPair matches a MAC in any case.
var macPair = pattern.New(`^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$`)

// MAC is the MAC of a network card in capital letters, which is the value of the model's
// name: "virtio=BC:24:11:00:00:11". "" when there is none.
func (p Properties) MAC() string {
	if mac := p["macaddr"]; mac != "" {
		return strings.ToUpper(mac)
	}
	for _, v := range p {
		if macPair.MatchString(v) {
			return strings.ToUpper(v)
		}
	}
	return ""
}

// Model is the model of a network card, "" when there is none.
func (p Properties) Model() string {
	if m := p["model"]; m != "" {
		return m
	}
	for k, v := range p {
		if macPair.MatchString(v) && k != "macaddr" {
			return k
		}
	}
	return ""
}

// Address spells the properties of an ipconfig option in canonical form,
// "10.10.0.11/24,gw=10.10.0.1". Asking DHCP is what a guest does without one
// too.
func (p Properties) Address() string {
	var parts []string
	if ip := p["ip"]; ip != "" && ip != "dhcp" {
		if a, err := netip.ParsePrefix(ip); err == nil {
			ip = a.String()
		}
		parts = append(parts, ip)
	}
	for _, k := range []string{"gw", "ip6", "gw6"} {
		v := p[k]
		if a, err := netip.ParsePrefix(v); err == nil { // IPv6 has many spellings
			v = a.String()
		} else if a, err := netip.ParseAddr(v); err == nil {
			v = a.String()
		}
		if v != "" {
			parts = append(parts, k+"="+v)
		}
	}
	return strings.Join(parts, ",")
}

// sizeUnits are the units of sizes in configurations.
const sizeUnits = "KMGT"

// ParseSize reads a size in bytes from "528K", "10G" or "1246M"; 0 when it is
// none.
func ParseSize(s string) int64 {
	shift := 0
	if s != "" {
		if i := strings.IndexByte(sizeUnits, s[len(s)-1]); i >= 0 {
			shift, s = 10*(i+1), s[:len(s)-1]
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f >= math.Ldexp(1, 62-shift) {
		return 0
	}
	return int64(math.Ldexp(f, shift))
}

// FormatSize spells a size in bytes in the largest unit that leaves no rest, as Proxmox
// VE does.
func FormatSize(n int64) string {
	for i := len(sizeUnits); i > 0; i-- {
		if unit := int64(1) << (10 * i); n >= unit && n%unit == 0 && i < 4 {
			return fmt.Sprintf("%d%c", n/unit, sizeUnits[i-1])
		}
	}
	return strconv.FormatInt(n, 10)
}

// SplitTags takes a tag list apart, in lower case; 8.4 keeps it as it was sent.
func SplitTags(s string) []string {
	return strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
}

// ParseVMIDs reads a list of VMIDs, such as the guests of a backup job. What is no number
// is left out.
func ParseVMIDs(list string) []int {
	var out []int
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ';' || r == ' ' }) {
		if n, err := strconv.Atoi(s); err == nil {
			out = append(out, n)
		}
	}
	return out
}
