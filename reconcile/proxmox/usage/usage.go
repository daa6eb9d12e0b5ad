package usage

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/talos-agent/talos-agent/internal/cluster/usage"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// Get reads a path of the API into a value.
type Get func(ctx context.Context, path string, query map[string]string, into any) error

// row is one line of /cluster/resources. Of a host without Sys.Audit, and of a guest
// without VM.Audit or younger than a round of statistics, it has the name only (PVE
// 9.2 and 8.4, recorded).
type row struct {
	Type    pveconf.Scalar `json:"type"`
	Node    pveconf.Scalar `json:"node"`
	Status  pveconf.Scalar `json:"status"`
	VMID    pveconf.Scalar `json:"vmid"`
	Storage pveconf.Scalar `json:"storage"`
	CPU     pveconf.Scalar `json:"cpu"`
	MaxCPU  pveconf.Scalar `json:"maxcpu"`
	Mem     pveconf.Scalar `json:"mem"`
	MaxMem  pveconf.Scalar `json:"maxmem"`
	MemHost pveconf.Scalar `json:"memhost"`
	Disk    pveconf.Scalar `json:"disk"`
	MaxDisk pveconf.Scalar `json:"maxdisk"`
}

// Ask fills in what is in use of the hosts and of the VMs that a report names: of a
// host its name is given, of a VM its node and its number.
func Ask(ctx context.Context, get Get, r *usage.Report) error {
	var rows []row
	if err := get(ctx, "/cluster/resources", nil, &rows); err != nil {
		return err
	}
	for i := range r.VMs {
		describeVM(&r.VMs[i], rows)
	}
	var all sync.WaitGroup
	for i := range r.Hosts {
		h := &r.Hosts[i]
		if describeHost(h, rows); h.CPU != nil { // else the token may not see its history either
			all.Go(func() {
				var err error
				if h.Pressure, err = askPressure(ctx, get, h.Name); err != nil {
					h.Unanswered = text.Reason(err, longestReason)
				}
			})
		}
	}
	all.Wait()
	return ctx.Err()
}

func describeHost(h *usage.Host, rows []row) {
	h.Status, h.Storages = "unknown", []usage.Storage{}
	for _, r := range rows {
		switch {
		case string(r.Node) != h.Name:
		case r.Type == "node":
			if r.Status != "" {
				h.Status = string(r.Status)
			}
			h.Cores, h.CPU, h.Memory, h.Disk = int(r.MaxCPU.Number()), fraction(r.CPU), amountOf(r.Mem, r.MaxMem), amountOf(r.Disk, r.MaxDisk)
		case r.Type == "storage":
			if a := amountOf(r.Disk, r.MaxDisk); a != nil {
				h.Storages = append(h.Storages, usage.Storage{Name: string(r.Storage), Amount: *a})
			}
		}
	}
	slices.SortFunc(h.Storages, func(a, b usage.Storage) int { return strings.Compare(a.Name, b.Name) })
}

func describeVM(vm *usage.VM, rows []row) {
	vm.Status = "unknown"
	i := slices.IndexFunc(rows, func(r row) bool { return r.Type == "qemu" && int(r.VMID.Number()) == vm.VMID })
	if i < 0 {
		return
	}
	r := rows[i]
	vm.Host, vm.Cores, vm.CPU, vm.Memory = string(r.Node), int(r.MaxCPU.Number()), fraction(r.CPU), amountOf(r.Mem, r.MaxMem)
	if r.Status != "" {
		vm.Status = string(r.Status)
	}
	if n, err := strconv.ParseInt(string(r.MemHost), 10, 64); err == nil {
		vm.HostMemory = &n
	}
}

// amountOf is an amount of which both numbers are there.
func amountOf(used, total pveconf.Scalar) *usage.Amount {
	if used == "" || total.Number() == 0 {
		return nil
	}
	return &usage.Amount{Used: used.Number(), Total: total.Number()}
}

// fraction is a number that is there.
func fraction(s pveconf.Scalar) *float64 {
	f, err := strconv.ParseFloat(string(s), 64)
	if err != nil {
		return nil
	}
	return &f
}

// longestReason bounds why something is not known, in characters.
const longestReason = 200
