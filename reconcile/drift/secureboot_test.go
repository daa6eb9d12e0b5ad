package drift

import (
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// secureNode is a node that runs with Secure Boot, or without, as the inventory has it, and has worked.
func secureNode(secure bool) (d cluster.Desired, o cluster.Observed, n cluster.Node) {
	s, n := newNode()
	s.SecureBoot, s.Versions.Talos = secure, "v1.14.1"
	d = cluster.Desired{Snapshot: cluster.Snapshot{Spec: s}, Schematic: "376567988ad3", Configs: map[string]cluster.Config{n.Name: {Digest: "config"}}}
	mach := cluster.Machine{Reach: cluster.Configured, Talos: "v1.14.1", Schematic: "376567988ad3", ConfigDigest: "config", SecureBoot: wantSecureBoot(d)}
	o = cluster.Observed{Machines: map[string]cluster.Machine{n.Name: mach}, VMs: map[string]cluster.VM{n.Name: {VMID: n.VMID, Node: n.Name, Presence: cluster.Present, Owner: cluster.Ours,
		Tags: n.VMTags(), Hardware: cluster.Saw(WantHardware(s, n))}}}
	o.Facts.Settled = map[string]string{}
	o.Facts.Settled[n.Name] = Settle(d, o, n, true)
	return d, o, n
}

// TestSecureBootComesFirst: how a machine has booted hides whatever else differs of what it runs; where that is not known nothing is hidden.
func TestSecureBootComesFirst(t *testing.T) {
	for _, secure := range []bool{true, false} {
		d, o, n := secureNode(secure)
		mach := o.Machines[n.Name]
		if drifts := OfMachine(d, o, n, mach); len(drifts) > 0 {
			t.Errorf("the same differs: %+v", drifts)
		}
		mach.Talos = "v1.14.0"
		for _, seen := range []string{mach.SecureBoot, ""} {
			mach.SecureBoot = seen
			if drifts := OfMachine(d, o, n, mach); len(drifts) != 1 || drifts[0].Field != FieldTalos {
				t.Errorf("secure boot %v, seen as %q: %+v", secure, seen, drifts)
			}
		}
		mach.SecureBoot = map[bool]string{true: cluster.OptionOff, false: cluster.OptionOn}[secure]
		drifts := OfMachine(d, o, n, mach)
		if len(drifts) != 1 || drifts[0].Field != FieldSecureBoot || drifts[0].How != Replace || drifts[0].Want == drifts[0].Have {
			t.Fatalf("secure boot %v: %+v", secure, drifts)
		}
		b := drifts[0].Refusal(d, o, n)
		if b.Reason != cluster.SecureBootDrift || !strings.Contains(b.Message, "Secure Boot "+mach.SecureBoot) || !strings.Contains(b.Hint, "talos.secureboot") || !strings.Contains(b.Hint, "`replace`") {
			t.Errorf("%+v", b)
		}
	}
}

// TestMissingTPM: the VM of a machine that boots by Secure Boot needs a TPM, and that of another one may have one. Of a machine that has
// booted otherwise than it should the TPM is no drift of its own.
func TestMissingTPM(t *testing.T) {
	d, o, n := secureNode(true)
	vm := o.VMs[n.Name]
	if vm.Hardware.Value.TPM != cluster.TPMVersion {
		t.Fatalf("it should have %q", vm.Hardware.Value.TPM)
	}
	vm.Hardware.Value.TPM = ""
	drifts := OfNodeVM(d, o, n, vm)
	if len(drifts) != 1 || drifts[0].Field != string(cluster.FieldTPM) || drifts[0].How != Replace {
		t.Fatalf("%+v", drifts)
	}
	if b := drifts[0].Refusal(d, o, n); !strings.Contains(b.Message, "which Secure Boot takes") || !strings.Contains(b.Hint, "--tpmstate0 local-lvm:1,version=v2.0") {
		t.Errorf("%+v", b)
	}
	mach := o.Machines[n.Name]
	mach.SecureBoot = cluster.OptionOff
	o.Machines[n.Name] = mach
	if drifts := OfNodeVM(d, o, n, vm); len(drifts) > 0 {
		t.Errorf("of one that has booted without: %+v", drifts)
	}
	d, o, n = secureNode(false)
	vm = o.VMs[n.Name]
	vm.Hardware.Value.TPM = cluster.TPMVersion
	if drifts := OfNodeVM(d, o, n, vm); len(drifts) > 0 {
		t.Errorf("one that somebody has added: %+v", drifts)
	}
}

// TestWhoChangedSecureBoot: what the inventory has had and has no more, or has now, was pushed; anything else somebody has done.
func TestWhoChangedSecureBoot(t *testing.T) {
	for name, c := range map[string]struct {
		was, is        bool
		runs           string
		pushed, edited bool
	}{
		"taken out of the inventory": {true, false, cluster.OptionOn, true, false},
		"written into the inventory": {false, true, cluster.OptionOff, true, false},
		"by somebody, without it":    {false, false, cluster.OptionOn, false, true},
		"by somebody, with it":       {true, true, cluster.OptionOff, false, true},
	} {
		d, o, n := secureNode(c.was)
		d.Spec.SecureBoot = c.is
		mach := o.Machines[n.Name]
		mach.SecureBoot = c.runs
		o.Machines[n.Name] = mach
		if got := OriginOf(d, o, n, FieldSecureBoot); !got.Known || got.Pushed != c.pushed || got.Edited != c.edited {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestSecureBootIsKept: that a node boots as the inventory has it is kept when it is seen, and not before.
func TestSecureBootIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		reach cluster.Reach
		seen  string
		kept  bool
	}{
		"seen":           {cluster.Configured, cluster.OptionOn, true},
		"not known":      {cluster.Configured, "", false},
		"it is silent":   {cluster.Silent, cluster.OptionOn, false},
		"in maintenance": {cluster.Maintenance, cluster.OptionOn, false},
		"the other way":  {cluster.Configured, cluster.OptionOff, false},
	} {
		d, o, n := secureNode(false)
		d.Spec.SecureBoot = true // pushed since
		mach, vm := o.Machines[n.Name], o.VMs[n.Name]
		mach.Reach, mach.SecureBoot = c.reach, c.seen
		vm.Hardware = cluster.Saw(WantHardware(d.Spec, n))
		o.Machines[n.Name], o.VMs[n.Name] = mach, vm
		o.Facts.Settled[n.Name] = Settle(d, o, n, false)
		if kept := decodeSettled(o.Facts.Settled[n.Name]).has(FieldSecureBoot, cluster.OptionOn); kept != c.kept {
			t.Errorf("%s: kept %v", name, kept)
		}
	}
}
