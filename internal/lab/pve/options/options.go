// Package options reads and spells options of VMs as Proxmox VE keeps them: drives, network cards, sizes, boot orders.
//
// It is handed text, and knows no VM, no storage and no request.
package options

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// drivePattern matches the options that are drives.
var drivePattern = pattern.New(`^(?:ide[0-3]|sata[0-5]|scsi(?:[12]?\d|30)|virtio(?:\d|1[0-5])|efidisk0|tpmstate0)$`)

// IsDrive reports whether an option is a drive.
func IsDrive(key string) bool { return drivePattern.MatchString(key) }

// IsNet matches the options that are network cards.
func IsNet(key string) bool {
	n, ok := strings.CutPrefix(key, "net")
	_, err := strconv.Atoi(n)
	return ok && err == nil
}

// IsUnused reports whether an option is a volume that is detached.
func IsUnused(key string) bool { return strings.HasPrefix(key, "unused") }

// Properties is a property string, taken apart.
type Properties map[string]string

// ParseDrive reads a drive: the volume is under "file".
func ParseDrive(text string) Properties {
	out := Properties{}
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
func (p Properties) String() string {
	parts := []string{p["file"]}
	for _, k := range slices.Sorted(maps.Keys(p)) {
		if k != "file" {
			parts = append(parts, k+"="+p[k])
		}
	}
	return strings.Join(parts, ",")
}

// IsCDROM reports whether a drive is an optical one; the cloud-init drive is.
func (p Properties) IsCDROM() bool { return p["media"] == "cdrom" }

// IsCloudInit reports whether a drive is that of cloud-init.
func (p Properties) IsCloudInit() bool {
	return p.IsCDROM() && strings.Contains(p["file"], "cloudinit")
}

// Bytes is the size of a drive.
func (p Properties) Bytes() int64 {
	n, err := ParseSize(p["size"])
	if err != nil {
		return 0
	}
	return n
}

// ParseNet reads a network card, whatever spelling its model and MAC have:
// "virtio=MAC,...", "model=virtio,macaddr=MAC,..." or "virtio,...".
func ParseNet(text string) Properties {
	out := Properties{}
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

// RenderNet renders a network card in canonical form. A card without a MAC
// gets a new one every time.
func RenderNet(p Properties) string {
	mac := p["macaddr"]
	if mac == "" {
		mac = newMAC()
	}
	parts := []string{p["model"] + "=" + mac}
	for _, k := range slices.Sorted(maps.Keys(p)) {
		if k != "model" && k != "macaddr" {
			parts = append(parts, k+"="+p[k])
		}
	}
	return strings.Join(parts, ",")
}

// newMAC makes a random address under Proxmox' own prefix.
func newMAC() string {
	var b [3]byte
	rand.Read(b[:]) // never fails
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", b[0], b[1], b[2])
}

// ParseSize reads a size such as 10G, 2930K or a number of bytes.
func ParseSize(text string) (int64, error) {
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

// FormatSize renders a size in the largest unit that leaves no rest.
func FormatSize(n int64) string {
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

// BootOrder returns the devices of a boot option, and whether it has a list.
func BootOrder(boot string) ([]string, bool) {
	order, ok := strings.CutPrefix(boot, "order=")
	if !ok {
		return nil, false
	}
	return strings.FieldsFunc(order, func(r rune) bool { return r == ';' }), true
}

// BootDevices are the devices that a VM boots from, as far as that may be a disk. Without a list
// its firmware goes by letters, "cdn" by default, of which c is the disk that bootdisk names: where
// it names none, no disk is booted from at all, and the network is. Source: Proxmox VE 9.2,
// qemu-server, which starts QEMU with strict=on.
func BootDevices(values map[string]string) []string {
	order, listed := BootOrder(values["boot"])
	if letters := cmp.Or(strings.TrimPrefix(values["boot"], "legacy="), "cdn"); !listed && strings.Contains(letters, "c") && values["bootdisk"] != "" {
		return []string{values["bootdisk"]}
	}
	return order
}

// NoBoot is the boot option of a VM that was made without devices: one blank.
const NoBoot = " "

// DefaultBoot is the boot order of a new VM: the first disk, the first optical
// drive, the first network card.
func DefaultBoot(values map[string]string) string {
	var disk, optical, net string
	for _, k := range DriveKeys(values) {
		switch d := ParseDrive(values[k]); {
		case k == "efidisk0" || k == "tpmstate0":
		case d.IsCDROM():
			optical = cmp.Or(optical, k)
		default:
			disk = cmp.Or(disk, k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if IsNet(k) {
			net = cmp.Or(net, k)
		}
	}
	order := slices.DeleteFunc([]string{disk, optical, net}, func(k string) bool { return k == "" })
	if len(order) == 0 {
		return NoBoot
	}
	return "order=" + strings.Join(order, ";")
}

// DriveKeys returns the drives of a configuration in Proxmox VE's order.
func DriveKeys(values map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if IsDrive(k) {
			out = append(out, k)
		}
	}
	return out
}
