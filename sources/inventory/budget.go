package inventory

import "fmt"

// The most that the files of one cluster may hold, and those of all clusters of a host
// together. Whoever may push decides what is in them, and everything is read before it is
// known to be wrong: YAML takes 7 µs and 1 KiB of memory a line, a node 50 µs.
const (
	maxNodes  = 5000    // Kubernetes itself is built for this many
	maxYAML   = 2 << 20 // bytes: a file that several lists name counts once for each
	maxCharts = 16 << 20

	hostNodes  = maxNodes
	hostYAML   = 4 << 20
	hostCharts = 2 * maxCharts

	// A machine config with more than this is none that Talos would take, and each patch
	// is merged for each node again.
	maxNodePatches    = 1 << 20  // bytes of all patches of a node
	maxClusterPatches = 32 << 20 // of all nodes: each patch counts for each
	leastPatch        = 256      // what an empty one counts: a node has it all the same
	hostPatches       = 2 * maxClusterPatches
)

// Budget is what the clusters of a host may still have together. What Load takes of it is
// taken, whether the cluster is valid or not.
type Budget struct{ nodes, yaml, charts, patches int }

// NewBudget returns what all clusters of a host may have.
func NewBudget() *Budget {
	return &Budget{nodes: hostNodes, yaml: hostYAML, charts: hostCharts, patches: hostPatches}
}

// TakeYAML takes the bytes of a file that is read beside Load; why is empty where that much
// was left, and else there is a hint.
func (b *Budget) TakeYAML(bytes int) (why, hint string) {
	b.yaml -= bytes
	return describeSpent("YAML files", 0, 0, b.yaml, hostYAML)
}

// hintBudget is what to do where all clusters of a host have too much together.
const hintBudget = "remove some, or name the clusters of this host under `clusters` in its config, and leave the others to other hosts"

// spend is what one cluster and its host have left.
type spend struct {
	own  Budget
	host *Budget
}

// newSpend begins with what a host has left; nil: there is no other cluster.
func newSpend(host *Budget) spend {
	s := spend{own: Budget{nodes: maxNodes, yaml: maxYAML, charts: maxCharts, patches: maxClusterPatches}, host: host}
	if host == nil {
		s.host = NewBudget()
	}
	return s
}

// room is how many nodes there may be yet.
func (s *spend) room() int { return max(0, min(s.own.nodes, s.host.nodes)) }

// takeNodes takes nodes, of which there is room.
func (s *spend) takeNodes(n int) { s.own.nodes, s.host.nodes = s.own.nodes-n, s.host.nodes-n }

// whyNoRoom is why there is no room for more nodes, and what to do.
func (s *spend) whyNoRoom() (message, hint string) {
	if s.own.nodes <= s.host.nodes {
		return fmt.Sprintf("more than %d nodes in all", maxNodes), "write fewer"
	}
	return fmt.Sprintf("more than %d nodes in all clusters of this host together", hostNodes), hintBudget
}

// takeYAML takes the bytes of a file that is parsed; why is empty where that much was left.
func (s *spend) takeYAML(bytes int) (why, hint string) {
	s.own.yaml, s.host.yaml = s.own.yaml-bytes, s.host.yaml-bytes
	return describeSpent("YAML files", s.own.yaml, maxYAML, s.host.yaml, hostYAML)
}

// takeChart takes the bytes of a file of a chart; why is empty where that much was left.
func (s *spend) takeChart(bytes int) (why, hint string) {
	s.own.charts, s.host.charts = s.own.charts-bytes, s.host.charts-bytes
	return describeSpent("charts", s.own.charts, maxCharts, s.host.charts, hostCharts)
}

// takePatches takes the bytes of the patches of one node; why is empty where that much was
// left.
func (s *spend) takePatches(bytes int) (why, hint string) {
	s.own.patches, s.host.patches = s.own.patches-bytes, s.host.patches-bytes
	switch {
	case s.own.patches < 0:
		return fmt.Sprintf("the patches of all nodes have more than %d MiB together: each counts for each node that has it", maxClusterPatches>>20),
			"shorten them, or name those of some nodes at these nodes only"
	case s.host.patches < 0:
		return fmt.Sprintf("the patches of all nodes of all clusters of this host have more than %d MiB together: each counts for each node that has it", hostPatches>>20), hintBudget
	}
	return "", ""
}

func describeSpent(what string, own, mostOwn, host, mostHost int) (why, hint string) {
	switch {
	case own < 0:
		return fmt.Sprintf("the %s of the cluster have more than %d MiB together; one that is named several times counts each time", what, mostOwn>>20), "name each once, or shorten them"
	case host < 0:
		return fmt.Sprintf("the %s of all clusters of this host have more than %d MiB together", what, mostHost>>20), hintBudget
	}
	return "", ""
}
