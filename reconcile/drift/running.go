package drift

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
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

// kubeletDrifts reports whether the kubelet of a node is none that its config in d brings, and which
// it should be. An upgrade under way has the node get one by its config: what runs may be older, until
// it was given that config and its kubelet has restarted. Nothing brings back an older one, but a version
// that is set back.
func kubeletDrifts(d cluster.Desired, o cluster.Observed, n cluster.Node) (want string, drifts bool) {
	have := o.Nodes.Value[n.Name].Kubelet
	staged := n.Components.Kubelet
	for i := range d.Spec.Nodes { // without a copy of each, for there may be a thousand
		if d.Spec.Nodes[i].Name == n.Name {
			staged = d.Spec.Nodes[i].Components.Kubelet // that goes with the configs of d
			break
		}
	}
	want = cmp.Or(staged, d.Spec.Versions.Kubernetes)
	switch order, ok := ladder.Compare(have, want); {
	case !o.Nodes.Known, have == "", have == want:
		return want, false
	case staged != "" && ok:
		return want, order > 0 && !d.Repository().Back.Kubernetes
	}
	return want, true
}

// hintOfUpgrade is what to do about a version that no upgrade leads to, on a node that has another one: it names those that can be asked for.
func hintOfUpgrade(d cluster.Desired, o cluster.Observed, field, have string) string {
	asked := d.Repository()
	if hint := hintOfTooFar(d, o, asked.Spec.Versions.Talos); asked.Back.Talos && field == "talos_version" && hint != "" {
		return hint
	}
	if asked.Back.Talos && field == "talos_version" {
		return fmt.Sprintf("a control plane goes back only while another one is seen to run Talos %s, with the older etcd, and by one minor version: repair that one, or set %s to what the others run", asked.Spec.Versions.Talos, field)
	}
	set := fmt.Sprintf("set %s to %s, which it runs", field, have)
	if before := GoesBackTo(asked, o, field, have); before != "" {
		set += fmt.Sprintf(", or to %s, which all nodes ran before", before)
	}
	if why := asked.NoWay; why != "" {
		return fmt.Sprintf("%s; there is no way to the one that is asked for: %s", set, why)
	}
	return set + ", or bring the node to the version of the others by hand"
}

// hintOfTooFar is what to do where nodes go back to no Talos of before because others have come further than by one minor version since:
// "" where none has.
func hintOfTooFar(d cluster.Desired, o cluster.Observed, before string) string {
	var far []string
	oldest := ""
	for _, n := range d.Spec.Nodes {
		talos := o.Machines[n.Name].Talos
		if minors, known := ladder.MinorsApart(before, talos); known && minors > 1 {
			far = append(far, n.Name)
		}
		if oldest == "" || talos != "" && ladder.IsOlder(talos, oldest) {
			oldest = talos
		}
	}
	if len(far) == 0 || oldest == before { // of which a node has stayed behind
		return ""
	}
	return fmt.Sprintf("no node goes back by two minor versions, and none as long as another one would have to (%s): set talos_version to %s, the oldest that a node runs", text.JoinSome(far, 5, ", "), oldest)
}

// GoesBackTo is the older version that all nodes ran before and that can be asked for again; "" : none is known. Nothing goes back over two minor
// versions at once.
func GoesBackTo(asked cluster.Desired, o cluster.Observed, field, have string) string {
	in, _ := o.Facts.Intent(cluster.IntendConfig)
	before, newest, goal := in.Previous.Talos, in.Asked.Talos, asked.Goal.Talos
	if field == "kubernetes_version" {
		before, newest, goal = in.Previous.Kubernetes, in.Asked.Kubernetes, asked.Goal.Kubernetes
	}
	minors, known := ladder.MinorsApart(before, have)
	talosOf := func(cp cluster.Node) string { return o.Machines[cp.Name].Talos }
	if field == "talos_version" && HasLeftEtcd(asked.Spec.ControlPlanes(), talosOf, before) {
		return ""
	}
	if !known || !ladder.IsOlder(before, have) || minors > 1 || before == goal || newest != "" && !ladder.IsOlder(before, newest) {
		return ""
	}
	return before
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
		if d.Configs[n.Name].Digest == "" || mach.Reach != cluster.Configured || mach.ConfigDigest == "" {
			continue
		}
		if len(OfMachine(d, o, n, mach)) > 0 {
			other++
		} else {
			same++
		}
	}
	return same, other
}
