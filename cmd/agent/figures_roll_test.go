package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab"
)

// measureRollOut resizes every node of a cluster, and compares the virtual time from the
// first change to the last with what the machines alone took, one after the other: to switch off, to
// start, and to become Ready. Then it counts the calls.
func measureRollOut(t *testing.T, table *figures) {
	sz := size{ControlPlanes: 3, Workers: 30}
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		time.Sleep(20 * time.Minute)
		events, calls := len(s.Lab.World.Events()), len(s.Lab.World.Calls())
		files := sz.Files()
		nodes := "inventory/dev/nodes.yaml"
		files[nodes] = bytes.ReplaceAll(files[nodes], []byte("ram: 8192"), []byte("ram: 9216"))
		s.Push(files, "more memory")
		s.UntilReady(10 * time.Hour)
		took := s.changing(calls)
		alone := s.machineTime(events, calls)
		turns := float64(sz.ControlPlanes + sz.Workers)
		table.add(figure{what: sz.String() + ": every node resized in turn / the machines alone", measured: took.Seconds() / alone.Seconds(), must: 1.05,
			note: fmt.Sprintf("%v / %v of virtual time", took.Round(100*time.Millisecond), alone.Round(100*time.Millisecond))})
		asked := map[string]int{}
		for _, c := range s.Lab.World.Calls()[calls:] {
			if !strings.HasPrefix(c.Op, "WATCH") {
				asked[c.System]++
			}
		}
		for _, f := range []struct {
			system string
			must   float64
		}{{"pve", 300}, {"talos", 15}, {"kube", 20}} {
			table.add(figure{what: sz.String() + ": calls of " + f.system + " for a turn", measured: float64(asked[f.system]) / turns, must: f.must})
		}
		s.Halt()
	})
}

// changing is how long it took from the first call that changes something to the last.
func (s *sim) changing(calls int) time.Duration {
	var first, last time.Duration
	for _, c := range s.Lab.World.Calls()[calls:] {
		if c.Mutating && (c.System == "kube" || changesHost(c)) {
			if last = c.At; first == 0 {
				first = c.At
			}
		}
	}
	return last - first
}

// machineTime sums up how long machines were on their way since: from the request to
// switch one off until it is, from the request to start it until it runs, and from then
// until it is Ready. None of that can go on at the same time as another one's.
func (s *sim) machineTime(events, calls int) (total time.Duration) {
	ended := func(at time.Duration, is func(text, subject string) bool) time.Duration {
		for _, e := range s.Lab.World.Events()[events:] {
			if e.At >= at && is(e.Text, e.Subject) {
				return e.At
			}
		}
		s.T.Fatal("something that began has not ended")
		return 0
	}
	for _, c := range s.Lab.World.Calls()[calls:] {
		vmid := c.Subject
		switch {
		case c.System == "talos" && strings.HasSuffix(c.Op, "/Shutdown"), strings.HasSuffix(c.Op, "/status/shutdown"):
			total += ended(c.At, func(text, subject string) bool { return strings.HasSuffix(text, " is off") }) - c.At
		case strings.HasSuffix(c.Op, "/status/start"):
			runs := ended(c.At, func(text, subject string) bool { return subject == vmid && strings.HasSuffix(text, " runs") })
			total += ended(runs, func(text, _ string) bool { return text == "is Ready" }) - c.At
		}
	}
	return total
}
