package schema

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// The patterns behind Proxmox VE's named formats.
var (
	dnsNamePattern  = pattern.New(`^(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*$`)
	nodeNamePattern = pattern.New(`^[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?$`)
	configIDPattern = pattern.New(`^[a-zA-Z][a-zA-Z0-9_-]+$`)
	storageName     = pattern.New(`^[a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]$`)
	poolPattern     = pattern.New(`^[A-Za-z0-9.\-_]+(?:/[A-Za-z0-9.\-_]+){0,2}$`)
	namePattern     = pattern.New(`^[A-Za-z0-9.\-_]+$`)
	userPattern     = pattern.New(`^[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+$`)
	tokenPattern    = pattern.New(`^[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+![A-Za-z][A-Za-z0-9.\-_]+$`)
	MACPattern      = pattern.New(`^[a-fA-F0-9][02468aceACE](?::[a-fA-F0-9]{2}){5}$`)
	tagPattern      = pattern.New(`^[a-zA-Z0-9_][a-zA-Z0-9_\-+.]*$`)
	sizePattern     = pattern.New(`^\d+(?:\.\d+)?[KMGT]?$`)
	VolumePattern   = pattern.New(`^([a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]):(.+)$`)
	urlencPattern   = pattern.New(`^[-%a-zA-Z0-9_.!~*'()]*$`)
	bridgePattern   = pattern.New(`^[-_.\w]+$`)
	uuidPattern     = `[a-fA-F0-9]{8}(?:-[a-fA-F0-9]{4}){3}-[a-fA-F0-9]{12}`
	base64Pattern   = `[A-Za-z0-9+/]+={0,2}`
	haPattern       = pattern.New(`^[a-z]+:\S+$`)
	haOrVMPattern   = pattern.New(`^(?:[a-z]+:\S+|\d+)$`)
	listSeparator   = pattern.New(`[,;\s\x00]+`)
)

// namedFormats are the formats whose values are property strings.
var namedFormats = map[string]map[string]*Property{
	"pve-qm-smbios1": makeOptional(map[string]*Property{
		"uuid": newPattern(uuidPattern), "base64": {Type: "boolean"}, "family": newPattern(base64Pattern), "manufacturer": newPattern(base64Pattern),
		"product": newPattern(base64Pattern), "serial": newPattern(base64Pattern), "sku": newPattern(base64Pattern), "version": newPattern(base64Pattern),
	}),
	"pve-qm-ipconfig": makeOptional(map[string]*Property{
		"ip": {Format: "pve-ipv4-config"}, "gw": {Format: "ipv4", Requires: "ip"}, "ip6": {Format: "pve-ipv6-config"}, "gw6": {Format: "ipv6", Requires: "ip6"},
	}),
	"pve-qm-rng": {
		"source": {DefaultKey: true, Enum: []string{"/dev/urandom", "/dev/random", "/dev/hwrng"}}, "max_bytes": {Type: "integer", Optional: true},
		"period": {Type: "integer", Optional: true},
	},
	"pve-qm-watchdog": makeOptional(map[string]*Property{
		"model": {DefaultKey: true, Enum: []string{"i6300esb", "ib700"}}, "action": {Enum: []string{"reset", "shutdown", "poweroff", "pause", "debug", "none"}},
	}),
	"pve-startup-order": makeOptional(map[string]*Property{
		"order": {DefaultKey: true, Type: "integer"}, "up": {Type: "integer"}, "down": {Type: "integer"},
	}),
	"pve-qm-cicustom": makeOptional(map[string]*Property{
		"meta": {Format: "pve-volume-id"}, "network": {Format: "pve-volume-id"}, "user": {Format: "pve-volume-id"}, "vendor": {Format: "pve-volume-id"},
	}),
	"pve-vm-cpu-conf": makeOptional(map[string]*Property{
		"cputype": {DefaultKey: true, Format: "pve-cpu-model"}, "flags": {}, "guest-phys-bits": {Type: "integer"}, "hidden": {Type: "boolean"},
		"hv-vendor-id": {}, "level": {Type: "integer"}, "phys-bits": {}, "reported-model": {},
	}),
	"pve-qm-boot": makeOptional(map[string]*Property{
		"legacy": {DefaultKey: true, pattern: pattern.New(`^[acdn]{1,4}$`)}, "order": {},
	}),
}

func newPattern(p string) *Property { return &Property{pattern: pattern.New("^(?:" + p + ")$")} }

// makeOptional makes every field of a property string optional.
func makeOptional(fields map[string]*Property) map[string]*Property {
	for _, p := range fields {
		p.Optional = true
	}
	return fields
}

// checkFormat holds a value against one of Proxmox VE's named formats. Formats
// the lab has no use for accept everything.
func checkFormat(format, text, path string) error {
	if item, isList := strings.CutSuffix(format, "-list"); isList {
		for _, part := range SplitList(text) {
			if err := checkFormat(item, part, path); err != nil {
				return err
			}
		}
		return nil
	}
	if fields, ok := namedFormats[format]; ok {
		parsed, err := parseProperties(fields, text, path)
		if err == nil && format == "pve-vm-cpu-conf" {
			err = checkCPU(parsed["cputype"])
		}
		return err
	}
	if check, ok := formats[format]; ok {
		return check(text)
	}
	return nil
}

// formats are the named formats of single values.
var formats = map[string]func(string) error{
	"pve-vmid": func(v string) error {
		n, err := strconv.Atoi(v)
		return errorUnless(err == nil && n >= 100 && n <= 999999999, "value does not look like a valid VM ID")
	},
	"pve-node":                 matchText(nodeNamePattern, "value does not look like a valid node name"),
	"dns-name":                 matchText(dnsNamePattern, "value does not look like a valid DNS name"),
	"pve-configid":             matchQuoting(configIDPattern, "invalid configuration ID '%s'"),
	"pve-ha-resource-id":       matchText(haPattern, "value does not look like a valid ha resource id"),
	"pve-ha-resource-or-vm-id": matchText(haOrVMPattern, "value does not look like a valid ha resource id"),
	"pve-storage-id":           matchQuoting(storageName, "storage ID '%s' contains illegal characters"),
	"pve-poolid":               matchQuoting(poolPattern, "pool name '%s' contains invalid characters"),
	"pve-roleid":               matchQuoting(namePattern, "role name '%s' contains invalid characters"),
	"pve-tokenid":              matchQuoting(tokenPattern, "value '%s' does not look like a valid token ID"),
	"pve-userid":               matchQuoting(userPattern, "value '%s' does not look like a valid user name"),
	"mac-addr":                 matchText(MACPattern, "value does not look like a valid unicast MAC address"),
	"pve-tag":                  matchText(tagPattern, "invalid characters in tag"),
	"disk-size":                matchQuoting(sizePattern, "value does not look like a valid disk size: %s"),
	"pve-bridge-id":            matchQuoting(bridgePattern, "invalid bridge ID '%s'"),
	"urlencoded":               matchQuoting(urlencPattern, "invalid urlencoded string: %s"),
	"pve-volume-id":            matchQuoting(VolumePattern, "unable to parse volume ID '%s'"),
	"pve-volume-id-or-qm-path": func(v string) error {
		return errorUnless(v == "none" || v == "cdrom" || strings.HasPrefix(v, "/") || VolumePattern.MatchString(v), fmt.Sprintf("unable to parse volume ID '%s'", v))
	},
	"pve-volume-id-or-absolute-path": func(v string) error {
		return errorUnless(strings.HasPrefix(v, "/") || VolumePattern.MatchString(v), fmt.Sprintf("unable to parse volume ID '%s'", v))
	},
	"pve-storage-content": func(v string) error {
		return errorUnless(slices.Contains([]string{"images", "rootdir", "vztmpl", "iso", "backup", "snippets", "import", "none"}, v), fmt.Sprintf("invalid content type '%s'", v))
	},
	"pve-hotplug-features": func(v string) error {
		for _, part := range SplitList(v) {
			if !slices.Contains([]string{"network", "disk", "cpu", "memory", "usb", "cloudinit", "0", "1"}, part) {
				return errors.New("unable to parse hotplug option")
			}
		}
		return nil
	},
	"address": func(v string) error {
		_, err := netip.ParseAddr(v)
		return errorUnless(err == nil || dnsNamePattern.MatchString(v), fmt.Sprintf("value '%s' does not look like a valid IP address or DNS name", v))
	},
	"ipv4":            checkAddress(netip.Addr.Is4, "value does not look like a valid IPv4 address"),
	"ipv6":            checkAddress(netip.Addr.Is6, "value does not look like a valid IPv6 address"),
	"pve-ipv4-config": checkPrefix(netip.Addr.Is4, []string{"dhcp", "manual"}, "value does not look like a valid ipv4 network configuration"),
	"pve-ipv6-config": checkPrefix(netip.Addr.Is6, []string{"auto", "dhcp", "manual"}, "value does not look like a valid ipv6 network configuration"),
}

func errorUnless(ok bool, text string) error {
	if ok {
		return nil
	}
	return errors.New(text)
}

func matchText(re *pattern.Pattern, text string) func(string) error {
	return func(v string) error { return errorUnless(re.MatchString(v), text) }
}

func matchQuoting(re *pattern.Pattern, text string) func(string) error {
	return func(v string) error { return errorUnless(re.MatchString(v), fmt.Sprintf(text, v)) }
}

func checkAddress(is func(netip.Addr) bool, text string) func(string) error {
	return func(v string) error {
		a, err := netip.ParseAddr(v)
		return errorUnless(err == nil && is(a) && a.Zone() == "", text)
	}
}

// checkPrefix takes an address with the length of its network, which is more than 7 bits (pve-common, pve_verify_cidrv4 and
// pve_verify_cidrv6), or one of some words.
func checkPrefix(is func(netip.Addr) bool, words []string, text string) func(string) error {
	return func(v string) error {
		p, err := netip.ParsePrefix(v)
		return errorUnless(slices.Contains(words, v) || err == nil && is(p.Addr()) && p.Bits() > 7, text)
	}
}

// SplitList splits the lists Proxmox VE takes: by comma, semicolon or space.
func SplitList(text string) []string {
	var out []string
	for _, part := range listSeparator.Split(text, -1) {
		if part != "" {
			out = append(out, part)
		}
	}
	return out
}

// checkCPU holds a CPU model against those QEMU and Proxmox VE bring along.
func checkCPU(model string) error {
	known := model == "" || strings.HasPrefix(model, "custom-") || slices.Contains(cpuModels, model)
	return errorUnless(known, fmt.Sprintf("Built-in cputype '%s' is not defined (missing 'custom-' prefix?)", model))
}
