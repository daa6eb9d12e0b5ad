package inventory

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// The alphabets of what reaches Proxmox VE, written down a second time: the
// tables of the loader must not be able to widen them unnoticed.
var (
	identifier = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)
	poolID     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]*$`)
	dnsLabel   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	pveTag     = regexp.MustCompile(`^[a-z0-9_][a-z0-9_.+-]*$`)
)

// checkSnapshot states what holds of every snapshot that Load lets through,
// whatever the files were.
func checkSnapshot(t testing.TB, snap cluster.Snapshot) {
	t.Helper()
	s := snap.Spec
	fail := func(format string, args ...any) { t.Helper(); t.Errorf(format, args...) }
	if !dnsLabel.MatchString(s.Name) || s.ID != cluster.ClusterID(DefaultOwner, s.Name) {
		fail("cluster %q has id %q", s.Name, s.ID)
	}
	if len(s.ControlPlanes()) == 0 || s.HA && len(s.ControlPlanes())%2 == 0 {
		fail("%d control planes, ha %v", len(s.ControlPlanes()), s.HA)
	}
	n := s.Network
	if n.PodCIDR.Overlaps(n.ServiceCIDR) || n.CIDR.IsValid() && (n.CIDR.Overlaps(n.PodCIDR) || n.CIDR.Overlaps(n.ServiceCIDR)) {
		fail("networks overlap: %v", n)
	}
	if n.Mode == cluster.AddressStatic && (!n.CIDR.IsValid() || !n.CIDR.Contains(n.Gateway)) {
		fail("static addresses without a network: %v", n)
	}
	if !strings.HasPrefix(n.Endpoint, "https://") {
		fail("endpoint %q", n.Endpoint)
	}
	vmids, ips, macs, names := map[int]bool{}, map[netip.Addr]bool{}, map[string]bool{}, map[string]bool{}
	role := cluster.ControlPlane
	for _, node := range s.Nodes {
		if role == cluster.Worker && node.Role == cluster.ControlPlane {
			fail("a control plane behind a worker")
		}
		role = node.Role
		for what, id := range map[string]string{"host": node.Placement.Pin, "bridge": node.Bridge, "datastore": node.Datastore,
			"image datastore": node.ImageDatastore, "cloud-init datastore": node.CloudInitDatastore, "cpu": node.CPUType} {
			if !identifier.MatchString(id) {
				fail("%s of %s is %q", what, node.Name, id)
			}
		}
		if node.Pool != "" && !poolID.MatchString(node.Pool) {
			fail("pool %q", node.Pool)
		}
		for _, tag := range node.Tags {
			if !pveTag.MatchString(tag) {
				fail("tag %q", tag)
			}
		}
		if !slices.IsSorted(node.Tags) || !slices.Contains(node.Tags, cluster.OwnTag) {
			fail("tags %q", node.Tags)
		}
		hw, err := net.ParseMAC(node.MAC)
		if err != nil || hw[0]&1 == 1 || strings.ToUpper(node.MAC) != node.MAC {
			fail("mac %q", node.MAC)
		}
		if !dnsLabel.MatchString(node.Name) || node.UUID != cluster.NodeUUID(s.ID, node.Name) {
			fail("node %q has uuid %q", node.Name, node.UUID)
		}
		if node.VMID < yamlschema.MinVMID || node.VMID > yamlschema.MaxVMID || node.Cores < 1 || node.MemoryMiB < 1024 || node.DiskBytes < int64(10*yamlschema.GiB) {
			fail("hardware of %s: %+v", node.Name, node)
		}
		if !node.IP.Is4() || n.CIDR.IsValid() && !n.CIDR.Contains(node.IP) || node.IP == n.Gateway || node.IP == n.VIP {
			fail("address %s of %s in %v", node.IP, node.Name, n)
		}
		if vmids[node.VMID] || ips[node.IP] || macs[node.MAC] || names[node.Name] {
			fail("%s shares something: %+v", node.Name, node)
		}
		if six := n.IPv6; six.On() != node.IP6.IsValid() || six.On() && (!six.CIDR.Contains(node.IP6) || node.IP6 == six.Gateway || node.IP6 == six.CIDR.Addr() || ips[node.IP6] || len(six.Check()) > 0 || n.Mode != cluster.AddressStatic) {
			fail("IPv6 address %s of %s in %+v", node.IP6, node.Name, n)
		}
		ips[node.IP6] = node.IP6.IsValid()
		vmids[node.VMID], ips[node.IP], macs[node.MAC], names[node.Name] = true, true, true, true
		for _, d := range node.Disks {
			if len(d.Serial) > 20 || !identifier.MatchString(d.Serial) || !identifier.MatchString(d.Datastore) || d.Bytes <= 0 {
				fail("disk %+v", d)
			}
		}
		if snap.Where["nodes."+node.Name].Line == 0 {
			fail("%s stands nowhere", node.Name)
		}
	}
	for _, a := range s.Addons {
		if !json.Valid(a.Values.Reveal()) {
			fail("values of %s are not JSON", a.Name)
		}
	}
	if snap.Warnings.HasErrors() {
		fail("errors among the warnings")
	}
}

// checkProblems states what holds of every list of problems.
func checkProblems(t testing.TB, problems cluster.Problems) {
	t.Helper()
	if len(problems) > 2*yamlschema.MaxErrors+2 {
		t.Errorf("%d problems", len(problems))
	}
	for _, p := range problems {
		if p.File == "" || p.Message == "" || p.Line < 0 || p.Column < 0 {
			t.Errorf("incomplete problem %+v", p)
		}
		if text := p.String(); strings.ContainsAny(text, "\n\r\x00\x1b") || len(text) > 2000 {
			t.Errorf("unprintable problem %q", text)
		}
	}
}

// shapeOfYAML prints the structure of a YAML tree: kinds and the number of
// children, but no texts.
func shapeOfYAML(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode {
		return "s"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d(", n.Kind)
	for _, c := range n.Content {
		b.WriteString(shapeOfYAML(c))
	}
	b.WriteByte(')')
	return b.String()
}
