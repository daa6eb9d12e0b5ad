package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
)

// The figures of speed and size that the agent must reach. They are measured on
// demand, because they take minutes and want the machine for themselves:
//
//	make bench
//
// docs/explanation/speed.md says how each is measured and what it means.
var (
	measure = flag.Bool("figures", false, "measure the figures of speed and size, and print their table")
	program = flag.String("agent", "", "the talos-agent to measure (default: the one in this test's binary)")
)

// figure is one row of the table: less is better.
type figure struct {
	what     string
	measured float64
	must     float64 // at most
	unit     string
	note     string // of how many runs, and how far they are apart
}

// missed says by how much, "" when the figure is reached.
func (f figure) missed() string {
	switch {
	case f.measured <= f.must:
		return ""
	case f.must == 0:
		return fmt.Sprintf("missed by %.4g", f.measured)
	}
	return fmt.Sprintf("missed by %.4g (%.0f %%)", f.measured-f.must, 100*(f.measured/f.must-1))
}

// figures is the table.
type figures []figure

func (t *figures) add(f figure) { *t = append(*t, f) }

func (t figures) print(w io.Writer) error {
	_, _ = fmt.Fprintf(w, "\n%d CPUs, %s %s/%s, %s\n\n", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, time.Now().Format(time.DateOnly))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "FIGURE\tMEASURED\tMUST REACH\t\t")
	for _, f := range t {
		verdict := f.missed()
		if verdict == "" {
			verdict = "ok"
		}
		_, _ = fmt.Fprintf(tw, "%s\t%.4g %s\t%.4g %s\t%s\t%s\n", f.what, f.measured, f.unit, f.must, f.unit, verdict, f.note)
	}
	return tw.Flush()
}

// TestFigures measures every figure and prints the table. A figure that is
// missed is printed as such; only one that could not be measured fails.
func TestFigures(t *testing.T) {
	if !*measure {
		t.Skip("run by make bench")
	}
	daemontest.Keys() // now: made in virtual time they would have run out long ago
	var table figures
	for _, g := range []struct {
		name    string
		measure func(*testing.T, *figures)
	}{
		{"bring-up", measureBringUp},
		{"roll-out", measureRollOut},
		{"upgrade", measureUpgrade},
		{"label", measureLabel},
		{"idle", measureIdle},
		{"push", measurePush},
		{"start", measureStart},
		{"kill", measureKill},
		{"validate", measureValidate},
	} {
		t.Run(g.name, func(t *testing.T) { g.measure(t, &table) })
	}
	if err := table.print(os.Stdout); err != nil {
		t.Error(err)
	}
}

// sample is what several runs of one measurement came to.
type sample []float64

func (s sample) median() float64 {
	s = slices.Sorted(slices.Values(s))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

func (s sample) String() string {
	return fmt.Sprintf("median of %d; %.4g to %.4g", len(s), slices.Min(s), slices.Max(s))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func TestFigureTellsByHowMuchItIsMissed(t *testing.T) {
	for _, c := range []struct {
		f    figure
		want string
	}{
		{figure{measured: 1.1, must: 1.1}, ""},
		{figure{measured: 3, must: 2}, "missed by 1 (50 %)"},
		{figure{measured: 1, must: 0}, "missed by 1"},
	} {
		if got := c.f.missed(); got != c.want {
			t.Errorf("%v of %v: %q, want %q", c.f.measured, c.f.must, got, c.want)
		}
	}
	if got := (sample{4, 1, 3, 2}).median(); got != 2.5 {
		t.Errorf("median %v, want 2.5", got)
	}
}
