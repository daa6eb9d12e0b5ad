package inventory

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// treeOf turns the files of an archive into a file system.
func treeOf(a *txtar.Archive) fstest.MapFS {
	fsys := fstest.MapFS{}
	for _, f := range a.Files {
		if f.Name != "want" && f.Name != "secrets" {
			fsys[f.Name] = &fstest.MapFile{Data: f.Data}
		}
	}
	return fsys
}

func section(a *txtar.Archive, name string) ([]byte, bool) {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data, true
		}
	}
	return nil, false
}

// TestLoad runs every archive of testdata/load: an input tree, optionally the
// decrypted secrets, and what comes of it. An archive that lacks cluster.yaml or
// nodes.yaml takes that of the smallest valid cluster, so that a case shows only
// what it is about.
func TestLoad(t *testing.T) {
	files, err := filepath.Glob("testdata/load/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := loadArchive(a)
			if golden.Update() {
				a.Files = slices.DeleteFunc(a.Files, func(f txtar.File) bool { return f.Name == "want" })
				a.Files = append(a.Files, txtar.File{Name: "want", Data: []byte(got)})
				golden.Write(t, file, txtar.Format(a))
				return
			}
			want, _ := section(a, "want")
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

const (
	smallCluster = `cluster_name: dev
talos_version: v1.13.9
kubernetes_version: v1.36.1
network: {cidr: 10.10.0.0/24, gateway: 10.10.0.1}
proxmox: {node: pve1}
`
	smallNodes = `controlplane:
  - {name: cp-1, ip: 10.10.0.11}
`
)

func loadArchive(a *txtar.Archive) string {
	fsys := treeOf(a)
	dir := "inventory/dev"
	for _, line := range strings.Split(string(a.Comment), "\n") {
		if d, ok := strings.CutPrefix(line, "dir: "); ok {
			dir = d
		}
	}
	for name, small := range map[string]string{ClusterFile: smallCluster, NodesFile: smallNodes} {
		if _, ok := fsys[dir+"/"+name]; !ok && !strings.Contains(string(a.Comment), "exactly these files") {
			fsys[dir+"/"+name] = &fstest.MapFile{Data: []byte(small)}
		}
	}
	opts := Options{Owner: "talos-agent", Revision: "main@sha1:0123456789abcdef0123456789abcdef01234567"}
	var out strings.Builder
	if plain, ok := section(a, "secrets"); ok {
		s, problems := ParseSecrets(dir+"/"+SecretsFile, plain)
		for _, p := range problems {
			fmt.Fprintln(&out, p)
		}
		if problems.HasErrors() {
			return out.String()
		}
		opts.Secrets = &s
	}
	snap, problems := Load(fsys, dir, opts)
	for _, p := range problems {
		fmt.Fprintln(&out, p)
	}
	if !problems.HasErrors() {
		dump(&out, snap)
	}
	return out.String()
}

// dump prints a snapshot so that every decision of the loader shows.
func dump(out *strings.Builder, snap cluster.Snapshot) {
	s := snap.Spec
	n := s.Network
	fmt.Fprintf(out, "cluster %s id %s talos %s kubernetes %s contract %s cni %s ha %v\n", s.Name, s.ID, s.Versions.Talos, s.Versions.Kubernetes, s.Versions.Contract, s.CNI, s.HA)
	fmt.Fprintf(out, "network %s cidr %v gateway %v dns %v ntp %v pods %s services %s vip %v endpoint %s sans %v vlan %d\n",
		n.Mode, n.CIDR, n.Gateway, n.Nameservers, n.TimeServers, n.PodCIDR, n.ServiceCIDR, n.VIP, n.Endpoint, n.CertSANs, n.VLAN)
	if n.IPv6.On() {
		fmt.Fprintf(out, "IPv6 cidr %s gateway %v pods %s services %s\n", n.IPv6.CIDR, n.IPv6.Gateway, n.IPv6.Pods, n.IPv6.Services)
	}
	fmt.Fprintf(out, "image extensions %v args %v installer %s mirrors %v\n", s.Schematic.Extensions, s.Schematic.ExtraKernelArgs, s.InstallerRegistry, s.Mirrors)
	if len(s.Capacity) > 0 {
		fmt.Fprintf(out, "capacity %v\n", s.Capacity)
	}
	if s.Prune {
		fmt.Fprintln(out, "prune")
	}
	if s.ReplaceDead != (cluster.ReplaceDead{}) || s.Switches != (cluster.Switches{}) || s.MaxUnavailable > 0 || s.Drain != (cluster.Drain{}) {
		fmt.Fprintf(out, "switches %+v max unavailable %d drain %+v window %s dead %v canary %q soak %s\n", s.Switches, s.MaxUnavailable, s.Drain, s.Window, s.ReplaceDead, s.Canary, s.Soak)
	}
	for _, g := range s.Gates {
		fmt.Fprintf(out, "gate %+v\n", g)
	}
	for _, n := range s.Nodes {
		fmt.Fprintf(out, "node %s %s %s vmid %d mac %s uuid %s\n", n.Name, n.Role, n.IP, n.VMID, n.MAC, n.UUID)
		fmt.Fprintf(out, "  on %s pool %q bridge %s stores %s %s %s scsi %s\n", strings.Join(n.Placement.Hosts(), " or "), n.Pool, n.Bridge, n.Datastore, n.ImageDatastore, n.CloudInitDatastore, n.SCSIHardware)
		fmt.Fprintf(out, "  %d x %s, %d MiB, disk %s, tags %v labels %v taints %v protect %v locked %v\n", n.Cores, n.CPUType, n.MemoryMiB, yamlschema.Size(n.DiskBytes), n.Tags, n.Labels, n.Taints, n.Protect, n.Locked)
		if n.IP6.IsValid() {
			fmt.Fprintf(out, "  and %s\n", n.IP6)
		}
		if len(n.Annotations) > 0 {
			fmt.Fprintf(out, "  annotations %v\n", n.Annotations)
		}
		for _, d := range n.Disks {
			fmt.Fprintf(out, "  disk %s %s on %s serial %s\n", d.Name, yamlschema.Size(d.Bytes), d.Datastore, d.Serial)
		}
		if n.NetworkCard != "" {
			fmt.Fprintf(out, "  network card %s\n", n.NetworkCard)
		}
		for i, c := range n.Devices.Cards {
			if c.Address.IsValid() {
				fmt.Fprintf(out, "  address of network card %d %s\n", i+1, c.Address)
			}
		}
		for _, field := range slices.Sorted(maps.Keys(n.Options)) {
			fmt.Fprintf(out, "  %s: %s\n", field, n.Options[field])
		}
		for _, p := range n.Patches {
			fmt.Fprintf(out, "  patch %s\n", p.File)
		}
	}
	seen := map[string]bool{}
	for _, n := range s.Nodes {
		for _, p := range n.Patches {
			if !seen[p.File] {
				seen[p.File] = true
				fmt.Fprintf(out, "patch %s\n%s", p.File, indent(p.Document.RevealString()))
			}
		}
	}
	for _, a := range s.Addons {
		fmt.Fprintf(out, "addon %s in %s chart %s name %s version %s digest %q files %v %s ready %s after %v from %s\n", a.Name, a.Namespace, a.Chart.Ref(), a.Chart.Name, a.Chart.Version,
			a.Chart.Digest, slices.Sorted(maps.Keys(a.Chart.Files)), a.Ownership, a.ReadyAfter, a.DependsOn, a.File)
		if !a.Asks.IsZero() {
			fmt.Fprintf(out, "  namespace labels %v annotations %v\n", a.Asks.Labels, a.Asks.Annotations)
		}
		fmt.Fprintf(out, "  values %s\n", a.Values.RevealString())
	}
	if !snap.Bundle.IsZero() {
		fmt.Fprintf(out, "bundle\n%s", indent(snap.Bundle.RevealString()))
	}
}

func indent(s string) string {
	return "  | " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n  | ") + "\n"
}
