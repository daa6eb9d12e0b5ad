package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/lab/pvehost"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestSeparation: Proxmox VE's root sees what the token itself may not ask: that
// its user was given what it was not.
func TestSeparation(t *testing.T) {
	program, err := exec.LookPath("talos-agent")
	must(err)
	prefix, release, err := world.FreePrefix()
	must(err)
	defer release()
	dir := t.TempDir()
	h, err := pvehost.StartBare(pvehost.Config{Dir: dir, Prefix: prefix, Flavour: "9.2", Speed: 200}, program)
	must(err)
	defer h.Close()
	const user, token, path = "talos-agent@pve", "talos-agent@pve!pve1", "/pool/talos"
	h.PVE.Role("TalosAgentVM", "VM.Allocate", "VM.Audit")
	h.PVE.Token(user, "pve1", true)
	h.PVE.Grant(user, "TalosAgentVM", path)
	v := probe.Inspector{Host: probe.Host{Root: dir, Run: probe.RunProgram}}
	metadata := doctor.Pass // of the thin pool, which root sees as well
	judged := func() doctor.Check {
		t.Helper()
		h := v.Inspect(t.Context(), doctor.Wants{Token: token, Needs: []doctor.Need{{Path: path, Role: "TalosAgentVM", Privileges: []string{"VM.Allocate"}}}})
		if pools := find(h.Judge(), "metadata", ""); len(pools) != 1 || pools[0].Level != metadata || metadata == doctor.Pass && pools[0].Subject != "pve/local-lvm" {
			t.Errorf("the metadata of the thin pool: %+v", pools)
		}
		found := find(h.Judge(), "privsep", "")
		if len(found) != 1 {
			t.Fatalf("%+v", found)
		}
		return found[0]
	}
	if c := judged(); c.Level != doctor.Fail || !strings.Contains(c.Message, "has VM.Allocate there") {
		t.Errorf("the user has it, and the token has not: %+v", c)
	}
	h.PVE.Grant(token, "TalosAgentVM", path)
	if c := judged(); c.Level != doctor.Pass {
		t.Errorf("both have it: %+v", c)
	}
	v.Host.Root, metadata = t.TempDir(), doctor.Skipped
	if c := judged(); c.Level != doctor.Skipped || !strings.Contains(c.Message, "root of the Proxmox VE host") {
		t.Errorf("no Proxmox VE host: %+v", c)
	}
	if h := v.Inspect(t.Context(), doctor.Wants{}); h.Separation.Known {
		t.Error("nobody's token is looked at")
	}
}
