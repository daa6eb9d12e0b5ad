package pve

import (
	"fmt"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
)

// TestDetachTheBootDisk: a running guest does not release the disk that it was booted
// from. The request fails, the disk is detached all the same at the next stop, and what
// is left of the boot order is one blank. As seen on Proxmox VE 9.2.
func TestDetachTheBootDisk(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ok("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos&scsi0=local-lvm:4&scsi1=local-lvm:4&boot=order%3Dscsi0")
		l.ok("POST", "/nodes/pve1/qemu/410/status/start", "")
		a := l.call("PUT", "/nodes/pve1/qemu/410/config", "delete=scsi0")
		if a.status != 400 || !strings.Contains(fmt.Sprint(a.errors), "hotplug problem - error on hot-unplugging device 'scsi0'") {
			t.Errorf("%d %v", a.status, a.errors)
		}
		config := func(query string) map[string]any {
			return l.call("GET", "/nodes/pve1/qemu/410/config"+query, "").data.(map[string]any)
		}
		if now := config("?current=1"); now["scsi0"] == nil || now["boot"] != "order=scsi0" {
			t.Errorf("what the guest has: %v", now)
		}
		if after := config(""); after["scsi0"] != nil || after["boot"] != options.NoBoot || after["unused0"] != nil {
			t.Errorf("what it will have: %v", after)
		}
		l.ok("PUT", "/nodes/pve1/qemu/410/config", "delete=scsi1") // which it does not use
		l.ok("POST", "/nodes/pve1/qemu/410/status/stop", "")
		after := config("")
		if after["scsi0"] != nil || after["boot"] != options.NoBoot || after["unused0"] != "local-lvm:vm-410-disk-1" || after["unused1"] != "local-lvm:vm-410-disk-0" {
			t.Errorf("after the stop: %v", after)
		}
	})
}
