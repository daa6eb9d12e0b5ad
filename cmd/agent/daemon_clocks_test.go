package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestClocksGoOn: since when a cluster, its nodes and addons are as they are does not
// begin anew with a restart or a reload of the agent.
func TestClocksGoOn(t *testing.T) {
	r := newRig(t, lab.Config{})
	commit := r.push(r.inventory(1))
	r.start()
	r.untilReady(commit)
	clocks := func() map[string]time.Time {
		s := r.status()
		out := map[string]time.Time{string(s.Condition): s.Since}
		for _, n := range s.Nodes {
			out[n.Name+" "+string(n.Phase)] = n.Since
		}
		return out
	}
	check := func(what string, before map[string]time.Time) {
		t.Helper()
		after := clocks()
		for name, at := range before {
			if d := after[name].Sub(at); d < -time.Second || d > time.Second {
				t.Errorf("%s: %s since %v, and before %v", what, name, after[name], at)
			}
		}
	}
	reload := func() {
		t.Helper()
		loaded := strings.Count(r.log.String(), "config and policy loaded")
		r.signal(syscall.SIGHUP)
		r.until("the files are loaded", func() bool { return strings.Count(r.log.String(), "config and policy loaded") > loaded })
	}
	// again checks that the clocks go on when the agent begins again. Where a machine does not
	// answer in time, as beside other work, it is not seen for a moment, and they rightly do not.
	again := func(what string, begin func()) {
		t.Helper()
		unseen := func() int { return strings.Count(r.log.String(), "cannot see it") }
		for range 10 {
			before, had := clocks(), unseen()
			begin()
			r.untilReady(commit)
			if unseen() == had {
				check(what, before)
				return
			}
		}
		t.Errorf("%s: a machine was not seen each time", what)
	}
	again("restarted", func() {
		ended := time.Now()
		r.stop()
		r.until("some time has passed", func() bool { return time.Since(ended) > 3*time.Second })
		r.start()
	})
	again("killed", func() { r.kill(); r.start() })
	again("reloaded", reload)

	r.push(map[string][]byte{"inventory/dev/nodes.yaml": []byte("controlplane: 7\n")})
	r.run(exitOK, do("reconcile"))
	r.until("Stalled", func() bool { return r.status().Condition == cluster.Stalled })
	before := clocks()
	ended := time.Now()
	r.until("some time has passed", func() bool { return time.Since(ended) > 3*time.Second })
	reload()
	r.until("Stalled", func() bool { return r.status().Condition == cluster.Stalled })
	check("reloaded while Stalled", before)
}
