package agent_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestCallsOfABringUp: what a new cluster asks of Proxmox VE until it is Ready, together and by path, is no
// more than the committed table has, or hardly. The counts only go down.
func TestCallsOfABringUp(t *testing.T) {
	t.Parallel()
	for sz, most := range map[size]int{{ControlPlanes: 1, Workers: 2}: 410, {ControlPlanes: 3, Workers: 10}: 1190} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, sz, lab.Config{})
			defer s.Close()
			calls := map[string]int{}
			running, untilRunning := 0, 0
			s.Boot()
			s.UntilReady(20 * time.Minute)
			for _, c := range s.Lab.World.Calls() {
				if c.System != "pve" {
					continue
				}
				calls[c.Op]++
				calls["all"]++
				if strings.HasSuffix(c.Op, "/status/start") {
					if running++; running == sz.ControlPlanes+sz.Workers {
						untilRunning = calls["all"]
					}
				}
			}
			if calls["all"] > most {
				t.Errorf("%s: Proxmox VE is asked %d times, and at most %d are allowed", sz, calls["all"], most)
			}
			calls["all until the VMs run"] = untilRunning
			checkCalls(t, filepath.Join("testdata", "calls", sz.String()+".txt"), calls)
			s.Halt()
		})
	}
}

// checkCalls compares how often something was called with a committed table.
func checkCalls(t *testing.T, file string, calls map[string]int) {
	t.Helper()
	ops := slices.SortedFunc(maps.Keys(calls), func(a, b string) int {
		return cmp.Or(cmp.Compare(calls[b], calls[a]), cmp.Compare(a, b))
	})
	table := ""
	for _, op := range ops {
		table += fmt.Sprintf("%6d  %s\n", calls[op], op)
	}
	t.Logf("%s\n%s", file, table)
	if golden.Update() {
		golden.Write(t, file, []byte(table))
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	most := map[string]int{}
	for line := range strings.Lines(string(text)) {
		n, op := 0, ""
		if _, err := fmt.Sscanf(line, "%d", &n); err == nil {
			_, op, _ = strings.Cut(strings.TrimSpace(line), "  ")
		}
		most[op] = n
	}
	for _, op := range ops {
		// Goroutines that run at once meet otherwise in every run, which makes a few calls more or less, and more of
		// one kind in place of another.
		most := most[op] + max(2, most[op]/20)
		if !strings.HasPrefix(op, "all") {
			most += max(3, most/5)
		}
		if n := calls[op]; n > most {
			t.Errorf("%s: %d calls of %s, and at most %d are allowed: where that is meant, run the test with -update", file, n, op, most)
		}
	}
}
