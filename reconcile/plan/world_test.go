package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// world is a desired state and an observation that scenario commands edit.
type world struct {
	d cluster.Desired
	o cluster.Observed
	p cluster.Policy
}

const imageName = "talos-v1.13.9-376567988ad3-nocloud-amd64.qcow2"

// newWorld is an empty host, fully seen, and a cluster of the given size.
func newWorld(cps, workers int) *world {
	id := cluster.ClusterID("talos-agent", "dev")
	s := cluster.Spec{ID: id, Name: "dev", CNI: cluster.CNIFlannel,
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
			Hosts: map[string]cluster.Host{"pve1": {Name: "pve1", Known: true, PVE: "9.2.11", Quorate: cluster.Saw(true), Cores: 16, MemoryBytes: 64 << 30,
				Images: cluster.Saw(map[string]int64{}), Tasks: cluster.Saw[[]cluster.Task](nil),
				Storages: cluster.Saw(map[string]cluster.Storage{
					"local": {Active: true, Content: []string{"iso", "import"}}, "local-lvm": {Active: true, Content: []string{"images"}}})}},
			VMs: map[string]cluster.VM{}, Machines: map[string]cluster.Machine{}, APIs: map[string]cluster.Seen[bool]{}, Charts: map[string]cluster.Seen[cluster.Fetched]{},
			Orphans: cluster.Saw[[]cluster.VM](nil), ImageCached: cluster.Saw(false),
			Members: cluster.Unseen[[]cluster.Member]("no control plane answers"),
			Nodes:   cluster.Unseen[map[string]cluster.KubeNode]("no kube-apiserver answers"), Releases: cluster.Unseen[map[string]cluster.Release]("no kube-apiserver answers"),
		},
		p: cluster.Policy{File: "policy.yaml", Pool: "talos", VMIDs: []cluster.Range{{First: 400, Last: 599}}, Lines: map[string]int{"pool": 1, "vmids": 2, "limits.nodes": 5}},
	}
	w.refresh()
	return w
}

// refresh fills what follows from the spec: configs, absent VMs, silent machines.
func (w *world) refresh() {
	for _, n := range w.d.Spec.Nodes {
		if _, ok := w.o.VMs[n.Name]; !ok {
			w.o.VMs[n.Name] = cluster.VM{VMID: n.VMID, Node: n.Name, Presence: cluster.Absent}
			w.o.Machines[n.Name] = cluster.Machine{Reach: cluster.Silent}
		}
		w.d.Configs[n.Name] = cluster.Config{Digest: "config-" + n.Name}
	}
}

func (w *world) vm(n cluster.Node) cluster.VM {
	return cluster.VM{VMID: n.VMID, Node: n.Name, Name: n.Name, Host: n.Placement.Pin, Presence: cluster.Present, Owner: cluster.Ours,
		Tags: []string{cluster.OwnTag}, Hardware: cluster.Saw(WantHardware(w.d.Spec, n))}
}

// step applies one plan and lets the world settle, as Forecast does.
func (w *world) step() Plan {
	p := Make(w.d, w.o, w.p)
	w.o = clone(w.o)
	for _, a := range p.Actions {
		effect(&w.d, &w.o, a)
	}
	if len(p.Actions) == 0 {
		settle(w.d, &w.o)
	}
	return p
}

// run carries out one scenario command and returns what it prints.
func (w *world) run(t *testing.T, line string) string {
	t.Helper()
	f := strings.Fields(line)
	arg := func(i int) string {
		if i >= len(f) {
			t.Fatalf("%q: argument %d is missing", line, i)
		}
		return f[i]
	}
	switch f[0] {
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
			}
		}
		w.d.Spec.Addons = append(w.d.Spec.Addons, a)
	case "node":
		for i := range w.d.Spec.Nodes {
			if n := &w.d.Spec.Nodes[i]; n.Name == arg(1) {
				w.editNode(t, n, f[2:])
			}
		}
	case "host":
		w.host(t, f[1:])
	case "vm":
		w.editVM(t, arg(1), f[2:])
	case "machine":
		w.editMachine(t, arg(1), f[2:])
	case "image":
		switch arg(1) {
		case "cached":
			w.o.ImageCached = cluster.Saw(true)
		case "stored":
			h := w.o.Hosts["pve1"]
			h.Images = cluster.Saw(map[string]int64{imageName: 200704})
			w.o.Hosts["pve1"] = h
		case "pinned":
			w.o.Facts.Images = map[string]cluster.ImagePin{imageName: {Bytes: 1}}
		}
	case "schematic":
		w.d.Schematic, w.d.Image, w.d.Configs = "", cluster.Image{}, nil
	case "facts":
		w.facts(t, f[1:])
	case "secrets":
		w.d.Bundle = cluster.Secret{}
	case "orphan":
		n := cluster.Node{Name: arg(1), VMID: 599, Placement: cluster.Placement{Pin: "pve1"}, Datastore: "local-lvm"}
		vm := w.vm(n)
		vm.Power = cluster.PowerRunning
		w.o.Orphans = cluster.Saw([]cluster.VM{vm})
	case "kubernetes": // does not answer any more
		w.o.Nodes = cluster.Unseen[map[string]cluster.KubeNode]("connection refused")
		for name := range w.o.APIs {
			w.o.APIs[name] = cluster.Unseen[bool]("connection refused")
		}
	case "orphans":
		w.o.Orphans = cluster.Unseen[[]cluster.VM]("403 permission check failed")
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
		rel := cluster.Release{Namespace: "kube-system", Status: arg(2), Digest: "forecast"}
		for _, x := range f[3:] {
			switch x {
			case "ready":
				rel.Ready = true
			case "foreign":
				rel.Digest = ""
			case "old":
				rel.Digest = "old"
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
			host, storage, _ := strings.Cut(s, "/")
			r.Claims = append(r.Claims, cluster.ClaimStorage(host, storage))
		}
		w.o.Running = append(w.o.Running, r)
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
		return cmp.Or(Make(w.d, w.o, w.p).String(), "nothing\n")
	case "phases":
		p := Make(w.d, w.o, w.p)
		var b strings.Builder
		for _, n := range w.d.Spec.Nodes {
			fmt.Fprintf(&b, "%s %s\n", n.Name, p.Phases[n.Name])
		}
		return b.String()
	case "forecast":
		fc := Forecast(w.d, w.o, w.p)
		var b strings.Builder
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

func (w *world) editNode(t *testing.T, n *cluster.Node, words []string) {
	for _, kv := range words {
		k, v, _ := strings.Cut(kv, "=")
		switch k {
		case "vmid":
			n.VMID, _ = strconv.Atoi(v)
		case "cores":
			n.Cores, _ = strconv.Atoi(v)
		case "datastore":
			n.Datastore = v
		case "protect":
			n.Protect = true
		case "locked":
			n.Locked = true
		case "host":
			n.Placement.Pin = v
		default:
			t.Fatalf("node: %q", kv)
		}
	}
}

func (w *world) host(t *testing.T, words []string) {
	h := w.o.Hosts["pve1"]
	for _, x := range words {
		switch x {
		case "pve2": // there is another
			w.o.Hosts[x] = cluster.Host{Name: x, Known: true}
		case "pve9": // is named, and there is none
			w.o.Hosts[x] = cluster.Host{Name: x, Why: "Proxmox VE knows no host pve9"}
		case "unknown":
			h = cluster.Host{Name: "pve1", Why: "connection refused"}
		case "noquorum":
			h.Quorate = cluster.Saw(false)
		case "noimport":
			h.Storages = cluster.Saw(map[string]cluster.Storage{"local": {Active: true, Content: []string{"iso"}}, "local-lvm": {Active: true, Content: []string{"images"}}})
		default:
			t.Fatalf("host: %q", x)
		}
	}
	w.o.Hosts["pve1"] = h
}

func (w *world) editVM(t *testing.T, name string, words []string) {
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
		case "foreign":
			vm.Owner, vm.Why = cluster.Foreign, "it is not in pool talos"
		case "stopped":
			vm.Power = cluster.Stopped
		case "running":
			vm.Power, vm.Uptime = cluster.PowerRunning, 20*time.Second
		case "old":
			vm.Uptime = time.Hour
		case "paused":
			vm.Power = cluster.Paused
		case "unfinished":
			vm.Power, vm.Tags = cluster.Stopped, nil
			vm.Hardware.Value.System.Bytes = 1246 << 20
		case "lock":
			vm.Lock = v
		case "creating":
			vm = cluster.VM{VMID: n.VMID, Node: name, Presence: cluster.Present, Lock: "create", Task: &cluster.Task{Type: "qmcreate", VMID: n.VMID}}
		case "deleting":
			vm.Deleting, vm.Power = true, cluster.Stopped
		case "cores":
			vm.Hardware.Value.Cores, _ = strconv.Atoi(v)
		case "on":
			vm.Host = v
		default:
			t.Fatalf("vm: %q", x)
		}
	}
	w.o.VMs[name] = vm
}

func (w *world) editMachine(t *testing.T, name string, words []string) {
	m := cluster.Machine{Services: map[string]cluster.Service{}}
	for _, x := range words {
		k, v, _ := strings.Cut(x, "=")
		switch k {
		case "silent":
			m.Reach = cluster.Silent
		case "unknown":
			m.Why = "not asked yet"
		case "maintenance":
			m.Reach = cluster.Maintenance
		case "stranger":
			m.Reach, m.Why = cluster.Unexpected, "its UUID is another"
		case "configured":
			m.Reach, m.Stage, m.Talos, m.ConfigDigest = cluster.Configured, "booting", "v1.13.9", "config-"+name
		case "stage":
			m.Stage = v
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

func (w *world) facts(t *testing.T, words []string) {
	for _, x := range words {
		k, v, _ := strings.Cut(x, "=")
		switch k {
		case "suspended":
			w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendSuspend})
		case "destroying":
			w.o.Facts.Intend(cluster.Intent{Kind: cluster.IntendDestroy})
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
