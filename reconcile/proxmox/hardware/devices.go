package hardware

import (
	"fmt"
	"maps"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// devicePatterns are the alphabets of devices, by their options without the number. None leaves room for another property.
var devicePatterns = map[string]*pattern.Pattern{
	"net":     pattern.New(`^(virtio|e1000|e1000e|vmxnet3)=[0-9A-F][02468ACE](:[0-9A-F]{2}){5},bridge=[A-Za-z][A-Za-z0-9._-]{0,14}(,firewall=1)?(,mtu=[1-9][0-9]{0,4})?(,tag=[1-9][0-9]{0,3})?$`),
	"hostpci": pattern.New(`^mapping=[A-Za-z][A-Za-z0-9_-]{1,63}(,pcie=1)?(,rombar=0)?$`),
	"usb":     pattern.New(`^mapping=[A-Za-z][A-Za-z0-9_-]{1,63}(,usb3=1)?$`),
}

// deviceKinds matches the options that may be devices.
var deviceKinds = pattern.New(`^(net|hostpci|usb)[0-9]{1,2}$`)

// setDevice sets a device in the request that makes a VM. "none" is a device that it had once.
func setDevice(p map[string]string, key string, field cluster.VMField, value string) []error {
	switch {
	case value == device.None:
	case !devicePatterns[deviceKinds.FindStringSubmatch(key)[1]].MatchString(value):
		return []error{fmt.Errorf("%s %q is not given to Proxmox VE", field, value)}
	default:
		p[key] = value
	}
	return nil
}

// readDevices adds the devices of a VM to its further options.
func readDevices(o pveconf.Options, out map[cluster.VMField]string) {
	for key, text := range o {
		field := device.FieldOf(key)
		if field == "" {
			continue
		}
		p := pveconf.ParseProperties(string(text))
		out[cluster.VMField(field)] = readDevice(field, p)
	}
}

// readDevice is a device as the inventory has it. A ROM is seen where nothing else is set.
//
// PVE 9.1 qemu-server: a device of the host that is written without a key is one without a mapping.
func readDevice(field string, p pveconf.Properties) string {
	on := func(key string) bool { return pveconf.Scalar(p[key]).On() }
	switch key := device.KeyOf(field); {
	case strings.HasPrefix(key, "hostpci"):
		return device.PCI{Mapping: p["mapping"], Host: p.First("host", ""), Express: on("pcie"), NoROM: p["rombar"] != "" && !on("rombar")}.String()
	case strings.HasPrefix(key, "usb"):
		return device.USB{Mapping: p["mapping"], Host: p.First("host", ""), USB3: on("usb3")}.String()
	}
	return device.Card{Model: p.Model(), MAC: p.MAC(), Bridge: p["bridge"], VLAN: int(pveconf.Scalar(p["tag"]).Number()),
		MTU: int(pveconf.Scalar(p["mtu"]).Number()), Firewall: on("firewall"), LinkDown: on("link_down")}.String()
}

// changeDevice brings a device of a VM to what a new VM has, and returns the option that is to be deleted, "" of none. What
// else the option holds stays: a rate limit, a number of queues.
func changeDevice(have pveconf.Options, wanted map[string]string, field cluster.VMField, set func(string, func(pveconf.Properties))) string {
	key := device.KeyOf(string(field))
	switch {
	case key == "":
		return ""
	case wanted[key] == "":
		if have[key] == "" {
			return ""
		}
		return key
	}
	from := pveconf.ParseProperties(wanted[key])
	set(key, func(p pveconf.Properties) {
		for _, k := range []string{p.Model(), "model", "macaddr", "bridge", "tag", "mtu", "firewall", "link_down", "mapping", "pcie", "rombar", "usb3"} {
			delete(p, k)
		}
		maps.Copy(p, from)
	})
	return ""
}
