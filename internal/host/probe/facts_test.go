package probe

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/talos-agent/talos-agent/internal/host/setup"
)

// TestReadFacts: what pvesh prints is understood in each of its spellings, and
// what is of no use here is left out.
func TestReadFacts(t *testing.T) {
	said := map[string]string{
		"/version":            `{"release":"9.2","version":"9.2.11"}`,
		"/cluster/status":     `[{"type":"cluster","name":"c","quorate":1},{"type":"node","name":"pve2","local":0},{"type":"node","name":"pve1","local":1}]`,
		"/pools":              `[{"poolid":"talos","comment":"x: y"},{"poolid":"other"}]`,
		"/access/roles":       `[{"roleid":"NoAccess","privs":"","special":1},{"roleid":"TalosAgentVM","privs":"VM.Audit,VM.Allocate"}]`,
		"/access/users":       `[{"userid":"root@pam","enable":1,"tokens":null},{"userid":"talos-agent@pve","enable":"0","comment":"z","tokens":[{"tokenid":"pve1","privsep":1,"expire":0},{"tokenid":"host_2","comment":"c"}]},{"userid":"old@pve"}]`,
		"/access/acl":         `[{"path":"/","ugid":"admins","roleid":"Administrator","type":"group","propagate":1},{"path":"/pool/talos","ugid":"talos-agent@pve","roleid":"TalosAgentVM","type":"user","propagate":"0"}]`,
		"/storage":            `[{"storage":"nfs","type":"nfs","content":"none","digest":"d"},{"storage":"far","type":"dir","content":"images","nodes":"pve2,pve3"},{"storage":"off","type":"dir","content":"images","disable":1},{"storage":"local","type":"dir","content":"iso,import","nodes":"pve1"}]`,
		"/cluster/resources":  `[{"vmid":405,"id":"qemu/405","type":"qemu","name":"dev-cp-1","pool":"talos","node":"pve2"},{"vmid":100,"id":"lxc/100","type":"lxc"}]`,
		"/nodes/pve1/network": `[{"iface":"vmbr1","type":"OVSBridge"},{"iface":"vmbr0","type":"bridge","cidr":"10.0.0.2/24"}]`,
	}
	h := Host{Root: t.TempDir(), Run: func(_ context.Context, _ string, args ...string) ([]byte, error) {
		if args[0] != "get" || said[args[1]] == "" || args[len(args)-1] != "json" {
			return nil, fmt.Errorf("nobody expects pvesh %v", args)
		}
		return []byte(said[args[1]]), nil
	}}
	f, err := h.ReadFacts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := setup.Facts{
		Version: "9.2.11", Host: "pve1", Hosts: []string{"pve1", "pve2"}, Pools: map[string]string{"talos": "x: y", "other": ""},
		Roles:    map[string][]string{"NoAccess": {}, "TalosAgentVM": {"VM.Audit", "VM.Allocate"}},
		Users:    map[string]setup.Account{"root@pam": {}, "old@pve": {}, setup.User: {Disabled: true, Comment: "z", Tokens: []string{"pve1", "host_2"}}},
		ACL:      []setup.Entry{{Path: "/", Who: "admins", Role: "Administrator", Propagate: true}, {Path: "/pool/talos", Who: setup.User, Role: "TalosAgentVM"}},
		Storages: []setup.Storage{{Name: "local", Type: "dir", Content: []string{"iso", "import"}}, {Name: "nfs", Type: "nfs", Content: []string{}, Digest: "d"}},
		Bridges:  []setup.Bridge{{Name: "vmbr0", Address: "10.0.0.2/24"}, {Name: "vmbr1"}},
		VMs:      []setup.VM{{ID: 100}, {ID: 405, Name: "dev-cp-1", Pool: "talos", Host: "pve2"}},
		Files:    map[string]setup.File{}, ServiceUser: true,
	}
	if diff := cmp.Diff(want, f, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	// One that fails is reported by its name, and an answer is not quoted.
	said["/access/acl"] = `{"secret":"c4n4ry"`
	if _, err := h.ReadFacts(t.Context()); err == nil || !strings.Contains(err.Error(), "pvesh get /access/acl: ") || strings.Contains(err.Error(), "c4n4ry") {
		t.Errorf("%v", err)
	}
}
