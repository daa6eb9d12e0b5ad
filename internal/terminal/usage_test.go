package terminal

import (
	"bytes"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster/usage"
)

// TestPrintUsage: amounts are in units of people, and what is not known is not 0.
func TestPrintUsage(t *testing.T) {
	share, used := 0.123, int64(3<<30)
	var b bytes.Buffer
	NewPlain(&b).PrintUsage(usage.Report{
		Hosts: []usage.Host{
			{Name: "pve1", Status: "online", Cores: 16, CPU: &share, Memory: &usage.Amount{Used: 5 << 30, Total: 64 << 30}, Disk: &usage.Amount{Used: 8 << 30, Total: 100 << 30},
				Storages: []usage.Storage{{Name: "local-lvm", Amount: usage.Amount{Used: 1 << 40, Total: 2 << 40}}}, Pressure: &usage.Pressure{CPU: 0.31, IO: 12.5}},
			{Name: "pve2", Status: "offline", Unanswered: "no route to host"},
		},
		VMs: []usage.VM{{Node: "dev-cp-1", VMID: 110, Host: "pve1", Status: "running", Cores: 4, CPU: &share, Memory: &usage.Amount{Used: 2 << 30, Total: 4 << 30}, HostMemory: &used}, {Node: "dev-wk-1", VMID: 120, Status: "unknown"}},
	})
	want := `
  HOST  CPU         MEMORY                DISK                  CPU WAITS  IO WAITS  MEMORY WAITS
  pve1  12 % of 16  5.0 of 64.0 GiB (8 %)  8.0 of 100.0 GiB (8 %)  0.3 %  12.5 %  0.0 %
  pve2  unknown  unknown  unknown  unknown  unknown  unknown
  pve2: what it waits for is not known: no route to host

  STORAGE  HOST  USED
  local-lvm  pve1  1024.0 of 2048.0 GiB (50 %)

  VM  VMID  HOST  STATUS  CPU  MEMORY  OF THE HOST
  dev-cp-1  110  pve1  running  12 % of 4  2.0 of 4.0 GiB (50 %)  3.0 GiB
  dev-wk-1  120  -  unknown  unknown  unknown  unknown
`
	words := func(s string) string {
		var out []string
		for line := range strings.Lines(s) {
			out = append(out, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(out, "\n")
	}
	if words(b.String()) != words(want) {
		t.Errorf("%s", b.String())
	}
}
