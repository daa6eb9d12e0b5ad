package drift

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestChanged: who changed a VM is shown with where that is known from, and never made up.
func TestChanged(t *testing.T) {
	at := time.Date(2026, 11, 22, 11, 31, 5, 0, time.FixedZone("CET", 3600))
	task := &cluster.Task{UPID: "UPID:pve1:x:", Type: "qmstop", User: "root@pam", Started: at}
	sent := &cluster.Request{Method: "PUT", Call: "config", User: "ci@pve!deploy", At: at}
	for want, vm := range map[string]cluster.VM{
		"": {},
		" (qmstop by root@pam at 2026-11-22 10:31 UTC, UPID:pve1:x:)":                      {ChangedBy: task, ChangedAfter: at},
		" (PUT config by ci@pve!deploy at 2026-11-22 10:31 UTC, in the host's access log)": {ChangedWith: sent, ChangedAfter: at},
		" (DELETE by root@pam at 2026-11-22 10:31 UTC, in the host's access log)":          {ChangedWith: &cluster.Request{Method: "DELETE", User: "root@pam", At: at}},
		" (changed after 2026-11-22 10:31 UTC; no task shows who it was)":                  {ChangedAfter: at},
	} {
		if got := ChangedOf(vm).String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
