package wizard

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
)

// pveAnswers is what pvesh of a host as its installer leaves it answers, in the
// order in which FuzzPlan numbers them.
var pveAnswers = []struct{ path, answer string }{
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

// FuzzPlan: whatever pvesh answers to a question, init finds a host that can be
// set up, or reports what is wrong with it, and every plan can be shown.
func FuzzPlan(f *testing.F) {
	for i, a := range pveAnswers {
		f.Add(uint8(i), []byte(a.answer))
	}
	f.Add(uint8(8), []byte(`[{"vmid":-1},{"vmid":null},null]`))
	f.Add(uint8(7), []byte(`[{"iface":"vmbr0\u0000","cidr":"::"}]`))
	given := setup.Given{RootCA: []byte("ca\n"), KnownHosts: []byte("git.example.org ssh-ed25519 AAAA\n")}
	for name, to := range map[string]*[]byte{"config.yaml": &given.Config, "policy.yaml": &given.Policy} {
		text, err := os.ReadFile("../../../../packaging/deb/" + name)
		must(err)
		*to = text
	}
	dir := f.TempDir()
	must(os.MkdirAll(dir+"/usr/bin", 0o755))
	must(os.WriteFile(dir+"/usr/bin/pvesh", nil, 0o755))
	f.Fuzz(func(t *testing.T, which uint8, answer []byte) {
		h := probe.Host{Root: dir, Run: func(_ context.Context, _ string, args ...string) ([]byte, error) {
			for i, a := range pveAnswers {
				switch {
				case args[1] != a.path:
				case i == int(which)%len(pveAnswers):
					return answer, nil
				default:
					return []byte(a.answer), nil
				}
			}
			return nil, errors.New("no such path") // of a host with another name
		}}
		facts, err := h.ReadFacts(t.Context())
		if err != nil {
			return
		}
		w := setup.Defaults(facts)
		w.Repository.URL = "ssh://git@git.example.org/infra.git"
		r := setup.Record{Version: 1}
		if setup.Check(facts, w, r, given, setup.Options{}).HasErrors() {
			return
		}
		plan := setup.Make(facts, w, given, r, setup.Options{})
		if _, err := json.Marshal(ViewPlan(plan)); err != nil {
			t.Error(err)
		}
		(&session{Config: Config{Out: io.Discard}}).showPlan(plan)
		// Names that YAML cannot hold are found before anything is written.
		_ = (&session{wishes: w, files: given}).checkConfig()
	})
}
