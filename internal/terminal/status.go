package terminal

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

func (p Printer) paintCondition(c cluster.Condition) string {
	switch c {
	case cluster.Ready:
		return p.Paint(string(c), Green)
	case cluster.Stalled, cluster.Unknown:
		return p.Paint(string(c), Red)
	default:
		return p.Paint(string(c), Yellow)
	}
}

// PrintStatuses prints the trees of several clusters.
func (p Printer) PrintStatuses(all []cluster.Status) {
	if len(all) == 0 {
		p.Printf("no cluster yet: the repository has not been read, or holds none\n")
	}
	for i, s := range all {
		if i > 0 {
			p.Printf("\n")
		}
		p.PrintStatus(s)
	}
}

// longestNote bounds what is printed below a node or an addon.
const longestNote = 400

// PrintStatus prints the tree of one cluster.
func (p Printer) PrintStatus(s cluster.Status) {
	p.Printf("%s  %s  for %s\n", s.Cluster, p.paintCondition(s.Condition), p.formatAge(s.Since))
	p.Printf("  %s\n", s.Message)
	if s.Hint != "" {
		p.Printf("  -> %s\n", s.Hint)
	}
	switch {
	case s.Revision == "":
	case s.Revision == s.Applied:
		p.Printf("  revision %s%s\n", s.Revision.Short(), p.formatFetched(s))
	default:
		p.Printf("  revision %s seen, %s applied%s\n", s.Revision.Short(), orDash(s.Applied.Short()), p.formatFetched(s))
	}
	p.printUpgrade(s.Upgrade, s.Suspended)
	if len(s.Nodes) > 0 {
		rows, notes := [][]string{{"NODE", "ROLE", "VMID", "ADDRESS", "PHASE", "SINCE", "TALOS", "KUBERNETES"}}, [][]string{nil}
		for _, n := range s.Nodes {
			rows = append(rows, []string{n.Name, string(n.Role), fmt.Sprint(n.VMID), orDash(n.Address), string(n.Phase), p.formatAge(n.Since), orDash(n.Talos), orDash(n.Kubernetes)})
			notes = append(notes, noteNode(n))
		}
		p.printNoted(rows, notes)
	}
	p.printParagraph(func(p Printer) { p.printConsoles(s.Nodes) })
	if len(s.Addons) > 0 {
		rows, notes := [][]string{{"ADDON", "NAMESPACE", "VERSION", "STATE", "SINCE"}}, [][]string{nil}
		for _, a := range s.Addons {
			rows = append(rows, []string{a.Name, a.Namespace, orDash(a.Version), a.State, p.formatAge(a.Since)})
			notes = append(notes, []string{text.Cut(a.Message, longestNote)})
		}
		p.printNoted(rows, notes)
	}
	if len(s.Running) > 0 {
		rows := [][]string{{"RUNNING", "SUBJECT", "FOR", "PROGRESS"}}
		for _, r := range s.Running {
			rows = append(rows, []string{string(r.Action), r.Subject, p.formatRunning(r), formatProgress(r)})
		}
		p.PrintTable(rows)
		p.printLogs(s.Running)
	}
	p.printParagraph(func(p Printer) {
		p.printWaits(s)
		p.printBlocks(s.Blocked)
	})
	p.printParagraph(func(p Printer) {
		for _, pr := range s.Problems {
			p.Printf("  %s\n", pr)
		}
	})
	p.printSnapshots(s.Snapshots)
	p.printPasses(s.Passes)
}

// printSnapshots prints how snapshots of etcd stand, where any are taken.
func (p Printer) printSnapshots(s *cluster.SnapshotStatus) {
	if s == nil {
		return
	}
	newest := "none yet"
	if !s.Newest.IsZero() {
		newest = fmt.Sprintf("the newest is %s old (%.1f MiB), %d kept", p.formatAge(s.Newest), max(0.1, float64(s.Bytes)/(1<<20)), s.Kept)
	}
	if s.Damaged > 0 {
		newest += ", " + p.Paint(fmt.Sprintf("%d damaged", s.Damaged), Red)
	}
	if s.Error == "" && !s.Due.IsZero() {
		newest += "; the next is due at " + text.Moment(s.Due)
	}
	p.Printf("\netcd snapshots: %s\n", newest)
	if s.Error != "" {
		p.Printf("  %s %s\n", p.Paint("failed", Red), s.Error)
	}
}

// printParagraph prints what write prints, if anything, after an empty line.
func (p Printer) printParagraph(write func(Printer)) {
	var b bytes.Buffer
	to := p.w
	p.w = &b
	write(p)
	if b.Len() > 0 {
		_, _ = fmt.Fprintf(to, "\n%s", &b)
	}
}

// printLogs prints the ends of the logs of tasks that take long.
func (p Printer) printLogs(running []cluster.RunningStatus) {
	for _, r := range running {
		if len(r.Log) == 0 {
			continue
		}
		p.Printf("  log of %s:\n", formatTask(r.UPID))
		for _, line := range r.Log {
			p.Printf("    | %s\n", line)
		}
	}
}

func (p Printer) printBlocks(all []cluster.Block) {
	for _, b := range all {
		since := ""
		if !b.Since.IsZero() {
			since = " (for " + p.formatAge(b.Since) + ")"
		}
		p.Printf("  %s %s: %s%s\n", p.Paint("blocked", Red), b.Subject, b.Message, since)
		p.printDrift(b.Message, b.Drift)
		if b.Hint != "" {
			p.Printf("    -> %s\n", b.Hint)
		}
	}
}

// PrintLeft prints what a destruction left, and why.
func (p Printer) PrintLeft(left []cluster.Block) {
	p.printBlocks(left)
}

// printConsoles prints the last output of machines that do not come up.
func (p Printer) printConsoles(nodes []cluster.NodeStatus) {
	for _, n := range nodes {
		if n.Console == nil {
			continue
		}
		p.Printf("  console of %s, %s ago:\n", n.Name, p.formatAge(n.Console.At))
		for _, line := range n.Console.Lines {
			p.Printf("    | %s\n", line)
		}
		if n.Console.Note != "" {
			p.Printf("    %s\n", n.Console.Note)
		}
	}
}

func (p Printer) printWaits(s cluster.Status) {
	nodes := map[string]bool{}
	for _, n := range s.Nodes {
		nodes[n.Name] = true
	}
	for _, w := range s.Waiting {
		// What a node waits for stands in its row already.
		if nodes[w.Subject] && !w.Overdue {
			continue
		}
		p.Printf("  waits   %s: %s (for %s)\n", w.Subject, w.Message, p.formatAge(w.Since))
		p.printDrift(w.Message, w.Drift)
		if w.Overdue && w.Hint != "" {
			p.Printf("    -> %s\n", w.Hint)
		}
	}
}

// lastPasses is how many passes the text output shows.
const lastPasses = 5

func (p Printer) printPasses(all []cluster.PassStatus) {
	var shown [][]string
	for _, ps := range all {
		what := append(slices.Clone(ps.Started), ps.Failed...)
		if ps.Error != "" {
			what = append(what, ps.Error)
		}
		if len(what) == 0 || len(shown) == lastPasses {
			continue
		}
		shown = append(shown, []string{p.formatAge(ps.At) + " ago", text.Cut(strings.Join(what, "; "), 110)})
	}
	if len(shown) > 0 {
		p.PrintTable(append([][]string{{"PASS", "ACTIONS"}}, shown...))
	}
}

// PrintProblems prints the problems that are no cluster's.
func (p Printer) PrintProblems(problems []string) {
	for _, t := range problems {
		p.Printf("%s %s\n", p.Paint("problem", Red), text.OneLine(t))
	}
}

// decided are the reasons that are a decision of people, in the repository or on the
// host: the status names which, and doctor finds nothing behind it.
var decided = []cluster.Reason{
	cluster.InventoryInvalid, cluster.ClusterRemoved, cluster.HistoryRewritten, cluster.PolicyViolation, cluster.SecretsMissing,
	cluster.SecretsChanged, cluster.ContractChanged, cluster.NodeLocked, cluster.NodeProtected, cluster.VMProtected, cluster.VMManaged,
	cluster.ForeignVolumes, cluster.NodeIdentityChanged, cluster.RemovalUnapproved, cluster.HardwareDrift, cluster.PoolDrift,
	cluster.TalosVersionDrift, cluster.SecureBootDrift, cluster.KubernetesDrift, cluster.ConfigDrift, cluster.ChangeUnapproved, cluster.ApplyingOff,
}

// PrintDoctorHint ends a status in which something is off whose cause it does not
// name.
func (p Printer) PrintDoctorHint(all []cluster.Status, problems []string) {
	off := len(problems) > 0
	for _, s := range all {
		off = off || (s.Condition == cluster.Stalled || s.Condition == cluster.Unknown) && !slices.Contains(decided, s.Reason)
	}
	if off {
		p.Printf("\n`sudo talos-agent doctor` looks for the cause\n")
	}
}

// formatFetched is how long ago the repository was read, where that is worth a word:
// what was pushed since is not known.
func (p Printer) formatFetched(s cluster.Status) string {
	if s.Fetched.IsZero() || p.now.Sub(s.Fetched) < oldAfter {
		return ""
	}
	return ", fetched " + p.formatAge(s.Fetched) + " ago"
}

// oldAfter is later than a repository is fetched again with the default interval.
const oldAfter = 2 * time.Minute

// formatAge is a duration until now, in the one or two units people use.
func (p Printer) formatAge(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return text.Duration(p.now.Sub(t))
}

// formatRunning is how long an action has taken, and how long it should at most
// when that is less.
func (p Printer) formatRunning(r cluster.RunningStatus) string {
	age := p.formatAge(r.Since)
	if r.Overdue {
		age += p.Paint(fmt.Sprintf(" (over %s)", text.Duration(time.Duration(r.ExpectedMS)*time.Millisecond)), Red)
	}
	return age
}

func formatProgress(r cluster.RunningStatus) string {
	amount := func(n int64) string {
		if r.Unit == "bytes" {
			return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
		}
		return strings.TrimSpace(fmt.Sprintf("%d %s", n, r.Unit))
	}
	switch {
	case r.Waits != "":
		return r.Waits
	case r.Total > 0:
		return fmt.Sprintf("%d%% (%s of %s)", 100*r.Done/r.Total, amount(r.Done), amount(r.Total))
	case r.Done > 0:
		return amount(r.Done)
	default:
		return formatTask(r.UPID)
	}
}

// formatTask names a task of Proxmox VE for people; its UPID is for programs.
func formatTask(upid string) string {
	// UPID:host:pid:pstart:starttime:type:id:user:
	parts := strings.Split(upid, ":")
	if len(parts) < 8 || parts[0] != "UPID" {
		return ""
	}
	return fmt.Sprintf("task %s on %s", parts[5], parts[1])
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// noteNode is what stands below a node: what it waits for, all gates that do not hold, and what differs, each once. What is overdue stands
// below all nodes, with what differs.
func noteNode(n cluster.NodeStatus) []string {
	note := []string{text.Cut(n.WaitsFor, longestNote)}
	add := func(line string) {
		if !slices.Contains(note, line) {
			note = append(note, line)
		}
	}
	switch {
	case n.Cordoned && n.InTurn:
		add("out of service: the agent cordoned it for its turn")
	case n.Cordoned:
		add("cordoned: no new pods are placed on it")
	}
	for _, w := range n.Waiting {
		if w.Reason == cluster.WaitingForGate && !w.Overdue {
			add(text.Cut(w.Message, longestNote))
		}
	}
	for _, w := range n.Waiting {
		if w.Overdue {
			continue
		}
		for _, line := range formatDrift(w.Message, w.Drift) {
			add(line)
		}
	}
	return note
}
