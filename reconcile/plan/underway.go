package plan

import (
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// effectOfRunning lets an action that is under way come to its end.
func effectOfRunning(d *cluster.Desired, o *cluster.Observed, r cluster.Running) {
	if n, isNode := d.Spec.Node(r.Subject); isNode {
		effectOnNode(d, o, r.Kind, n)
	}
	if i := slices.IndexFunc(d.Spec.Addons, func(a cluster.Addon) bool { return a.Name == r.Subject }); i >= 0 {
		effectOnAddon(d, o, r.Kind, d.Spec.Addons[i])
	}
	switch r.Kind {
	case cluster.RegisterSchematic:
		effect(d, o, action.RegisterSchematic{Cluster: r.Subject})
	case cluster.DownloadImage:
		effect(d, o, action.DownloadImage{Image: d.Image})
	case cluster.UploadImage:
		host, _, _ := strings.Cut(r.Subject, "/")
		effect(d, o, action.UploadImage{Image: d.Image, Host: host})
	case cluster.DrainNode:
		target := "forecast" // of a turn nothing more is asked
		if n, stays := d.Spec.Node(r.Subject); !stays || drift.IsReplaced(n, o.VMs[n.Name], o.Facts) || r.Subject == deadNode(*d, *o) || isForgotten(*o, r.Subject) {
			target = cluster.TurnRemoval
		}
		effect(d, o, action.DrainNode{Node: cluster.Node{Name: r.Subject}, Target: target})
	case cluster.RemoveMember:
		o.Members.Value = slices.DeleteFunc(slices.Clone(o.Members.Value), func(mem cluster.Member) bool { return mem.Name == r.Subject })
		o.MembersAsked = min(o.MembersAsked, len(o.Members.Value))
	case cluster.DeleteVM:
		vm, _ := vmOf(*d, *o, cluster.Node{Name: r.Subject})
		effect(d, o, action.DeleteVM{VM: vm})
	case cluster.DeleteNode:
		effect(d, o, action.DeleteNode{Node: cluster.Node{Name: r.Subject}})
	case cluster.UninstallAddon:
		namespace, name, _ := strings.Cut(r.Subject, "/")
		effect(d, o, action.UninstallAddon{Release: cluster.ReleaseName{Namespace: namespace, Name: name}})
	case cluster.LabelNamespace:
		effect(d, o, action.LabelNamespace{Namespace: r.Subject, Meta: d.Spec.Namespace(r.Subject)})
	}
}

// effectOnNode lets an action that is under way on a node come to its end.
func effectOnNode(d *cluster.Desired, o *cluster.Observed, kind cluster.ActionKind, n cluster.Node) {
	switch kind {
	case cluster.CreateVM:
		effect(d, o, action.CreateVM{Node: n, Host: o.VMs[n.Name].Carrier(n)})
	case cluster.StartVM:
		effect(d, o, action.StartVM{Node: n})
	case cluster.ResumeVM:
		effect(d, o, action.ResumeVM{Node: n})
	case cluster.ApplyConfig:
		effect(d, o, action.ApplyConfig{Node: n, Config: d.Configs[n.Name]})
	case cluster.Bootstrap:
		effect(d, o, action.Bootstrap{Node: n})
	case cluster.UncordonNode:
		effect(d, o, action.UncordonNode{Node: n})
	case cluster.LabelNode:
		effect(d, o, action.LabelNode{Node: drift.RepositoryNode(*d, n)})
	case cluster.ShutDownVM:
		effect(d, o, action.ShutDownVM{Node: n, Config: d.Repository().Configs[n.Name]})
	case cluster.RebootNode:
		effect(d, o, action.RebootNode{Node: n, Config: d.Repository().Configs[n.Name]})
	case cluster.ChangeVM:
		effect(d, o, action.ChangeVM{Node: n, Drifts: slices.DeleteFunc(drift.OfNodeVM(*d, *o, n, o.VMs[n.Name]), func(dr drift.Drift) bool { return dr.How != drift.InPlace && dr.How != drift.NextStart })})
	case cluster.PullImages:
		effect(d, o, action.PullImages{Node: n})
	case cluster.DropConfig:
		effect(d, o, action.DropConfig{Node: n})
	case cluster.ChangeConfig:
		effect(d, o, action.ChangeConfig{Node: n, Config: d.Repository().Configs[n.Name]})
	}
}

// effectOnAddon lets an action that is under way on an addon come to its end.
func effectOnAddon(d *cluster.Desired, o *cluster.Observed, kind cluster.ActionKind, a cluster.Addon) {
	switch kind {
	case cluster.FetchChart:
		effect(d, o, action.FetchChart{Addon: a})
	case cluster.InstallAddon:
		effect(d, o, action.InstallAddon{Addon: a, Digest: o.Charts[a.Name].Value.Release})
	case cluster.MarkAddon:
		effect(d, o, action.MarkAddon{Addon: a})
	case cluster.RollBackAddon:
		effect(d, o, action.RollBackAddon{Addon: a, Digest: o.Charts[a.Name].Value.Release})
	}
}
