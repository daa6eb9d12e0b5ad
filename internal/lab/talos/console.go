package talos

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
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
		return system.PrintFirmware(true)
	case !m.canBoot():
		return system.PrintFirmware(false)
	case m.boot == nil && m.f.flaws[m.image().Version] == installer.HangsOnBoot:
		return system.PrintKernel(m.image().Version)
	case m.boot == nil:
		return nil // it hangs
	case m.boot.state == nil:
		return system.PrintKernel(m.image().Version)
	}
	address := ""
	if m.boot.address.IsValid() {
		address = m.boot.address.Addr().String()
	}
	return system.PrintConsole(time.Now(), m.boot.stage, m.boot.ready, address)
}
