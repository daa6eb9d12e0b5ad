package talos

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Console is what a machine has printed on its serial port, and prints now, over and over: the
// lines of Talos as it writes them, or those of a firmware that finds nothing to do.
func (f *Fleet) Console(vmid int) world.Printed {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.serialOf(vmid).List()
	m := f.machines[vmid]
	switch {
	case m == nil:
	case m.guest.Dead:
		p.Again = system.PrintFirmware(true)
	case !m.canBoot():
		p.Again = system.PrintFirmware(false)
	case m.boot != nil && m.boot.state != nil:
		address := ""
		if m.boot.address.IsValid() {
			address = m.boot.address.Addr().String()
		}
		p.Again = system.PrintConsole(time.Now(), m.boot.stage, m.boot.ready, address)
	}
	return p
}

// serialOf returns the serial port of a VM, which outlives what runs in it.
func (f *Fleet) serialOf(vmid int) *system.Serial {
	if f.serials[vmid] == nil {
		f.serials[vmid] = &system.Serial{}
	}
	return f.serials[vmid]
}

// print prints on the machine's serial port.
func (m *machine) print(lines ...string) { m.f.serialOf(m.guest.VMID).Print(lines...) }
