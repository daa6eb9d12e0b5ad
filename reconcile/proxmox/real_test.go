package proxmox

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// lifecycle leads one node's VM through its life and looks at it at every
// step. It is the same for the lab and for a real host.
func lifecycle(t *testing.T, c *Client, d cluster.Desired, image []byte) {
	t.Helper()
	ctx, n := context.Background(), d.Spec.Nodes[0]
	look := func(what string, presence cluster.Presence, power cluster.Power) cluster.VM {
		t.Helper()
		o := observe(c, d)
		vm := o.VMs[n.Name]
		if vm.Presence != presence || vm.Power != power || presence == cluster.Present && vm.Owner != cluster.Ours {
			t.Fatalf("%s: %+v", what, vm)
		}
		if h := o.Hosts[n.Placement.Pin]; !h.Known || h.PVE == "" || !o.Orphans.Known {
			t.Fatalf("%s: %+v, orphans %+v", what, h, o.Orphans)
		}
		return vm
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v [%s]", err, fault.HintOf(err))
		}
	}
	look("before", cluster.Absent, cluster.PowerUnknown)
	must(c.Upload(ctx, n.Placement.Pin, n.ImageDatastore, d.Image.Name, int64(len(image)), bytes.NewReader(image), nil))
	if got := observe(c, d).Hosts[n.Placement.Pin].Images.Value[d.Image.Name]; got != int64(len(image)) {
		t.Fatalf("the image has %d bytes, want %d", got, len(image))
	}
	defer func() {
		if t.Failed() {
			_ = c.Delete(ctx, d, cluster.VM{VMID: n.VMID, Node: n.Name, Host: n.Placement.Pin}, nil) // tidy up, if it can be
		}
	}()
	for range 2 {
		must(c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil))
	}
	vm := look("made", cluster.Present, cluster.Stopped)
	if want := wantHardware(n); !sameHardware(vm.Hardware.Value, want) || unfinished(vm) {
		t.Errorf("hardware\n got %+v\nwant %+v", vm.Hardware.Value, want)
	}
	for _, tag := range n.Tags {
		if !slices.Contains(vm.Tags, tag) {
			t.Errorf("tags %v lack %s", vm.Tags, tag)
		}
	}
	for range 2 {
		must(c.Start(ctx, d, n, nil))
	}
	look("started", cluster.Present, cluster.PowerRunning)
	for range 2 {
		must(c.Delete(ctx, d, vm, nil))
	}
	look("deleted", cluster.Absent, cluster.PowerUnknown)
}

func TestLifecycle(t *testing.T) {
	for _, flavour := range flavours {
		t.Run(flavour, func(t *testing.T) {
			onStand(t, flavour, func(t *testing.T, s *stand) {
				c := s.client()
				defer c.Close()
				lifecycle(t, c, desired(1), s.imageBytes())
				s.checkRules()
			})
		})
	}
}

// TestLifecycleOverLoopback is the same over real sockets, a little faster than
// life.
func TestLifecycleOverLoopback(t *testing.T) {
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Skip(err)
	}
	defer release()
	w, err := world.New(world.Config{Network: world.Loopback{}, Speed: 50})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	h, err := pve.New(pve.Config{World: w, Addr: netip.AddrPortFrom(prefix.Addr().Next(), 18006).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	s := &stand{t: t, world: w, host: h}
	c, err := New(Config{URL: h.URL(), CA: w.PKI.PEM, Pool: testPool,
		Token: cluster.SecretString(h.AgentToken(pve.AgentScope{Pool: testPool, Storages: []string{"local", "local-lvm"}, Bridges: []string{"vmbr1"}}))})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lifecycle(t, c, desired(1), s.imageBytes())
	s.checkRules()
}

// TestLifecycleOnARealHost leads a VM's life on a real Proxmox VE. It makes one
// VM, in the pool and with the number that are named, and deletes it; the image
// it uploads stays.
//
//	TALOS_AGENT_PVE=https://host:8006
//	TALOS_AGENT_PVE_TOKEN=user@realm!name=secret   with the privileges the documentation lists
//	TALOS_AGENT_PVE_FINGERPRINT=SHA-256            of the certificate, or
//	TALOS_AGENT_PVE_CA=FILE                        of the authority
//	TALOS_AGENT_PVE_NODE=pve1  ..._POOL=talos-test  ..._VMID=9411  ..._BRIDGE=vmbr1
//	TALOS_AGENT_PVE_STORAGE=local-lvm  ..._IMAGE_STORAGE=local
//	TALOS_AGENT_PVE_IMAGE=FILE.qcow2               anything that can be imported, below 10 GiB
func TestLifecycleOnARealHost(t *testing.T) {
	url := os.Getenv("TALOS_AGENT_PVE")
	if url == "" {
		t.Skip("TALOS_AGENT_PVE names no real Proxmox VE to test against; see the comment of this test")
	}
	env := func(name string) string { return os.Getenv("TALOS_AGENT_PVE_" + name) }
	config := Config{URL: url, Token: cluster.SecretString(env("TOKEN")), Fingerprint: env("FINGERPRINT"), Pool: env("POOL")}
	read := func(name string) []byte {
		t.Helper()
		raw, err := os.ReadFile(env(name))
		if err != nil {
			t.Fatalf("TALOS_AGENT_PVE_%s: %v", name, err)
		}
		return raw
	}
	if env("CA") != "" {
		config.CA = read("CA")
	}
	vmid, err := strconv.Atoi(env("VMID"))
	if err != nil {
		t.Fatalf("TALOS_AGENT_PVE_VMID: %v", err)
	}
	c, err := New(config)
	if err != nil {
		t.Fatalf("%v [%s]", err, fault.HintOf(err))
	}
	defer c.Close()
	image := read("IMAGE")
	d := desired(1)
	d.Spec.ID = cluster.ClusterID("talos-agent-test", fmt.Sprint(time.Now().UnixNano()))
	n := &d.Spec.Nodes[0]
	n.VMID, n.Placement.Pin, n.Pool, n.Bridge = vmid, env("NODE"), env("POOL"), env("BRIDGE")
	n.Datastore, n.CloudInitDatastore, n.ImageDatastore = env("STORAGE"), env("STORAGE"), env("IMAGE_STORAGE")
	n.UUID, n.MAC = cluster.NodeUUID(d.Spec.ID, n.Name), cluster.NodeMAC("BC:24:11", d.Spec.ID, n.Name, 0)
	d.Image.Name = fmt.Sprintf("talos-agent-test-%d.qcow2", len(image))
	lifecycle(t, c, d, image)
}
