package world

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Span is one stretch of time the world itself took for something, and what
// had to be over before it could begin: the edges of the dependency graph that
// bounds how fast anybody could have been.
type Span struct {
	Name  string // kind/subject, "boot/410"
	Took  time.Duration
	After []string // names of spans; the latest of each name counts
}

// Spend records a span. The service spends the time itself.
func (w *World) Spend(kind, subject string, d time.Duration, after ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spans = append(w.spans, Span{Name: kind + "/" + subject, Took: d, After: after})
}

// LongestChain returns the length of the longest chain of dependent spans
// recorded so far and its links: nobody could have been faster.
func (w *World) LongestChain() (time.Duration, []string) {
	w.mu.Lock()
	spans := slices.Clone(w.spans)
	w.mu.Unlock()

	type best struct {
		total time.Duration
		via   int // index of the span before, -1: none
	}
	bests := make([]best, len(spans))
	last := map[string]int{} // name -> index of the latest span of that name
	end := -1
	for i, s := range spans {
		b := best{via: -1}
		for _, dep := range s.After {
			// A dependency on a name that was never spent is met already.
			if j, ok := last[dep]; ok && bests[j].total > b.total {
				b = best{total: bests[j].total, via: j}
			}
		}
		b.total += s.Took
		bests[i] = b
		last[s.Name] = i
		if end < 0 || b.total > bests[end].total {
			end = i
		}
	}
	if end < 0 {
		return 0, nil
	}
	var chain []string
	for i := end; i >= 0; i = bests[i].via {
		chain = append(chain, fmt.Sprintf("%s %v", spans[i].Name, spans[i].Took))
	}
	slices.Reverse(chain)
	return bests[end].total, chain
}

// ChainText prints a chain on one line.
func ChainText(chain []string) string { return strings.Join(chain, " -> ") }
