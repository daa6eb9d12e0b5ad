package effect

import (
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ha"
)

// OfRunning lets an action that is under way come to its end. Whether a node that is
// drained leaves for good, and which VM it has, are the planner's to know.
func OfRunning(d *cluster.Desired, o *cluster.Observed, r cluster.Running, leaves bool, vm cluster.VM) {
	if n, isNode := d.Spec.Node(r.Subject); isNode {
		endOnNode(d, o, r.Kind, n)
	}
	if i := slices.IndexFunc(d.Spec.Addons, func(a cluster.Addon) bool { return a.Name == r.Subject }); i >= 0 {
		endOnAddon(d, o, r.Kind, d.Spec.Addons[i])
	}
	switch r.Kind {
	case cluster.RegisterSchematic:
		Of(d, o, action.RegisterSchematic{Cluster: r.Subject})
	case cluster.CheckInstallers:
		asked := d.Repository()
		var images []string
		for _, hop := range asked.Hops {
			if hop.Kind == cluster.HopTalos {
				images = append(images, asked.Spec.InstallerOf(asked.Schematic, hop.To))
			}
		}
		Of(d, o, action.CheckInstallers{Cluster: r.Subject, Images: images})
	case cluster.DownloadImage:
		Of(d, o, action.DownloadImage{Image: d.Image})
	case cluster.UploadImage:
		host, _, _ := strings.Cut(r.Subject, "/")
		Of(d, o, action.UploadImage{Image: d.Image, Host: host})
	case cluster.DrainNode:
		target := cluster.TurnRemoval
		if n, stays := d.Spec.Node(r.Subject); stays && !leaves {
			target = targetOfDrain(*d, *o, n)
		}
		Of(d, o, action.DrainNode{Node: cluster.Node{Name: r.Subject, VMID: vm.VMID}, Target: target})
	case cluster.RemoveMember:
		o.Members.Value = slices.DeleteFunc(slices.Clone(o.Members.Value), func(mem cluster.Member) bool { return mem.Name == r.Subject })
		o.MembersAsked = slices.DeleteFunc(slices.Clone(o.MembersAsked), func(name string) bool { return name == r.Subject })
	case cluster.DeleteVM:
		Of(d, o, action.DeleteVM{VM: vm})
	case cluster.DeleteNode:
		Of(d, o, action.DeleteNode{Node: cluster.Node{Name: r.Subject}})
	case cluster.UninstallAddon:
		namespace, name, _ := strings.Cut(r.Subject, "/")
		Of(d, o, action.UninstallAddon{Release: cluster.ReleaseName{Namespace: namespace, Name: name}})
	case cluster.SyncManifests:
		Of(d, o, action.SyncManifests{})
	case cluster.SetAvailability:
		state := availability.Started
		switch {
		case leaves || o.Facts.Destroying() || !d.Spec.Availability:
			state = availability.Removed
		case o.Nodes.Value[r.Subject].Turn != "":
			state = availability.Ignored
		}
		Of(d, o, action.SetAvailability{Node: cluster.Node{Name: r.Subject}, VM: vm, State: state})
	case cluster.SetApart:
		vmids, _ := ha.Apart(*d, *o)
		Of(d, o, action.SetApart{VMs: vmids})
	case cluster.LabelNamespace:
		Of(d, o, action.LabelNamespace{Namespace: r.Subject, Meta: d.Spec.Namespace(r.Subject)})
	}
}

// targetOfDrain is what a node that stays is being drained for, as far as is known: what the inventory has now, another Talos
// included, without which it would be put back into service first.
func targetOfDrain(d cluster.Desired, o cluster.Observed, n cluster.Node) string {
	want := drift.WantDigest(d, n)
	if up, ok := drift.UpgradeOf(d, o, n); ok {
		return want + "." + drift.PartOfTurn(up)
	}
	return want
}

// endOnNode lets an action that is under way on a node come to its end.
func endOnNode(d *cluster.Desired, o *cluster.Observed, kind cluster.ActionKind, n cluster.Node) {
	switch kind {
	case cluster.CreateVM:
		Of(d, o, action.CreateVM{Node: n, Host: o.VMs[n.Name].Carrier(n)})
	case cluster.StartVM:
		Of(d, o, action.StartVM{Node: n})
	case cluster.ResumeVM:
		Of(d, o, action.ResumeVM{Node: n})
	case cluster.ResetVM:
		Of(d, o, action.ResetVM{Node: n})
	case cluster.ApplyConfig:
		Of(d, o, action.ApplyConfig{Node: n, Config: d.Configs[n.Name]})
	case cluster.Bootstrap:
		Of(d, o, action.Bootstrap{Node: n})
	case cluster.UncordonNode:
		Of(d, o, action.UncordonNode{Node: n})
	case cluster.LabelNode:
		Of(d, o, action.LabelNode{Node: drift.RepositoryNode(*d, n)})
	case cluster.ShutDownVM:
		Of(d, o, action.ShutDownVM{Node: n, Config: d.Repository().Configs[n.Name]})
	case cluster.RebootNode:
		a := action.RebootNode{Node: n, Config: d.Repository().Configs[n.Name]}
		if o.Facts.Installs[n.Name].Done && o.Facts.Installs[n.Name].Boot == o.Machines[n.Name].BootID {
			a.Into, a.Config = d.Repository().Spec.Versions.Talos, cluster.Config{}
		}
		Of(d, o, a)
	case cluster.PullInstaller:
		Of(d, o, action.PullInstaller{Node: n, Image: d.Repository().Spec.Installer(d.Repository().Schematic)})
	case cluster.InstallTalos:
		Of(d, o, action.InstallTalos{Node: n, Image: d.Repository().Spec.Installer(d.Repository().Schematic), Boot: o.Machines[n.Name].BootID})
	case cluster.UpgradeTalos:
		Of(d, o, action.UpgradeTalos{Node: n, Version: d.Repository().Spec.Versions.Talos})
	case cluster.RollBackTalos:
		in, _ := o.Facts.Intent(cluster.IntendRollback)
		was := o.Machines[n.Name]
		Of(d, o, action.RollBackTalos{Node: n, Image: drift.InstallerRun(*d, was), Restart: cluster.Restart{Boot: was.BootID}, Version: in.Versions.Talos})
	case cluster.ChangeVM:
		Of(d, o, action.ChangeVM{Node: n, Drifts: slices.DeleteFunc(drift.OfNodeVM(*d, *o, n, o.VMs[n.Name]), func(dr drift.Drift) bool { return dr.How != drift.InPlace && dr.How != drift.NextStart })})
	case cluster.PullImages:
		Of(d, o, action.PullImages{Node: n})
	case cluster.DropConfig:
		Of(d, o, action.DropConfig{Node: n})
	case cluster.ChangeConfig:
		a := action.ChangeConfig{Node: n, Config: d.Repository().Configs[n.Name]}
		if c := o.Machines[n.Name].Change; c != nil {
			a.Network = c.Network
		}
		Of(d, o, a)
	}
}

// endOnAddon lets an action that is under way on an addon come to its end.
func endOnAddon(d *cluster.Desired, o *cluster.Observed, kind cluster.ActionKind, a cluster.Addon) {
	switch kind {
	case cluster.FetchChart:
		Of(d, o, action.FetchChart{Addon: a})
	case cluster.InstallAddon:
		Of(d, o, action.InstallAddon{Addon: a, Digest: o.Charts[a.Name].Value.Release})
	case cluster.MarkAddon:
		Of(d, o, action.MarkAddon{Addon: a})
	case cluster.RollBackAddon:
		Of(d, o, action.RollBackAddon{Addon: a, Digest: o.Charts[a.Name].Value.Release})
	}
}
