package plan

import (
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/capacity"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// placeNode answers on which host a node's VM is made: the inventory's, or the one that was chosen for it.
func (m *planner) placeNode(n cluster.Node) string { return n.Placement.Pin }

// hostUsable reports whether a host can be acted on, and waits with the reason if not, and with what would
// be corrected on it.
func (m *planner) hostUsable(subject string, h cluster.Host, name string, corrects ...cluster.FieldDifference) bool {
	w := readiness.AwaitHost(subject, name, h, seeWithin)
	if w.Drift = corrects; w.Reason != "" {
		m.wait(w)
	}
	return w.Reason == ""
}

// storesUsable reports whether a node finds what it needs on the storages of a host, and reports what it does not.
func (m *planner) storesUsable(n cluster.Node, host string, h cluster.Host, needs []capacity.Need, takes map[string]int64) bool {
	waits, blocks := capacity.JudgeStores(m.d.Spec.Name, n, host, h, needs, takes)
	for _, w := range waits {
		w.Within = seeWithin
		m.wait(w)
	}
	for _, b := range blocks {
		m.block(b)
	}
	return len(waits)+len(blocks) == 0
}

// hostReachable is hostUsable for what goes on in maintenance: what ends, and what HA is asked for.
func (m *planner) hostReachable(subject, name string, corrects ...cluster.FieldDifference) bool {
	h := m.o.Hosts[name]
	h.Maintained = false
	return m.hostUsable(subject, h, name, corrects...)
}
