package pve

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"regexp"
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

// drivePattern matches the options that are drives.
var drivePattern = regexp.MustCompile(`^(?:ide[0-3]|sata[0-5]|scsi(?:[12]?\d|30)|virtio(?:\d|1[0-5])|efidisk0|tpmstate0)$`)

func isDrive(key string) bool { return drivePattern.MatchString(key) }

// isNet matches the options that are network cards.
func isNet(key string) bool {
	n, ok := strings.CutPrefix(key, "net")
	_, err := strconv.Atoi(n)
	return ok && err == nil
}

func isUnused(key string) bool { return strings.HasPrefix(key, "unused") }

// properties is a property string, taken apart.
type properties map[string]string

// parseDrive reads a drive: the volume is under "file".
func parseDrive(text string) properties {
	out := properties{}
	for part := range strings.SplitSeq(text, ",") {
		if k, v, ok := strings.Cut(part, "="); ok {
			if k == "volume" {
				k = "file"
			}
			out[k] = v
		} else if part != "" {
			out["file"] = part
		}
	}
	return out
}

// String renders a drive: the volume first, the rest in alphabetical order.
func (p properties) String() string {
	parts := []string{p["file"]}
	for _, k := range sortedKeys(p) {
		if k != "file" {
			parts = append(parts, k+"="+p[k])
		}
	}
	return strings.Join(parts, ",")
}

// isCDROM reports whether a drive is an optical one; the cloud-init drive is.
func (p properties) isCDROM() bool { return p["media"] == "cdrom" }

func (p properties) isCloudInit() bool {
	return p.isCDROM() && strings.Contains(p["file"], "cloudinit")
}

// bytes is the size of a drive.
func (p properties) bytes() int64 {
	n, err := parseSize(p["size"])
	if err != nil {
		return 0
	}
	return n
}

// parseNet reads a network card, whatever spelling its model and MAC have:
// "virtio=MAC,...", "model=virtio,macaddr=MAC,..." or "virtio,...".
func parseNet(text string) properties {
	out := properties{}
	for part := range strings.SplitSeq(text, ",") {
		k, v, ok := strings.Cut(part, "=")
		switch {
		case part == "":
		case !ok:
			out["model"] = part
		case schema.MACPattern.MatchString(v) && k != "macaddr":
			out["model"], out["macaddr"] = k, v
		default:
			out[k] = v
		}
	}
	return out
}

// renderNet renders a network card in canonical form. A card without a MAC
// gets a new one every time.
func renderNet(p properties) string {
	mac := p["macaddr"]
	if mac == "" {
		mac = newMAC()
	}
	parts := []string{p["model"] + "=" + mac}
	for _, k := range sortedKeys(p) {
		if k != "model" && k != "macaddr" {
			parts = append(parts, k+"="+p[k])
		}
	}
	return strings.Join(parts, ",")
}

// newMAC makes a random address under Proxmox' own prefix.
func newMAC() string {
	b := randomBytes(3)
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", b[0], b[1], b[2])
}

// parseSize reads a size such as 10G, 2930K or a number of bytes.
func parseSize(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	unit := int64(1)
	if i := strings.IndexByte("KMGT", text[len(text)-1]); i >= 0 {
		unit = 1 << (10 * (i + 1))
		text = text[:len(text)-1]
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n < 0 || n*float64(unit) > 1<<62 {
		return 0, fmt.Errorf("size '%s' is not a size", text)
	}
	return int64(n * float64(unit)), nil
}

// formatSize renders a size in the largest unit that leaves no rest.
func formatSize(n int64) string {
	for _, u := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "G"}, {1 << 20, "M"}, {1 << 10, "K"}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// bootOrder returns the devices of a boot option, and whether it has a list.
func bootOrder(boot string) ([]string, bool) {
	order, ok := strings.CutPrefix(boot, "order=")
	if !ok {
		return nil, false
	}
	return strings.FieldsFunc(order, func(r rune) bool { return r == ';' }), true
}

// bootDevices are the devices that a VM boots from, as far as that may be a disk. Without a list
// its firmware goes by letters, "cdn" by default, of which c is the disk that bootdisk names: where
// it names none, no disk is booted from at all, and the network is. Source: Proxmox VE 9.2,
// qemu-server, which starts QEMU with strict=on.
func bootDevices(values map[string]string) []string {
	order, listed := bootOrder(values["boot"])
	if letters := cmp.Or(strings.TrimPrefix(values["boot"], "legacy="), "cdn"); !listed && strings.Contains(letters, "c") && values["bootdisk"] != "" {
		return []string{values["bootdisk"]}
	}
	return order
}

// noBoot is the boot option of a VM that was made without devices: one blank.
const noBoot = " "

// defaultBoot is the boot order of a new VM: the first disk, the first optical
// drive, the first network card.
func defaultBoot(values map[string]string) string {
	var disk, optical, net string
	for _, k := range driveKeys(values) {
		switch d := parseDrive(values[k]); {
		case k == "efidisk0" || k == "tpmstate0":
		case d.isCDROM():
			optical = cmp.Or(optical, k)
		default:
			disk = cmp.Or(disk, k)
		}
	}
	for _, k := range sortedKeys(values) {
		if isNet(k) {
			net = cmp.Or(net, k)
		}
	}
	order := slices.DeleteFunc([]string{disk, optical, net}, func(k string) bool { return k == "" })
	if len(order) == 0 {
		return noBoot
	}
	return "order=" + strings.Join(order, ";")
}

// driveKeys returns the drives of a configuration in Proxmox VE's order.
func driveKeys(values map[string]string) []string {
	var out []string
	for _, k := range sortedKeys(values) {
		if isDrive(k) {
			out = append(out, k)
		}
	}
	return out
}
