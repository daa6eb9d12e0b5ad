package pve

import (
	"reflect"
	"testing"
)

// TestPermissions: what somebody may do is listed with whether it holds below, and
// the VMs of a pool by themselves, with what the pool gives there, which does not.
// As a real host answers, and as RPCEnvironment.pm of pve-access-control has it.
func TestPermissions(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		for _, who := range []string{"talos-agent@pve", "talos-agent@pve!pve1"} {
			l.pve.mu.Lock()
			kind := map[bool]string{true: "token", false: "user"}[who != "talos-agent@pve"]
			l.pve.setACL(acl{path: "/", ugid: who, kind: kind, role: "TalosAgentHost"}, false)
			// One of both that does not propagate is enough.
			l.pve.setACL(acl{path: "/nodes/pve1", ugid: who, kind: kind, role: "TalosAgentHost", propagate: kind == "user"}, false)
			l.pve.mu.Unlock()
		}
		l.ok("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos")
		may := l.call("GET", "/access/permissions", "").data.(map[string]any)
		one := func(v float64) map[string]any { return map[string]any{"Sys.Audit": v} }
		for path, want := range map[string]any{"/": one(0), "/nodes/pve1": one(0), "/nodes": nil} {
			if !reflect.DeepEqual(may[path], want) {
				l.t.Errorf("%s: %v, want %v", path, may[path], want)
			}
		}
		pool, member := may["/pool/talos"].(map[string]any), may["/vms/410"].(map[string]any)
		if pool["VM.Allocate"] != 1.0 || member["VM.Allocate"] != 0.0 || len(pool) != len(member) {
			l.t.Errorf("the pool has %v, its member %v", pool, member)
		}
	})
}
