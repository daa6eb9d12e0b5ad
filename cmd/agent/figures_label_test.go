package main

import (
	"bytes"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// What a line that concerns one node may cost, however many nodes there are: calls of Git, Proxmox VE,
// machines, Kubernetes and the forge together, and machine configs that are rendered.
const (
	mostCalls    = 25
	mostRendered = 1
)

// measureLabel measures what a label on one node costs, however many there are.
func measureLabel(t *testing.T, table *figures) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // memory for time
	for _, sz := range []size{{ControlPlanes: 3, Workers: 30}, {ControlPlanes: 3, Workers: 97}, {ControlPlanes: 3, Workers: 997}} {
		t.Run(sz.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newGrown(t, sz)
				defer s.Close()
				s.labelOne(sz).addTo(table, fmt.Sprintf("%d nodes", sz.ControlPlanes+sz.Workers))
				s.Halt()
			})
		})
	}
}

// TestLabelOnOneNode holds what a changed line costs that concerns one node. In a cluster of up to ten
// nodes every pass that is a minute after the last reads the config of each VM besides, after a push or not.
func TestLabelOnOneNode(t *testing.T) {
	for i, sz := range []size{{ControlPlanes: 3, Workers: 20}, {ControlPlanes: 3, Workers: 7}} {
		if i%daemontest.Thinner != 0 {
			continue
		}
		t.Run(sz.String(), func(t *testing.T) { checkLabel(t, sz) })
	}
}

// TestLabelOnOneOfManyNodes holds that it costs as many calls and renderings in a large cluster.
func TestLabelOnOneOfManyNodes(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	checkLabel(t, size{ControlPlanes: 3, Workers: 297})
}

func checkLabel(t *testing.T, sz size) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newGrown(t, sz)
		defer s.Close()
		cost := s.labelOne(sz)
		byClock := 0
		if nodes := sz.ControlPlanes + sz.Workers; nodes <= 10 {
			byClock = nodes
		}
		if cost.audits > byClock || len(cost.calls) > mostCalls || cost.rendered != mostRendered {
			t.Errorf("%d calls, %d configs of VMs read, %d configs rendered; want at most %d, %d, and %d",
				len(cost.calls), cost.audits, cost.rendered, mostCalls, byClock, mostRendered)
			for _, c := range cost.calls {
				t.Logf("%v: %s %s %s", c.At, c.System, c.Op, c.Subject)
			}
		}
		s.Halt()
	})
}

// quick are the latencies of a lab that takes next to no time for a bring-up, and the usual
// time for everything that is measured afterwards.
func quick() world.Latencies {
	l := world.DefaultLatencies()
	for _, d := range []*time.Duration{&l.Download, &l.Upload, &l.Import, &l.Create, &l.Resize, &l.Start, &l.Boot, &l.Etcd, &l.Learn, &l.ImagePull, &l.API, &l.CNIPull, &l.Ready, &l.Pods} {
		*d = time.Millisecond
	}
	return l
}

// newGrown brings a cluster up and lets it come to rest.
func newGrown(t *testing.T, sz size) *sim {
	t.Helper()
	now := size{ControlPlanes: sz.ControlPlanes, Workers: min(sz.Workers, atOnce-sz.ControlPlanes)}
	s := newSim(t, now, lab.Config{Hosts: []pve.Host{sz.Host()}, Latency: quick()})
	s.Boot()
	s.UntilReady(time.Hour)
	for now != sz {
		now.Workers = min(sz.Workers, now.Workers+atOnce)
		s.Push(now.Files(), "grow to "+now.String())
		s.UntilReady(time.Hour)
	}
	time.Sleep(15 * time.Minute)
	return s
}

// labelCost is what a label on one node costs.
type labelCost struct {
	calls    []world.CallRecord
	audits   int // configs of VMs that were read meanwhile
	rendered int
}

func (c labelCost) addTo(table *figures, of string) {
	table.add(figure{what: of + ": configs rendered for a label on one node", measured: float64(c.rendered), must: mostRendered})
	table.add(figure{what: of + ": calls for a label on one node", measured: float64(len(c.calls) + c.audits), must: mostCalls,
		note: fmt.Sprintf("%d of them configs of VMs", c.audits)})
}

// labelOne pushes a label for one node of a cluster at rest, and sees what it costs: from the
// question to Git that finds it until the cluster is Ready with it, and in the second after.
func (s *sim) labelOne(sz size) labelCost {
	s.T.Helper()
	rendered := s.rendered()
	s.Lab.World.ForgetCalls()
	files := sz.Files()
	addLabel(files)
	s.Push(files, "a label")
	s.UntilReady(time.Hour)
	time.Sleep(time.Second)
	calls, audits, err := takeSinceFetch(s.Lab.World.Calls())
	if err != nil {
		s.T.Fatal(err)
	}
	return labelCost{calls: calls, audits: audits, rendered: s.rendered() - rendered}
}

// addLabel gives one worker of an inventory a label.
func addLabel(files map[string][]byte) {
	const nodes = "inventory/dev/nodes.yaml"
	files[nodes] = bytes.Replace(files[nodes], []byte("{name: dev-wk-7, "), []byte("{name: dev-wk-7, labels: {example.org/tier: batch}, "), 1)
}

// takeSinceFetch are the calls since the question that led to the fetch of a push, and apart from
// them how many configs of VMs were read: each pass reads some by the clock, pushed or not.
func takeSinceFetch(all []world.CallRecord) (calls []world.CallRecord, audits int, err error) {
	brought := slices.IndexFunc(all, func(c world.CallRecord) bool { return c.System == "git" && strings.HasPrefix(c.Op, "POST ") })
	if brought < 1 || all[brought-1].System != "git" {
		return nil, 0, fmt.Errorf("no fetch that a question came right before: %v", all)
	}
	for _, c := range all[brought-1:] {
		if strings.HasSuffix(c.Op, "/qemu/{vmid}/pending") {
			audits++
		} else {
			calls = append(calls, c)
		}
	}
	return calls, audits, nil
}
