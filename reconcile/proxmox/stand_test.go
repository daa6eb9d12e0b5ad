package proxmox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testPool  = "talos-dev"
	testHost  = "pve1"
	imageName = "talos-v1.13.9-376567988ad3-nocloud-amd64.qcow2"
)

// stand is a simulated host with an agent's token on it. Time is virtual.
type stand struct {
	t     testing.TB
	world *world.World
	host  *pve.Server
	token string
	link  *world.Link
	log   *bytes.Buffer
	// accessLog is the path of the host's, if the agent may read it.
	accessLog string
}

// onStand runs a test against a host of a flavour in a bubble of its own.
func onStand(t *testing.T, flavour string, test func(*testing.T, *stand)) {
	t.Helper()
	inBubble(t, pve.Config{Flavour: flavour}, test)
}

// inBubble runs a test against hosts of any kind.
func inBubble(t *testing.T, config pve.Config, test func(*testing.T, *stand)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t, config)
		defer s.close()
		test(t, s)
	})
}

func newStand(t testing.TB, config pve.Config) *stand { return newStandAt(t, 1, config) }

// newStandAt makes a stand whose hosts take so much less time than real ones.
func newStandAt(t testing.TB, speed float64, config pve.Config) *stand {
	t.Helper()
	w, err := world.New(world.Config{Speed: speed})
	if err != nil {
		t.Fatal(err)
	}
	config.World = w
	h, err := pve.New(config)
	if err != nil {
		t.Fatal(err)
	}
	s := &stand{t: t, world: w, host: h, log: &bytes.Buffer{}}
	s.token = h.AgentToken(pve.AgentScope{Pool: testPool, Storages: []string{"local", "local-lvm"}, Bridges: []string{"vmbr1"}})
	return s
}

func (s *stand) close() {
	s.host.Close()
	s.world.Close()
}

// client plugs a client in; the one before is unplugged.
func (s *stand) client() *Client {
	s.t.Helper()
	if s.link != nil {
		s.link.Cut()
	}
	s.link = world.NewLink(s.world.Net)
	c, err := New(Config{URL: s.host.URL(), Token: cluster.SecretString(s.token), CA: s.world.PKI.PEM, Pool: testPool, Dial: s.link.DialContext,
		Log: slog.New(slog.NewTextHandler(s.log, nil)), AccessLog: s.accessLog, Host: testHost})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// desired is a cluster of n nodes: VMIDs from 411, addresses from 10.10.0.11.
func desired(n int) cluster.Desired {
	id := cluster.ClusterID("talos-agent", "dev")
	spec := cluster.Spec{ID: id, Name: "dev", Network: cluster.Network{Mode: cluster.AddressStatic, CIDR: netip.MustParsePrefix("10.10.0.0/16"),
		Gateway: netip.MustParseAddr("10.10.0.1"), Nameservers: []netip.Addr{netip.MustParseAddr("10.10.0.1")}}}
	for i := range n {
		name := fmt.Sprintf("dev-cp-%d", i+1)
		spec.Nodes = append(spec.Nodes, cluster.Node{
			Name: name, Role: cluster.ControlPlane, IP: netip.AddrFrom4([4]byte{10, 10, byte(i / 200), byte(11 + i%200)}), VMID: 411 + i,
			UUID: cluster.NodeUUID(id, name), MAC: cluster.NodeMAC("BC:24:11", id, name, 0),
			Placement: cluster.Placement{Pin: testHost}, Pool: testPool, Bridge: "vmbr1", Datastore: "local-lvm", ImageDatastore: "local", CloudInitDatastore: "local-lvm",
			SCSIHardware: "virtio-scsi-single", CPUType: "x86-64-v2-AES", Cores: 2, MemoryMiB: 2048, DiskBytes: 10 << 30,
			Tags: []string{"controlplane", "dev", "talos-agent"},
		})
	}
	return cluster.Desired{Snapshot: cluster.Snapshot{Spec: spec}, Image: testImage()}
}

func testImage() cluster.Image {
	return cluster.Image{Name: imageName, Version: "v1.13.9", Schematic: "376567988ad3"}
}

// imageBytes is an image the world knows; 64 MiB to a guest.
func (s *stand) imageBytes() []byte {
	b := make([]byte, 200_000)
	copy(b, "QFI\xfb\x00\x00\x00\x03")
	b[28] = 4 // virtual size, big endian at 24: 64 MiB
	sum := sha256.Sum256(b)
	s.world.KnowImage(hex.EncodeToString(sum[:]), world.Image{Platform: "nocloud", Version: "v1.13.9", Schematic: "376567988ad3"})
	return b
}

// wantHardware is what the planner wants of a node (see drift.WantHardware).
func wantHardware(n cluster.Node) cluster.Hardware {
	hw := cluster.Hardware{
		CPUType: n.CPUType, Cores: n.Cores, MemoryMiB: n.MemoryMiB, Machine: "q35", BIOS: "ovmf", SCSIHardware: n.SCSIHardware, Model: cmp.Or(n.NetworkCard, "virtio"), MAC: n.MAC, Bridge: n.Bridge, Boot: cluster.BootSystemDisk,
		System: cluster.DiskSeen{Datastore: n.Datastore, Bytes: n.DiskBytes}, Data: map[string]cluster.DiskSeen{},
		Address: n.IP.String() + "/16,gw=10.10.0.1", OnBoot: true,
	}
	for _, dk := range n.Disks {
		hw.Data[dk.Serial] = cluster.DiskSeen{Datastore: dk.Datastore, Bytes: dk.Bytes}
	}
	hw.Options = allOptions(n)
	hw.Balloon = hw.Options["balloon minimum (MiB)"] != "none"
	return hw
}

// allOptions are the options that a new VM of a node has: the agent's own, and over them those of the node.
func allOptions(n cluster.Node) map[cluster.VMField]string {
	out := map[cluster.VMField]string{"cpu flags": "none", "cpu limit": "none", "cpu units": "100", "numa": "off", "balloon minimum (MiB)": "none", "machine version": "q35", "display": "std", "network card firewall": "off", "mtu": "none"}
	iothread := map[bool]string{true: "on", false: "off"}[n.SCSIHardware == "virtio-scsi-single"]
	disks := []string{"system disk"}
	for _, dk := range n.Disks {
		disks = append(disks, "disk "+dk.Serial)
	}
	for _, disk := range disks {
		for option, value := range map[string]string{"ssd": "on", "discard": "on", "backup": "on", "cache": "none", "aio": "default", "iothread": iothread} {
			out[cluster.VMField(disk+" "+option)] = value
		}
	}
	maps.Copy(out, n.Options)
	return out
}

func observe(c *Client, d cluster.Desired) cluster.Observed {
	return observeWith(c, d, cluster.Facts{})
}

func observeWith(c *Client, d cluster.Desired, f cluster.Facts) cluster.Observed {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	o := cluster.Observed{Facts: f}
	observeLater(ctx, c, d, &o)
	return o
}

// unfinished is plan.Unfinished.
func unfinished(vm cluster.VM) bool {
	return vm.Hardware.Known && vm.Power == cluster.Stopped && (vm.Hardware.Value.System.Bytes < 2<<30 || !slices.Contains(vm.Tags, cluster.OwnTag))
}

// next does what the planner would have done for the first node that wants
// something. It reports whether all is done.
func (s *stand) next(c *Client, d cluster.Desired, image []byte) (done bool, err error) {
	ctx := context.Background()
	o := observe(c, d)
	for _, n := range d.Spec.Nodes {
		vm, h := o.VMs[n.Name], o.Hosts[n.Placement.Pin]
		switch {
		case vm.Task != nil && vm.Task.Type == "qmcreate":
			return false, nil
		case vm.Presence == cluster.PresenceUnknown, vm.Presence == cluster.Present && vm.Owner == cluster.OwnerUnknown:
			return false, fmt.Errorf("cannot see %s: %s", n.Name, vm.Why)
		case vm.Presence == cluster.Absent && !h.Images.Known:
			return false, fmt.Errorf("cannot see images: %s", h.Images.Why)
		case vm.Presence == cluster.Absent && h.Images.Value[imageName] == 0:
			return false, c.Upload(ctx, n.Placement.Pin, n.ImageDatastore, imageName, int64(len(image)), bytes.NewReader(image), nil)
		case vm.Presence == cluster.Absent, unfinished(vm):
			return false, c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil)
		case vm.Owner == cluster.Foreign:
			return false, fmt.Errorf("%s is foreign: %s", n.Name, vm.Why)
		case vm.Deleting:
			return false, fmt.Errorf("%s is being deleted", n.Name)
		case vm.Power == cluster.Stopped:
			return false, c.Start(ctx, d, n, nil)
		}
	}
	return true, nil
}

// down does what the planner would have done to tear everything down.
func (s *stand) down(c *Client, d cluster.Desired) (done bool, err error) {
	ctx := context.Background()
	o := observeWith(c, d, cluster.Facts{Intents: []cluster.Intent{{Kind: cluster.IntendDestroy}}})
	if !o.Orphans.Known {
		return false, fmt.Errorf("cannot see orphans: %s", o.Orphans.Why)
	}
	vms := slices.Clone(o.Orphans.Value)
	for _, n := range d.Spec.Nodes {
		vms = append(vms, o.VMs[n.Name])
	}
	for _, vm := range vms {
		switch {
		case vm.Presence == cluster.Absent:
		case vm.Presence == cluster.PresenceUnknown || vm.Owner == cluster.OwnerUnknown:
			return false, fmt.Errorf("cannot see %s: %s", vm.Node, vm.Why)
		case vm.Owner == cluster.Ours:
			return false, c.Delete(ctx, d, vm, nil)
		}
	}
	return true, nil
}

// drive repeats a step until it is done, as the loop does, with pauses after
// failures. A crash in between replaces the client.
func (s *stand) drive(what string, step func(*Client) (bool, error), crashed func() bool) *Client {
	s.t.Helper()
	c := s.client()
	var last error
	for range 100 {
		done, err := step(c)
		if crashed != nil && crashed() {
			c.Close()
			c = s.client()
			continue
		}
		if done && err == nil {
			return c
		}
		time.Sleep(500 * time.Millisecond)
		if err != nil {
			last = err
			time.Sleep(2 * time.Second)
		}
	}
	s.t.Fatalf("%s does not end; last error: %v\nlog:\n%s", what, last, s.log)
	return nil
}

// checkRules fails the test if the agent broke a rule.
func (s *stand) checkRules() {
	s.t.Helper()
	for _, v := range s.world.Violations() {
		s.t.Errorf("rule broken: %s", v)
	}
}

// calls prints the calls since the last time.
func (s *stand) calls() []string {
	var out []string
	for _, r := range s.world.Calls() {
		out = append(out, strings.TrimSpace(r.Op+" "+r.Subject))
	}
	s.world.ForgetCalls()
	return out
}

var flavours = []string{"9.2", "8.4"}

func TestCreateAndDestroy(t *testing.T) {
	for _, flavour := range flavours {
		t.Run(flavour, func(t *testing.T) {
			onStand(t, flavour, func(t *testing.T, s *stand) {
				d, image := desired(3), s.imageBytes()
				d.Spec.Nodes[2].Disks = []cluster.Disk{{Name: "data", Bytes: 20 << 30, Datastore: "local-lvm", Serial: "talos-data"}}
				c := s.drive("bring-up", func(c *Client) (bool, error) { return s.next(c, d, image) }, nil)
				o := observe(c, d)
				for _, n := range d.Spec.Nodes {
					vm := o.VMs[n.Name]
					if vm.Presence != cluster.Present || vm.Owner != cluster.Ours || vm.Power != cluster.PowerRunning || vm.Name != n.Name || vm.Host != testHost {
						t.Errorf("%s: %+v", n.Name, vm)
					}
					if got, want := fmt.Sprintf("%+v", vm.Hardware.Value), fmt.Sprintf("%+v", wantHardware(n)); got != want {
						t.Errorf("%s hardware\n got %s\nwant %s", n.Name, got, want)
					}
					if !slices.Equal(vm.Tags, []string{"controlplane", "dev", "talos-agent"}) {
						t.Errorf("%s: tags %v", n.Name, vm.Tags)
					}
				}
				h := o.Hosts[testHost]
				if !h.Known || h.Cores != 16 || h.MemoryBytes != 64<<30 || !strings.HasPrefix(h.PVE, flavour) {
					t.Errorf("host: %+v", h)
				}
				if st := h.Storages.Value["local-lvm"]; !st.Active || !slices.Contains(st.Content, "images") || st.FreeBytes <= 0 {
					t.Errorf("storage: %+v", st)
				}
				c = s.drive("tear-down", func(c *Client) (bool, error) { return s.down(c, d) }, nil)
				if vms := s.host.VMs(); len(vms) != 0 {
					t.Errorf("left: %+v", vms)
				}
				if v := s.host.Volumes(testHost, "local-lvm"); len(v) != 0 {
					t.Errorf("disks left: %+v", v)
				}
				if v := s.host.Volumes(testHost, "local"); len(v) != 1 {
					t.Errorf("the image is not kept: %+v", v)
				}
				c.Close()
				s.checkRules()
			})
		})
	}
}

// observeLater is a look so long after the one before that no answer to that holds any longer.
func observeLater(ctx context.Context, c *Client, d cluster.Desired, o *cluster.Observed) {
	c.recent.Clear()
	c.Observe(ctx, d, o)
}
