package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/cluster/usage"
	"github.com/talos-agent/talos-agent/internal/cluster/window"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/effect"
	"github.com/talos-agent/talos-agent/reconcile/leftover"
	"github.com/talos-agent/talos-agent/reconcile/lost"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
	"github.com/talos-agent/talos-agent/reconcile/settled"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// world is a desired state and an observation that scenario commands edit.
type world struct {
	d                 cluster.Desired
	o                 cluster.Observed
	p                 cluster.Policy
	taken             []cluster.Node   // that remove took out of the inventory
	supply, unchecked string           // of installers, see "supply"
	missingSince      time.Time        // the last one was found so
	asks              cluster.Versions // that the inventory has, where they are to be reached hop by hop
	ran               upgrade.Seen
	jobs              map[string]string // how the Job of each gate is seen, see "job"
	left              []cluster.Job     // that are there besides
}

// stage has the inventory ask for what the nodes are to have now, as each pass does.
func (w *world) stage() {
	defer w.seeJobs()
	if w.asks.Talos == "" {
		return
	}
	w.ran = w.ran.Watch(w.d, w.o)
	ran, _ := w.o.Facts.Intent(cluster.IntendConfig)
	s := upgrade.Of(w.asks, w.d.Spec, w.ran, ran.Versions, ran.Previous)
	w.d.Spec.Versions, w.d.Hops, w.d.NoWay, w.d.StageWaits, w.d.Goal, w.d.Back = s.Versions, s.Hops, s.NoWay, s.Waits, w.asks, s.Back
	for i, hop := range s.Hops {
		if image := w.d.Spec.InstallerOf(w.d.Schematic, hop.To); w.supply != "unknown" && hop.Kind == cluster.HopTalos {
			seen := cluster.InstallerSeen{At: w.o.Now, Unchecked: w.unchecked}
			isTalos := func(h cluster.Hop) bool { return h.Kind == cluster.HopTalos }
			if last := !slices.ContainsFunc(s.Hops[i+1:], isTalos); w.supply != "" && last {
				seen = cluster.InstallerSeen{At: w.missingSince, Missing: w.supply}
			}
			if w.o.Installers == nil {
				w.o.Installers = map[string]cluster.InstallerSeen{}
			}
			w.o.Installers[image] = seen
		}
	}
}

const (
	imageName = "talos-v1.13.9-376567988ad3-nocloud-amd64.qcow2"
	isoName   = "talos-v1.13.9-376567988ad3-nocloud-amd64.iso"
)

// newWorld is an empty host, fully seen, and a cluster of the given size.
func newWorld(cps, workers int) *world {
	id := cluster.ClusterID("talos-agent", "dev")
	s := cluster.Spec{ID: id, Name: "dev", CNI: cluster.CNIFlannel, InstallerRegistry: "factory.talos.dev",
		Versions: cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1", Contract: "v1.13"},
		Network: cluster.Network{Mode: cluster.AddressStatic, CIDR: netip.MustParsePrefix("10.10.0.0/24"),
			Gateway: netip.MustParseAddr("10.10.0.1")}}
	add := func(role cluster.Role, name string, vmid, last int) {
		s.Nodes = append(s.Nodes, cluster.Node{Name: name, Role: role, VMID: vmid,
			IP:   netip.AddrFrom4([4]byte{10, 10, 0, byte(last)}),
			UUID: cluster.NodeUUID(id, name), MAC: cluster.NodeMAC("BC:24:11", id, name, 0),
			Placement: cluster.Placement{Pin: "pve1"}, Pool: "talos", Bridge: "vmbr1", Datastore: "local-lvm", ImageDatastore: "local", CloudInitDatastore: "local-lvm",
			SCSIHardware: "virtio-scsi-single", CPUType: "x86-64-v2-AES", Cores: 4, MemoryMiB: 8192, DiskBytes: 40 << 30})
	}
	for i := range cps {
		add(cluster.ControlPlane, fmt.Sprintf("cp-%d", i+1), 411+i, 11+i)
	}
	for i := range workers {
		add(cluster.Worker, fmt.Sprintf("wk-%d", i+1), 521+i, 21+i)
	}
	w := &world{
		d: cluster.Desired{
			Snapshot:  cluster.Snapshot{Revision: "main@sha1:1111111111111111111111111111111111111111", Spec: s, Bundle: cluster.SecretString("x")},
			Schematic: "376567988ad3", Image: cluster.Image{Name: imageName, Version: "v1.13.9", Schematic: "376567988ad3"},
			Configs: map[string]cluster.Config{}, Fingerprint: "bundle-1",
		},
		o: cluster.Observed{
			Now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC),
			Hosts: map[string]cluster.Host{"pve1": {Name: "pve1", Known: true, PVE: "9.2.11", Quorate: cluster.Saw(true), Cores: 16, MemoryBytes: 256 << 30,
				Images: cluster.Saw(map[string]int64{}), Tasks: cluster.Saw[[]cluster.Task](nil),
				Storages: cluster.Saw(map[string]cluster.Storage{
					"local": {Active: true, Content: []string{"iso", "import"}}, "local-lvm": {Active: true, Content: []string{"images"}}})}},
			VMs: map[string]cluster.VM{}, Machines: map[string]cluster.Machine{}, APIs: map[string]cluster.Seen[bool]{}, Charts: map[string]cluster.Seen[cluster.Fetched]{},
			Orphans: cluster.Saw[[]cluster.VM](nil), ImageCached: cluster.Saw(false),
			Members: cluster.Unseen[[]cluster.Member]("no control plane answers"), Etcd: cluster.Saw(cluster.Etcd{}),
			Nodes: cluster.Unseen[map[string]cluster.KubeNode]("no kube-apiserver answers"), Releases: cluster.Unseen[map[string]cluster.Release]("no kube-apiserver answers"),
		},
		p: cluster.Policy{File: "policy.yaml", Pool: "talos", VMIDs: []cluster.Range{{First: 400, Last: 599}}, Lines: map[string]int{"pool": 1, "vmids": 2, "limits.nodes": 5}},
	}
	w.refresh()
	return w
}

// runs has every node run these versions, as the inventory has it.
func (w *world) runs(talos, kubernetes string) {
	w.d.Spec.Versions.Talos, w.d.Spec.Versions.Kubernetes = talos, kubernetes
	for _, n := range w.d.Spec.Nodes {
		mach := w.o.Machines[n.Name]
		mach.Talos = talos
		w.o.Machines[n.Name] = mach
		effect.EditNode(&w.o, n.Name, func(kn *cluster.KubeNode) { kn.Kubelet = kubernetes })
	}
}

// refresh fills what follows from the spec: configs, absent VMs, silent machines.
func (w *world) refresh() {
	for _, n := range w.d.Spec.Nodes {
		if _, ok := w.o.VMs[n.Name]; !ok {
			w.o.VMs[n.Name] = cluster.VM{VMID: n.VMID, Node: n.Name, Presence: cluster.Absent}
			w.o.Machines[n.Name] = cluster.Machine{Reach: cluster.Silent}
		}
		w.d.Configs[n.Name] = cluster.Config{Digest: "config-" + n.Name, DNS: n.Role == cluster.ControlPlane}
	}
}

// number reads a number of a scenario.
func (w *world) number(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// addPlane adds a control plane to the inventory, of which nothing is there.
func (w *world) addPlane(name string, vmid, last int) {
	n := w.d.Spec.Nodes[0]
	n.Name, n.VMID, n.IP, n.UUID = name, vmid, netip.AddrFrom4([4]byte{10, 10, 0, byte(last)}), cluster.NodeUUID(w.d.Spec.ID, name)
	w.d.Spec.Nodes = append(slices.Clone(w.d.Spec.Nodes), n)
	w.refresh()
}

// remove takes a node out of the inventory, whose VM and machine stay as they are.
func (w *world) remove(name string) {
	n, _ := w.d.Spec.Node(name)
	w.taken = append(w.taken, n)
	w.d.Spec.Nodes = slices.DeleteFunc(slices.Clone(w.d.Spec.Nodes), func(n cluster.Node) bool { return n.Name == name })
	if vm := w.o.VMs[name]; vm.Presence == cluster.Present {
		w.o.Orphans = cluster.Saw(append(slices.Clone(w.o.Orphans.Value), vm))
	}
	delete(w.o.VMs, name)
	delete(w.d.Configs, name)
	w.d.Removed = leftover.RemovedNodes(w.d, w.o)
}

// dead has a node not answer any more.
func (w *world) dead(name string, since time.Duration) {
	w.o = effect.Clone(w.o)
	vm, m := w.o.VMs[name], w.o.Machines[name]
	vm.Power, vm.Uptime, m.Reach = cluster.PowerRunning, max(since, time.Hour), cluster.Silent
	w.o.VMs[name], w.o.Machines[name] = vm, m
	effect.EditNode(&w.o, name, func(kn *cluster.KubeNode) {
		kn.Name, kn.UUID, kn.BootID = name, cluster.NodeUUID(w.d.Spec.ID, name), m.BootID
		kn.Ready, kn.NotReadySince, kn.Why = false, w.o.Now.Add(-since), "Kubelet stopped posting node status."
	})
	w.o.DeadSince = cloneMap(w.o.DeadSince)
	w.o.DeadSince[name] = w.o.Now.Add(-since)
	if n, _ := w.d.Spec.Node(name); n.Role == cluster.ControlPlane { // it is listed, and cannot be asked
		w.o.MembersAgree, w.o.MembersAsked = cluster.Unseen[bool]("1 member cannot be asked"), slices.DeleteFunc(namesOf(w.o.Members.Value), func(member string) bool { return member == name })
	}
}

// unregister deletes the Node object of a node.
func (w *world) unregister(name string) {
	nodes := maps.Clone(w.o.Nodes.Value)
	delete(nodes, name)
	w.o.Nodes = cluster.Saw(nodes)
}

func (w *world) vm(n cluster.Node) cluster.VM {
	return cluster.VM{VMID: n.VMID, Node: n.Name, Name: n.Name, Host: n.Placement.Pin, Presence: cluster.Present, Owner: cluster.Ours,
		Tags: []string{cluster.OwnTag}, Hardware: cluster.Saw(drift.WantHardware(w.d.Spec, n))}
}

// step applies one plan and lets the world settle, as Forecast does.
func (w *world) step() Plan {
	w.stage()
	p := Make(w.d, w.o, w.p)
	w.o = effect.Clone(w.o)
	for _, a := range p.Actions {
		effect.Of(&w.d, &w.o, a)
	}
	if len(p.Actions) == 0 {
		settleWorld(w.d, &w.o)
	}
	return p
}

// run carries out one scenario command and returns what it prints.
func (w *world) run(t testing.TB, line string) string {
	t.Helper()
	f := strings.Fields(line)
	arg := func(i int) string {
		if i >= len(f) {
			t.Fatalf("%q: argument %d is missing", line, i)
		}
		return f[i]
	}
	switch f[0] {
	case "runs": // every node: these versions of Talos and Kubernetes
		w.runs(arg(1), arg(2))
	case "versions": // of Talos and Kubernetes, that the inventory has
		w.asks = cluster.Versions{Talos: arg(1), Kubernetes: arg(2), Contract: w.d.Spec.Versions.Contract}
	case "ahead": // some nodes: this version of Talos
		for _, name := range f[2:] {
			mach := w.o.Machines[name]
			mach.Talos = arg(1)
			w.o.Machines[name] = mach
		}
	case "rollback": // of a node, to a version; it was asked
		in := cluster.Intent{Kind: cluster.IntendRollback, Node: arg(1), Target: w.o.Machines[arg(1)].BootID, Versions: cluster.Versions{Talos: arg(2)}, Revision: w.d.Revision, By: "ann", Done: slices.Contains(f, "asked")}
		w.o.Facts.Intend(in)
	case "order": // now, or despite these nodes
		order := w.o.Facts.UpgradeOrder(w.d.Revision).And(cluster.UpgradeOrder{Now: arg(1) == "now", Despite: f[2:]})
		w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendUpgrade, Revision: w.d.Revision, Order: order})
	case "kubernetes-back": // it is set back
		w.d.Back.Kubernetes = true
	case "kept": // versions that all nodes ran before
		w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendConfig, Versions: cluster.Versions{Talos: arg(1), Kubernetes: arg(2)}})
	case "came": // all nodes, to versions from others
		w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendConfig, Versions: cluster.Versions{Talos: arg(1), Kubernetes: arg(2)}, Previous: cluster.Versions{Talos: arg(3), Kubernetes: arg(4)}})
	case "manifests": // of Talos: as they are rendered, outdated, kept by somebody, or not known
		switch changes := []cluster.ObjectChange{{Object: "DaemonSet kube-system/kube-proxy", Fields: []cluster.FieldDifference{{Field: "spec.template.spec.containers[kube-proxy].image", Has: "kube-proxy:v1", Wants: "kube-proxy:v2"}, {Field: "metadata.labels.a"}}}, {Object: "ConfigMap kube-system/coredns"}}; arg(1) {
		case "same":
			w.o.Manifests = cluster.Saw(cluster.Manifests{})
		case "outdated":
			w.o.Manifests = cluster.Saw(cluster.Manifests{Changes: changes, Since: w.o.Now.Add(-time.Hour)})
		case "rolling":
			w.o.Manifests = cluster.Saw(cluster.Manifests{Rolling: []string{"DaemonSet kube-system/kube-proxy: 1 of 2 pods are new"}})
		case "deletes":
			w.o.Manifests = cluster.Saw(cluster.Manifests{Changes: append([]cluster.ObjectChange{{Object: "Deployment kube-system/coredns", Deleted: true}}, changes...), Since: w.o.Now.Add(-time.Hour)})
		case "kept":
			w.o.Manifests = cluster.Saw(cluster.Manifests{Left: []string{"Deployment kube-system/coredns: Helm has it, in release kube-system/coredns"}})
		case "unknown":
			w.o.Manifests = cluster.Unseen[cluster.Manifests]("cp-1 and cp-2 do not render the same")
		default:
			t.Fatalf("manifests cannot be %q", f[1:])
		}
	case "canary":
		w.d.Spec.Canary = arg(1)
	case "gate": // of the cluster: its name, and whether it holds
		w.d.Spec.Gates = append(w.d.Spec.Gates, cluster.Gate{Name: arg(1), Condition: "objects.all(o, o.status.ok)"})
		w.setGate(arg(1), arg(2))
	case "sees-gate":
		w.setGate(arg(1), arg(2))
	case "job": // of a gate of that name, as it is seen
		w.setJob(arg(1), arg(2))
	case "left-job": // its name, for which commit, and its state
		w.left = append(w.left, w.makeJob(cluster.ObjectName{Namespace: "default", Name: arg(1)}, "smoke", cluster.Revision("main@sha1:"+strings.Repeat(arg(2), 40)), arg(3)))
	case "soak": // a node is Ready since now, and has to be for so long
		w.d.Spec.Soak = parseAge(t, arg(2))
		effect.EditNode(&w.o, arg(1), func(kn *cluster.KubeNode) { kn.ReadySince = w.o.Now })
	case "supply": // of the installers: unknown, unchecked or found; or the last one is missing, since when
		w.supply, w.unchecked = "", ""
		switch arg(1) {
		case "unknown":
			w.supply, w.o.Installers = "unknown", nil
		case "unchecked":
			w.unchecked = "the nodes pull it from registry.example.org, which is not the image factory of this host"
		case "missing":
			w.supply = "the factory answers 400: siderolabs/zfs is not available"
			w.missingSince = w.o.Now.Add(-parseAge(t, arg(2)))
		}
	case "asked-schematic": // of the inventory
		w.d.Schematic, w.d.Image.Schematic = arg(1), arg(1)
		for _, n := range w.d.Spec.Nodes {
			mach := w.o.Machines[n.Name]
			mach.Schematic = "376567988ad3"
			w.o.Machines[n.Name] = mach
		}
	case "secureboot": // of the inventory
		w.d.Spec.SecureBoot = arg(1) == "on"
	case "lacks-tpm": // the VM of a node
		w.o = effect.Clone(w.o)
		vm := w.o.VMs[arg(1)]
		vm.Hardware.Value.TPM = ""
		w.o.VMs[arg(1)] = vm
	case "booted": // nodes, with Secure Boot on or off; their VMs have a TPM where that takes one, or with "off+tpm"
		w.o = effect.Clone(w.o)
		for _, name := range f[2:] {
			m, vm := w.o.Machines[name], w.o.VMs[name]
			var with string
			m.SecureBoot, with, _ = strings.Cut(arg(1), "+")
			if vm.Hardware.Value.TPM = ""; m.SecureBoot == "on" || with == "tpm" {
				vm.Hardware.Value.TPM = cluster.TPMVersion
			}
			w.o.Machines[name], w.o.VMs[name] = m, vm
		}
	case "upgrades": // of the cluster
		w.d.Spec.Upgrade, _ = cluster.ParseUpgradeMode(arg(1))
	case "held": // the hops, for approval
		w.stage()
		w.d.Held, w.d.HeldBy = cluster.ChangeUnapproved, "upgrade is approve"
	case "installer": // pulled by these nodes, or by all
		for _, n := range w.d.Spec.Nodes {
			if mach := w.o.Machines[n.Name]; len(f) == 1 || slices.Contains(f[1:], n.Name) {
				w.stage()
				mach.Installer = w.d.Spec.Installer(w.d.Schematic)
				w.o.Machines[n.Name] = mach
			}
		}
	case "installs": // on a node: none, done, failed, or not known, so long ago; in the boot before, again
		w.stage()
		in := cluster.Install{Image: w.d.Spec.Installer(w.d.Schematic), Boot: w.o.Machines[arg(1)].BootID, Revision: w.d.Revision, At: w.o.Now, Done: arg(2) == "done"}
		switch arg(2) {
		case "failed":
			in.Failed = "exit code 7: no space left on device"
		case "unknown":
			in.At = w.o.Now.Add(-parseAge(t, arg(3)))
		}
		if in.Again = slices.Contains(f, "again"); in.Again || slices.Contains(f, "before") {
			in.Boot = "before " + in.Boot
		}
		if w.o.Facts.Installs = maps.Clone(w.o.Facts.Installs); w.o.Facts.Installs == nil {
			w.o.Facts.Installs = map[string]cluster.Install{}
		}
		if w.o.Facts.Installs[arg(1)] = in; arg(2) == "none" {
			delete(w.o.Facts.Installs, arg(1))
		}
	case "cluster":
		cps, workers := 1, 0
		for _, kv := range f[1:] {
			k, v, _ := strings.Cut(kv, "=")
			switch k {
			case "cps":
				cps, _ = strconv.Atoi(v)
			case "workers":
				workers, _ = strconv.Atoi(v)
			}
		}
		*w = *newWorld(cps, workers)
	case "made": // a cluster that works
		w.run(t, strings.Replace(line, "made", "cluster", 1))
		for _, l := range []string{"image stored", "steps", "agree", "created 5h"} {
			w.run(t, l)
		}
	case "add": // a node to the inventory, like another one: name, the other, VMID and IP
		n, _ := w.d.Spec.Node(arg(2))
		n.Name, n.VMID, n.IP, n.UUID = arg(1), w.number(t, arg(3)), netip.MustParseAddr(arg(4)), cluster.NodeUUID(w.d.Spec.ID, arg(1))
		w.d.Spec.Nodes = append(slices.Clone(w.d.Spec.Nodes), n)
		w.refresh()
	case "node-is": // what Kubernetes has of a node
		effect.EditNode(&w.o, arg(1), func(kn *cluster.KubeNode) { w.editKubeNode(t, kn, f[2:]) })
	case "guarded": // protected or locked when it was in the inventory
		w.o.Facts.Guarded = f[1:]
	case "unwatched": // nobody has asked its machine
		w.o = effect.Clone(w.o)
		delete(w.o.Machines, arg(1))
	case "members": // cannot be seen
		w.o.Members = cluster.Unseen[[]cluster.Member]("no control plane answers")
	case "members-before": // are those, and they cannot be seen now
		w.o.Members.Known, w.o.Members.Why = false, "no control plane answers"
	case "members-none": // are listed
		w.o.Members = cluster.Saw([]cluster.Member{})
	case "lost": // a member of etcd, for so long
		w.o.LostSince = map[uint64]time.Time{uint64(w.number(t, arg(1))): w.o.Now.Add(-parseAge(t, arg(2)))}
	case "hold": // new nodes
		w.d.Hold = strings.Join(f[1:], " ")
	case "inactive": // a storage of pve1
		h := w.o.Hosts["pve1"]
		h.Storages = cluster.Saw(maps.Clone(h.Storages.Value))
		st := h.Storages.Value[arg(1)]
		st.Active = false
		h.Storages.Value[arg(1)] = st
		w.o.Hosts["pve1"] = h
	case "cni":
		w.d.Spec.CNI = cluster.CNI(arg(1))
	case "addon":
		a := cluster.Addon{Name: arg(1), Namespace: "kube-system", Ownership: cluster.Managed, ReadyAfter: 15 * time.Minute,
			Chart: cluster.Chart{Repository: "https://charts.example.org", Name: arg(1), Version: "1.0.0"}}
		for _, kv := range f[2:] {
			k, v, _ := strings.Cut(kv, "=")
			switch k {
			case "needs":
				a.DependsOn = append(a.DependsOn, v)
			case "from":
				a.Chart.Repository = v
			case "bootstrap-only":
				a.Ownership = cluster.BootstrapOnly
			case "rollback":
				a.RollBack = true
			case "namespace":
				a.Namespace = v
			case "label":
				key, value, _ := strings.Cut(v, "=")
				a.Asks.Labels = map[string]string{key: value}
			}
		}
		a.File = "addons/" + a.Name + ".yaml"
		w.d.Spec.Addons = slices.DeleteFunc(w.d.Spec.Addons, func(o cluster.Addon) bool { return o.Name == a.Name })
		w.d.Spec.Addons = append(w.d.Spec.Addons, a)
	case "memory": // of pve1, in GiB
		h := w.o.Hosts["pve1"]
		h.MemoryBytes = int64(w.number(t, arg(1))) << 30
		w.o.Hosts["pve1"] = h
	case "snapshots": // of etcd: the age of the newest, or none, unknown or reading; and due, requested
		w.o.Snapshots = cluster.EtcdSnapshots{Enabled: true, Verified: cluster.Saw(time.Time{}), Due: w.o.Now.Add(time.Hour)}
		switch arg(1) {
		case "none":
		case "unknown":
			w.o.Snapshots.Verified = cluster.Unseen[time.Time]("no such folder")
		case "reading":
			w.o.Snapshots.Verified = cluster.Seen[time.Time]{}
		default:
			age, err := time.ParseDuration(arg(1))
			if err != nil {
				t.Fatal(err)
			}
			w.o.Snapshots.Verified.Value = w.o.Now.Add(-age)
		}
		w.o.Snapshots.Requested = slices.Contains(f, "requested")
		if slices.Contains(f, "due") {
			w.o.Snapshots.Due = w.o.Now
		}
	case "guest": // on pve1: VMID, GiB and what it is
		h := w.o.Hosts["pve1"]
		h.Guests = append(slices.Clone(h.Guests), cluster.Guest{VMID: w.number(t, arg(1)), MemoryBytes: int64(w.number(t, arg(2))) << 30,
			Running: slices.Contains(f, "running"), Agent: slices.Contains(f, "agent")})
		w.o.Hosts["pve1"] = h
	case "storage": // on pve1: name, GiB, GiB that are free, thin or thick, the volumes by VMID
		h := w.o.Hosts["pve1"]
		st := cluster.Storage{Active: true, Content: []string{"images"}, TotalBytes: int64(w.number(t, arg(2))) << 30, FreeBytes: int64(w.number(t, arg(3))) << 30, Thin: arg(4) == "thin"}
		st.Volumes = cluster.Unseen[map[int]int64]("no answer")
		if len(f) > 5 {
			st.Volumes = cluster.Saw(map[int]int64{})
			for _, kv := range f[5:] {
				id, size, _ := strings.Cut(kv, "=")
				if size != "" {
					st.Volumes.Value[w.number(t, id)] = int64(w.number(t, size)) << 30
				}
			}
		}
		h.Storages = cluster.Saw(maps.Clone(h.Storages.Value))
		h.Storages.Value[arg(1)] = st
		w.o.Hosts["pve1"] = h
	case "policy":
		switch arg(1) {
		case "reserve":
			w.p.Capacity.MemoryReserveMiB = int64(w.number(t, arg(2))) << 10
		case "max-unavailable":
			w.p.MaxUnavailable = w.number(t, arg(2))
		case "drain":
			w.p.DrainStops = arg(2) == "stop"
		case "heal":
			w.p.ObserveOnly = false
		case "observe":
			w.p.ObserveOnly = true
		case "off":
			w.p.ApplyOff = true
		case "approve":
			w.p.ApplyApproved = true
		case "removals":
			w.p.Removals = w.number(t, arg(2))
		case "vmids":
			from, to, _ := strings.Cut(arg(2), "-")
			w.p.VMIDs = []cluster.Range{{First: w.number(t, from), Last: w.number(t, to)}}
		case "datastores":
			w.p.Datastores = f[2:]
		case "networks":
			for _, n := range f[2:] {
				w.p.Networks = append(w.p.Networks, netip.MustParsePrefix(n))
			}
		case "thin":
			w.p.Capacity.ThinPercent = w.number(t, arg(2))
		case "copies":
			w.p.Capacity.CopiesPerStorage = w.number(t, arg(2))
		}
	case "bound": // of pve1 in the inventory, in GiB
		w.d.Spec.Capacity = map[string]cluster.HostCapacity{"pve1": {MemoryMiB: int64(w.number(t, arg(1))) << 10}}
	case "namespace": // with the labels that are ours
		labels := map[string]string{}
		for _, kv := range f[2:] {
			k, v, _ := strings.Cut(kv, "=")
			labels[k] = v
		}
		w.o = effect.Clone(w.o)
		w.o.Namespaces[arg(1)] = cluster.NamespaceMeta{Labels: labels}
	case "node":
		for i := range w.d.Spec.Nodes {
			if n := &w.d.Spec.Nodes[i]; n.Name == arg(1) {
				w.editNode(t, n, f[2:])
			}
		}
	case "storages": // of pve1 cannot be seen
		h := w.o.Hosts["pve1"]
		h.Storages = cluster.Unseen[map[string]cluster.Storage]("596 broken pipe")
		w.o.Hosts["pve1"] = h
	case "host":
		w.host(t, f[1:])
	case "vm":
		w.editVM(t, arg(1), f[2:])
	case "unready": // machines, since so long ago
		w.o = effect.Clone(w.o)
		for _, name := range f[2:] {
			m := w.o.Machines[name]
			m.Ready, m.Since = false, w.o.Now.Add(-parseAge(t, arg(1)))
			w.o.Machines[name] = m
		}
	case "silent": // machines, since so long ago
		w.o = effect.Clone(w.o)
		for _, name := range f[2:] {
			w.o.Machines[name] = cluster.Machine{Reach: cluster.Silent, Since: w.o.Now.Add(-parseAge(t, arg(1)))}
		}
	case "vlan": // of the inventory
		w.d.Spec.Network.VLAN = w.number(t, arg(1))
	case "watched": // a control plane, for what it was given so long ago
		w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendWatch, Node: arg(1), At: w.o.Now.Add(-parseAge(t, arg(2)))})
	case "begun": // the deletion of these VMs, as removals
		in := cluster.Intent{Kind: cluster.IntendApproved}
		for _, id := range f[1:] {
			in.VMs = append(in.VMs, w.number(t, id))
		}
		w.o.Facts.Intend(in)
	case "machine":
		w.editMachine(t, arg(1), f[2:])
	case "image":
		switch arg(1) {
		case "iso": // VMs install themselves from a medium
			w.d.Spec.ISO, w.d.Image.ISO, w.d.Image.Name = true, true, isoName
		case "cached":
			w.o.ImageCached = cluster.Saw(true)
		case "none":
			h := w.o.Hosts["pve1"]
			h.Images, w.o.ImageCached = cluster.Saw(map[string]int64{}), cluster.Saw(false)
			w.o.Hosts["pve1"] = h
		case "stored":
			h := w.o.Hosts["pve1"]
			h.Images = cluster.Saw(map[string]int64{imageName: 200704})
			w.o.Hosts["pve1"] = h
		case "cached-before": // it cannot be seen now
			w.o.ImageCached = cluster.Seen[bool]{Value: true}
		case "unasked":
			w.o.ImageCached = cluster.Seen[bool]{}
		case "cache-unknown":
			w.o.ImageCached = cluster.Unseen[bool]("no space left on device")
		case "not-looked-at": // no VM has to be made there
			h := w.o.Hosts["pve1"]
			h.Images = cluster.Seen[map[string]int64]{}
			w.o.Hosts["pve1"] = h
		case "unknown":
			h := w.o.Hosts["pve1"]
			h.Images = cluster.Unseen[map[string]int64]("596 broken pipe")
			w.o.Hosts["pve1"] = h
		case "verified":
			w.o.Facts.Images = map[string]cluster.ImagePin{imageName: {Bytes: 200704}}
		case "unverified":
			w.o.Facts.Images = nil
		case "pinned":
			w.o.Facts.Images = map[string]cluster.ImagePin{imageName: {Bytes: 1}}
		}
	case "contract": // that the inventory has, other than the one that the cluster was made with
		w.d.OtherContract = arg(1)
	case "schematic":
		w.d.Schematic, w.d.Image, w.d.Configs = "", cluster.Image{}, nil
	case "facts":
		w.facts(t, f[1:])
	case "fingerprint": // of the bundle is not known
		w.d.Fingerprint = ""
	case "secrets":
		w.d.Bundle = cluster.Secret{}
	case "remove": // a node that is there from the inventory, which is seen
		w.remove(arg(1))
	case "restore": // a node to the inventory that was removed from it
		i := slices.IndexFunc(w.taken, func(n cluster.Node) bool { return n.Name == arg(1) })
		n := w.taken[i]
		w.d.Spec.Nodes = append(w.d.Spec.Nodes, n)
		w.o.VMs[n.Name] = w.o.Orphans.Value[slices.IndexFunc(w.o.Orphans.Value, func(vm cluster.VM) bool { return vm.Node == n.Name })]
		w.o.Orphans = cluster.Saw(slices.DeleteFunc(slices.Clone(w.o.Orphans.Value), func(vm cluster.VM) bool { return vm.Node == n.Name }))
		w.refresh()
	case "orphan":
		vmids := []string{"599"}
		if len(f) > 2 {
			vmids = f[2:]
		}
		var vms []cluster.VM
		for _, text := range vmids {
			n := cluster.Node{Name: arg(1), Placement: cluster.Placement{Pin: "pve1"}, Datastore: "local-lvm"}
			n.VMID, _ = strconv.Atoi(text)
			vm := w.vm(n)
			vm.Power = cluster.PowerRunning
			vms = append(vms, vm)
		}
		w.o.Orphans = cluster.Saw(vms)
	case "apis": // down, or as they were, and not seen now
		for name := range w.o.APIs {
			w.o.APIs[name] = cluster.Saw(false)
			if arg(1) == "before" {
				w.o.APIs[name] = cluster.Seen[bool]{Value: true}
			}
		}
	case "chart": // of an addon: it cannot be fetched, or nothing is rendered of it
		w.o = effect.Clone(w.o)
		if arg(2) == "failed" {
			w.o.Charts[arg(1)] = cluster.Unseen[cluster.Fetched]("404 Not Found")
		} else {
			w.o.Charts[arg(1)] = cluster.Saw(cluster.Fetched{})
		}
	case "releases-before": // are what they are, and they cannot be seen now
		w.o.Releases.Known, w.o.Releases.Why = false, "connection refused"
	case "host-pressure": // how much of the time work on a host waits for I/O, in percent
		h := w.o.Hosts[arg(1)]
		h.Pressure = &usage.Pressure{IO: float64(w.number(t, arg(2)))}
		w.o.Hosts[arg(1)] = h
	case "host2": // pve2, which has a local-lvm, too, with guests: VMID=GiB
		h := w.o.Hosts["pve1"]
		h.Name, h.Guests = "pve2", nil
		for _, kv := range f[1:] {
			id, size, _ := strings.Cut(kv, "=")
			h.Guests = append(h.Guests, cluster.Guest{VMID: w.number(t, id), MemoryBytes: int64(w.number(t, size)) << 30, Running: true})
		}
		w.o.Hosts["pve2"] = h
	case "ha": // of the inventory, on, off or not known; what the manager holds, VMID=state, with " of somebody else's; the rule, whose VMs are of it, or how it is
		w.setHA(t, f[1:])
	case "shared": // a storage of pve1, as that of pve2
		h := w.o.Hosts["pve1"]
		st := h.Storages.Value[arg(1)]
		st.Shared = true
		h.Storages.Value[arg(1)] = st
	case "asked": // so many members, and the others cannot be; or the repository's schematic is not yet
		if arg(1) == "schematic" {
			asked := w.d
			asked.Schematic = ""
			w.d.Asked = &asked
			break
		}
		w.o.MembersAgree, w.o.MembersAsked = cluster.Unseen[bool]("1 member cannot be asked"), w.answering(t, w.number(t, arg(1)))
	case "orphans-are": // these, name=VMID
		var vms []cluster.VM
		for _, kv := range f[1:] {
			name, id, _ := strings.Cut(kv, "=")
			vms = append(vms, w.vm(cluster.Node{Name: name, VMID: w.number(t, id), Placement: cluster.Placement{Pin: "pve1"}}))
		}
		w.o.Orphans = cluster.Saw(vms)
	case "vip": // served, or by whom it is held
		w.d.Spec.Network.VIP = netip.MustParseAddr("10.10.0.5")
		v := cluster.VirtualIP{Why: "connection refused"}
		switch arg(1) {
		case "served":
			v = cluster.VirtualIP{Served: true}
		case "stranger":
			v.MAC = "BC:24:11:00:00:99"
		case "free":
			v.Why = "there is no way to it"
		default:
			n, _ := w.d.Spec.Node(arg(1))
			v.MAC = n.MAC
		}
		w.o.VIP = cluster.Saw(v)
	case "member": // of etcd, beside those there are
		mem := cluster.Member{ID: 0xcfa4 + uint64(len(w.o.Members.Value)), Address: arg(2)}
		if arg(1) != "-" {
			mem.Name = arg(1)
		}
		mem.Learner = len(f) > 3 && f[3] == "learner"
		w.o.Members = cluster.Saw(append(slices.Clone(w.o.Members.Value), mem))
	case "members-only": // these and no others
		w.o.Members = cluster.Saw([]cluster.Member{{ID: 0xcfa4, Name: arg(1), Address: arg(2)}, {ID: 0xcfa5, Name: arg(3), Address: arg(4)}})
	case "pressure": // of a node
		nodes := maps.Clone(w.o.Nodes.Value)
		kn := nodes[arg(1)]
		kn.Pressure = strings.Join(f[2:], " ")
		nodes[arg(1)] = kn
		w.o.Nodes = cluster.Saw(nodes)
	case "dead": // a node, for so long, while its VM runs
		w.dead(arg(1), parseAge(t, arg(2)))
	case "forget": // by root's word: the machine of a node does not come back
		n, ok := w.d.Spec.Node(arg(1))
		if !ok {
			n = w.d.Removed[slices.IndexFunc(w.d.Removed, func(n cluster.Node) bool { return n.Name == arg(1) })]
		}
		if b := lost.RefuseForget(w.d, w.o, n); b.Reason != "" {
			return fmt.Sprintf("refused: %s [%s]\n", b.Message, b.Hint)
		}
		w.o.Facts.Forget(cluster.Forgotten{Node: n.Name, At: w.o.Now, Unfenced: lost.ForgetsUnfenced(w.d, w.o, n)})
		return strings.Join(lost.ConsequencesOfForget(w.d, w.o, n), "\n") + "\n"
	case "clock": // goes on
		w.o.Now = w.o.Now.Add(parseAge(t, arg(1)))
	case "member-left": // the member of a node that is forgotten has left etcd
		w.o.Facts.Forgotten = slices.Clone(w.o.Facts.Forgotten)
		for i := range w.o.Facts.Forgotten {
			w.o.Facts.Forgotten[i].Left = w.o.Facts.Forgotten[i].Left || w.o.Facts.Forgotten[i].Node == arg(1)
		}
	case "forgotten": // what is left of that word
		w.o.Facts.Forgotten = lost.StillForgotten(w.o.Facts.Forgotten, w.d, w.o)
		out := ""
		for _, n := range w.o.Facts.Forgotten {
			out += fmt.Sprintf("%s unfenced=%v left=%v\n", n.Node, n.Unfenced, n.Left)
		}
		return cmp.Or(out, "none\n")
	case "seen-dead": // a dead node, with all else at work, for so long
		w.o.DeadSince = cloneMap(w.o.DeadSince)
		w.o.DeadSince[arg(1)] = w.o.Now.Add(-parseAge(t, arg(2)))
	case "evicted": // its etcd runs and is no member, for so long
		w.o.EvictedSince = map[string]time.Time{arg(1): w.o.Now.Add(-parseAge(t, arg(2)))}
	case "unregistered": // its Node object is deleted
		w.unregister(arg(1))
	case "replace-dead":
		w.d.Spec.ReplaceDead = cluster.ReplaceDead{Worker: parseAge(t, arg(1)), ControlPlane: parseAge(t, arg(2))}
	case "created": // every Node object, so long ago
		for _, n := range w.d.Spec.Nodes {
			effect.EditNode(&w.o, n.Name, func(kn *cluster.KubeNode) { kn.Created = w.o.Now.Add(-parseAge(t, arg(1))) })
		}
	case "not-ready":
		nodes := maps.Clone(w.o.Nodes.Value)
		nodes[arg(1)] = cluster.KubeNode{Name: arg(1), Why: strings.Join(f[2:], " ")}
		w.o.Nodes = cluster.Saw(nodes)
	case "pod": // of kube-system: its name, workload and state, and why
		pods := maps.Clone(w.o.SystemPods.Value)
		p := cluster.SystemPod{Name: arg(1), Workload: arg(2), DNS: strings.HasPrefix(arg(2), "coredns")}
		why := strings.Join(f[4:], " ")
		switch state, on, _ := strings.Cut(arg(3), "@"); state {
		case "ready":
			p.Ready, p.Node = true, on
		case "failing":
			p.Failing, p.Node = why, on
		case "unschedulable":
			p.Unschedulable = why
		case "starts":
			p.Node = on
		case "deleted":
			delete(pods, p.Name)
		}
		if arg(3) != "deleted" {
			pods[p.Name] = p
		}
		w.o.SystemPods = cluster.Saw(pods)
	case "config": // that the inventory has, of a node
		c := cluster.Config{Digest: arg(2)}
		if len(f) > 3 { // another pod network than it was made with
			c.Summary = cluster.ConfigSummary{Cluster: "dev", Pods: arg(3)}
			mach := w.o.Machines[arg(1)]
			mach.Summary = cluster.ConfigSummary{Cluster: "dev", Pods: "10.244.0.0/16"}
			w.o.Machines[arg(1)] = mach
		}
		w.d.Configs[arg(1)] = c
	case "differs-in": // each config of the inventory from what runs: the installer or the images, which some nodes run already
		for _, n := range w.d.Spec.Nodes {
			has, wants := cluster.ConfigSummary{Rest: "x"}, cluster.ConfigSummary{Rest: "x"}
			if arg(1) == "images" {
				has.Images.APIServer, wants.Images.APIServer = "a:1", "a:2"
			}
			mach, config := w.o.Machines[n.Name], w.d.Configs[n.Name]
			if mach.Summary, config.Summary = has, wants; slices.Contains(f[2:], n.Name) {
				mach.Summary, mach.ConfigDigest = wants, config.Digest
			}
			w.o.Machines[n.Name], w.d.Configs[n.Name] = mach, config
		}
	case "endpoint": // of the inventory, which every machine has
		w.d.Spec.Network.Endpoint = "https://" + arg(1) + ":6443"
		w.o = effect.Clone(w.o)
		for _, n := range w.d.Spec.Nodes {
			c, mach := w.d.Configs[n.Name], w.o.Machines[n.Name]
			c.Digest, c.Summary.Endpoint = "at-"+arg(1)+"-"+n.Name, arg(1)
			mach.ConfigDigest, mach.Summary.Endpoint = c.Digest, arg(1)
			w.d.Configs[n.Name], w.o.Machines[n.Name] = c, mach
		}
	case "runs-at": // an endpoint that it had before
		w.o = effect.Clone(w.o)
		mach := w.o.Machines[arg(1)]
		mach.ConfigDigest, mach.Summary.Endpoint = "at-"+arg(2)+"-"+arg(1), arg(2)
		w.o.Machines[arg(1)] = mach
	case "made-at": // an endpoint that the cluster runs with, which new nodes get
		asked := w.d
		w.d.Asked, w.d.Configs = &asked, maps.Clone(w.d.Configs)
		c := w.d.Configs[arg(1)]
		c.Summary.Endpoint = arg(2)
		w.d.Configs[arg(1)], w.d.Spec.Network.Endpoint = c, "https://"+arg(2)+":6443"
	case "authorities": // of a node, hashes of Kubernetes', the one that issues first; those of the repository are "ours"
		for name, c := range w.d.Configs {
			c.Summary.Authorities = cluster.Authorities{Talos: "t", Kubernetes: "ours", Etcd: "e"}
			w.d.Configs[name] = c
		}
		w.o = effect.Clone(w.o)
		mach := w.o.Machines[arg(1)]
		mach.Summary.Authorities = cluster.Authorities{Talos: "t", Kubernetes: arg(2)}
		if len(f) > 3 { // of a config that waits for the next boot
			mach.StagedAuthorities = cluster.Authorities{Talos: "t", Kubernetes: arg(3)}
		}
		w.o.Machines[arg(1)] = mach
	case "ask": // every node, what the config of the inventory takes
		for _, n := range w.d.Spec.Nodes {
			mach := w.o.Machines[n.Name]
			if want := w.d.Configs[n.Name].Digest; mach.ConfigDigest != want {
				mach.Change = &cluster.Change{For: want, Reboots: arg(1) == "reboots" || arg(1) == "network"}
				if arg(1) == "network" { // which is on trial before that
					mach.Change.Network = mach.ConfigDigest + "+" + want
				}
				w.o.Machines[n.Name] = mach
			}
		}
	case "edit": // the VM of a node as it is, by hand
		vm := w.o.VMs[arg(1)]
		for _, kv := range f[2:] {
			k, v, _ := strings.Cut(kv, "=")
			switch hw := &vm.Hardware.Value; k {
			case "cores":
				hw.Cores = w.number(t, v)
			case "memory": // MiB
				hw.MemoryMiB = int64(w.number(t, v))
			case "cpu":
				hw.CPUType = v
			case "machine":
				hw.Machine = v
			case "bios":
				hw.BIOS = v
			case "scsihw":
				hw.SCSIHardware = v
			case "balloon":
				hw.Balloon = v == "1"
			case "agent":
				hw.Agent = v == "1"
			case "model":
				hw.Model = v
			case "address":
				hw.Address = v
			case "tags":
				vm.Tags = strings.Split(v, ",")
			case "bridge":
				hw.Bridge = v
			case "more-disk": // GiB, with a serial of ours
				hw.Data = map[string]cluster.DiskSeen{"talos-more": {Datastore: "local-lvm", Bytes: int64(w.number(t, v)) << 30}}
			case "link-down":
				hw.LinkDown = v == "1"
			case "no-card": // was it removed as the vm ran, or is its removal pending
				if active := *hw; v == "pending" {
					vm.Active = &active
				}
				hw.Model, hw.MAC, hw.Bridge = "", "", ""
			case "vlan":
				hw.VLAN = w.number(t, v)
			case "onboot":
				hw.OnBoot = v == "1"
			case "mac":
				hw.MAC = v
			case "boot":
				hw.Boot = v
			case "delete": // an option: boot; at once, or from its next start
				option, when, _ := strings.Cut(v, ",")
				if active := *hw; when == "pending" {
					vm.Active = &active
				}
				if option != "boot" {
					t.Fatalf("edit: %q", kv)
				}
				hw.Boot = ""
			case "disk": // GiB
				hw.System.Bytes = int64(w.number(t, v)) << 30
			case "pending-cores":
				active := *hw
				vm.Active = &active
				hw.Cores = w.number(t, v)
			case "lock":
				vm.Lock = v
			case "task": // of somebody's
				vm.Task = &cluster.Task{Type: v, VMID: vm.VMID, Started: w.o.Now}
			case "config": // of its machine, three minutes ago
				m := w.o.Machines[arg(1)]
				m.ConfigDigest, m.ConfigSince = v, w.o.Now.Add(-3*time.Minute)
				w.o.Machines[arg(1)] = m
			case "schematic": // of the image that its machine runs
				m := w.o.Machines[arg(1)]
				m.Schematic = v
				w.o.Machines[arg(1)] = m
			case "staged": // on its machine, three minutes ago
				m := w.o.Machines[arg(1)]
				m.Staged, m.StagedSince = v, w.o.Now.Add(-3*time.Minute)
				w.o.Machines[arg(1)] = m
			case "by": // a task of somebody's
				vm.ChangedBy = []cluster.Task{{UPID: "UPID:pve1:00", Type: "qmconfig", User: v, Started: w.o.Now}}
			case "unmarked":
				vm.Unmarked = true
			case "managed":
				vm.Managed = true
			case "ha": // state of the HA manager
				vm.HA = v
			case "detached":
				vm.Others = append(vm.Others, cluster.Drive{Key: "unused0", Volume: v, Own: true})
			default:
				t.Fatalf("edit: %q", kv)
			}
		}
		w.o.VMs[arg(1)] = vm
	case "disk": // of a node in the inventory: name and GiB
		for i := range w.d.Spec.Nodes {
			if n := &w.d.Spec.Nodes[i]; n.Name == arg(1) {
				n.Disks = append(slices.Clone(n.Disks), cluster.Disk{Name: arg(2), Serial: "talos-" + arg(2), Datastore: "local-lvm", Bytes: int64(w.number(t, arg(3))) << 30})
			}
		}
	case "cordon", "uncordon": // by hand
		effect.EditNode(&w.o, arg(1), func(kn *cluster.KubeNode) { kn.Cordoned = f[0] == "cordon" })
	case "kubectl": // by hand: a node, label, taint or annotation, key=value or key-; or note none; by NAME
		effect.EditNode(&w.o, arg(1), func(kn *cluster.KubeNode) {
			values := &kn.Meta.Labels
			switch arg(2) {
			case "taint":
				values = &kn.Meta.Taints
			case "annotation":
				values = &kn.Meta.Annotations
			case "note":
				kn.Owned = cluster.NodeMeta{}
				return
			}
			key, value, set := strings.Cut(arg(3), "=")
			if kn.SetBy = cloneMap(kn.SetBy); len(f) > 4 && arg(4) == "by" {
				kn.SetBy[arg(2)+" "+key] = cluster.Setter{Manager: arg(5), At: w.o.Now}
			}
			if *values = cloneMap(*values); set {
				(*values)[key] = value
			} else {
				delete(*values, strings.TrimSuffix(key, "-"))
			}
		})
	case "wait":
		w.o.Now = w.o.Now.Add(parseAge(t, arg(1)))
	case "revision":
		w.d.Revision = cluster.Revision("main@sha1:" + strings.Repeat(arg(1), 40))
	case "restarted": // a node, for what it lacks now; or it is about to be
		before := "before "
		if len(f) > 2 {
			before = ""
		}
		n, _ := w.d.Spec.Node(arg(1))
		mach := w.o.Machines[n.Name]
		m := newPlanner(w.d, w.o, w.p)
		w.o.Facts.Restarts = map[string]cluster.Restart{n.Name: {Target: m.targetOfTurn(n, m.turnOf(n)), Boot: before + mach.BootID, Revision: w.d.Revision}}
		if text := drift.Begin(w.d, w.o.Facts, n, drift.Fields(drift.Of(w.d, w.o, n, mach)), ""); text != "" {
			w.o.Facts.Settled = cloneMap(w.o.Facts.Settled)
			w.o.Facts.Settled[n.Name] = text
		}
	case "restarted-at": // a node, so long ago, for what it has
		w.o.Facts.Restarts = map[string]cluster.Restart{arg(1): {Target: "had", Boot: "before", Revision: w.d.Revision, At: w.o.Now.Add(-parseAge(t, arg(2)))}}
	case "replaced": // a node, for tokens
		w.o.Facts.Replaced = map[string][]string{arg(1): f[2:]}
	case "settled":
		w.o.Facts.Settled, w.o.Facts.Cards = cloneMap(w.o.Facts.Settled), map[string]string{}
		maps.Copy(w.o.Facts.Settled, settled.FindNodes(w.d, w.o)) // what was stays
		for _, n := range w.d.Spec.Nodes {
			w.o.Facts.Cards[n.Name] = drift.CardOf(drift.WantHardware(w.d.Spec, n))
		}
	case "switches":
		w.d.Spec.Switches = cluster.Switches{ObserveOnly: slices.Contains(f, "observe"), ApplyOff: slices.Contains(f, "off"), ApplyApproved: slices.Contains(f, "approve")}
	case "wants": // a version of Talos, everywhere
		w.d.Spec.Versions.Talos = arg(1)
	case "window": // of the cluster or the policy: days, times, time zone
		win, err := window.New(strings.Split(arg(2), ","), arg(3), arg(4), arg(5))
		if err != nil {
			t.Fatal(err)
		}
		if arg(1) == "policy" {
			w.p.Window = win
		} else {
			w.d.Spec.Window = win
		}
	case "now":
		at, err := time.Parse("2006-01-02T15:04", arg(1))
		if err != nil {
			t.Fatal(err)
		}
		w.o.Now = at
	case "drain-deletes": // pods that may not leave
		w.d.Spec.Drain.Delete = true
	case "max-unavailable":
		w.d.Spec.MaxUnavailable = w.number(t, arg(1))
	case "agree": // the members of etcd, on who they are
		w.o.MembersAgree, w.o.MembersAsked = cluster.Saw(true), namesOf(w.o.Members.Value)
	case "answers": // these members only, so far as is known
		w.o.MembersAgree, w.o.MembersAsked = cluster.Unseen[bool]("1 member cannot be asked"), f[1:]
	case "alarms": // of etcd, or none, or unknown
		switch arg(1) {
		case "none":
			w.o.Etcd = cluster.Saw(cluster.Etcd{})
		case "unknown":
			w.o.Etcd = cluster.Unseen[cluster.Etcd]("ask cp-1 for the status of its etcd: no answer in time")
		default:
			w.o.Etcd = cluster.Saw(cluster.Etcd{Alarms: f[1:]})
		}
	case "etcd": // runs as this version
		w.o.Etcd = cluster.Saw(cluster.Etcd{Server: arg(1)})
	case "pin-etcd": // in the config that a control plane runs, to an image, and in the inventory to another, or none
		mach, config := w.o.Machines[arg(1)], w.d.Configs[arg(1)]
		mach.Summary.Images.Etcd = arg(2)
		config.Summary.Images.Etcd = strings.TrimPrefix(arg(3), "none")
		if arg(2) != arg(3) {
			config.Digest = "with-" + arg(3)
		}
		w.o.Machines[arg(1)], w.d.Configs[arg(1)] = mach, config
	case "leads": // etcd
		members := slices.Clone(w.o.Members.Value)
		for i := range members {
			if members[i].ID = uint64(i + 1); members[i].Name == arg(1) {
				w.o.Etcd = cluster.Saw(cluster.Etcd{Leader: members[i].ID})
			}
		}
		w.o.Members = cluster.Saw(members)
	case "learners": // are looked at, as in each pass
		w.o.Learners = lost.Learners(w.d, w.o, w.o.Learners)
	case "allow-even":
		w.d.Spec.AllowEven = true
	case "approve-shown": // what the forecast shows
		forecast := Forecast(w.d, w.o, w.p)
		if !forecast.Unapproved {
			return "nothing to approve\n"
		}
		w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendApproved, Revision: w.d.Revision, VMs: forecast.VMs, Changes: forecast.Changes})
	case "approve": // the removal of these VMs
		in := cluster.Intent{Kind: cluster.IntendApproved, Revision: w.d.Revision}
		for _, id := range f[1:] {
			in.VMs = append(in.VMs, w.number(t, id))
		}
		w.o.Facts.Intend(in)
	case "static": // pod of a control plane: its name, the version that its config has, and what Kubernetes shows of it
		w.static(t, arg(1), arg(2), arg(3), f[4:])
	case "pods": // cannot be seen
		w.o.SystemPods = cluster.Unseen[map[string]cluster.SystemPod]("403 Forbidden")
	case "dns": // is not deployed by Talos
		for name, c := range w.d.Configs {
			c.DNS = false
			w.d.Configs[name] = c
		}
	case "warnings":
		return fmt.Sprint(readiness.WarnOfUnplaced(w.o))
	case "node-object":
		nodes := maps.Clone(w.o.Nodes.Value)
		nodes[arg(1)] = cluster.KubeNode{Name: arg(1), Ready: arg(2) == "ready", Why: "Kubelet stopped posting node status."}
		w.o.Nodes = cluster.Saw(nodes)
	case "kubernetes-before": // is what it is, and it does not answer now
		w.o.Nodes.Known, w.o.Nodes.Why = false, "connection refused"
	case "kubernetes": // does not answer any more
		w.o.Nodes = cluster.Unseen[map[string]cluster.KubeNode]("connection refused")
		for name := range w.o.APIs {
			w.o.APIs[name] = cluster.Unseen[bool]("connection refused")
		}
	case "orphans":
		w.o.Orphans = cluster.Unseen[[]cluster.VM]("403 permission check failed")
		if f[len(f)-1] == "unasked" {
			w.o.Orphans.Why = ""
		}
	case "unlist": // takes an addon out of the inventory
		w.d.Spec.Addons = slices.DeleteFunc(slices.Clone(w.d.Spec.Addons), func(a cluster.Addon) bool { return a.Name == arg(1) })
	case "left":
		r := cluster.LeftRelease{ReleaseName: cluster.ReleaseName{Namespace: "kube-system", Name: arg(1)}, Status: "deployed"}
		for _, x := range f[2:] {
			switch k, v, _ := strings.Cut(x, "="); k {
			case "namespace":
				r.Namespace = v
			case "kept":
				r.Kept = "is kept"
			default:
				r.Status = x
			}
		}
		w.o.Left = append(w.o.Left, r)
	case "prune":
		w.d.Spec.Prune = true
	case "releases": // cannot be seen
		w.o.Releases = cluster.Unseen[map[string]cluster.Release]("connection refused")
	case "limit":
		w.p.Limits.Nodes, _ = strconv.Atoi(arg(1))
	case "charts":
		w.p.Charts = f[1:]
	case "doubt":
		w.p.Problems = cluster.Problems{{File: "policy.yaml", Line: 3, Column: 1, Message: `unknown key "bridge"`, Hint: "did you mean bridges?"}}
	case "release":
		rels := map[string]cluster.Release{}
		for k, v := range w.o.Releases.Value {
			rels[k] = v
		}
		if arg(2) == "none" { // any more
			delete(rels, arg(1))
			w.o.Releases = cluster.Saw(rels)
			break
		}
		rel := cluster.Release{Namespace: "kube-system", Status: arg(2), Digest: "forecast"}
		rel.Managed = slices.ContainsFunc(w.d.Spec.Addons, func(a cluster.Addon) bool { return a.Name == arg(1) && a.Ownership == cluster.Managed })
		for _, x := range f[3:] {
			switch x {
			case "ready":
				rel.Ready = true
			case "foreign":
				rel.Digest = ""
			case "kept":
				rel.Kept = "is kept"
			case "marked", "unmarked":
				rel.Managed = x == "marked"
			case "old":
				rel.Digest = "old"
			case "edited":
				rel.Digest, rel.Edited = "changed", true
			case "good":
				rel.Good = true
			case "rolled-back":
				rel.RolledBack = "forecast"
			case "refused":
				rel.Refused, rel.Why = true, `daemonset storage/longhorn: its pods are refused: violates PodSecurity "baseline:latest": privileged`
			}
			if what, ok := strings.CutPrefix(x, "missing="); ok {
				rel.Missing, rel.Changed = "deployment "+what, w.o.Now.Add(-time.Hour)
			}
			if what, ok := strings.CutPrefix(x, "altered="); ok {
				rel.Altered, rel.Changed = "deployment "+what+": spec.replicas 2 -> 0, changed by kubectl-edit at 2026-11-21 11:40 UTC", w.o.Now.Add(-time.Hour)
			}
			if what, ok := strings.CutPrefix(x, "again="); ok {
				rel.AlteredAgain = "configmap " + what + ": data.mode, changed by operator at 2026-11-21 11:40 UTC"
			}
			if age, ok := strings.CutPrefix(x, "age="); ok {
				rel.Changed = w.o.Now.Add(-parseAge(t, age))
			}
			if age, ok := strings.CutPrefix(x, "tried="); ok {
				rel.Tried = w.o.Now.Add(-parseAge(t, age))
			}
			if to, ok := strings.CutPrefix(x, "back="); ok {
				rel.Back = w.number(t, to)
			}
			if ns, ok := strings.CutPrefix(x, "namespace="); ok {
				rel.Namespace = ns
			}
		}
		rels[arg(1)] = rel
		w.o.Releases = cluster.Saw(rels)
	case "running":
		r := cluster.Running{ActionID: cluster.ActionID{Kind: cluster.ActionKind(strings.ReplaceAll(arg(1), "-", " ")), Subject: arg(2)}}
		if _, ok := w.d.Spec.Node(r.Subject); ok {
			r.Node, r.Claims = r.Subject, []cluster.Claim{cluster.ClaimNode(r.Subject)}
		}
		for _, s := range f[3:] {
			if age, ok := strings.CutPrefix(s, "for="); ok {
				r.Since = w.o.Now.Add(-parseAge(t, age))
				continue
			}
			if upid, ok := strings.CutPrefix(s, "task="); ok {
				r.UPID = upid
				continue
			}
			if s == "disrupts" {
				r.Node, r.Disrupts = r.Subject, true
				continue
			}
			host, storage, _ := strings.Cut(s, "/")
			claim := cluster.ClaimStorage(host, storage)
			if r.Kind == cluster.CreateVM {
				claim = cluster.ClaimCopy(host, storage)
			}
			r.Claims = append(r.Claims, claim)
		}
		w.o.Running = append(w.o.Running, r)
	case "others-task": // on pve1: type, VMID, age
		w.run(t, strings.TrimPrefix(line, "others-"))
		tasks := w.o.Hosts["pve1"].Tasks.Value
		tasks[len(tasks)-1].Ours = false
	case "task": // of ours, on pve1: type, VMID, age, the end of its log
		id, _ := strconv.Atoi(arg(2))
		h := w.o.Hosts["pve1"]
		h.Tasks = cluster.Saw(append(h.Tasks.Value, cluster.Task{UPID: "UPID:" + arg(1), Type: arg(1), VMID: id, Ours: true, Started: w.o.Now.Add(-parseAge(t, arg(3))), Log: []string{strings.Join(f[4:], " ")}}))
		w.o.Hosts["pve1"] = h
	case "usual":
		w.o.Usual = map[cluster.ActionKind]time.Duration{cluster.ActionKind(strings.ReplaceAll(arg(1), "-", " ")): parseAge(t, arg(2))}
	case "failed": // an action, so often in a row
		n, _ := strconv.Atoi(arg(3))
		w.o.Backoffs = append(w.o.Backoffs, cluster.Backoff{ActionID: cluster.ActionID{Kind: cluster.ActionKind(strings.ReplaceAll(arg(1), "-", " ")), Subject: arg(2)}, Failed: n, Until: w.o.Now.Add(time.Minute), Error: "no luck"})
	case "undone": // an action, by somebody else, so often in a row
		w.run(t, strings.Replace(line, "undone", "failed", 1))
		w.o.Backoffs[len(w.o.Backoffs)-1].Undone = true
	case "rest":
		w.o.Backoffs = append(w.o.Backoffs, cluster.Backoff{ActionID: cluster.ActionID{Kind: cluster.ActionKind(strings.ReplaceAll(arg(1), "-", " ")), Subject: arg(2)}, Failed: 1, Until: w.o.Now.Add(time.Minute), Error: "no space left"})
	case "step":
		return w.step().String()
	case "steps":
		var b strings.Builder
		for range 100 {
			p := w.step()
			for _, a := range p.Actions {
				fmt.Fprintln(&b, a.Info())
			}
			if p.Converged() {
				b.WriteString("converged\n")
				return b.String()
			}
		}
		return b.String() + "does not converge\n"
	case "plan":
		w.stage()
		return cmp.Or(Make(w.d, w.o, w.p).String(), "nothing\n")
	case "hints": // all that concerns the workers, with the hints of waits
		var b strings.Builder
		p := Make(w.d, w.o, w.p)
		for _, x := range p.Waiting {
			if strings.HasPrefix(x.Subject, "wk-") {
				fmt.Fprintf(&b, "wait   %s: %s [%s]\n", x.Subject, x.Message, x.Hint)
			}
		}
		for _, x := range p.Blocked {
			fmt.Fprintf(&b, "block  %s: %s [%s]\n", x.Subject, x.Message, x.Hint)
		}
		return b.String()
	case "phases":
		p := Make(w.d, w.o, w.p)
		var b strings.Builder
		for _, n := range w.d.Spec.Nodes {
			fmt.Fprintf(&b, "%s %s\n", n.Name, p.Phases[n.Name])
		}
		return b.String()
	case "forecast":
		w.stage()
		fc := Forecast(w.d, w.o, w.p)
		var b strings.Builder
		for _, note := range fc.Notes {
			fmt.Fprintf(&b, "note %s\n", note)
		}
		for _, s := range fc.Steps {
			fmt.Fprintf(&b, "%d %s\n", s.Round, s.Text)
		}
		for _, x := range fc.Waiting {
			fmt.Fprintf(&b, "wait %s: %s\n", x.Subject, x.Message)
		}
		for _, x := range fc.Blocked {
			fmt.Fprintf(&b, "block %s: %s\n", x.Subject, x.Message)
		}
		for _, x := range fc.Problems {
			fmt.Fprintln(&b, x)
		}
		return b.String()
	default:
		t.Fatalf("unknown command %q", line)
	}
	return ""
}

func (w *world) editNode(t testing.TB, n *cluster.Node, words []string) {
	for _, kv := range words {
		k, v, _ := strings.Cut(kv, "=")
		switch k {
		case "vmid":
			n.VMID, _ = strconv.Atoi(v)
		case "cores":
			n.Cores, _ = strconv.Atoi(v)
		case "memory": // GiB
			n.MemoryMiB = int64(w.number(t, v)) << 10
		case "disk": // GiB
			n.DiskBytes = int64(w.number(t, v)) << 30
		case "datastore":
			n.Datastore = v
		case "cloudinit":
			n.CloudInitDatastore = v
		case "image-datastore":
			n.ImageDatastore = v
		case "replace":
			n.Replace = v
		case "protect":
			n.Protect = true
		case "locked":
			n.Locked = true
		case "unlocked":
			n.Locked = false
		case "labels": // key:value
			n.Labels = readPairs(v)
		case "taints": // key:value:Effect
			n.Taints = readPairs(v)
		case "annotations": // key:value
			n.Annotations = readPairs(v)
		case "tags":
			n.Tags = strings.Split(v, ",")
		case "pool":
			n.Pool = v
		case "mac":
			n.MAC = v
		case "ip":
			n.IP = netip.MustParseAddr(v)
		case "host":
			n.Placement = cluster.Placement{Pin: v}
		case "among":
			n.Placement = cluster.Placement{Among: strings.Split(v, ",")}
		default:
			t.Fatalf("node: %q", kv)
		}
	}
}

// namesOf are the names of members.
func namesOf(members []cluster.Member) []string {
	var names []string
	for _, mem := range members {
		names = append(names, mem.Name)
	}
	return names
}

// answering are so many nodes whose members answer: those come first whose machines do.
func (w *world) answering(t testing.TB, count int) []string {
	names := slices.DeleteFunc(namesOf(w.o.Members.Value), func(name string) bool { return name == "" })
	slices.SortStableFunc(names, func(a, b string) int {
		silent := func(name string) int { return map[bool]int{true: 1}[w.o.Machines[name].Reach != cluster.Configured] }
		return silent(a) - silent(b)
	})
	if count > len(names) {
		t.Fatalf("%d of %d members are asked", count, len(names))
	}
	return names[:count]
}

func (w *world) editKubeNode(t testing.TB, kn *cluster.KubeNode, words []string) {
	for _, kv := range words {
		switch k, v, _ := strings.Cut(kv, "="); k {
		case "cordoned":
			kn.Cordoned = v == "" || v == "true"
		case "turn":
			kn.Turn = v
		case "adopted":
			kn.Adopted = true
		case "drained":
			kn.Drained = v
		case "uuid":
			kn.UUID = v
		case "boot":
			kn.BootID = v
		case "kubelet": // its version
			kn.Kubelet = v
		case "ready":
			kn.Ready = v == "" || v == "true"
		case "not-ready-for":
			kn.Ready, kn.NotReadySince = false, w.o.Now.Add(-parseAge(t, v))
		default:
			t.Fatalf("node-is: %q", kv)
		}
	}
}

// static has a control plane want a static pod of a version. Kubernetes has no pod of it, or one of a
// version that is ready, or not ready, and why.
func (w *world) static(t testing.TB, node, name, version string, shown []string) {
	t.Helper()
	w.o = effect.Clone(w.o)
	m, pods := w.o.Machines[node], cloneMap(w.o.SystemPods.Value)
	m.StaticPods = cloneMap(m.StaticPods)
	m.StaticPods[name] = cluster.StaticPod{Image: "registry.k8s.io/" + name + ":v1.36.1", Versions: version}
	w.o.Machines[node] = m
	p := cluster.SystemPod{Name: name + "-" + node, Workload: name, Node: node, Static: m.StaticPods[name]}
	delete(pods, p.Name)
	if len(shown) > 0 {
		var ready string
		p.Static.Versions, ready, _ = strings.Cut(shown[0], ",")
		p.Ready, p.Failing = ready == "ready", strings.Join(shown[1:], " ")
		pods[p.Name] = p
	}
	w.o.SystemPods = cluster.Saw(pods)
}

// readPairs reads key:value,key:value.
func readPairs(text string) map[string]string {
	out := map[string]string{}
	for _, pair := range strings.Split(text, ",") {
		if key, value, ok := strings.Cut(pair, ":"); ok {
			out[key] = value
		}
	}
	return out
}

func (w *world) host(t testing.TB, words []string) {
	h := w.o.Hosts["pve1"]
	for _, x := range words {
		switch x {
		case "pve2": // there is another
			w.o.Hosts[x] = cluster.Host{Name: x, Known: true}
		case "pve9": // is named, and there is none
			w.o.Hosts[x] = cluster.Host{Name: x, Why: "Proxmox VE knows no host pve9"}
		case "unknown":
			h = cluster.Host{Name: "pve1", Why: "connection refused"}
		case "maintained":
			h.Maintained = true
		case "noquorum":
			h.Quorate = cluster.Saw(false)
		case "unasked": // whether it has a quorum
			h.Quorate = cluster.Seen[bool]{}
		case "coreless": // how many cores it has is not known
			h.Cores = 0
		case "unmeasured": // how much memory it has is not known
			h.MemoryBytes = 0
		case "noiso":
			h.Storages = cluster.Saw(map[string]cluster.Storage{"local": {Active: true, Content: []string{"import"}}, "local-lvm": {Active: true, Content: []string{"images"}}})
		case "noimport":
			h.Storages = cluster.Saw(map[string]cluster.Storage{"local": {Active: true, Content: []string{"iso"}}, "local-lvm": {Active: true, Content: []string{"images"}}})
		default:
			t.Fatalf("host: %q", x)
		}
	}
	w.o.Hosts["pve1"] = h
}

func (w *world) editVM(t testing.TB, name string, words []string) {
	n, ok := w.d.Spec.Node(name)
	if !ok {
		t.Fatalf("no node %q", name)
	}
	vm := w.vm(n)
	for _, x := range words {
		k, v, _ := strings.Cut(x, "=")
		switch k {
		case "absent":
			vm = cluster.VM{VMID: n.VMID, Node: name, Presence: cluster.Absent}
		case "unknown":
			vm = cluster.VM{VMID: n.VMID, Node: name, Why: "596 no route to host"}
		case "unasked":
			vm = cluster.VM{VMID: n.VMID, Node: name}
		case "unowned": // it is there, and its config cannot be read
			vm = cluster.VM{VMID: n.VMID, Node: name, Host: n.Placement.Pin, Presence: cluster.Present, Why: "403 permission check failed"}
		case "foreign":
			vm.Owner, vm.Why = cluster.Foreign, "it is not in pool talos"
		case "disproven":
			vm.Disproven = true
		case "medium":
			vm.Hardware.Value.Medium = v
		case "stopped":
			vm.Power = cluster.Stopped
		case "running":
			vm.Power, vm.Uptime = cluster.PowerRunning, 20*time.Second
		case "old":
			vm.Uptime = time.Hour
		case "paused":
			vm.Power, vm.Halted = cluster.Paused, v
		case "untagged":
			vm.Tags = nil
		case "unfinished":
			vm.Power, vm.Tags = cluster.Stopped, nil
			vm.Hardware.Value.System.Bytes = 1246 << 20
		case "lock":
			vm.Lock = v
		case "protected":
			vm.Protected = true
		case "managed":
			vm.Managed = true
		case "task": // of somebody's
			vm.Task = &cluster.Task{Type: v, VMID: n.VMID, Started: w.o.Now}
		case "configless": // its config cannot be read
			vm.Hardware = cluster.Unseen[cluster.Hardware]("596 broken pipe")
		case "others":
			key, volume, _ := strings.Cut(v, "=")
			vm.Others = append(vm.Others, cluster.Drive{Key: key, Volume: volume, Own: strings.Contains(volume, fmt.Sprintf("vm-%d-", n.VMID))})
		case "diskless":
			vm.Hardware.Value.System = cluster.DiskSeen{}
		case "creating":
			vm = cluster.VM{VMID: n.VMID, Node: name, Presence: cluster.Present, Lock: "create", Task: &cluster.Task{Type: "qmcreate", VMID: n.VMID}}
		case "deleting":
			vm.Deleting, vm.Power = true, cluster.Stopped
		case "token": // that it was made for
			vm.Replace = v
		case "cores":
			vm.Hardware.Value.Cores, _ = strconv.Atoi(v)
		case "memory": // GiB
			vm.Hardware.Value.MemoryMiB = int64(w.number(t, v)) << 10
		case "bridge":
			vm.Hardware.Value.Bridge = v
		case "stored": // its system disk
			vm.Hardware.Value.System.Datastore = v
		case "address":
			vm.Hardware.Value.Address = v
		case "tags":
			vm.Tags = strings.Split(v, ",")
		case "moved": // to another pool, or out of all
			vm.Owner, vm.Moved, vm.Pool, vm.Hardware = cluster.Foreign, true, v, cluster.Seen[cluster.Hardware]{}
		case "on":
			vm.Host = v
		default:
			t.Fatalf("vm: %q", x)
		}
	}
	w.o.VMs[name] = vm
}

func (w *world) editMachine(t testing.TB, name string, words []string) {
	m := cluster.Machine{Services: map[string]cluster.Service{}}
	for _, x := range words {
		k, v, _ := strings.Cut(x, "=")
		switch k {
		case "silent":
			m.Reach = cluster.Silent
		case "wasready":
			m.ReadyAt = w.o.Now.Add(-5 * time.Second)
		case "unknown":
			m.Why = "not asked yet"
		case "maintenance":
			m.Reach = cluster.Maintenance
		case "stranger":
			m.Reach, m.Why = cluster.Unexpected, "its UUID is another"
		case "signed-by-another":
			m.Reach, m.OtherAuthority, m.Why = cluster.Unexpected, true, "its certificate is signed by another authority"
		case "configured":
			m.Reach, m.Stage, m.Talos, m.ConfigDigest = cluster.Configured, "booting", "v1.13.9", "config-"+name
		case "stage":
			m.Stage = v
		case "boot":
			m.BootID = v
		case "asked": // what the config of the inventory takes
			m.Change = &cluster.Change{For: w.d.Configs[name].Digest, Reboots: v == "reboots"}
			switch v {
			case "network":
				m.Change.Reboots, m.Change.Network = true, m.ConfigDigest+"+"+m.Change.For
			case "refused":
				m.Change.Refused = "unknown keys found during decoding"
			case "lacks", "lacks-and-reboots":
				m.Change.Lacks, m.Change.Reboots = "ghcr.io/siderolabs/kubelet:v1.36.1-fat", v != "lacks"
			}
		case "ready":
			m.Ready = true
		case "talos":
			m.Talos = v
		case "config":
			m.ConfigDigest = v
		case "etcd":
			st, healthy := strings.CutSuffix(v, "+")
			m.Services["etcd"] = cluster.Service{State: st, Healthy: healthy}
		default:
			t.Fatalf("machine: %q", x)
		}
	}
	w.o.Machines[name] = m
}

func (w *world) facts(t testing.TB, words []string) {
	for _, x := range words {
		k, v, _ := strings.Cut(x, "=")
		switch k {
		case "suspended":
			w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendSuspend})
		case "destroying":
			in := cluster.Intent{Kind: cluster.IntendDestroy}
			if v != "" {
				id, _ := strconv.Atoi(v)
				in.Despite = []int{id}
			}
			w.o.Facts.Intend(in)
		case "shown":
			in, _ := w.o.Facts.Intent(cluster.IntendDestroy)
			in.VMs = nil
			for _, text := range strings.Split(v, ",") {
				id, _ := strconv.Atoi(text)
				in.VMs = append(in.VMs, id)
			}
			w.o.Facts.Intend(in)
		case "since":
			in, _ := w.o.Facts.Intent(cluster.IntendDestroy)
			in.At = w.o.Now.Add(-parseAge(t, v))
			w.o.Facts.Intend(in)
		case "canary-just-now":
			in, _ := w.o.Facts.Intent(cluster.IntendCanary)
			in.At = w.o.Now
			w.o.Facts.Intend(in)
		case "installed": // an addon, in kube-system
			w.o.Facts.Installed = append(slices.Clone(w.o.Facts.Installed), "kube-system/"+v)
		case "was-ready":
			w.o.Facts.Intend(cluster.Intent{Kind: cluster.SeenReady})
		case "lost":
			w.o.Facts.Lost = true
		case "bootstrap":
			n, _ := w.d.Spec.Node(v)
			w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, Node: v, UUID: n.UUID})
		case "done":
			in, _ := w.o.Facts.Intent(cluster.IntendBootstrap)
			in.Done = true
			w.o.Facts.Intend(in)
		case "fingerprint":
			w.o.Facts.Fingerprint = v
		default:
			t.Fatalf("facts: %q", x)
		}
	}
}

func parseAge(t testing.TB, text string) time.Duration {
	t.Helper()
	age, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return age
}

// cloneMap copies a map to write to, even where there is none yet.
func cloneMap[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return maps.Clone(m)
}

// setGate sets what was seen of a gate: holds, closed, unknown, or unseen.
func (w *world) setGate(name, seen string) {
	if w.o.Gates == nil {
		w.o.Gates = map[string]cluster.Seen[bool]{}
	}
	switch seen {
	case "holds", "closed":
		w.o.Gates[name] = cluster.Saw(seen == "holds")
	case "unknown":
		w.o.Gates[name] = cluster.Unseen[bool]("no such key: ok")
	}
}

// setHA has the inventory ask for high availability, and Proxmox VE's HA manager hold what it holds.
func (w *world) setHA(t testing.TB, words []string) {
	t.Helper()
	have := w.o.Availability.Value
	have.Resources, have.HasRules = maps.Clone(have.Resources), true
	if have.Resources == nil {
		have.Resources = map[int]availability.Resource{}
	}
	known := true
	for _, word := range words {
		key, v, _ := strings.Cut(word, "=")
		switch key {
		case "on", "off":
			w.d.Spec.Availability, w.p.HA = key == "on", true
		case "forbidden":
			w.p.HA = false
		case "unknown":
			known = false
		case "groups":
			have.HasRules = false
			w.d.Spec.HAGroup = v
		case "rules":
		case "disarmed": // freeze or ignore, "" : armed; VMs that it has are as it treats them
			have.Disarmed = availability.Mode(v)
			w.disarmVMs(have)
		case "rule":
			have.Apart = &availability.Rule{Disabled: v == "disabled", Together: v == "together", Broken: map[string]string{"broken": "rule shares two or more resources with a positive resource affinity rule"}[v]}
			for _, n := range w.d.Spec.ControlPlanes() {
				have.Apart.VMs = append(have.Apart.VMs, n.VMID)
			}
		default: // a VM
			state, foreign := strings.CutSuffix(v, "\"")
			id := w.number(t, key)
			have.Resources[id] = availability.Resource{State: availability.State(state), Own: !foreign}
			for name, vm := range w.o.VMs {
				if vm.VMID == id {
					vm.Managed, vm.HA = state != "ignored", state
					w.o.VMs[name] = vm
				}
			}
		}
	}
	w.o.Availability = cluster.Seen[availability.Manager]{Known: known, Why: "403 Permission check failed (/, Sys.Audit)", Value: have}
}

// disarmVMs has the VMs that the HA manager has be as they are while it is disarmed, or armed again.
func (w *world) disarmVMs(m availability.Manager) {
	for name, vm := range w.o.VMs {
		if r, there := m.Resources[vm.VMID]; there && r.State != availability.Ignored {
			vm.Managed, vm.HA = m.Disarmed != availability.Ignore, string(r.State)
			if m.Disarmed == availability.Freeze {
				vm.HA = "freeze"
			}
			w.o.VMs[name] = vm
		}
	}
}
