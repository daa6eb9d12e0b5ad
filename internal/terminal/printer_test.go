package terminal

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestForecastOutput(t *testing.T) {
	var out bytes.Buffer
	p := Printer{w: &out}
	if err := p.PrintJSON("Forecast", cluster.Forecast{Cluster: "dev"}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `"steps": []`) {
		t.Errorf("programs that walk the steps get no empty list: %s", &out)
	}
	out.Reset()
	p.PrintForecast(cluster.Forecast{Cluster: "dev", Steps: []cluster.Step{{Text: "delete vm 412", Destructive: true, Reboots: true}}})
	if !strings.Contains(out.String(), "1 step, 1 destructive, 1 reboot\n") {
		t.Errorf("one step: %s", &out)
	}
	out.Reset()
	p.PrintForecast(cluster.Forecast{Cluster: "dev", Steps: []cluster.Step{{Text: "a", MayReboot: true}, {Text: "b", MayReboot: true}, {Text: "c", Reboots: true}}})
	if !strings.Contains(out.String(), "3 steps, 0 destructive, 1 reboot, and up to 2 more: nodes are asked first\n") {
		t.Errorf("two that are asked first: %s", &out)
	}
}

// TestForecastShowsWhatHoldsSteps: a step that waits for a window shows that, with what it lacks
// besides; what nothing comes after is at the end, with its hint.
func TestForecastShowsWhatHoldsSteps(t *testing.T) {
	drain := func(node string) cluster.Step {
		return cluster.Step{Action: cluster.DrainNode, Subject: node, Text: "drain " + node}
	}
	wait := func(node string) cluster.Wait {
		return cluster.Wait{Subject: node, Reason: cluster.WaitingForWindow, About: "drain node", Message: "waits for its window: drain " + node, Hint: "the host has one, too"}
	}
	cordoned := cluster.Wait{Subject: "wk-3", Reason: cluster.NodeCordoned, Message: "somebody cordoned it", Hint: "uncordon it"}
	for want, f := range map[string]cluster.Forecast{
		"dev at \n    1. drain wk-1\n       waits for its window\n       -> the host has one, too\n    2. drain wk-2\n       waits for its window\n       -> the host has one, too\n" +
			"  then waits for wk-3: somebody cordoned it\n    -> uncordon it\n2 steps, 0 destructive, 0 reboots\n": {Steps: []cluster.Step{drain("wk-1"), drain("wk-2")}, Waiting: []cluster.Wait{wait("wk-1"), wait("wk-2"), cordoned}},
		"dev at \n  waits for wk-3: somebody cordoned it\n    -> uncordon it\n": {Waiting: []cluster.Wait{cordoned}},
	} {
		var out bytes.Buffer
		f.Cluster = "dev"
		Printer{w: &out}.PrintForecast(f)
		if out.String() != want {
			t.Errorf("printed\n%s\nwant\n%s", &out, want)
		}
	}
}

// TestColumns: a row whose last cells are empty does not shift the rows below.
func TestColumns(t *testing.T) {
	var out bytes.Buffer
	Printer{w: &out}.PrintRows([][]string{{"NODE", "KUBERNETES", "WAITS FOR"}, {"cp-1", "v1.36.1", ""}, {"wk-1", "-", "boots"}})
	if want := "NODE  KUBERNETES  WAITS FOR\ncp-1  v1.36.1\nwk-1  -           boots\n"; out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", &out, want)
	}
}

// TestDriftIsPrinted: a wait and a block show what differs behind them: which field, from what to what,
// since when, and who made it so, where their message does not have it.
func TestDriftIsPrinted(t *testing.T) {
	at := time.Date(2026, 11, 22, 10, 31, 0, 0, time.UTC)
	cores := cluster.FieldDifference{Field: "cores", Has: "8", Wants: "4", How: "reboot", By: "PUT config by root@pam", Since: at}
	digest := func(c string) string { return strings.Repeat(c, 64) }
	config := cluster.FieldDifference{Field: "machine config", Has: digest("a"), Wants: digest("b"), How: "reboot", Since: at}
	edited := config
	edited.By = "edited on the node"
	for _, c := range []struct {
		message string
		drift   cluster.FieldDifference
		want    string
	}{
		{"vm 541 is locked by Proxmox VE (backup)", cores, "cores: 8 -> 4 (reboot), PUT config by root@pam, since 2026-11-22 10:31 UTC"},
		{"waits for its turn to change cores from 8 to 4", cores, "cores: 8 -> 4 (reboot), PUT config by root@pam, since 2026-11-22 10:31 UTC"},
		{"waits for its turn to change cores from 8 to 4 (PUT config by root@pam)", cores, ""},
		{"its machine config is changed after that of wk-2", config, ""},
		{"its machine config is changed after that of wk-2", edited, "machine config: another than the inventory's -> the inventory's (reboot), edited on the node, since 2026-11-22 10:31 UTC"},
		{"etcd cannot spare it", config, "machine config: another than the inventory's -> the inventory's (reboot), since 2026-11-22 10:31 UTC"},
	} {
		w := cluster.Wait{Subject: "wk-1", Message: c.message, Drift: []cluster.FieldDifference{c.drift}}
		b := cluster.Block{Subject: "wk-1", Message: c.message, Drift: w.Drift}
		late := cluster.WaitStatus{Wait: w, Overdue: true}
		soon := cluster.WaitStatus{Wait: w}
		for what, print := range map[string]func(Printer){
			"a wait of a forecast":  func(p Printer) { p.PrintForecast(cluster.Forecast{Waiting: []cluster.Wait{w}}) },
			"a block of a forecast": func(p Printer) { p.PrintForecast(cluster.Forecast{Blocked: []cluster.Block{b}}) },
			"a block of a status":   func(p Printer) { p.PrintStatus(cluster.Status{Blocked: []cluster.Block{b}}) },
			"a wait that is overdue": func(p Printer) {
				p.PrintStatus(cluster.Status{Waiting: []cluster.WaitStatus{late}, Nodes: []cluster.NodeStatus{{Name: "wk-1", Waiting: []cluster.WaitStatus{late}}}})
			},
			"a wait of a node": func(p Printer) {
				p.PrintStatus(cluster.Status{Waiting: []cluster.WaitStatus{soon}, Nodes: []cluster.NodeStatus{{Name: "wk-1", WaitsFor: c.message, Waiting: []cluster.WaitStatus{soon}}}})
			},
		} {
			var out bytes.Buffer
			print(Printer{w: &out})
			if got := strings.Count(out.String(), " -> "); c.want == "" && got != 0 || c.want != "" && (got != 1 || !strings.Contains(out.String(), "    "+c.want+"\n")) {
				t.Errorf("%s: %s:\n%s", what, c.message, &out)
			}
		}
	}
}

// TestCordonedNodesAreShown: below a node stands whether it is out of service, and who took it out.
func TestCordonedNodesAreShown(t *testing.T) {
	var out bytes.Buffer
	Printer{w: &out}.PrintStatus(cluster.Status{Nodes: []cluster.NodeStatus{{Name: "cp-1", Cordoned: true, InTurn: true, WaitsFor: "boots"}, {Name: "cp-2"}, {Name: "cp-3", Cordoned: true}}})
	for _, want := range []string{"boots\n", "out of service: the agent cordoned it for its turn\n", "cordoned: no new pods are placed on it\n"} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("not once %q in\n%s", want, &out)
		}
	}
}

// TestProgress: how far an action is, in words; the name of a task is for programs.
func TestProgress(t *testing.T) {
	for want, r := range map[string]cluster.RunningStatus{
		"50% (1.0 MiB of 2.0 MiB)": {Done: 1 << 20, Total: 2 << 20, Unit: "bytes", UPID: "UPID:pve1:0001:0002:0003:imgcopy::x@pve!y:"},
		"3 steps":                  {Done: 3, Unit: "steps"},
		"task qmcreate on pve1":    {UPID: "UPID:pve1:000003E8:00057E40:69B2C0D1:qmcreate:411:talos-agent@pve!pve1:"},
		"":                         {UPID: "garbage"},
	} {
		if got := formatProgress(r); got != want {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
	}
}

// TestStatusParagraphs: what a person must read is no row of the table above it.
func TestStatusParagraphs(t *testing.T) {
	var out bytes.Buffer
	Printer{w: &out}.PrintStatus(cluster.Status{
		Cluster: "dev", Condition: cluster.Stalled,
		Nodes:    []cluster.NodeStatus{{Name: "dev-cp-1"}},
		Blocked:  []cluster.Block{{Subject: "dev-cp-1", Message: "a person must act"}},
		Problems: cluster.Problems{{Severity: cluster.Warning, File: "nodes.yaml", Message: "is odd"}},
	})
	if !strings.Contains(out.String(), "\n\n  blocked dev-cp-1: a person must act\n\n  nodes.yaml: warning: is odd\n") {
		t.Errorf("the blocked and the problems are not paragraphs of their own:\n%s", &out)
	}
}

// TestSnapshotsAreShown: how old the newest is and when the next one is due, or why there is none.
func TestSnapshotsAreShown(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for want, s := range map[string]*cluster.SnapshotStatus{
		"": nil,
		"\netcd snapshots: none yet; the next is due at 2026-11-27 12:00 UTC\n":                                             {Due: now},
		"\netcd snapshots: the newest is 2h00m old (3.0 MiB), 4 kept; the next is due at 2026-11-27 16:00 UTC\n":            {Newest: now.Add(-2 * time.Hour), Bytes: 3 << 20, Kept: 4, Due: now.Add(4 * time.Hour)},
		"\netcd snapshots: the newest is 2h00m old (3.0 MiB), 4 kept, 1 damaged; the next is due at 2026-11-27 16:00 UTC\n": {Newest: now.Add(-2 * time.Hour), Bytes: 3 << 20, Kept: 4, Damaged: 1, Due: now.Add(4 * time.Hour)},
		"\netcd snapshots: none yet, 2 damaged; the next is due at 2026-11-27 12:00 UTC\n":                                  {Kept: 2, Damaged: 2, Due: now},
		"\netcd snapshots: the newest is 7h00m old (0.1 MiB), 1 kept\n  failed no space left\n":                             {Newest: now.Add(-7 * time.Hour), Bytes: 9, Kept: 1, Due: now.Add(-time.Hour), Error: "no space left"},
	} {
		var out bytes.Buffer
		Printer{w: &out, now: now}.printSnapshots(s)
		if out.String() != want {
			t.Errorf("%q, want %q", &out, want)
		}
	}
}

// TestUpgradesAreShown: which versions are left, how many nodes have the first, and whether that goes on.
func TestUpgradesAreShown(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	hops := []string{"Talos v1.13.9", "Talos v1.14.1"}
	for want, u := range map[string]*cluster.UpgradeStatus{
		"": nil,
		"  no way to the versions that are asked for: a downgrade of Talos; stuck for 1h00m\n":                     {Hops: []string{}, NoWay: "a downgrade of Talos", Nodes: 6, StuckSince: now.Add(-time.Hour)},
		"  upgrade to Kubernetes v1.36.1: 0 of 6 nodes have the first (2 of 3 kube-apiservers, 0 of 6 kubelets)\n": {Hops: []string{"Kubernetes v1.36.1"}, Nodes: 6, Progress: "2 of 3 kube-apiservers, 0 of 6 kubelets"},
		"  goes back to Talos v1.13.9: 2 of 6 nodes have it\n":                                                     {Hops: hops[:1], Upgraded: 2, Nodes: 6, Back: true},
		"  upgrade to Talos v1.13.9, then Talos v1.14.1: 2 of 6 nodes have the first\n":                            {Hops: hops, Upgraded: 2, Nodes: 6},
		"  upgrade to Talos v1.13.9, then Talos v1.14.1: 0 of 1 node have the first; held: upgrade is off\n":       {Hops: hops, Nodes: 1, Held: "upgrade is off"},
		"  upgrade to Talos v1.13.9, then Talos v1.14.1: 2 of 6 nodes have the first; stuck for 3h00m\n":           {Hops: hops, Upgraded: 2, Nodes: 6, StuckSince: now.Add(-3 * time.Hour)},
	} {
		var out bytes.Buffer
		Printer{w: &out, now: now}.printUpgrade(u, false)
		if out.String() != want {
			t.Errorf("%q, want %q", &out, want)
		}
	}
}

// TestReasonsAreWhole: what a node or an addon waits for is printed whole below it,
// broken at the end of the screen, and no table is wider than that.
func TestReasonsAreWhole(t *testing.T) {
	reason := "boots: nothing answers at 10.10.0.21:50000 yet; is it on bridge vmbr1, and does the gateway 10.10.0.1 answer?"
	s := cluster.Status{Cluster: "dev", Condition: cluster.Reconciling,
		Nodes: []cluster.NodeStatus{{Name: "dev-cp-1", Role: cluster.ControlPlane, VMID: 412, Address: "10.10.0.11", Phase: cluster.PhaseReady, Talos: "v1.13.9", Kubernetes: "v1.36.1"},
			{Name: "dev-wk-1", Role: cluster.Worker, VMID: 522, Address: "10.10.0.21", Phase: cluster.PhaseUnreachable, WaitsFor: reason}},
		Addons: []cluster.AddonStatus{{Name: "cilium", Namespace: "kube-system", State: "installed", Message: reason}}}
	var out bytes.Buffer
	Printer{w: &out}.PrintStatus(s)
	if strings.Count(out.String(), "\n      "+reason+"\n") != 2 {
		t.Errorf("the reasons are not on lines of their own:\n%s", &out)
	}
	for _, width := range []int{80, 40} {
		out.Reset()
		Printer{w: &out, width: width}.PrintStatus(s)
		if got := strings.Join(strings.Fields(out.String()), " "); strings.Count(got, reason) != 2 {
			t.Errorf("the reasons are not whole:\n%s", &out)
		}
		for line := range strings.Lines(out.String()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > width {
				t.Errorf("%d columns on a screen of %d: %s", n, width, line)
			}
		}
		if cut := strings.Contains(out.String(), "…"); cut != (width == 40) {
			t.Errorf("at %d columns the table is cut: %v\n%s", width, cut, &out)
		}
	}
}

// TestColours: a terminal shows colours, unless it has none or nobody wants them.
func TestColours(t *testing.T) {
	for environment, want := range map[string]bool{
		"TERM=xterm": true, "TERM=linux": true, "TERM=xterm-256color COLORTERM=truecolor": true,
		"TERM=xterm NO_COLOR=": true, "TERM=xterm NO_COLOR=1": false, "TERM=xterm NO_COLOR=please": false,
		"TERM=dumb": false, "TERM=dumb CLICOLOR_FORCE=1": true, "TERM=xterm FORCE_COLOR=1 NO_COLOR=1": false,
	} {
		if got := showsColours(true, strings.Fields(environment)); got != want {
			t.Errorf("%s: %v", environment, got)
		}
	}
	for environment, want := range map[string]bool{
		"TERM=xterm": false, "": false, "CLICOLOR_FORCE=1": true, "FORCE_COLOR=3": true, "CLICOLOR_FORCE=0": false,
		"FORCE_COLOR=": false, "FORCE_COLOR=0": false, "NO_COLOR=1 CLICOLOR_FORCE=1": false,
	} {
		if got := showsColours(false, strings.Fields(environment)); got != want {
			t.Errorf("without a terminal, %s: %v", environment, got)
		}
	}
	if got := (Printer{colour: true}).Paint("Ready", Green); got != "\x1b[32mReady\x1b[0m" {
		t.Errorf("painted as %q", got)
	}
}

// TestColumnsOfWideText: what takes two columns, or none, shifts nothing.
func TestColumnsOfWideText(t *testing.T) {
	var out bytes.Buffer
	Printer{w: &out}.PrintRows([][]string{{"A", "B"}, {"世界", "x"}, {"\x1b[31mred\x1b[0m", "x"}, {"\x1b[2Jz", "x"}})
	if want := "A      B\n世界   x\n\x1b[31mred\x1b[0m    x\n?[2Jz  x\n"; out.String() != want {
		t.Errorf("printed\n%q\nwant\n%q", &out, want)
	}
}

// TestAgeOfARevision: what was not fetched for long may be old truth.
func TestAgeOfARevision(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for age, want := range map[time.Duration]string{time.Minute: "  revision main@sha1:0123456789ab\n", 5 * time.Minute: "  revision main@sha1:0123456789ab, fetched 5m00s ago\n"} {
		var b strings.Builder
		Printer{w: &b, now: now}.PrintStatus(cluster.Status{Cluster: "dev", Revision: "main@sha1:0123456789abcdef0123456789abcdef01234567", Applied: "main@sha1:0123456789abcdef0123456789abcdef01234567", Fetched: now.Add(-age)})
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s", b.String())
		}
	}
}

// TestTotalsOfSeveralHops: the totals of a plan say that they are of the first hop alone, where it has no steps of the others.
func TestTotalsOfSeveralHops(t *testing.T) {
	f := cluster.Forecast{Cluster: "dev", Steps: []cluster.Step{{Text: "a", Reboots: true}}, Waiting: []cluster.Wait{{Subject: "dev", Reason: cluster.WaitingForHop, Message: "x comes after y"}}}
	hops := []cluster.Hop{{Kind: cluster.HopKubernetes, From: "v1.35.10", To: "v1.36.1"}, {Kind: cluster.HopTalos, From: "v1.13.9", To: "v1.14.1"}}
	for want, some := range map[string][]cluster.Hop{"0 destructive, 1 reboot\n": hops[:1], "1 reboot, of the first of 2 hops\n": hops} {
		var out bytes.Buffer
		all := f
		all.Hops = some
		if (Printer{w: &out}).PrintForecast(all); !strings.Contains(out.String(), want) {
			t.Errorf("%s\nwant %s", &out, want)
		}
	}
}

// TestStatusShowsAllGates: each gate that does not hold a node stands below it, and what differs stands there once.
func TestStatusShowsAllGates(t *testing.T) {
	differs := []cluster.FieldDifference{{Field: "talos version", Has: "v1.13.9", Wants: "v1.14.1"}}
	gate := func(message string) cluster.WaitStatus {
		return cluster.WaitStatus{Wait: cluster.Wait{Subject: "wk-1", Reason: cluster.WaitingForGate, Message: message, Drift: differs}}
	}
	n := cluster.NodeStatus{WaitsFor: "gate a does not hold", Waiting: []cluster.WaitStatus{gate("gate a does not hold"), gate("gate b does not hold"), {Wait: cluster.Wait{Reason: cluster.WaitingForSoak, Message: "soaks", Drift: differs}},
		{Wait: cluster.Wait{Reason: cluster.WaitingForGate, Message: "late"}, Overdue: true}}}
	got := strings.Join(noteNode(n), "\n")
	if want := "gate a does not hold\ngate b does not hold\ntalos version: v1.13.9 -> v1.14.1"; got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
}
