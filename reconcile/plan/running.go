package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// RunningVersions returns the versions of Talos and Kubernetes that the nodes of a
// cluster run; uniform is whether all that are seen run the same. Where they differ,
// somebody is upgrading by hand, and those of a node with the newest kubelet are
// returned: no kubelet may be newer than a kube-apiserver, so that every one of them is
// at least as new, and a new kube-apiserver must be as well. Of several nodes the
// one with the oldest Talos decides: that both work together is seen there.
func RunningVersions(d cluster.Desired, o cluster.Observed) (v cluster.Versions, uniform, ok bool) {
	uniform = true
	for _, n := range d.Spec.Nodes {
		have, seen := versionsOf(n, o)
		switch {
		case !seen:
		case !ok:
			v, ok = have, true
		case have != v:
			uniform = false
			if cmp.Or(compareVersions(v.Kubernetes, have.Kubernetes), compareVersions(have.Talos, v.Talos)) < 0 {
				v = have
			}
		}
	}
	return v, uniform, ok
}

// versionsOf returns what a configured node runs, without a contract.
func versionsOf(n cluster.Node, o cluster.Observed) (cluster.Versions, bool) {
	m, kn := o.Machines[n.Name], o.Nodes.Value[n.Name]
	v := cluster.Versions{Talos: m.Talos, Kubernetes: kn.Kubelet}
	return v, m.Reach == cluster.Configured && o.Nodes.Known && v.Talos != "" && v.Kubernetes != ""
}

// compareVersions compares two versions number by number.
func compareVersions(a, b string) int {
	numbers := func(s string) (out []int) {
		s, _, _ = strings.Cut(strings.TrimPrefix(s, "v"), "-")
		for _, part := range strings.Split(s, ".") {
			n, _ := strconv.Atoi(part)
			out = append(out, n)
		}
		return out
	}
	return slices.Compare(numbers(a), numbers(b))
}

// CountConfigs counts the configured nodes that are what d has, in versions and
// config, and those that are not.
func CountConfigs(d cluster.Desired, o cluster.Observed) (same, other int) {
	for _, n := range d.Spec.Nodes {
		mach := o.Machines[n.Name]
		if _, rendered := d.Configs[n.Name]; !rendered || mach.Reach != cluster.Configured || mach.ConfigDigest == "" {
			continue
		}
		if len(drift.OfMachine(d, o, n, mach)) > 0 {
			other++
		} else {
			same++
		}
	}
	return same, other
}

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

// Kept is what a new node gets because its cluster runs it, where the repository has
// something else. The zero value is nothing.
type Kept struct {
	Versions cluster.Versions
	Config   cluster.Revision // whose config it is
}

// keptFor returns what a new node gets other than what the repository has.
func (m *planner) keptFor(n cluster.Node) Kept {
	asked := m.d.Repository()
	switch have, want := m.d.Spec.Versions, asked.Spec.Versions; {
	case have.Talos != want.Talos || have.Kubernetes != want.Kubernetes:
		return Kept{Versions: have}
	case m.d.Base != "" && m.d.Configs[n.Name].Digest != asked.Configs[n.Name].Digest:
		return Kept{Config: m.d.Base}
	}
	return Kept{}
}

// keep adds to an action what its node gets because the cluster runs it.
func (i Info) keep(k Kept) Info {
	switch {
	case k.Config != "":
		i.Text += fmt.Sprintf("; with the config of %s, which the cluster runs", k.Config.Short())
		i.Change = strings.TrimSpace(i.Change + " config=" + string(k.Config))
	case k != Kept{}:
		i.Text += fmt.Sprintf("; with Talos %s and Kubernetes %s, which the cluster runs", k.Versions.Talos, k.Versions.Kubernetes)
		i.Change = strings.TrimSpace(fmt.Sprintf("%s talos=%s kubernetes=%s", i.Change, k.Versions.Talos, k.Versions.Kubernetes))
	}
	return i
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
