package plan

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// holdNode waits with a new node while it is not known what the cluster runs, and
// reports whether it does.
func (m *planner) holdNode(n cluster.Node) bool {
	if m.d.Hold == "" {
		return false
	}
	m.wait(cluster.Wait{Subject: n.Name, Reason: cluster.RunningConfigUnknown, Message: "waits until it is known which versions and config the cluster runs, to give it no others: " + m.d.Hold, Within: apiWithin,
		Hint: "bring the repository and the running nodes together: undo the change that they do not have, or apply it to them with talosctl"})
	return true
}

// keptFor returns what a new node gets other than what the repository has.
func (m *planner) keptFor(n cluster.Node) action.Kept {
	asked := m.d.Repository()
	switch have, want := m.d.Spec.Versions, asked.Spec.Versions; {
	case have.Talos != want.Talos || have.Kubernetes != want.Kubernetes:
		return action.Kept{Versions: have}
	case m.d.Base != "" && m.d.Configs[n.Name].Digest != asked.Configs[n.Name].Digest:
		return action.Kept{Config: m.d.Base}
	}
	return action.Kept{}
}

// blockContract reports a config_contract that is not the cluster's.
func (m *planner) blockContract() {
	if m.d.OtherContract == "" {
		return
	}
	kept := m.d.Spec.Versions.Contract
	m.block(cluster.Block{Subject: m.d.Spec.Name, Reason: cluster.ContractChanged,
		Message: fmt.Sprintf("config_contract is %s, and the cluster was made with %s, which it keeps; changing it is not supported yet", m.d.OtherContract, kept),
		Hint:    "write `config_contract: " + kept + "` in cluster.yaml"})
}
