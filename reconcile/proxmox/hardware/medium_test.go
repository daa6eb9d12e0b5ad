package hardware

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// TestCreateFromMedium: a VM that installs itself has an empty disk, which it boots first once there is something on it, and the
// medium in a drive of its own; all else is as from a disk image.
func TestCreateFromMedium(t *testing.T) {
	id := cluster.ClusterID("test", "dev")
	n := cluster.Node{Name: "cp-1", Role: cluster.ControlPlane, VMID: 411, IP: netip.MustParseAddr("10.10.0.11"), MAC: "BC:24:11:00:00:10", Bridge: "vmbr1", UUID: cluster.NodeUUID(id, "cp-1"),
		Datastore: "local-lvm", ImageDatastore: "local", SCSIHardware: cluster.SingleController, CPUType: "x86-64-v2-AES", Cores: 4, MemoryMiB: 8192, DiskBytes: 40<<30 + 512<<20}
	s := cluster.Spec{ID: id, Name: "dev", Network: cluster.Network{Mode: cluster.AddressStatic, CIDR: netip.MustParsePrefix("10.10.0.0/24"), Gateway: netip.MustParseAddr("10.10.0.1")}}
	create := func(iso bool) map[string]string {
		t.Helper()
		s := s
		s.ISO = iso
		p, err := CreateParams(cluster.Desired{Snapshot: cluster.Snapshot{Spec: s}}, n, "talos", s.NewImage("v1.14.1", "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	image, medium := create(false), create(true)
	properties := strings.TrimPrefix(image["scsi0"], "local-lvm:0,import-from=local:import/talos-v1.14.1-376567988ad3-nocloud-amd64.qcow2")
	want := maps.Clone(image)
	want["scsi0"] = "local-lvm:40" + properties // it grows to what is left, as from an image
	want["ide0"] = "local:iso/talos-v1.14.1-376567988ad3-nocloud-amd64.iso,media=cdrom"
	want["boot"] = "order=scsi0;ide0"
	if properties == image["scsi0"] || !maps.Equal(medium, want) {
		t.Errorf("%v\nwant %v", medium, want)
	}

	// What was made is read as what is wanted, with a medium; and that is taken out without the rest.
	o := pveconf.Options{}
	for k, v := range medium {
		o[k] = pveconf.Scalar(v)
	}
	if hw := Of(o); hw.Medium != "ide0" || hw.Boot != cluster.BootSystemDisk {
		t.Errorf("read as %+v", hw)
	}
	out := ChangeParams(o, image, []cluster.VMField{cluster.FieldMedium})
	if !maps.Equal(out, map[string]string{"ide0": "none,media=cdrom"}) {
		t.Errorf("taken out by %v", out)
	}
	// The boot order is corrected with the medium behind the disk, which may be empty yet.
	o["boot"] = "order=net0"
	if out := ChangeParams(o, image, []cluster.VMField{cluster.FieldBoot}); out["boot"] != "order=scsi0;ide0" {
		t.Errorf("the boot order becomes %v", out)
	}
	for _, other := range []string{"local:iso/somebodys.iso,media=cdrom", "local:iso/talos-v1.13.9-nocloud-amd64.iso,media=cdrom", "local:import/talos-v1.14.1-376567988ad3-nocloud-amd64.iso,media=cdrom"} {
		if o["ide0"] = pveconf.Scalar(other); readMedium(o) != "" {
			t.Errorf("%s counts as the agent's", other)
		}
	}
	if out := ChangeParams(o, image, []cluster.VMField{cluster.FieldBoot}); out["boot"] != "order=scsi0" {
		t.Errorf("the boot order becomes %v", out)
	}
	o["ide0"] = "local:iso/somebodys.iso,media=cdrom"
	if out := ChangeParams(o, image, []cluster.VMField{cluster.FieldMedium}); out != nil {
		t.Errorf("somebody's medium is taken out by %v", out)
	}
}
