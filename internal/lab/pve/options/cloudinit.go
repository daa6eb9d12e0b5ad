package options

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
)

// UserData is the #cloud-config.
func UserData(name string, values map[string]string) string {
	var b strings.Builder
	host, _, _ := strings.Cut(name, ".")
	fmt.Fprintf(&b, "#cloud-config\nhostname: %s\nmanage_etc_hosts: true\nfqdn: %s\n", host, name)
	if u := values["ciuser"]; u != "" {
		fmt.Fprintf(&b, "user: %s\n", u)
	}
	b.WriteString("chpasswd:\n  expire: False\nusers:\n  - default\npackage_upgrade: true\n")
	return b.String()
}

// ParseIPConfig reads the properties of an ipconfig option as the drive is made of them. With a gateway beside an address that
// is not written, Proxmox VE takes none of them, of neither family, and reports that in no answer; with no address at all a guest asks
// DHCP. (qemu-server, Network.pm, parse_ipconfig.)
func ParseIPConfig(value string) map[string]string {
	ip := ParseDrive(value)
	_, err := netip.ParsePrefix(ip["ip6"])
	switch {
	case value == "":
		return ip
	case ip["gw"] != "" && (ip["ip"] == "" || ip["ip"] == "dhcp"), ip["gw6"] != "" && err != nil:
		return map[string]string{}
	case ip["ip"] == "" && ip["ip6"] == "":
		return map[string]string{"ip": "dhcp", "ip6": "dhcp"}
	}
	return ip
}

// NetworkData is the network configuration on the drive, version 1, with the interfaces
// numbered as eth0 and on.
func NetworkData(values map[string]string) string {
	var b strings.Builder
	b.WriteString("version: 1\nconfig:\n")
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if !IsNet(k) {
			continue
		}
		ip := ParseIPConfig(values["ipconfig"+k[3:]])
		fmt.Fprintf(&b, "    - type: physical\n      name: eth%s\n      mac_address: '%s'\n      subnets:\n", k[3:], strings.ToLower(ParseNet(values[k])["macaddr"]))
		if p, err := netip.ParsePrefix(ip["ip"]); err == nil {
			fmt.Fprintf(&b, "      - type: static\n        address: '%s'\n        netmask: '%s'\n", p.Addr(), net.IP(net.CIDRMask(p.Bits(), 32)))
			writeGateway(&b, ip["gw"])
		} else if ip["ip"] == "dhcp" {
			b.WriteString("      - type: dhcp4\n")
		}
		switch ip["ip6"] {
		case "":
		case "dhcp":
			b.WriteString("      - type: dhcp6\n")
		case "auto":
			b.WriteString("      - type: ipv6_slaac\n")
		default:
			fmt.Fprintf(&b, "      - type: static6\n        address: '%s'\n", ip["ip6"])
			writeGateway(&b, ip["gw6"])
		}
	}
	servers, domains := schema.SplitList(values["nameserver"]), schema.SplitList(values["searchdomain"])
	if len(servers)+len(domains) > 0 {
		b.WriteString("    - type: nameserver\n")
		writeList(&b, "address", servers)
		writeList(&b, "search", domains)
	}
	return b.String()
}

func writeGateway(b *strings.Builder, gateway string) {
	if gateway != "" {
		fmt.Fprintf(b, "        gateway: '%s'\n", gateway)
	}
}

func writeList(b *strings.Builder, key string, items []string) {
	if len(items) == 0 {
		return
	}
	fmt.Fprintf(b, "      %s:\n", key)
	for _, i := range items {
		fmt.Fprintf(b, "      - '%s'\n", i)
	}
}

// MetaData names what the drive holds by its hash.
func MetaData(name string, values map[string]string) string {
	sum := sha1.Sum([]byte(UserData(name, values) + NetworkData(values)))
	return "instance-id: " + hex.EncodeToString(sum[:]) + "\n"
}

// ReadNetwork is what a guest reads of its first network card from its cloud-init drive; zero values: what that does not have.
func ReadNetwork(values map[string]string) (v4, v6 netip.Prefix, gateway netip.Addr, nameservers []netip.Addr) {
	ip := ParseIPConfig(values["ipconfig0"])
	if p, err := netip.ParsePrefix(ip["ip"]); err == nil {
		v4 = p
	}
	if p, err := netip.ParsePrefix(ip["ip6"]); err == nil {
		v6 = p
	}
	if a, err := netip.ParseAddr(ip["gw"]); err == nil {
		gateway = a
	}
	for _, text := range schema.SplitList(values["nameserver"]) {
		if a, err := netip.ParseAddr(text); err == nil {
			nameservers = append(nameservers, a)
		}
	}
	return v4, v6, gateway, nameservers
}
