package system

import (
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// PrintFirmware is what a firmware prints on the serial port: of a disk that it boots from, and of
// one on which it finds nothing.
func PrintFirmware(bootable bool) []string {
	lines := []string{"SeaBIOS (version rel-1.16.3-0-ga6ed6b701f0a-prebuilt.qemu.org)", "Booting from Hard Disk..."}
	if !bootable {
		lines = append(lines, "Boot failed: not a bootable disk", "No bootable device.")
	}
	return lines
}

// PrintKernel is what the kernel of a version of Talos prints before anything runs.
func PrintKernel(version string) []string {
	return []string{"\x1b[2J\x1b[01;01H  Booting `Talos " + version + "'", "[    0.000000] Linux version " + Kernel}
}

// PrintLine is a line of machined.
func PrintLine(now time.Time, format string, args ...any) string {
	return "[talos] " + now.UTC().Format("2006/01/02 15:04:05") + " " + fmt.Sprintf(format, args...)
}

// PrintConsole is what a machine in a stage prints; address "": it has none.
func PrintConsole(now time.Time, stage runtime.MachineStage, ready bool, address string) []string {
	state := "not ready"
	if ready {
		state = "ready"
	}
	lines := []string{PrintLine(now, "machine is running and %s {\"component\": \"controller-runtime\", \"controller\": \"runtime.MachineStatusController\", \"stage\": %q}", state, stage)}
	if stage != runtime.MachineStageMaintenance {
		return lines
	}
	lines = append(lines, PrintLine(now, "entering maintenance service {\"component\": \"controller-runtime\", \"controller\": \"runtime.MaintenanceServiceController\"}"))
	if address == "" {
		return append(lines, PrintLine(now, "no network address was found on any link"))
	}
	return append(lines, PrintLine(now, "this machine is reachable at: %s", address))
}
