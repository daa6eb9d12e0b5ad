package options

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
)

// CountCores is how many CPUs a configuration gives.
func CountCores(values map[string]string) int {
	n := 1
	for _, k := range []string{"cores", "sockets"} {
		if i, err := strconv.Atoi(values[k]); err == nil {
			n *= i
		}
	}
	return n
}

// MemoryMiB is how much memory a configuration gives.
func MemoryMiB(values map[string]string) int64 {
	text := strings.TrimPrefix(values["memory"], "current=")
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	return 512
}

// UUIDOf is the SMBIOS UUID of a configuration, in lower case.
func UUIDOf(values map[string]string) string {
	return strings.ToLower(ParseDrive(values["smbios1"])["uuid"])
}

// HasAgent reports whether a configuration has the guest agent's device.
func HasAgent(values map[string]string) bool {
	a := ParseDrive(values["agent"])
	return schema.ParseBoolean(cmp.Or(a["enabled"], a["file"])) == "1"
}

// BootDisk is the drive a configuration boots from, the first disk of its boot
// order, "" without one.
func BootDisk(values map[string]string) string {
	for _, k := range BootDevices(values) {
		if IsDrive(k) && k != "efidisk0" && k != "tpmstate0" && !ParseDrive(values[k]).IsCDROM() {
			return k
		}
	}
	return ""
}

// blockCounters are QEMU's counters of a block device, and those since QEMU 9.
var (
	blockCounters = strings.Fields(`failed_flush_operations failed_rd_operations failed_unmap_operations failed_wr_operations flush_operations
		flush_total_time_ns invalid_flush_operations invalid_rd_operations invalid_unmap_operations invalid_wr_operations rd_bytes rd_merged
		rd_operations rd_total_time_ns unmap_bytes unmap_merged unmap_operations unmap_total_time_ns wr_bytes wr_highest_offset wr_merged
		wr_operations wr_total_time_ns`)
	zoneCounters = strings.Fields(`failed_zone_append_operations invalid_zone_append_operations zone_append_bytes zone_append_merged
		zone_append_operations zone_append_total_time_ns`)
)

// BlockStatistics are what QEMU has counted of a block device that was not used.
func BlockStatistics(nine bool) map[string]any {
	r := map[string]any{"account_failed": true, "account_invalid": true, "timed_stats": []any{}}
	for _, k := range blockCounters {
		r[k] = 0
	}
	if nine {
		for _, k := range zoneCounters {
			r[k] = 0
		}
	}
	return r
}

// BootWithout is a boot option without a device.
func BootWithout(boot, key string) string {
	order, listed := BootOrder(boot)
	if !listed {
		return boot
	}
	order = slices.DeleteFunc(order, func(k string) bool { return k == key })
	if len(order) == 0 {
		return NoBoot
	}
	return "order=" + strings.Join(order, ";")
}
