package options

import (
	"slices"
	"strings"
)

// privileges are what changing an option takes; PrivilegeOf knows the
// numbered ones. What is in neither is for root alone.
var privileges = byWord(map[string]string{
	"VM.Config.CPU":     "cpu cores sockets numa vcpus cpulimit cpuunits smp",
	"VM.Config.Memory":  "memory balloon shares allow-ksm",
	"VM.Config.HWType":  "acpi hotplug kvm machine scsihw smbios1 tablet vga watchdog audio0 rng0",
	"VM.Config.Options": "agent autostart bios description keyboard localtime migrate_downtime migrate_speed name onboot ostype protection reboot startdate tags tdf template",
	"VM.Config.Disk":    "boot bootdisk vmstatestorage",
})

// cloudInit are those of the cloud-init drive.
var cloudInit = strings.Fields("cicustom cipassword citype ciupgrade ciuser nameserver searchdomain sshkeys")

func byWord(groups map[string]string) map[string]string {
	out := map[string]string{}
	for privilege, words := range groups {
		for _, w := range strings.Fields(words) {
			out[w] = privilege
		}
	}
	return out
}

// IsOfCloudInit reports whether an option is one of the cloud-init drive.
func IsOfCloudInit(key string) bool {
	return slices.Contains(cloudInit, key) || strings.HasPrefix(key, "ipconfig")
}

// PrivilegeOf is the privilege on a VM that changing an option takes, "" of one that only root may set.
func PrivilegeOf(key string) string {
	switch {
	case IsNet(key):
		return "VM.Config.Network"
	case IsUnused(key):
		return "VM.Config.Disk"
	case strings.HasPrefix(key, "serial"), strings.HasPrefix(key, "usb"), strings.HasPrefix(key, "hostpci"):
		return "VM.Config.HWType"
	}
	return privileges[key]
}

// hot take effect on a running VM at once.
var hot = strings.Fields("description tags name onboot protection startup shares lock hookscript cpulimit cpuunits vmstatestorage migrate_downtime migrate_speed")

// IsHot reports whether a guest that runs takes another value of an option, or is without it, at once.
func IsHot(key string) bool { return slices.Contains(hot, key) || IsOfCloudInit(key) }

// TakesLive reports whether a guest that runs takes an option at once, which was another before. A network card
// can be added and moved to another bridge, but not exchanged, nor given another MTU.
func TakesLive(key, was, text string) bool {
	switch {
	case key == "balloon": // its device stays, or it does not
		return was != "0" && text != "0"
	case !IsNet(key):
		return IsHot(key)
	}
	old, card := ParseNet(was), ParseNet(text)
	same := func(k string) bool { return old[k] == card[k] }
	return was == "" || same("model") && strings.EqualFold(old["macaddr"], card["macaddr"]) && same("mtu") && same("queues")
}

// stopDrive are the options of a disk that change when the guest stops.
// Source: Proxmox VE 9.2, qemu-server, vmconfig_update_disk.
var stopDrive = strings.Fields("aio discard iothread queues product cache ssd vendor ro")

// WaitsForStop reports whether a drive stays the disk that it is, and gets options that a guest which
// runs cannot take.
func WaitsForStop(was, text string) bool {
	old, d := ParseDrive(was), ParseDrive(text)
	return old["file"] != "" && old["file"] == d["file"] && !old.IsCDROM() && slices.ContainsFunc(stopDrive, func(k string) bool { return old[k] != d[k] })
}
