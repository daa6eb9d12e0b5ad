package agent_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// occurrences are how often each kind of read, or of message, comes up in an upgrade.
type occurrences map[world.Call]int

// readsOf counts the reads of an upgrade: what TestRequestsOfUpgradesAreLost does not lose.
func (s seenInUpgrade) readsOf() occurrences {
	out, requests := occurrences{}, requestsOf(s.calls)
	for _, c := range s.calls {
		if kind := (world.Call{System: c.System, Op: c.Op}); !slices.Contains(requests, kind) && c.System != "forge" {
			out[kind]++
		}
	}
	return out
}

// sorted are the kinds, in an order of their own.
func (o occurrences) sorted() []world.Call {
	return slices.SortedFunc(maps.Keys(o), func(a, b world.Call) int { return cmp.Or(cmp.Compare(a.System, b.System), cmp.Compare(a.Op, b.Op)) })
}

// lostOnce are the faults that each lose one single answer of a read, or one single message, of which have is how often each comes
// up: the first of each kind that done does not have, and of some more, drawn from a seed, one later.
func lostOnce(have, done occurrences, rnd *rand.Rand, later int, kinds ...world.FaultKind) (out []world.Fault) {
	var again []world.Fault
	for _, c := range have.sorted() {
		for _, kind := range kinds {
			if done[c] == 0 || *allCrashes {
				out = append(out, world.Fault{System: c.System, Op: c.Op, Nth: 1, Kind: kind})
			}
			if n := have[c]; n > 2 {
				again = append(again, world.Fault{System: c.System, Op: c.Op, Nth: 2 + rnd.IntN(n/2), Kind: kind})
			}
		}
		done[c]++
	}
	rnd.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
	if *allCrashes {
		later = len(again)
	}
	return append(out, again[:min(later, len(again))]...)
}

// TestEventsOfUpgradesAreLost: one single answer of a read is lost, or one single message of a stream that is open: an event of a
// watch of Talos or of Kubernetes, a step of a pull, of an installation or of a reboot, a line of a console. The message does not
// arrive and those after it do, or the connection breaks in its place. The upgrade ends all the same. Of each kind that is the first
// one, and of some, drawn from the seed, a later one; with -all-crashes, of all.
func TestEventsOfUpgradesAreLost(t *testing.T) {
	t.Parallel()
	sz, rnd := size{ControlPlanes: 1, Workers: 1}, rand.New(rand.NewPCG(*firstSeed, 20261129))
	reads, events := occurrences{}, occurrences{}
	for _, c := range []struct {
		name string
		versionsPair
	}{
		{"in service", versionsPair{"v1.13.9", "v1.36.1", "v1.14.1", "v1.36.1"}},
		{"kubernetes", versionsPair{"v1.13.9", "v1.35.10", "v1.13.9", "v1.36.1"}},
		{"on its way down", versionsPair{"v1.12.11", "v1.35.3", "v1.13.9", "v1.35.3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen seenInUpgrade
			synctest.Test(t, func(t *testing.T) { seen = losing(t, c.versionsPair, sz, world.Fault{}) })
			faults := slices.Concat(lostOnce(seen.readsOf(), reads, rnd, 4, world.LoseReply), lostOnce(seen.events, events, rnd, 8, world.DropEvent, world.BreakEvent))
			if len(seen.readsOf()) < 20 || len(seen.events) < 20 {
				t.Errorf("only %d kinds of reads, and %d of messages", len(seen.readsOf()), len(seen.events))
			}
			for _, f := range faults {
				t.Run(fmt.Sprintf("%s %d %s %s", f.Kind, f.Nth, f.System, f.Op), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { losing(t, c.versionsPair, sz, f) })
				})
			}
		})
	}
}
