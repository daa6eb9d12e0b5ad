package talos

import (
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// Console is what a machine prints on its serial port now, over and over: the
// lines of Talos as it writes them, or those of a firmware that finds nothing to do.
func (f *Fleet) Console(vmid int) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.machines[vmid]
	switch {
	case m == nil:
		return nil
	case m.guest.Dead:
		return []string{"SeaBIOS (version rel-1.16.3-0-ga6ed6b701f0a-prebuilt.qemu.org)", "Booting from Hard Disk..."}
	case m.image().Version == "" || m.disk().wiped:
		return []string{"SeaBIOS (version rel-1.16.3-0-ga6ed6b701f0a-prebuilt.qemu.org)", "Booting from Hard Disk...", "Boot failed: not a bootable disk", "No bootable device."}
	case m.boot == nil:
		return nil // it hangs
	case m.boot.state == nil:
		return []string{"\x1b[2J\x1b[01;01H  Booting `Talos " + m.image().Version + "'", "[    0.000000] Linux version 6.18.9-talos"}
	}
	line := func(format string, args ...any) string {
		return "[talos] " + time.Now().UTC().Format("2006/01/02 15:04:05") + " " + fmt.Sprintf(format, args...)
	}
	lines := []string{line("machine is running and %s {\"component\": \"controller-runtime\", \"controller\": \"runtime.MachineStatusController\", \"stage\": %q}",
		map[bool]string{true: "ready", false: "not ready"}[m.boot.ready], m.boot.stage)}
	if m.boot.stage == runtime.MachineStageMaintenance {
		lines = append(lines, line("entering maintenance service {\"component\": \"controller-runtime\", \"controller\": \"runtime.MaintenanceServiceController\"}"))
		if !m.boot.address.IsValid() {
			lines = append(lines, line("no network address was found on any link"))
		} else {
			lines = append(lines, line("this machine is reachable at: %s", m.boot.address.Addr()))
		}
	}
	return lines
}
