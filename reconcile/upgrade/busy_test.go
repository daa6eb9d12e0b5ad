package upgrade

import (
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestBusy: what the HA manager has done is none of its requests, and a state of which nothing is known is one. Each has a hint.
func TestBusy(t *testing.T) {
	n := cluster.Node{Name: "wk-1", VMID: 521}
	for _, c := range []struct {
		vm              cluster.VM
		why, hint, also string
	}{
		{vm: cluster.VM{}},
		{vm: cluster.VM{HA: "started", Managed: true}},
		{vm: cluster.VM{HA: "enabled", Managed: true}},
		{vm: cluster.VM{HA: "stopped", Managed: true}},
		{vm: cluster.VM{HA: "disabled", Managed: true}},
		{vm: cluster.VM{HA: "ignored"}},
		{vm: cluster.VM{HA: "request_stop"}, why: "has a request for it (request_stop)", hint: "`ha-manager status` on pve2"},
		{vm: cluster.VM{HA: "request_start"}, why: "has a request for it (request_start)", hint: "`ha-manager status` on pve2"},
		{vm: cluster.VM{HA: "request_start_balance"}, why: "(request_start_balance)", hint: "`ha-manager status` on pve2"},
		{vm: cluster.VM{HA: "migrate"}, why: "(migrate)", hint: "`ha-manager status` on pve2"},
		{vm: cluster.VM{HA: "relocate"}, why: "(relocate)", hint: "`ha-manager status` on pve2"},
		{vm: cluster.VM{HA: "freeze"}, why: "(freeze)", hint: "pve2 is rebooted"},
		{vm: cluster.VM{HA: "fence"}, why: "from a host that was lost (fence)", hint: "which one is fenced", also: "pve2 had it"},
		{vm: cluster.VM{HA: "recovery"}, why: "from a host that was lost (recovery)", hint: "bring back pve2", also: "set vm:521 --state disabled"},
		{vm: cluster.VM{HA: "error"}, why: "has given it up (error)", hint: "pve-ha-lrm", also: "set vm:521 --state disabled"},
		{vm: cluster.VM{HA: "of_tomorrow"}, why: "has a request for it (of_tomorrow)", hint: "`ha-manager status` on pve2"},
		{vm: cluster.VM{Lock: "backup", HA: "migrate", Task: &cluster.Task{Type: "vzdump"}}, why: "has locked it (backup)", hint: "see what runs"},
		{vm: cluster.VM{Task: &cluster.Task{Type: "qmigrate"}, HA: "migrate"}, why: "a task runs on it (qmigrate)", hint: "see what runs"},
	} {
		c.vm.Host = "pve2"
		if got := IsBusy(c.vm); got != (c.why != "") {
			t.Errorf("%+v: busy %v", c.vm, got)
		}
		if c.why == "" {
			continue
		}
		w, within := AwaitFree("dev", n, c.vm, 6*time.Hour), 30*time.Minute
		switch {
		case c.vm.Lock != "" || c.vm.Task != nil || c.vm.HA == "migrate" || c.vm.HA == "relocate":
			within = 6 * time.Hour
		case c.vm.HA == "error":
			within = time.Second
		}
		if w.Within != within {
			t.Errorf("%+v: within %v, want %v", c.vm, w.Within, within)
		}
		if w.Reason != cluster.VMLocked || w.About != "wk-1" || !strings.HasSuffix(w.Message, c.why) {
			t.Errorf("%+v: %+v", c.vm, w)
		}
		if !strings.Contains(w.Hint, c.hint) || !strings.Contains(w.Hint, c.also) || !strings.Contains(w.Hint, "`talos-agent upgrade dev --despite wk-1`") {
			t.Errorf("%+v: hint %q", c.vm, w.Hint)
		}
	}
}
