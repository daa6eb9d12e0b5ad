package components

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// mostAhead is how many components are named that are ahead of others.
const mostAhead = 3

// Between are the versions between which the components of a cluster are, by the configs of its nodes or by what Kubernetes shows, and
// which of them are newer than the oldest, for people. ahead is "" where all have the same, as far as it is known.
func Between(s cluster.Spec, o cluster.Observed) (oldest, newest, ahead string) {
	newest = Newest(s, o)
	for _, n := range s.Nodes {
		seen := lookAtVersions(n, o)
		for _, p := range partsOf(n) {
			if v := *p.of(&seen.has); v != "" && (oldest == "" || isOlder(v, oldest)) {
				oldest = v
			}
		}
	}
	var words []string
	for _, n := range s.Nodes {
		seen := lookAtVersions(n, o)
		for _, p := range partsOf(n) {
			has, runs := *p.of(&seen.has), *p.of(&seen.runs)
			switch {
			case isOlder(oldest, has):
				words = append(words, fmt.Sprintf("%s has %s %s", n.Name, p.name, has))
			case isOlder(oldest, runs):
				words = append(words, fmt.Sprintf("%s still runs %s %s", n.Name, p.name, runs))
			}
		}
	}
	return oldest, newest, text.JoinSome(words, mostAhead, ", ")
}
