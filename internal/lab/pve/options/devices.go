package options

import (
	"fmt"
	"strings"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// deviceOption matches the options that pass a device of the host to a VM.
var deviceOption = pattern.New(`^(?:host)?(pci|usb)[0-9]+$`)

// IsDevice reports whether an option passes a device of the host to a VM.
func IsDevice(key string) bool { return deviceOption.MatchString(key) }

// JudgeDevice reads an option that passes a device: of which kind it is, by which mapping, and why somebody who is not root may not
// set it. Without a mapping and a reason it is none of the host's.
func JudgeDevice(key, text string) (kind, mapping, refused string) {
	kind = deviceOption.FindStringSubmatch(key)[1]
	d := ParseDrive(text)
	raw := d["file"] + d["host"]
	switch {
	case raw != "" && kind == "pci":
		return kind, d["mapping"], fmt.Sprintf("only root can set '%s' config for non-mapped devices", key)
	case raw != "" && !strings.EqualFold(raw, "spice"):
		return kind, d["mapping"], fmt.Sprintf("only root can set '%s' config for real devices", key)
	case raw != "":
		return kind, "", ""
	case d["mapping"] == "":
		return kind, "", "either 'host' or 'mapping' must be set."
	}
	return kind, d["mapping"], ""
}

// DeviceAddress is the address of the i-th device of a mapping.
func DeviceAddress(i int) string { return fmt.Sprintf("0000:%02x:00", i+1) }

// EncodeDevice is the i-th device of a mapping of a kind, as the mapping has it.
func EncodeDevice(kind, host string, i int) string {
	if kind == "usb" {
		return fmt.Sprintf("id=1050:0407,node=%s,path=1-%d", host, i+1)
	}
	return fmt.Sprintf("id=10de:1eb8,iommugroup=%d,node=%s,path=%s", 14+i, host, DeviceAddress(i))
}

// PassesPCI reports whether a VM with some options has a device of a PCI mapping.
func PassesPCI(values map[string]string, mapping string) bool {
	for k, text := range values {
		if strings.HasPrefix(k, "hostpci") && ParseDrive(text)["mapping"] == mapping {
			return true
		}
	}
	return false
}
