package drift

import (
	"fmt"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

// Component is a component of Kubernetes on a node that gets another version.
type Component struct{ Name, From, To string }

// ComponentsOf are the components that run in another version with a machine config than with the one before, as the images of both name
// it; none where one version is not known. kube-proxy is none: Talos makes a manifest with its image, and the node runs nothing of it.
func ComponentsOf(before, after cluster.Images) []Component {
	var out []Component
	for _, c := range []struct{ name, before, after string }{
		{"kube-apiserver", before.APIServer, after.APIServer}, {"kube-controller-manager", before.ControllerManager, after.ControllerManager},
		{"kube-scheduler", before.Scheduler, after.Scheduler}, {"kubelet", before.Kubelet, after.Kubelet},
	} {
		if from, to := ladder.VersionOf(c.before), ladder.VersionOf(c.after); from != "" && to != "" && from != to {
			out = append(out, Component{c.name, from, to})
		}
	}
	return out
}

// verb is what becomes of it.
func (c Component) verb() string {
	if ladder.IsOlder(c.To, c.From) {
		return "revert"
	}
	return "upgrade"
}

// DescribeSteps is what becomes of some components of a node, for people: "upgrade kubelet of wk-1 to v1.36.1".
func DescribeSteps(node string, all []Component) string {
	var words []string
	for i := 0; i < len(all); {
		same := i + 1
		for same < len(all) && all[same].To == all[i].To && all[same].verb() == all[i].verb() {
			same++
		}
		var names []string
		for _, c := range all[i:same] {
			names = append(names, c.Name)
		}
		words = append(words, fmt.Sprintf("%s %s of %s to %s", all[i].verb(), strings.Join(names, " and "), node, all[i].To))
		i = same
	}
	return strings.Join(words, ", ")
}

// describeVersions is the versions that some components have and are to have, for people.
func describeVersions(all []Component) (has, wants string) {
	var before, after []string
	for _, c := range all {
		before, after = append(before, c.Name+" "+c.From), append(after, c.Name+" "+c.To)
	}
	return strings.Join(before, ", "), strings.Join(after, ", ")
}

// OnlyComponents reports whether two configs differ in nothing that a machine runs but versions of Kubernetes.
func OnlyComponents(before, after cluster.ConfigSummary) bool {
	return before.OnlyImages(after) && before.Images.Etcd == after.Images.Etcd && len(ComponentsOf(before.Images, after.Images)) > 0
}
