package effect

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// Settle lets the nodes and addons of a cluster come up by themselves as far as they
// can: those that are to join do once etcd was founded, and meanwhile the first node with a
// new machine config has been watched for as long as it has to be. It reports whether
// anything changed.
func Settle(d cluster.Desired, o *cluster.Observed, founded bool) bool {
	changed := len(o.Manifests.Value.Rolling) > 0
	o.Manifests.Value.Rolling = nil
	rels := o.Releases.Value
	if !o.Releases.Known {
		rels = lastReleases(d, *o)
	}
	network := d.Spec.CNI != cluster.CNICilium || rels[string(cluster.CNICilium)].Status == "deployed"
	for _, n := range d.Spec.Nodes {
		vm, m := o.VMs[n.Name], o.Machines[n.Name]
		if vm.Presence == cluster.Absent && m.Reach == cluster.Silent && o.Nodes.Value[n.Name].Ready {
			EditNode(o, n.Name, func(kn *cluster.KubeNode) { kn.Ready, kn.Why = false, "its kubelet is silent" })
			changed = true
		}
		if vm.Owner != cluster.Ours || vm.Power != cluster.PowerRunning {
			continue
		}
		want := d.Repository().Configs[n.Name].Digest
		switch {
		case m.Reach == cluster.Configured && m.ConfigDigest != want && (m.Change == nil || m.Change.For != want):
			m.Change = &cluster.Change{For: want, Assumed: true}
			o.Machines[n.Name] = m
			changed = true
		case m.Reach == cluster.Silent && len(m.Services) == 0 && m.ConfigDigest == "" && strings.EqualFold(o.Nodes.Value[n.Name].UUID, n.UUID):
			// It has joined before, so it boots from its disk; with which config is not known.
			o.Machines[n.Name] = cluster.Machine{Reach: cluster.Configured, Stage: "booting", Talos: talosToBoot(d, *o, n), ConfigDigest: want}
			changed = true
		case m.Reach == cluster.Silent && len(m.Services) == 0 && m.ConfigDigest == "":
			o.Machines[n.Name] = cluster.Machine{Reach: cluster.Maintenance, UUID: n.UUID, MACs: []string{n.MAC}, Talos: d.Spec.Versions.Talos}
			changed = true
		case m.Reach == cluster.Silent && m.ConfigDigest != "":
			m.Reach = cluster.Configured
			o.Machines[n.Name] = m
			changed = true
		case m.Reach == cluster.Configured && founded && readiness.Lacking(n, *o).Reason != "" && readiness.Lacking(n, *o).About != readiness.LeftEtcd:
			if settleJoin(d, o, n, network) {
				changed = true
			}
		}
	}
	if network {
		for _, a := range d.Spec.Addons {
			if rel := o.Releases.Value[a.Name]; rel.Status == "deployed" && !rel.Ready && !rel.Refused {
				rels := maps.Clone(o.Releases.Value)
				rel.Ready = true
				rels[a.Name] = rel
				o.Releases = cluster.Saw(rels)
				changed = true
			}
		}
	}
	if in, ok := o.Facts.Intent(cluster.IntendCanary); ok && o.Now.Sub(in.At) < action.WatchedFor {
		in.At = o.Now.Add(-action.WatchedFor) // it has been watched long enough, as a boot takes
		o.Facts.Intend(in)
		changed = true
	}
	for name, p := range o.SystemPods.Value {
		if network && p.DNS && !p.Ready && p.Failing+p.Unschedulable == "" {
			o.SystemPods.Value = maps.Clone(o.SystemPods.Value)
			p.Ready = true
			o.SystemPods.Value[name] = p
			changed = true
		}
	}
	return changed
}

// talosToBoot is the Talos that a machine which is not seen is taken to boot: what was installed on it before it was taken down last,
// which another push may have taken back since, else that of its cluster.
func talosToBoot(d cluster.Desired, o cluster.Observed, n cluster.Node) string {
	in, r := o.Facts.Installs[n.Name], o.Facts.Restarts[n.Name]
	if in.Boot != "" && in.Boot == r.Boot && in.Failed == "" {
		return in.Version()
	}
	return d.Spec.Versions.Talos
}

// settleJoin lets one configured node join as far as its cluster allows.
func settleJoin(d cluster.Desired, o *cluster.Observed, n cluster.Node, network bool) bool {
	before := readiness.Lacking(n, *o)
	m := o.Machines[n.Name]
	services := maps.Clone(m.Services)
	if services == nil {
		services = map[string]cluster.Service{}
	}
	m.Stage, m.BootID = "running", cmp.Or(m.BootID, "forecast")
	if n.Role == cluster.ControlPlane {
		services["etcd"] = cluster.Service{State: "Running", Healthy: true}
		id := uint64(len(o.Members.Value) + 1)
		members := slices.DeleteFunc(slices.Clone(o.Members.Value), func(mem cluster.Member) bool {
			if mem.Name != n.Name {
				return false
			}
			id = mem.ID
			return true
		})
		o.Members = cluster.Saw(append(members, cluster.Member{ID: id, Name: n.Name, Address: n.IP.String()}))
		if !slices.Contains(o.MembersAsked, n.Name) {
			o.MembersAsked = append(slices.Clone(o.MembersAsked), n.Name)
		}
		o.APIs[n.Name] = cluster.Saw(true)
	}
	m.Services = services
	m.Ready = network
	o.Machines[n.Name] = m
	o.Nodes.Known = true
	EditNode(o, n.Name, func(kn *cluster.KubeNode) {
		if kn.Name == "" {
			kn.Meta, kn.Created = n.Meta(), o.Now // its kubelet registers with them
			kn.Meta.Annotations = nil             // but for those
		}
		if kn.NotReadySince = o.Now; network {
			kn.NotReadySince = time.Time{}
		}
		kn.Name, kn.Ready, kn.Why, kn.BootID, kn.UUID, kn.ControlPlane = n.Name, network, "network is not ready", m.BootID, n.UUID, n.Role == cluster.ControlPlane
	})
	settlePods(o, network)
	if !o.Releases.Known {
		o.Releases = cluster.Saw(lastReleases(d, *o))
	}
	return readiness.Lacking(n, *o) != before
}

// lastReleases are the releases of a cluster that does not answer for now: those that were there are as the inventory has them, for
// silence is no sign that they are lost.
func lastReleases(d cluster.Desired, o cluster.Observed) map[string]cluster.Release {
	out := map[string]cluster.Release{}
	for _, a := range d.Spec.Addons {
		if o.Facts.WasInstalled(a) {
			out[a.Name] = cluster.Release{Namespace: a.Namespace, Status: "deployed", Revision: 1, Digest: o.Charts[a.Name].Value.Release, Managed: a.Ownership == cluster.Managed, Ready: true}
		}
	}
	return out
}

// settlePods lets the pods of kube-system come up when a node has joined.
func settlePods(o *cluster.Observed, network bool) {
	pods := map[string]cluster.SystemPod{}
	for name, p := range o.SystemPods.Value {
		if network {
			p.Ready, p.Failing, p.Unschedulable = true, "", ""
		}
		pods[name] = p
	}
	if len(pods) == 0 {
		pods["coredns"] = cluster.SystemPod{Name: "coredns", Workload: "coredns", DNS: true, Ready: network}
	}
	o.SystemPods = cluster.Saw(pods)
}
