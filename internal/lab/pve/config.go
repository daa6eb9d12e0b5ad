package pve

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"maps"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// config is the configuration file of a VM: options in Proxmox VE's spelling,
// and below them what waits for the next stop.
type config struct {
	base    map[string]string
	pending map[string]string
	dropped map[string]bool // options that the next stop removes

	snapshots map[string]*snapshot
}

// snapshot is a section of the file, and what the disks held then.
type snapshot struct {
	options map[string]string // with parent, snaptime and, while it is made or removed, snapstate
	disks   map[string]kept   // by volume
}

// kept is what a snapshot keeps of a disk.
type kept struct {
	bytes    int64
	image    world.Image
	contents any
}

func newConfig(base map[string]string) config {
	return config{base: base, pending: map[string]string{}, dropped: map[string]bool{}}
}

// text renders the file byte for byte as Proxmox VE keeps it in /etc/pve, so
// that its digest is the one a real host gives the same configuration.
func (c config) text() string {
	var b strings.Builder
	writeSection(&b, c.base)
	if len(c.pending) > 0 || len(c.dropped) > 0 {
		b.WriteString("\n[PENDING]\n")
		section := maps.Clone(c.pending)
		if len(c.dropped) > 0 {
			section["delete"] = strings.Join(sortedKeys(c.dropped), ",")
		}
		writeSection(&b, section)
	}
	for _, name := range sortedKeys(c.snapshots) {
		b.WriteString("\n[" + name + "]\n")
		writeSection(&b, c.snapshots[name].options)
	}
	return b.String()
}

func writeSection(b *strings.Builder, options map[string]string) {
	if text, ok := options["description"]; ok {
		for line := range strings.SplitSeq(text, "\n") {
			b.WriteString("#" + encodeText(line) + "\n")
		}
	}
	for _, k := range sortedKeys(options) {
		if k != "description" {
			fmt.Fprintf(b, "%s: %s\n", k, options[k])
		}
	}
}

// encodeText escapes what a comment line cannot hold.
func encodeText(line string) string {
	var b strings.Builder
	for _, c := range []byte(line) {
		if c < 0x20 || c >= 0x7f || c == '%' || c == ':' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// digest is the SHA-1 of the file; every change changes it.
func (c config) digest() string {
	sum := sha1.Sum([]byte(c.text()))
	return hex.EncodeToString(sum[:])
}

// merged is the configuration as it will be after the next stop.
func (c config) merged() map[string]string {
	out := maps.Clone(c.base)
	for k := range c.dropped {
		delete(out, k)
	}
	maps.Copy(out, c.pending)
	return out
}

// applyPending makes the pending changes the configuration.
func (c *config) applyPending() {
	snapshots := c.snapshots
	*c = newConfig(c.merged())
	c.snapshots = snapshots
}

// errChecksum is what a stale digest comes to.
func checkDigest(c config, given string) error {
	if given != "" && given != c.digest() {
		return errChecksum
	}
	return nil
}

// integers are the options whose values are numbers in JSON. memory is not
// among them: it is a property string since 8.0.
var integers = setOf("acpi", "autostart", "balloon", "ciupgrade", "cores", "cpuunits", "freeze", "kvm", "localtime", "numa", "onboot",
	"protection", "reboot", "shares", "sockets", "tablet", "tdf", "template", "vcpus", "keephugepages", "allow-ksm", "migrate_speed", "snaptime")

// renderValue renders an option's value as GET config does.
func renderValue(key, value string) any {
	if key == "cipassword" {
		return "**********"
	}
	if integers[key] {
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			return n
		}
	}
	return value
}

// renderOptions renders a configuration for GET config.
func renderOptions(values map[string]string, digest string) row {
	out := row{"digest": digest}
	for k, v := range values {
		out[k] = renderValue(k, v)
	}
	return out
}

// canonicalTags sorts tags as Proxmox VE does: each once, in lower case.
func canonicalTags(text string) string {
	tags := schema.SplitList(strings.ToLower(text))
	slices.Sort(tags)
	return strings.Join(slices.Compact(tags), ";")
}
