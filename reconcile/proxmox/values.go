package proxmox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// scalar is a JSON scalar as text, whatever type Proxmox VE gave it this time:
// one release answers "onboot":1 where another answers "onboot":"1", and
// numbers become strings once a user set them.
type scalar string

// UnmarshalJSON implements json.Unmarshaler. Objects and arrays are kept as
// their JSON; null is "".
func (t *scalar) UnmarshalJSON(raw []byte) error {
	switch {
	case bytes.Equal(raw, []byte("null")):
		*t = ""
	case bytes.Equal(raw, []byte("true")):
		*t = "1"
	case bytes.Equal(raw, []byte("false")):
		*t = "0"
	case len(raw) > 1 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw):
		*t = scalar(raw[1 : len(raw)-1])
	case len(raw) > 0 && raw[0] == '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		*t = scalar(s)
	default:
		*t = scalar(raw)
	}
	return nil
}

// on reports whether the text is a boolean that is set, in any of the
// spellings Proxmox VE keeps in its files.
func (t scalar) on() bool {
	switch strings.ToLower(string(t)) {
	case "1", "true", "yes", "on":
		return true
	}
	return false
}

// number returns the text as a whole number; 0 when it is none. Statistics may
// come as fractions.
func (t scalar) number() int64 {
	if n, err := strconv.ParseInt(string(t), 10, 64); err == nil {
		return n
	}
	f, err := strconv.ParseFloat(string(t), 64)
	if err != nil || math.IsNaN(f) || math.Abs(f) > 1<<62 {
		return 0
	}
	return int64(f)
}

// options is a VM's configuration, option by option.
type options map[string]scalar

// digest identifies the state of the configuration's file: a write that names
// it is refused if somebody wrote in between.
func (o options) digest() string { return string(o["digest"]) }

// get returns an option, or what Proxmox VE takes when it is not set.
func (o options) get(key, otherwise string) string {
	if v, ok := o[key]; ok && v != "" {
		return string(v)
	}
	return otherwise
}

// properties is a property string such as "local:9/vm-9-disk-0.raw,size=4G",
// taken apart. The value that has no key of its own is under "".
type properties map[string]string

// parseProperties takes a property string apart. Proxmox VE changes the order
// of properties and adds some, so that strings are never compared whole.
func parseProperties(s string) properties {
	out := properties{}
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

// or returns the first of some properties that is there.
func (p properties) or(keys ...string) string {
	for _, k := range keys {
		if v, ok := p[k]; ok {
			return v
		}
	}
	return ""
}

// sizeUnits are the units of sizes in configurations.
const sizeUnits = "KMGT"

// parseSize reads a size in bytes from "528K", "10G" or "1246M"; 0 when it is
// none.
func parseSize(s string) int64 {
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

// formatSize spells a size in the largest unit that leaves no rest, as Proxmox
// VE does.
func formatSize(n int64) string {
	for i := len(sizeUnits); i > 0; i-- {
		if unit := int64(1) << (10 * i); n >= unit && n%unit == 0 && i < 4 {
			return fmt.Sprintf("%d%c", n/unit, sizeUnits[i-1])
		}
	}
	return strconv.FormatInt(n, 10)
}

// splitTags takes a tag list apart; 8.4 keeps it as it was sent.
func splitTags(s string) []string {
	return strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
}
