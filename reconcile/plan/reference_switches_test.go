package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/window"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// What may happen to a cluster that is as its inventory has it, by which the values of a switch
// differ: in the words of the table, and as lines of a scenario.
type event struct {
	what  string
	lines []string
}

var (
	pushed       = event{"`cpu` of wk-1 is pushed", []string{"node wk-1 cores=8"}}
	running      = event{"`tags` of wk-1 are pushed, which takes no node down", []string{"node wk-1 tags=web"}}
	edited       = event{"somebody edits the bridge of the VM of wk-1", []string{"edit wk-1 bridge=vmbr0"}}
	stopped      = event{"somebody stops the VM of wk-1", []string{"vm wk-1 stopped", "machine wk-1 silent", "node-is wk-1 ready=false"}}
	destroyed    = event{"somebody destroys the VM of wk-1", []string{"vm wk-1 absent", "machine wk-1 silent", "node-is wk-1 ready=false"}}
	leaves       = event{"wk-2 leaves the inventory", []string{"remove wk-2"}}
	twoLeave     = event{"wk-1 and wk-2 leave the inventory", []string{"remove wk-1", "remove wk-2"}}
	comes        = event{"wk-9 is added to the inventory", []string{"add wk-9 wk-1 529 10.10.0.29"}}
	upgraded     = event{"another version of the addon web is pushed", []string{"release web deployed ready marked old"}}
	deleted      = event{"somebody deletes an object of the addon web", []string{"release web deployed ready marked missing=web/web"}}
	all3         = event{"`cpu` of all workers is pushed", []string{"node wk-1 cores=8", "node wk-2 cores=8", "node wk-3 cores=8"}}
	silentPlane  = event{"cp-2 has not answered for 20 minutes", []string{"dead cp-2 20m"}}
	silentWorker = event{"wk-2 has not answered for 20 minutes", []string{"dead wk-2 20m"}}
	newTalos     = event{"a newer `talos_version` is pushed, and all nodes have its installer", []string{"runs v1.13.9 v1.36.1", "versions v1.14.1 v1.36.1", "installer"}}
	planeLess    = event{"cp-3 leaves the inventory", []string{"remove cp-3"}}
)

// setting is a value of a switch: how a cluster has it, how the host's policy does, which may
// narrow what the cluster has that is wide, and what happens by which it differs from the other
// values. nil: there is no such.
type setting struct {
	field, value string
	cluster      func(*cluster.Spec)
	policy       func(*cluster.Policy)
	events       []event
	wide         func(*cluster.Spec)
}

// closed is a window that is closed at the time of the scenarios, open one that is open.
var closed, open = weekly("mon"), weekly("sat")

func weekly(day string) window.Window {
	w, err := window.New([]string{day}, "00:00", "23:59", "UTC")
	if err != nil {
		panic(err)
	}
	return w
}

var settings = []setting{
	{"heal", "heal", func(*cluster.Spec) {}, func(*cluster.Policy) {}, []event{edited, stopped, destroyed, deleted, pushed}, nil},
	{"heal", "observe", func(s *cluster.Spec) { s.ObserveOnly = true }, func(p *cluster.Policy) { p.ObserveOnly = true }, []event{edited, stopped, destroyed, deleted, pushed, comes}, nil},
	{"apply", "auto", func(*cluster.Spec) {}, func(*cluster.Policy) {}, []event{pushed, running, leaves, upgraded}, nil},
	{"apply", "approve", func(s *cluster.Spec) { s.ApplyApproved = true }, func(p *cluster.Policy) { p.ApplyApproved = true }, []event{pushed, running, leaves, upgraded, edited, comes}, nil},
	{"apply", "off", func(s *cluster.Spec) { s.ApplyOff = true }, func(p *cluster.Policy) { p.ApplyOff = true }, []event{pushed, running, leaves, upgraded, edited, comes}, nil},
	{"upgrade", "auto", func(*cluster.Spec) {}, func(*cluster.Policy) {}, []event{newTalos}, nil},
	{"upgrade", "window", func(s *cluster.Spec) { s.Upgrade, s.Window = cluster.UpgradeInWindow, closed }, func(p *cluster.Policy) { p.Upgrade = cluster.UpgradeInWindow }, []event{newTalos}, func(s *cluster.Spec) { s.Window = closed }},
	{"upgrade", "approve", func(s *cluster.Spec) { s.Upgrade = cluster.UpgradeApproved }, func(p *cluster.Policy) { p.Upgrade = cluster.UpgradeApproved }, []event{newTalos}, nil},
	{"upgrade", "off", func(s *cluster.Spec) { s.Upgrade = cluster.UpgradeOff }, func(p *cluster.Policy) { p.Upgrade = cluster.UpgradeOff }, []event{newTalos}, nil},
	{"window", "open", func(s *cluster.Spec) { s.Window = open }, func(p *cluster.Policy) { p.Window = open }, []event{pushed, leaves}, nil},
	{"window", "closed", func(s *cluster.Spec) { s.Window = closed }, func(p *cluster.Policy) { p.Window = closed }, []event{pushed, leaves, running, stopped, comes}, nil},
	{"replace_dead.worker", "", func(*cluster.Spec) {}, nil, []event{silentWorker}, nil},
	{"replace_dead.worker", "15m", func(s *cluster.Spec) { s.ReplaceDead.Worker = 15 * time.Minute }, nil, []event{silentWorker}, nil},
	{"replace_dead.controlplane", "", func(*cluster.Spec) {}, nil, []event{silentPlane}, nil},
	{"replace_dead.controlplane", "15m", func(s *cluster.Spec) { s.ReplaceDead.ControlPlane = 15 * time.Minute }, nil, []event{silentPlane}, nil},
	{"max_unavailable", "1", func(*cluster.Spec) {}, func(p *cluster.Policy) { p.MaxUnavailable = 1 }, []event{all3}, func(s *cluster.Spec) { s.MaxUnavailable = 3 }},
	{"max_unavailable", "2", func(s *cluster.Spec) { s.MaxUnavailable = 2 }, func(p *cluster.Policy) { p.MaxUnavailable = 2 }, []event{all3}, func(s *cluster.Spec) { s.MaxUnavailable = 3 }},
	{"allow_even", "false", func(*cluster.Spec) {}, nil, []event{planeLess}, nil},
	{"allow_even", "true", func(s *cluster.Spec) { s.AllowEven = true }, nil, []event{planeLess}, nil},
	{"drain.timeout", "", func(*cluster.Spec) {}, func(*cluster.Policy) {}, []event{pushed}, nil},
	{"drain.timeout", "2m", func(s *cluster.Spec) { s.Drain.Timeout = 2 * time.Minute }, func(p *cluster.Policy) { p.DrainWithin = 2 * time.Minute }, []event{pushed}, func(s *cluster.Spec) { s.Drain.Timeout = time.Hour }},
	{"drain.on_timeout", "stop", func(*cluster.Spec) {}, func(p *cluster.Policy) { p.DrainStops = true }, []event{pushed}, func(s *cluster.Spec) { s.Drain.Delete = true }},
	{"drain.on_timeout", "delete", func(s *cluster.Spec) { s.Drain.Delete = true }, func(*cluster.Policy) {}, []event{pushed}, func(s *cluster.Spec) { s.Drain.Delete = true }},
	{"removals", "0", nil, func(p *cluster.Policy) { p.Removals = -1 }, []event{leaves}, nil},
	{"removals", "1", nil, func(p *cluster.Policy) { p.Removals = 1 }, []event{leaves, twoLeave}, nil},
	{"removals", "2", nil, func(p *cluster.Policy) { p.Removals = 2 }, []event{twoLeave}, nil},
}

// worked is a cluster that works, with an addon, as its inventory has it.
func worked(t *testing.T) *world {
	w := newWorld(3, 3)
	for _, line := range []string{"made cps=3 workers=3", "addon web", "release web deployed ready marked", "namespace kube-system", "settled", "facts was-ready"} {
		w.run(t, line)
	}
	w.o.Facts.Installed = []string{"kube-system/web"}
	w.d.Spec.Addons[0].Chart.Version = "1.1.0"
	w.o.Charts["web"] = cluster.Saw(cluster.Fetched{Digest: "chart", Release: "forecast"})
	return w
}

// decided is what is done now, and what is reported of that which is not; ofDrains: and how nodes
// are drained.
func decided(t *testing.T, set func(*world), e event, ofDrains bool) string {
	t.Helper()
	w := worked(t)
	if p := Make(w.d, w.o, w.p); len(p.Actions)+len(p.Blocked)+len(p.Waiting) > 0 {
		t.Fatalf("it is not as it should be before anything happens: %v", p)
	}
	set(w)
	for _, line := range e.lines {
		w.run(t, line)
	}
	w.stage()
	w.d.Held, w.d.HeldBy = upgrade.Stage{Hops: w.d.Hops}.Hold(w.d.Snapshot, w.p, w.o.Facts)
	p := Make(w.d, w.o, w.p)
	var now, held []string
	for _, a := range p.Actions {
		words, _, _ := strings.Cut(a.Info().Text, "; ") // without the rule of the host
		if drain, ok := a.(action.DrainNode); ok && ofDrains {
			left := "it returns to service when pods are left then"
			if drain.How.Delete {
				left = "pods that are left then are deleted"
			}
			words += fmt.Sprintf(" (evictions for %s; %s)", text.Duration(drain.How.Patience()), left)
		}
		now = append(now, words)
	}
	subjects := map[string][]string{} // by what is reported of them
	report := func(reason cluster.Reason, subject, message string) {
		if w.d.HeldBy != "" { // in the words of the cluster or of the host
			message = strings.ReplaceAll(message, w.d.HeldBy, "`upgrade` holds that")
		}
		if subject == "wk-3" && len(now) > 0 { // as the one before it
			return
		}
		what := fmt.Sprintf("`%s`: %%s: %s", reason, strings.ReplaceAll(message, "%", "%%"))
		if subjects[what] = append(subjects[what], subject); len(subjects[what]) == 1 {
			held = append(held, what)
		}
	}
	for _, x := range p.Waiting {
		report(x.Reason, x.Subject, x.Message)
	}
	for _, x := range p.Blocked {
		report(x.Reason, x.Subject, x.Message)
	}
	for i, what := range held {
		held[i] = fmt.Sprintf(what, strings.Join(subjects[what], ", "))
	}
	if len(now) > 0 {
		held = append([]string{strings.Join(now, "; ")}, held...)
	}
	return cmp.Or(strings.Join(held, "<br>"), "nothing")
}

// TestReferenceOfSwitches makes the table of what each value of a switch leads to, from what the
// planner decides, as a cluster has it and as the host's policy does.
func TestReferenceOfSwitches(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Switch | Value | When | What the agent does then |\n| --- | --- | --- | --- |\n")
	for _, s := range settings {
		field, value := "`"+s.field+"`", "`"+s.value+"`"
		switch {
		case s.value == "":
			value = "none"
		case s.value == "open" || s.value == "closed":
			value = "is " + s.value
		}
		ofDrains := strings.HasPrefix(s.field, "drain.")
		for _, e := range s.events {
			var out string
			if s.cluster != nil {
				out = decided(t, func(w *world) { s.cluster(&w.d.Spec) }, e, ofDrains)
			}
			if s.policy != nil {
				of := decided(t, func(w *world) {
					if s.policy(&w.p); s.wide != nil {
						s.wide(&w.d.Spec)
					}
				}, e, ofDrains)
				if s.cluster != nil && of != out {
					t.Errorf("%s: %s, %s:\nof a cluster:    %s\nof the policy: %s", s.field, s.value, e.what, out, of)
				}
				out = of
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", field, value, e.what, out)
			field, value = "", "" // they are those of the row above
		}
	}
	replacePart(t, "switches", b.String())
}

// TestEveryValueOfASwitch: every value of every switch, in a cluster and in the host's policy, is
// planned for the table; what is no switch of the policy limits what may be asked for.
func TestEveryValueOfASwitch(t *testing.T) {
	limits := []string{"pool", "vmids", "datastores", "bridges", "cpu_units", "port_forwards", "ha", "firewall", "pci_mappings", "usb_mappings", "macs", "networks", "limits", "capacity", "sources"}
	switches := []string{"heal", "apply", "upgrade", "window", "replace_dead", "max_unavailable", "allow_even", "drain"}
	for _, file := range []string{"cluster", "policy"} {
		src, err := os.ReadFile("../../docs/reference/schema/" + file + ".schema.json")
		if err != nil {
			t.Fatal(err)
		}
		var top schema
		if err := json.Unmarshal(src, &top); err != nil {
			t.Fatal(err)
		}
		top.fields("", func(path string, s schema) {
			first, _, _ := strings.Cut(path, ".")
			isSwitch := slices.Contains(switches, first) || file == "policy" && !slices.Contains(limits, first)
			if !isSwitch || len(s.Properties) > 0 && first != "window" || first == "window" && path != first {
				return
			}
			var has []string
			for _, x := range settings {
				if x.field == path && (file == "cluster" && x.cluster != nil || file == "policy" && x.policy != nil) {
					has = append(has, x.value)
				}
			}
			for _, v := range s.Enum {
				if !slices.Contains(has, fmt.Sprint(v)) {
					t.Errorf("%s of %s: the value %v is not planned", path, file, v)
				}
			}
			if len(has) < 2 {
				t.Errorf("%s of %s is planned with %q only", path, file, has)
			}
		})
		for _, name := range slices.Concat(switches, limits) {
			if _, has := top.Properties[name]; !has && file == "cluster" == slices.Contains(switches, name) {
				t.Errorf("%s has no %s", file, name)
			}
		}
	}
}
