package terminal

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster/usage"
)

// unknown is what is printed for what is not known.
const unknown = "unknown"

// PrintUsage prints what of the hosts and VMs of a cluster is in use.
func (p Printer) PrintUsage(r usage.Report) {
	if len(r.Hosts) > 0 {
		rows := [][]string{{"HOST", "CPU", "MEMORY", "DISK", "CPU WAITS", "IO WAITS", "MEMORY WAITS"}}
		for _, h := range r.Hosts {
			row := []string{h.Name, formatCPU(h.CPU, h.Cores), formatAmount(h.Memory), formatAmount(h.Disk), unknown, unknown, unknown}
			if w := h.Pressure; w != nil {
				row = append(row[:4], formatPressure(w.CPU), formatPressure(w.IO), formatPressure(w.Memory))
			}
			rows = append(rows, row)
		}
		p.PrintTable(rows)
		p.printUnanswered(r.Hosts)
	}
	storages := [][]string{{"STORAGE", "HOST", "USED"}}
	for _, h := range r.Hosts {
		for _, s := range h.Storages {
			storages = append(storages, []string{s.Name, h.Name, formatAmount(&s.Amount)})
		}
	}
	if len(storages) > 1 {
		p.PrintTable(storages)
	}
	if len(r.VMs) == 0 {
		return
	}
	rows := [][]string{{"VM", "VMID", "HOST", "STATUS", "CPU", "MEMORY", "OF THE HOST"}}
	for _, vm := range r.VMs {
		ofHost := unknown
		if vm.HostMemory != nil {
			ofHost = formatGiB(*vm.HostMemory)
		}
		rows = append(rows, []string{vm.Node, fmt.Sprint(vm.VMID), orDash(vm.Host), vm.Status, formatCPU(vm.CPU, vm.Cores), formatAmount(vm.Memory), ofHost})
	}
	p.PrintTable(rows)
}

// printUnanswered prints why the pressure on a host is not known.
func (p Printer) printUnanswered(hosts []usage.Host) {
	for _, h := range hosts {
		if h.Unanswered != "" {
			p.printWrapped(fmt.Sprintf("  %s: what it waits for is not known: %s", h.Name, h.Unanswered))
		}
	}
}

// formatCPU is a share of cores: "12 % of 16".
func formatCPU(share *float64, cores int) string {
	if share == nil {
		return unknown
	}
	return fmt.Sprintf("%.0f %% of %d", 100*max(0, *share), cores)
}

// formatAmount is how much of something is in use: "3.2 of 64.0 GiB (5 %)".
func formatAmount(a *usage.Amount) string {
	if a == nil || a.Total <= 0 {
		return unknown
	}
	return fmt.Sprintf("%.1f of %s (%.0f %%)", float64(a.Used)/(1<<30), formatGiB(a.Total), 100*float64(a.Used)/float64(a.Total))
}

func formatGiB(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

// formatPressure is a share of time, in percent.
func formatPressure(percent float64) string { return fmt.Sprintf("%.1f %%", percent) }
