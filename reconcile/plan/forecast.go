package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// maxRounds bounds a forecast. A bring-up takes about ten rounds; addons add
// one each at worst.
const maxRounds = 200

// Forecast runs the planner forward over the expected effects of its own
// actions, until nothing is left to do or only a person can go on. What it
// returns is everything that is going to happen, in order: one planner, no
// second opinion. What waits for approval is in it as if it were approved, and what waits
// for a window as if that were open. Under a policy that is not known it is what would
// happen if the rules of before were still those of the host, and blocked.
func Forecast(d cluster.Desired, o cluster.Observed, p cluster.Policy) cluster.Forecast {
	f := cluster.Forecast{Cluster: d.Spec.Name, Revision: d.Revision, Problems: readiness.Warnings(d, o)}
	o = cloneObserved(o)
	// What is under way ends, what rests is tried again: neither is news here.
	for _, r := range o.Running {
		effectOfRunning(&d, &o, r)
	}
	o.Running, o.Backoffs = nil, nil

	now := decide(d, o, p)
	for _, w := range now.Waiting {
		if w.Reason == cluster.WaitingForWindow {
			f.Waiting = append(f.Waiting, w)
		}
	}
	d.Spec.Window, p.Window = cluster.Window{}, cluster.Window{}
	if f.Unapproved = awaitsApproval(now); f.Unapproved {
		o.Facts.Intend(cluster.Intent{Kind: cluster.IntendApproved, Revision: d.Repository().Revision, VMs: Deletions(d, o)})
	}
	var last Plan
	for round := 1; round <= maxRounds; round++ {
		last = decide(d, o, p)
		for _, a := range last.Actions {
			step := a.Info().Step()
			step.Round = round
			f.Steps = append(f.Steps, step)
			if a, ok := a.(action.DeleteVM); ok && f.Unapproved { // what is kept is not approved either
				f.VMs = append(f.VMs, a.VM.VMID)
			}
			effect(&d, &o, a)
		}
		if len(last.Actions) == 0 && !settleWorld(d, &o) {
			break
		}
	}
	f.Waiting, f.Blocked = append(f.Waiting, last.Waiting...), append(bounds.BlockUnknown(d.Spec.Name, p), last.Blocked...)
	slices.Sort(f.VMs)
	f.Digest = digest(f)
	return f
}

// digest identifies the steps by what they do. Their sentences are no part of it:
// to reword one must not ask for another approval.
func digest(f cluster.Forecast) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n", f.Cluster, f.Revision)
	for _, s := range f.Steps {
		fmt.Fprintf(h, "%d %q %q %q\n", s.Round, s.Action, s.Subject, s.Change)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// effect applies what an action is expected to do.
func effect(d *cluster.Desired, o *cluster.Observed, a action.Action) {
	switch a := a.(type) {
	case action.RegisterSchematic:
		if d.Schematic != "" { // it is of what the repository has
			asked := d.Repository()
			asked.Schematic = "the factory's answer"
			d.Asked = &asked
			return
		}
		d.Schematic = "the factory's answer"
		d.Image = cluster.Image{Name: "of talos " + d.Spec.Versions.Talos, Version: d.Spec.Versions.Talos, Schematic: d.Schematic}
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
		o.VMs[a.Node.Name] = cluster.VM{VMID: a.Node.VMID, Node: a.Node.Name, Name: a.Node.Name, Host: a.Host,
			Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.Stopped, Tags: a.Node.VMTags(), Replace: a.Node.Replace,
			Hardware: cluster.Saw(drift.WantHardware(d.Spec, a.Node))}
		o.Machines[a.Node.Name] = cluster.Machine{Reach: cluster.Silent}
		if _, there := o.Nodes.Value[a.Node.Name]; there { // it is of the machine before
			editNode(o, a.Node.Name, func(kn *cluster.KubeNode) { kn.UUID = "" })
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
		effect(d, o, action.LabelNamespace{Namespace: a.Addon.Namespace, Meta: d.Spec.Namespace(a.Addon.Namespace)})
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
		m.Change = m.Change.WithImages()
		o.Machines[a.Node.Name] = m
	case action.DropConfig:
		o.Machines[a.Node.Name] = o.Machines[a.Node.Name].WithoutStaged()
	case action.ChangeConfig:
		m := o.Machines[a.Node.Name]
		m.ConfigDigest, m.ConfigSince = a.Config.Digest, o.Now
		o.Machines[a.Node.Name] = m.WithoutStaged()
		labelByTalos(o, drift.RepositoryNode(*d, a.Node))
		if a.First {
			o.Facts.Intend(cluster.Intent{Kind: cluster.IntendCanary, Node: a.Node.Name, Target: a.Target, At: o.Now.Add(-WatchedFor)})
		}
	case action.DrainNode:
		editNode(o, a.Node.Name, func(kn *cluster.KubeNode) {
			kn.Cordoned, kn.Turn, kn.Drained = true, a.Target, cmp.Or(o.Machines[a.Node.Name].BootID, kn.BootID)
		})
	case action.UncordonNode:
		editNode(o, a.Node.Name, func(kn *cluster.KubeNode) { kn.Cordoned, kn.Turn, kn.Drained = false, "", "" })
	case action.LabelNode:
		editNode(o, a.Node.Name, func(kn *cluster.KubeNode) { kn.Meta, kn.Owned, kn.SetBy = a.Node.Meta(), a.Node.Meta().Noted(), nil })
	case action.ShutDownVM:
		vm := o.VMs[a.Node.Name]
		vm.Power, vm.Uptime, vm.Active = cluster.Stopped, 0, nil
		o.VMs[a.Node.Name] = vm
		bootAgain(o, a.Node.Name, a.Config, cluster.Silent)
	case action.RebootNode:
		bootAgain(o, a.Node.Name, a.Config, cluster.Configured)
	case action.RemoveMember:
		o.Members.Value = slices.DeleteFunc(slices.Clone(o.Members.Value), func(mem cluster.Member) bool { return mem.ID == a.Member.ID })
		o.MembersAsked = max(0, o.MembersAsked-1)
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
			editNode(o, a.VM.Node, func(kn *cluster.KubeNode) { kn.Ready, kn.Why = false, "its kubelet is silent" })
		}
		o.Orphans.Value = slices.DeleteFunc(slices.Clone(o.Orphans.Value), func(v cluster.VM) bool { return v.VMID == a.VM.VMID })
		listVolumes(o, a.VM.Host)
		o.Machines[a.VM.Node] = cluster.Machine{Reach: cluster.Silent}
		o.Facts.DropForgotten(a.VM.Node)
	}
}

// changeVM gives a VM what it should have of the fields of an action.
func changeVM(d *cluster.Desired, o *cluster.Observed, a action.ChangeVM) {
	vm := o.VMs[a.Node.Name]
	before := vm.Hardware.Value.DiskUse()
	drift.Take(d.Spec, a.Node, &vm, a.Fields())
	grown := vm.Hardware.Value.DiskUse()
	for name, bytes := range before {
		grown[name] -= bytes
	}
	takeDisks(o, vm.Carrier(a.Node), grown)
	o.VMs[a.Node.Name] = vm
}

// editNode changes a Node object.
func editNode(o *cluster.Observed, name string, edit func(*cluster.KubeNode)) {
	nodes := maps.Clone(o.Nodes.Value)
	kn := nodes[name]
	edit(&kn)
	if nodes == nil {
		nodes = map[string]cluster.KubeNode{}
	}
	nodes[name] = kn
	o.Nodes.Value = nodes
}

// labelByTalos gives a Node object what Talos brings to it of a new config.
func labelByTalos(o *cluster.Observed, n cluster.Node) {
	editNode(o, n.Name, func(kn *cluster.KubeNode) {
		kn.Meta.Labels = n.Labels
		if n.Role == cluster.ControlPlane {
			kn.Meta.Taints = n.Meta().Taints
		}
	})
}

// bootAgain has a machine boot again, with another config if one was staged.
func bootAgain(o *cluster.Observed, name string, config cluster.Config, reach cluster.Reach) {
	m := o.Machines[name]
	m.Reach, m.Stage, m.Ready = reach, "booting", false
	m.BootID += "+"
	m.ConfigSince = o.Now
	m.ConfigDigest = cmp.Or(config.Digest, m.Staged, m.ConfigDigest)
	o.Machines[name] = m.WithoutStaged()
}

// takeDisks takes disks from those storages of a host that are not thin.
func takeDisks(o *cluster.Observed, host string, disks map[string]int64) {
	h := o.Hosts[host]
	storages := maps.Clone(h.Storages.Value)
	for name, bytes := range disks {
		if st := storages[name]; !st.Thin {
			st.FreeBytes -= bytes
			storages[name] = st
		}
	}
	h.Storages.Value = storages
	o.Hosts[host] = h
}

// listVolumes takes the storages of a host, whose volumes are asked for when a VM is to
// be made on it, to hold none, where it was not asked.
func listVolumes(o *cluster.Observed, host string) {
	h := o.Hosts[host]
	storages := maps.Clone(h.Storages.Value)
	for name, st := range storages {
		if st.Volumes.Why == "" {
			st.Volumes.Known = true
			storages[name] = st
		}
	}
	h.Storages.Value = storages
	o.Hosts[host] = h
}

// settleWorld lets the world do by itself what the plan waits for. It reports
// whether anything changed.
func settleWorld(d cluster.Desired, o *cluster.Observed) bool {
	changed := false
	founded := etcdSeen(*o)
	network := d.Spec.CNI != cluster.CNICilium || o.Releases.Value[string(cluster.CNICilium)].Status == "deployed"
	for _, n := range d.Spec.Nodes {
		vm, m := o.VMs[n.Name], o.Machines[n.Name]
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
			o.Machines[n.Name] = cluster.Machine{Reach: cluster.Configured, Stage: "booting", Talos: d.Spec.Versions.Talos, ConfigDigest: want}
			changed = true
		case m.Reach == cluster.Silent && len(m.Services) == 0 && m.ConfigDigest == "":
			o.Machines[n.Name] = cluster.Machine{Reach: cluster.Maintenance, UUID: n.UUID, MACs: []string{n.MAC}, Talos: d.Spec.Versions.Talos}
			changed = true
		case m.Reach == cluster.Silent && m.ConfigDigest != "":
			m.Reach = cluster.Configured
			o.Machines[n.Name] = m
			changed = true
		case m.Reach == cluster.Configured && founded && readiness.Lacking(n, *o).Reason != "":
			if settleJoin(o, n, network) {
				changed = true
			}
		}
	}
	for _, n := range RemovedNodes(d, *o) {
		if _, watched := o.Machines[n.Name]; !watched { // it is taken to work
			mach := cluster.Machine{Reach: cluster.Configured, Stage: "running"}
			if n.Role == cluster.ControlPlane {
				mach.Services = map[string]cluster.Service{"etcd": {State: "Running", Healthy: true}}
			}
			o.Machines[n.Name] = mach
			changed = true
		}
	}
	for _, id := range LostMembers(d, *o) {
		if since, ok := o.LostSince[id]; !ok || o.Now.Sub(since) < LostFor {
			o.LostSince[id] = o.Now.Add(-LostFor)
			changed = true
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

// settleJoin lets one configured node join as far as its cluster allows.
func settleJoin(o *cluster.Observed, n cluster.Node, network bool) bool {
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
		o.APIs[n.Name] = cluster.Saw(true)
	}
	m.Services = services
	m.Ready = network
	o.Machines[n.Name] = m
	o.Nodes.Known = true
	editNode(o, n.Name, func(kn *cluster.KubeNode) {
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
		o.Releases = cluster.Saw(map[string]cluster.Release{})
	}
	return readiness.Lacking(n, *o) != before
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

// cloneObserved copies the parts of an Observed that a forecast writes to.
func cloneObserved(o cluster.Observed) cluster.Observed {
	o.Hosts = cloneMap(o.Hosts)
	o.VMs = cloneMap(o.VMs)
	o.Machines = cloneMap(o.Machines)
	o.APIs = cloneMap(o.APIs)
	o.Charts = cloneMap(o.Charts)
	o.Namespaces = cloneMap(o.Namespaces)
	o.LostSince = cloneMap(o.LostSince)
	return o
}

func cloneMap[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return maps.Clone(m)
}
