package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// printer writes for people or for programs. Colour is for terminals only, and
// never carries anything the words do not.
type printer struct {
	w      io.Writer
	json   bool
	colour bool
	now    time.Time
}

func newPrinter(w io.Writer, output string) (printer, error) {
	p := printer{w: clean{w}, now: time.Now()}
	switch output {
	case "json":
		p.json, p.w = true, w
	case "", "text":
		if f, ok := w.(*os.File); ok && os.Getenv("NO_COLOR") == "" {
			p.colour = term.IsTerminal(int(f.Fd()))
		}
	default:
		return p, &usageError{fmt.Errorf("--output %q: write text or json", output)}
	}
	return p, nil
}

// jsonOut writes one value in the envelope every JSON output of the program
// has.
func (p printer) jsonOut(kind string, v any) error {
	enc := json.NewEncoder(p.w)
	enc.SetIndent("", "  ")
	return enc.Encode(envelope{kind, "v1", v})
}

// envelope is around every JSON output of the program.
type envelope struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Data       any    `json:"data"`
}

func (p printer) printf(format string, args ...any) { _, _ = fmt.Fprintf(p.w, format, args...) }

// paint colours a word on a terminal.
func (p printer) paint(word, colour string) string {
	if !p.colour {
		return word
	}
	return "\x1b[" + colour + "m" + word + "\x1b[0m"
}

func (p printer) condition(c cluster.Condition) string {
	switch c {
	case cluster.Ready:
		return p.paint(string(c), "32")
	case cluster.Stalled, cluster.Blind:
		return p.paint(string(c), "31")
	default:
		return p.paint(string(c), "33")
	}
}

// statuses prints the trees of several clusters.
func (p printer) statuses(all []cluster.Status) {
	if len(all) == 0 {
		p.printf("no cluster yet: the repository has not been read, or holds none\n")
	}
	for i, s := range all {
		if i > 0 {
			p.printf("\n")
		}
		p.status(s)
	}
}

// status prints the tree of one cluster.
func (p printer) status(s cluster.Status) {
	p.printf("%s  %s  for %s\n", s.Cluster, p.condition(s.Condition), p.ago(s.Since))
	p.printf("  %s\n", s.Message)
	if s.Hint != "" {
		p.printf("  -> %s\n", s.Hint)
	}
	switch {
	case s.Revision == "":
	case s.Revision == s.Applied:
		p.printf("  revision %s\n", s.Revision.Short())
	default:
		p.printf("  revision %s seen, %s applied\n", s.Revision.Short(), orDash(s.Applied.Short()))
	}
	if len(s.Nodes) > 0 {
		rows := [][]string{{"NODE", "ROLE", "VMID", "ADDRESS", "PHASE", "SINCE", "TALOS", "KUBERNETES", "WAITS FOR"}}
		for _, n := range s.Nodes {
			rows = append(rows, []string{n.Name, string(n.Role), fmt.Sprint(n.VMID), n.Address, string(n.Phase), p.ago(n.Since), orDash(n.Talos), orDash(n.Kubernetes), cut(n.WaitsFor, 70)})
		}
		p.table(rows)
	}
	p.paragraph(func(p printer) { p.consoles(s.Nodes) })
	if len(s.Addons) > 0 {
		rows := [][]string{{"ADDON", "NAMESPACE", "VERSION", "STATE", "SINCE", "MESSAGE"}}
		for _, a := range s.Addons {
			rows = append(rows, []string{a.Name, a.Namespace, orDash(a.Version), a.State, p.ago(a.Since), cut(a.Message, 70)})
		}
		p.table(rows)
	}
	if len(s.Running) > 0 {
		rows := [][]string{{"RUNNING", "SUBJECT", "FOR", "PROGRESS"}}
		for _, r := range s.Running {
			rows = append(rows, []string{r.Action, r.Subject, p.ago(r.Since), progressText(r)})
		}
		p.table(rows)
	}
	p.paragraph(func(p printer) {
		p.waits(s)
		p.blocked(s.Blocked)
	})
	p.paragraph(func(p printer) {
		for _, pr := range s.Problems {
			p.printf("  %s\n", pr)
		}
	})
	p.passes(s.Passes)
}

// paragraph prints what write has to say, if anything, after an empty line.
func (p printer) paragraph(write func(printer)) {
	var b bytes.Buffer
	to := p.w
	p.w = &b
	write(p)
	if b.Len() > 0 {
		_, _ = fmt.Fprintf(to, "\n%s", &b)
	}
}

func (p printer) blocked(all []cluster.Block) {
	for _, b := range all {
		p.printf("  %s %s: %s\n", p.paint("blocked", "31"), b.Subject, b.Reason)
		if b.Hint != "" {
			p.printf("    -> %s\n", b.Hint)
		}
	}
}

// consoles prints what machines said last that do not come up.
func (p printer) consoles(nodes []cluster.NodeStatus) {
	for _, n := range nodes {
		if n.Console == nil {
			continue
		}
		p.printf("  console of %s, %s ago:\n", n.Name, p.ago(n.Console.At))
		for _, line := range n.Console.Lines {
			p.printf("    | %s\n", line)
		}
		if n.Console.Note != "" {
			p.printf("    %s\n", n.Console.Note)
		}
	}
}

func (p printer) waits(s cluster.Status) {
	nodes := map[string]bool{}
	for _, n := range s.Nodes {
		nodes[n.Name] = true
	}
	for _, w := range s.Waiting {
		// What a node waits for stands in its row already.
		if nodes[w.Subject] && !w.Overdue {
			continue
		}
		p.printf("  waits   %s: %s (for %s)\n", w.Subject, w.Reason, p.ago(w.Since))
		if w.Overdue && w.Hint != "" {
			p.printf("    -> %s\n", w.Hint)
		}
	}
}

// lastPasses is how many passes the text output shows.
const lastPasses = 5

func (p printer) passes(all []cluster.PassStatus) {
	var told [][]string
	for _, ps := range all {
		what := append(slices.Clone(ps.Started), ps.Failed...)
		if ps.Error != "" {
			what = append(what, ps.Error)
		}
		if len(what) == 0 || len(told) == lastPasses {
			continue
		}
		told = append(told, []string{p.ago(ps.At) + " ago", cut(strings.Join(what, "; "), 110)})
	}
	if len(told) > 0 {
		p.table(append([][]string{{"PASS", "BEGAN OR FAILED"}}, told...))
	}
}

// table prints rows in columns, the first being the head.
func (p printer) table(rows [][]string) {
	p.printf("\n")
	for _, r := range rows {
		r[0] = "  " + r[0]
	}
	p.rows(rows)
}

// rows prints rows in columns.
func (p printer) rows(rows [][]string) {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		_, _ = fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	_ = tw.Flush() // into memory
	// An empty last cell is part of its column, and leaves no blanks.
	for line := range strings.Lines(b.String()) {
		p.printf("%s\n", strings.TrimRight(line, " \n"))
	}
}

// ago is a duration until now, in the one or two units people use.
func (p printer) ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return shortDuration(p.now.Sub(t))
}

func shortDuration(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

func progressText(r cluster.RunningStatus) string {
	amount := func(n int64) string {
		if r.Unit == "bytes" {
			return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
		}
		return strings.TrimSpace(fmt.Sprintf("%d %s", n, r.Unit))
	}
	switch {
	case r.Total > 0:
		return fmt.Sprintf("%d%% (%s of %s)", 100*r.Done/r.Total, amount(r.Done), amount(r.Total))
	case r.Done > 0:
		return amount(r.Done)
	default:
		return taskText(r.UPID)
	}
}

// taskText names a task of Proxmox VE for people; its UPID is for programs.
func taskText(upid string) string {
	// UPID:host:pid:pstart:starttime:type:id:user:
	parts := strings.Split(upid, ":")
	if len(parts) < 8 || parts[0] != "UPID" {
		return ""
	}
	return fmt.Sprintf("task %s on %s", parts[5], parts[1])
}

// forecast prints everything that will happen.
func (p printer) forecast(f cluster.Forecast) {
	p.printf("%s at %s\n", f.Cluster, f.Revision.Short())
	for _, pr := range f.Problems {
		p.printf("  %s\n", pr)
	}
	if len(f.Steps) == 0 && len(f.Blocked) == 0 && len(f.Waiting) == 0 {
		why := ""
		if len(f.Problems) == 0 {
			why = ": the world is as the repository says"
		}
		p.printf("  nothing to do%s\n", why)
	}
	for i, s := range f.Steps {
		mark := " "
		if s.Destructive {
			mark = p.paint("-", "31")
		} else if s.Reboots {
			mark = "~"
		}
		p.printf("%s %3d. %s\n", mark, i+1, s.Text)
	}
	for _, w := range f.Waiting {
		p.printf("  then waits for %s: %s\n", w.Subject, w.Reason)
	}
	p.blocked(f.Blocked)
	destructive, reboots := 0, 0
	for _, s := range f.Steps {
		if s.Destructive {
			destructive++
		}
		if s.Reboots {
			reboots++
		}
	}
	if len(f.Steps) > 0 {
		p.printf("%s, %d destructive, %s\n", count(len(f.Steps), "step"), destructive, count(reboots, "reboot"))
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// cut shortens a text to n characters at most.
func cut(s string, n int) string {
	s = text.OneLine(s)
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
