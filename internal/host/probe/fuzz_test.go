package probe

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// pveshAnswers is what pvesh of a host as its installer leaves it answers, in the
// order in which FuzzPvesh numbers them.
var pveshAnswers = []struct{ path, answer string }{
	{"/version", `{"version":"9.2.11"}`},
	{"/cluster/status", `[{"type":"node","name":"pve1","local":1}]`},
	{"/pools", `[{"poolid":"talos"}]`},
	{"/access/roles", `[{"roleid":"PVEAuditor","privs":"Sys.Audit,VM.Audit"}]`},
	{"/access/users", `[{"userid":"root@pam","enable":1,"tokens":[{"tokenid":"t"}]}]`},
	{"/access/acl", `[{"path":"/","ugid":"me@pve","roleid":"PVEAuditor","propagate":"1"}]`},
	{"/storage", `[{"storage":"local","type":"dir","content":"iso,import"},{"storage":"local-lvm","type":"lvmthin","content":"images"}]`},
	{"/nodes/pve1/network", `[{"iface":"vmbr0","cidr":"10.0.0.2/24"}]`},
	{"/cluster/resources", `[{"vmid":101,"name":"mail","pool":"office"}]`},
	{"/access/permissions", `{"/pool/talos":{"VM.Allocate":1}}`},
}

// FuzzPvesh: whatever pvesh answers to a question, what is seen of the host is
// known, or one line has the reason why not.
func FuzzPvesh(f *testing.F) {
	for i, a := range pveshAnswers {
		f.Add(uint8(i), []byte(a.answer))
	}
	f.Add(uint8(8), []byte(`[{"vmid":-1},{"vmid":null},null]`))
	f.Add(uint8(7), []byte(`[{"iface":"vmbr0\u0000","cidr":"::"}]`))
	dir := f.TempDir()
	must(os.MkdirAll(dir+"/usr/bin", 0o755))
	must(os.WriteFile(dir+"/usr/bin/pvesh", nil, 0o755))
	f.Fuzz(func(t *testing.T, which uint8, answer []byte) {
		h := Host{Root: dir, Run: func(_ context.Context, _ string, args ...string) ([]byte, error) {
			for i, a := range pveshAnswers {
				switch {
				case args[1] != a.path:
				case i == int(which)%len(pveshAnswers):
					return answer, nil
				default:
					return []byte(a.answer), nil
				}
			}
			return nil, errors.New("no such path") // of a host with another name
		}}
		if _, err := (Inspector{Host: h}).askSeparation(t.Context(), "talos-agent@pve!pve1"); err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("more than a line: %q", err)
		}
		if f, err := h.ReadFacts(t.Context()); err == nil && f.Host == "" {
			t.Error("nobody knows which host it is, and that is no error")
		}
	})
}

// FuzzListeners: the kernel's table is read, or reported to be none.
func FuzzListeners(f *testing.F) {
	f.Add("  sl  local_address\n  1: 0100007F:0043 00000000:0000 07\n", uint16(67))
	f.Add("", uint16(0))
	f.Fuzz(func(t *testing.T, table string, port uint16) {
		found, err := parseListeners(table, port)
		if lines := strings.Count(table, "\n") + 1; err == nil && len(found) > lines {
			t.Errorf("%d listeners in %d lines", len(found), lines)
		}
		for _, ip := range found {
			if !ip.Is4() {
				t.Errorf("%v", ip)
			}
		}
	})
}
