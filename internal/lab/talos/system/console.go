package system

import (
	"fmt"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/world"
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

// PrintKernel is what the boot loader, the kernel and the initramfs of a version of Talos print before machined runs.
func PrintKernel(version string) []string {
	return []string{"\x1b[2J\x1b[01;01H  Booting `Talos " + version + "'", "[    0.000000] Linux version " + Kernel, "[talos] [initramfs] booting Talos " + version}
}

// PrintHalt is what a machined prints that was booted from a medium, and finds Talos on a disk.
// Source: talos, v1alpha1_sequencer_tasks.go: haltIfInstalled.
func PrintHalt(now time.Time) string {
	return PrintLine(now, "Talos is already installed to disk but booted from another media and talos.halt_if_installed kernel parameter is set. Please reboot from the disk.")
}

// PrintFatal is what a machined prints that cannot run.
// Source: talos v1.13.9, machined: handle.
func PrintFatal(now time.Time) []string {
	lines := []string{PrintLine(now, "error mounting the state partition: no such device")}
	for left := 10; left >= 0; left-- {
		lines = append(lines, PrintLine(now.Add(time.Duration(10-left)*time.Second), "rebooting in %d seconds", left))
	}
	return lines
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

// serialKept is how many of the lines of a serial port are kept.
const serialKept = 100

// Serial is a serial port: whoever reads it sees what is printed meanwhile. The zero value is ready.
type Serial struct {
	lines []string
	last  int
}

// Print prints lines.
func (s *Serial) Print(lines ...string) {
	s.lines = append(s.lines, lines...)
	s.lines = slices.Delete(s.lines, 0, max(0, len(s.lines)-serialKept))
	s.last += len(lines)
}

// List returns what was printed.
func (s *Serial) List() world.Printed {
	return world.Printed{Lines: slices.Clone(s.lines), Last: s.last}
}
