package effect

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// begin notes which fields of its node an action begins to change.
func begin(d cluster.Desired, o *cluster.Observed, i action.Info) {
	n, ok := d.Spec.Node(i.Node)
	if !ok || len(i.Fields) == 0 {
		return
	}
	if noted := drift.Begin(d, o.Facts, n, i.Fields, i.Meanwhile); noted != o.Facts.Settled[n.Name] {
		o.Facts.Settled = maps.Clone(o.Facts.Settled)
		o.Facts.Settled[n.Name] = noted
	}
}

// Of applies what an action is expected to do once it has succeeded.
func Of(d *cluster.Desired, o *cluster.Observed, a action.Action) {
	begin(*d, o, a.Info())
	switch a := a.(type) {
	case action.RegisterSchematic:
		if d.Schematic != "" { // it is of what the repository has
			asked := d.Repository()
			asked.Schematic = "the factory's answer"
			d.Asked = &asked
			return
		}
		d.Schematic = "the factory's answer"
		d.Image = d.Spec.NewImage(d.Spec.Versions.Talos, d.Schematic)
		d.Image.Name = "of talos " + d.Spec.Versions.Talos
		d.Configs = map[string]cluster.Config{}
		for _, n := range d.Spec.Nodes {
			d.Configs[n.Name] = cluster.Config{}
		}
	case action.DownloadImage:
		o.ImageCached = cluster.Saw(true)
	case action.UploadImage:
		h := o.Hosts[a.Host]
		images := maps.Clone(h.Images.Value)
		if images == nil {
			images = map[string]int64{}
		}
		images[a.Image.Name] = o.Facts.Images[a.Image.Name].Bytes
		h.Images = cluster.Saw(images)
		o.Hosts[a.Host] = h
	case action.CreateVM:
		hw := drift.WantHardware(d.Spec, a.Node)
		if a.Image.ISO {
			hw.Medium = cluster.MediumDrive
		}
		o.VMs[a.Node.Name] = cluster.VM{VMID: a.Node.VMID, Node: a.Node.Name, Name: a.Node.Name, Host: a.Host,
			Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.Stopped, Tags: a.Node.VMTags(), Replace: a.Node.Replace,
			Hardware: cluster.Saw(hw)}
		o.Machines[a.Node.Name] = cluster.Machine{Reach: cluster.Silent}
		if _, there := o.Nodes.Value[a.Node.Name]; there { // it is of the machine before
			EditNode(o, a.Node.Name, func(kn *cluster.KubeNode) { kn.UUID = "" })
		}
		takeDisks(o, a.Host, a.Node.DiskUse())
	case action.StartVM:
		vm := o.VMs[a.Node.Name]
		vm.Power, vm.Uptime = cluster.PowerRunning, time.Second
		o.VMs[a.Node.Name] = vm
	case action.ResumeVM:
		vm := o.VMs[a.Node.Name]
		vm.Power = cluster.PowerRunning
		o.VMs[a.Node.Name] = vm
	case action.ResetVM:
		resetVM(*d, o, a.Node)
	case action.ApplyConfig:
		m := cluster.Machine{Reach: cluster.Configured, Stage: "booting", Talos: d.Spec.Versions.Talos, ConfigDigest: a.Config.Digest,
			Services: map[string]cluster.Service{}}
		if a.Node.Role == cluster.ControlPlane {
			m.Services["etcd"] = cluster.Service{State: "Preparing"}
		}
		o.Machines[a.Node.Name] = m
	case action.Bootstrap:
		o.Facts.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, Node: a.Node.Name, UUID: a.Node.UUID, At: o.Now})
		o.Members = cluster.Saw([]cluster.Member{{ID: 1, Name: a.Node.Name, Address: a.Node.IP.String()}})
	case action.FetchChart:
		o.Charts[a.Addon.Name] = cluster.Saw(cluster.Fetched{Digest: a.Addon.Chart.Digest, Release: "forecast"})
	case action.InstallAddon:
		rel := maps.Clone(o.Releases.Value)
		if rel == nil {
			rel = map[string]cluster.Release{}
		}
		rel[a.Addon.Name] = cluster.Release{Namespace: a.Addon.Namespace, Status: "deployed", Revision: rel[a.Addon.Name].Revision + 1, Digest: a.Digest, Managed: a.Addon.Ownership == cluster.Managed, Changed: o.Now}
		o.Releases = cluster.Saw(rel)
		Of(d, o, action.LabelNamespace{Namespace: a.Addon.Namespace, Meta: d.Spec.Namespace(a.Addon.Namespace)})
	case action.MarkAddon:
		rels := maps.Clone(o.Releases.Value)
		rel := rels[a.Addon.Name]
		rel.Managed, rel.Good = a.Addon.Ownership == cluster.Managed, rel.Good || a.Good
		rels[a.Addon.Name] = rel
		o.Releases.Value = rels
	case action.RollBackAddon:
		rels := maps.Clone(o.Releases.Value)
		rel := rels[a.Addon.Name]
		rel.Status, rel.Digest, rel.RolledBack, rel.Back, rel.Good, rel.Changed = "deployed", "rolled back", a.Digest, 0, true, o.Now
		rel.Revision++
		rels[a.Addon.Name] = rel
		o.Releases.Value = rels
	case action.UninstallAddon:
		o.Left = slices.DeleteFunc(slices.Clone(o.Left), func(r cluster.LeftRelease) bool { return r.ReleaseName == a.Release })
		o.Releases.Value = maps.Clone(o.Releases.Value)
		maps.DeleteFunc(o.Releases.Value, func(name string, rel cluster.Release) bool {
			return name == a.Release.Name && rel.Namespace == a.Release.Namespace
		})
	case action.LabelNamespace:
		o.Namespaces[a.Namespace] = a.Meta
		rels := maps.Clone(o.Releases.Value)
		for name, rel := range rels {
			rel.Refused = rel.Refused && rel.Namespace != a.Namespace
			rels[name] = rel
		}
		o.Releases.Value = rels
	case action.ChangeVM:
		changeVM(d, o, a)
	case action.PullImages:
		m := o.Machines[a.Node.Name]
		if m.Unpulled = ""; !a.Ahead {
			m.Change = withImages(m.Change)
		}
		o.Machines[a.Node.Name] = m
	case action.DropConfig:
		o.Machines[a.Node.Name] = withoutStaged(o.Machines[a.Node.Name])
	case action.ChangeConfig:
		m := o.Machines[a.Node.Name]
		m.ConfigDigest, m.ConfigSince = a.Config.Digest, o.Now
		if a.Network != "" {
			m.ConfigDigest, m.Change = a.Network, &cluster.Change{For: a.Config.Digest, Reboots: true}
		}
		o.Machines[a.Node.Name] = withoutStaged(m)
		if len(a.Components) > 0 && a.Node.Role == cluster.ControlPlane { // what it renders then is not known before
			o.Manifests = cluster.Seen[cluster.Manifests]{}
		}
		labelByTalos(o, drift.RepositoryNode(*d, a.Node))
		takeVIP(o, a.Node)
		if a.First {
			o.Facts.Intend(cluster.Intent{Kind: cluster.IntendCanary, Node: a.Node.Name, Target: a.Target, At: o.Now})
		}
	case action.DrainNode:
		if a.Target == cluster.TurnRemoval && a.Node.VMID != 0 {
			o.Facts.BeginRemoval(a.Node.VMID, o.Now)
		}
		EditNode(o, a.Node.Name, func(kn *cluster.KubeNode) {
			kn.Adopted = kn.Cordoned && (kn.Adopted || kn.Turn == "")
			kn.Cordoned, kn.Turn, kn.Drained = true, a.Target, cmp.Or(o.Machines[a.Node.Name].BootID, kn.BootID)
		})
	case action.SetAvailability:
		setAvailability(d, o, a)
	case action.SetApart:
		o.Availability.Value.Apart = nil
		if len(a.VMs) > 0 {
			o.Availability.Value.Apart = &availability.Rule{VMs: a.VMs}
		}
	case action.UncordonNode:
		EditNode(o, a.Node.Name, func(kn *cluster.KubeNode) { kn.Cordoned, kn.Adopted, kn.Turn, kn.Drained = kn.Adopted, false, "", "" })
	case action.SyncManifests:
		o.Manifests.Value.Changes = nil
	case action.LabelNode:
		EditNode(o, a.Node.Name, func(kn *cluster.KubeNode) {
			want := a.Node.Meta()
			kn.Meta, kn.Owned, kn.SetBy = want.Except(a.Left, kn.Meta), want.Noted().Except(a.Left, kn.Owned), nil
		})
	case action.ShutDownVM:
		vm := o.VMs[a.Node.Name]
		vm.Power, vm.Uptime, vm.Active = cluster.Stopped, 0, nil
		o.VMs[a.Node.Name] = vm
		bootAgain(o, a.Node.Name, a.Config, cluster.Silent)
		bootInstalled(*d, o, a.Node.Name, a.Into)
	case action.RebootNode:
		bootAgain(o, a.Node.Name, a.Config, cluster.Configured)
		bootInstalled(*d, o, a.Node.Name, a.Into)
		takeVIP(o, a.Node)
	case action.CheckInstallers:
		seen := maps.Clone(o.Installers)
		if seen == nil {
			seen = map[string]cluster.InstallerSeen{}
		}
		for _, image := range a.Images {
			seen[image] = cluster.InstallerSeen{At: o.Now}
		}
		o.Installers = seen
	case action.PullInstaller:
		m := o.Machines[a.Node.Name]
		m.Installer = a.Image
		o.Machines[a.Node.Name] = m
	case action.InstallTalos:
		noteInstall(o, a.Node.Name, cluster.Install{Image: a.Image, Boot: a.Boot, Revision: drift.Attempt(*d, o.Facts), At: o.Now, Done: true})
	case action.UpgradeTalos:
		bootAgain(o, a.Node.Name, cluster.Config{}, cluster.Configured)
		bootInstalled(*d, o, a.Node.Name, a.Version)
		takeVIP(o, a.Node)
	case action.RollBackTalos:
		in, _ := o.Facts.Intent(cluster.IntendRollback)
		noteInstall(o, a.Node.Name, cluster.Install{Image: a.Image, Boot: a.Restart.Boot, Revision: drift.Attempt(*d, o.Facts), At: o.Now, Back: true, Failed: "by order of " + in.By})
		o.Facts.Drop(cluster.IntendRollback)
		bootAgain(o, a.Node.Name, cluster.Config{}, cluster.Configured)
		bootInstalled(*d, o, a.Node.Name, a.Version)
		takeVIP(o, a.Node)
	case action.RemoveMember:
		o.Members.Value = slices.DeleteFunc(slices.Clone(o.Members.Value), func(mem cluster.Member) bool { return mem.ID == a.Member.ID })
		o.MembersAsked = slices.DeleteFunc(slices.Clone(o.MembersAsked), func(name string) bool { return name == a.Node.Name })
	case action.DeleteNode:
		o.Nodes.Value = maps.Clone(o.Nodes.Value)
		delete(o.Nodes.Value, a.Node.Name)
	case action.DeleteVM:
		o.VMs[a.VM.Node] = cluster.VM{VMID: a.VM.VMID, Node: a.VM.Node, Presence: cluster.Absent}
		for _, n := range d.Spec.Nodes { // one that has its place now
			if n.VMID == a.VM.VMID && n.Name != a.VM.Node {
				o.VMs[n.Name] = cluster.VM{VMID: n.VMID, Node: n.Name, Presence: cluster.Absent}
				o.Machines[n.Name] = cluster.Machine{Reach: cluster.Silent}
			}
		}
		if _, ok := o.Nodes.Value[a.VM.Node]; ok {
			EditNode(o, a.VM.Node, func(kn *cluster.KubeNode) { kn.Ready, kn.Why = false, "its kubelet is silent" })
		}
		o.Orphans.Value = slices.DeleteFunc(slices.Clone(o.Orphans.Value), func(v cluster.VM) bool { return v.VMID == a.VM.VMID })
		o.Availability.Value.Resources = maps.Clone(o.Availability.Value.Resources)
		delete(o.Availability.Value.Resources, a.VM.VMID)
		lookForMaking(*d, o)
		o.Machines[a.VM.Node] = cluster.Machine{Reach: cluster.Silent}
		o.Facts.DropForgotten(a.VM.Node)
	}
}
