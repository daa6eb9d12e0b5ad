package hardware

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// ChangeParams are the options that bring fields of a VM to what a new VM gets, "" of
// none. What else an option holds stays: a rate limit of the network card, flags of the
// processor.
func ChangeParams(have pveconf.Options, wanted map[string]string, fields []cluster.VMField) map[string]string {
	out := map[string]string{}
	set := func(key string, edit func(pveconf.Properties)) {
		was := cmp.Or(out[key], string(have[key]))
		p := pveconf.ParseProperties(was)
		edit(p)
		if !maps.Equal(p, pveconf.ParseProperties(was)) { // Proxmox VE has an order of its own
			out[key] = p.String()
		}
	}
	var removed []string
	for _, f := range fields {
		switch f {
		case cluster.FieldCPUType:
			set("cpu", func(p pveconf.Properties) { p.Put("cputype", pveconf.ParseProperties(wanted["cpu"]).First("", "")) })
		case cluster.FieldCores:
			out["cores"], out["sockets"] = wanted["cores"], wanted["sockets"]
		case cluster.FieldMemory:
			out["memory"] = wanted["memory"]
		case cluster.FieldBalloon:
			out["balloon"] = wanted["balloon"]
		case cluster.FieldCPUFlags:
			set("cpu", func(p pveconf.Properties) { takeKey(p, pveconf.ParseProperties(wanted["cpu"]), "flags") })
		case cluster.FieldDisplay:
			set("vga", func(p pveconf.Properties) { p.Put("type", wanted["vga"]) })
		case cluster.FieldMachine, cluster.FieldMachinePin:
			set("machine", func(p pveconf.Properties) { p.Put("type", wanted["machine"]) })
		case cluster.FieldSCSI:
			out["scsihw"] = wanted["scsihw"]
		case cluster.FieldModel, cluster.FieldMAC, cluster.FieldBridge, cluster.FieldVLAN, cluster.FieldLink, cluster.FieldFirewall, cluster.FieldMTU:
			set("net0", func(p pveconf.Properties) { takeCard(p, pveconf.ParseProperties(wanted["net0"]), f) })
		case cluster.FieldAddress:
			out["ipconfig0"] = wanted["ipconfig0"]
		case cluster.FieldBoot:
			out["boot"] = "order=" + SystemDisk(have)
			if medium := readMedium(have); medium != "" { // an empty disk is passed over for it
				out["boot"] += ";" + medium
			}
		case cluster.FieldMedium:
			if key := readMedium(have); key != "" {
				out[key] = "none,media=cdrom"
			}
		case cluster.FieldAgent:
			set("agent", func(p pveconf.Properties) { p.Put("enabled", wanted["agent"]) })
		case cluster.FieldOnBoot:
			out["onboot"] = wanted["onboot"]
		case cluster.FieldMark:
			out["description"] = markDescription(string(have["description"]), wanted["description"])
		}
		if key, otherwise := OptionOf(f); key != "" {
			out[key] = cmp.Or(wanted[key], otherwise)
		}
		changeDisk(have, wanted, f, set)
		if key := changeDevice(have, wanted, f, set); key != "" {
			removed = append(removed, key)
		}
	}
	maps.DeleteFunc(out, func(key, value string) bool { return value == string(have[key]) })
	if len(removed) > 0 {
		slices.Sort(removed)
		out["delete"] = strings.Join(removed, ",")
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// changeDisk sets one option of a disk that is there, as a new one has it.
func changeDisk(have pveconf.Options, wanted map[string]string, f cluster.VMField, set func(string, func(pveconf.Properties))) {
	for _, drive := range wanted {
		from := pveconf.ParseProperties(drive)
		serial := from["serial"]
		key := DriveOf(have, serial)
		if serial == "" || key == "" {
			continue
		}
		for _, o := range cluster.DiskOptions {
			if f != cluster.FieldDiskOption(serial, o) {
				continue
			}
			set(key, func(p pveconf.Properties) { takeKey(p, from, string(o)) })
		}
	}
}

// takeKey takes one property from others: none where they have none.
func takeKey(into, from pveconf.Properties, key string) {
	if delete(into, key); from[key] != "" {
		into[key] = from[key]
	}
}

// cardKeys are the fields of a network card that have a key of their own.
var cardKeys = map[cluster.VMField]string{cluster.FieldBridge: "bridge", cluster.FieldVLAN: "tag", cluster.FieldLink: "link_down", cluster.FieldFirewall: "firewall", cluster.FieldMTU: "mtu"}

// takeCard takes one field of a network card from another: all of it where there is none.
func takeCard(into, from pveconf.Properties, f cluster.VMField) {
	was, model, mac := into.Model(), from.Model(), into.MAC()
	switch key, own := cardKeys[f]; {
	case was == "":
		maps.Copy(into, from)
		return
	case own:
		takeKey(into, from, key)
		return
	case f == cluster.FieldMAC: // the model is a key, whose value is the MAC
		model, mac = was, from.MAC()
	}
	maps.DeleteFunc(into, func(key, _ string) bool { return key == was || key == "model" || key == "macaddr" })
	into[model] = mac
}

// markDescription puts the agent's mark on the first line of a description. What people
// wrote stays.
func markDescription(have, wanted string) string {
	first, rest, _ := strings.Cut(have, "\n")
	if _, ok := cluster.ParseMark(have); !ok {
		rest = have
	}
	mark, _, _ := strings.Cut(wanted, "\n")
	if first == mark {
		return have
	}
	if strings.TrimSpace(rest) == "" {
		return wanted
	}
	return mark + "\n" + rest
}
