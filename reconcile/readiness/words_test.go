package readiness

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestHintOfRefusedPods: where the label goes that lets pods be made which Pod Security
// refuses.
func TestHintOfRefusedPods(t *testing.T) {
	const label = "pod-security.kubernetes.io/enforce"
	for _, c := range []struct {
		addon cluster.Addon
		want  string
	}{
		{cluster.Addon{Namespace: "storage", File: "addons/x.yaml"}, "write `namespace_labels: {" + label + ": privileged}` into addons/x.yaml"},
		{cluster.Addon{Namespace: "kube-system", File: "addons/x.yaml"}, "give the addon a namespace of its own"},
		{cluster.Addon{Namespace: "storage", File: "addons/x.yaml", Asks: cluster.NamespaceMeta{Labels: map[string]string{label: "baseline"}}}, "write `" + label + ": privileged` into namespace_labels in addons/x.yaml"},
		{cluster.Addon{Namespace: "storage", Ownership: cluster.BootstrapOnly}, "`kubectl label namespace storage " + label + "=privileged`"},
	} {
		if got := HintOfRefused(c.addon); !strings.Contains(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestWordsOfNodes: what is shown of a node that does not answer.
func TestWordsOfNodes(t *testing.T) {
	n := cluster.Node{VMID: 411, Bridge: "vmbr1", Placement: cluster.Placement{Pin: "pve1"}}
	moved := cluster.VM{Host: "pve2", Hardware: cluster.Saw(cluster.Hardware{Bridge: "vmbr2"})}
	for _, c := range []struct{ got, want string }{
		{HintOfSilent(n, cluster.VM{}, cluster.Observed{}), "look at its console: `qm terminal 411` on pve1; has it booted the nocloud image, and does its bridge vmbr1 reach the agent?"},
		{HintOfSilent(n, cluster.VM{Hardware: cluster.Saw(cluster.Hardware{Medium: "ide0"})}, cluster.Observed{}), "look at its console: `qm terminal 411` on pve1; has it booted the nocloud image, and does its bridge vmbr1 reach the agent? Where it finds Talos installed and halts, its installation was interrupted: give it another `replace`"},
		{HintOfSilent(n, moved, cluster.Observed{}), "look at its console: `qm terminal 411` on pve2; has it booted the nocloud image, and does its bridge vmbr2 reach the agent?"},
		{LockedBy(cluster.VM{}), ""},
		{EndOfLog(nil), ""},
		{EndOfLog([]string{" ", ""}), ""},
		{EndOfLog([]string{"begins", " copies 3 GiB \n", " "}), "; its log ends: copies 3 GiB"},
		{HintOfLocked(cluster.VM{VMID: 411}, "pve1"), cluster.RemoveLocked(411, "pve1") + ", which deletes every volume with its number"},
		{LockedBy(cluster.VM{Lock: "backup"}), "; Proxmox VE has locked the vm (backup)"},
		{HintOfStop(cluster.Observed{}, n, cluster.RebootNode), ""},
		{HintOfStop(cluster.Observed{Machines: map[string]cluster.Machine{"": {Reach: cluster.Configured}}}, n, cluster.ChangeVM), ""},
		{HintOfStop(cluster.Observed{VMs: map[string]cluster.VM{"": moved}}, n, cluster.ChangeVM), "if its network keeps it from working: `qm shutdown 411` on pve2, or `qm stop 411` where it does not obey; a vm that is stopped is changed at once, and started then"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	for _, c := range []struct {
		vm        cluster.VM
		mach      cluster.Machine
		why, hint string
	}{
		{cluster.VM{}, cluster.Machine{}, "there is no answer yet", ""},
		{cluster.VM{}, cluster.Machine{Why: "refused", Hint: "look"}, "refused", "look"},
		{cluster.VM{Why: "no list"}, cluster.Machine{Why: "refused", Hint: "look"}, "no list", ""},
	} {
		if why, hint := WhyUnseen(c.vm, c.mach); why != c.why || hint != c.hint {
			t.Errorf("%q, %q, want %q, %q", why, hint, c.why, c.hint)
		}
	}
}

// TestOwnEndpoint: the endpoint of a cluster may be the address of one of its control planes,
// which is no way for that one to find the others. That is reported with the way out.
func TestOwnEndpoint(t *testing.T) {
	plane := func(name, ip string) cluster.Node {
		return cluster.Node{Name: name, Role: cluster.ControlPlane, IP: netip.MustParseAddr(ip)}
	}
	three := []cluster.Node{plane("cp-1", "10.0.0.1"), plane("cp-2", "10.0.0.2"), {Name: "wk-1", Role: cluster.Worker, IP: netip.MustParseAddr("10.0.0.3")}}
	for _, c := range []struct {
		endpoint  string
		nodes     []cluster.Node
		discovery bool
		want      string // the nodes of which it is so
	}{
		{"https://10.0.0.1:6443", three, false, "cp-1"},
		{"https://10.0.0.1:6443", three, true, ""},
		{"https://10.0.0.1:6443", three[:1], false, ""}, // there are no others
		{"https://10.0.0.3:6443", three, false, ""},     // a worker looks for no etcd
		{"https://10.0.0.5:6443", three, false, ""},
		{"https://api.example.org:6443", three, false, ""},
		{"https://10.0.0.1:port", three, false, ""},
		{"", three, false, ""},
	} {
		d := cluster.Desired{Configs: map[string]cluster.Config{"cp-1": {Summary: cluster.ConfigSummary{Discovery: c.discovery}}}}
		d.Spec.Nodes, d.Spec.Network.Endpoint = c.nodes, c.endpoint
		var got []string
		for _, n := range c.nodes {
			b := OwnEndpoint(d, n)
			if b.Reason == "" {
				continue
			}
			got = append(got, b.Subject)
			if b.Reason != cluster.EndpointIsNode || !strings.Contains(b.Message, c.endpoint) || !strings.Contains(b.Hint, "`vip`") {
				t.Errorf("%+v: %+v", c, b)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestRootOfWaits: a wait for another subject comes from what that waits for, also where two wait for each other.
func TestRootOfWaits(t *testing.T) {
	wait := func(subject, about, message string) cluster.Wait {
		return cluster.Wait{Subject: subject, Reason: cluster.WaitingForTurn, About: about, Message: message}
	}
	for name, c := range map[string]struct {
		waits []cluster.Wait
		want  string
	}{
		"one":         {[]cluster.Wait{wait("a", "", "x")}, "x"},
		"of another":  {[]cluster.Wait{wait("a", "b", "x"), wait("b", "", "y")}, "y"},
		"in a row":    {[]cluster.Wait{wait("a", "b", "x"), wait("c", "", "z"), wait("b", "c", "y")}, "z"},
		"not waiting": {[]cluster.Wait{wait("a", "d", "x"), wait("b", "", "y")}, "x"},
		"each other":  {[]cluster.Wait{wait("a", "b", "x"), wait("b", "a", "y")}, "y"},
		"itself":      {[]cluster.Wait{wait("a", "a", "x"), wait("b", "", "y")}, "x"},
	} {
		if got := RootOf(c.waits); got.Message != c.want {
			t.Errorf("%s: %s, want %s", name, got.Message, c.want)
		}
	}
}

// TestAwaitSeen: a node whose address is not known waits for that while its VM runs, and for nothing else.
func TestAwaitSeen(t *testing.T) {
	runs, unseen := cluster.VM{Power: cluster.PowerRunning, Host: "pve1"}, cluster.Machine{Why: "its address is not known"}
	for name, c := range map[string]struct {
		leased bool
		vm     cluster.VM
		mach   cluster.Machine
		want   cluster.Reason
	}{
		"its address":          {true, runs, unseen, cluster.WaitingForAddress},
		"one of the inventory": {false, runs, unseen, cluster.NodeUnknown},
		"no VM is seen":        {true, cluster.VM{Why: "no list", Power: cluster.PowerRunning}, unseen, cluster.NodeUnknown},
		"whether it runs":      {true, cluster.VM{}, unseen, cluster.NodeUnknown},
		"it answers":           {true, runs, cluster.Machine{Reach: cluster.Configured}, cluster.NodeUnknown},
	} {
		w := AwaitSeen(cluster.Node{Name: "wk-1", VMID: 520, Leased: c.leased, Bridge: "vmbr1"}, c.vm, c.mach, cluster.Observed{}, time.Minute)
		within := time.Minute
		if c.want == cluster.WaitingForAddress {
			within = BootWithin
			if !strings.Contains(w.Hint, "qm terminal 520` on pve1") {
				t.Errorf("%s: %q", name, w.Hint)
			}
		}
		if w.Reason != c.want || w.Subject != "wk-1" || w.Within != within || !strings.HasPrefix(w.Message, "cannot see it: ") {
			t.Errorf("%s: %+v", name, w)
		}
	}
}
