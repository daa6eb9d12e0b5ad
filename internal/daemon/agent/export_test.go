package agent

import (
	"maps"
	"slices"
)

// ReadAgain is the record of a repository whose clusters are read.
const ReadAgain = readAgain

// Remembered are the clusters of which anything is kept in memory.
func (a *Agent) Remembered() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.consoles.mu.Lock()
	defer a.consoles.mu.Unlock()
	names := map[string]bool{}
	for name := range a.managed {
		names[name] = true
	}
	for name := range a.refused {
		names[name] = true
	}
	for key := range a.consoles.nodes {
		names[key.cluster] = true
	}
	return slices.Sorted(maps.Keys(names))
}
