package proxmox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// TestCreateFromMedium: a medium is uploaded as one, a VM is made that boots it beside an empty disk, and it is taken out of
// its drive while the VM runs, without anything else being changed.
func TestCreateFromMedium(t *testing.T) {
	for _, flavour := range flavours {
		onStand(t, flavour, func(t *testing.T, s *stand) {
			d, ctx := desired(1), context.Background()
			d.Spec.ISO = true
			d.Image = d.Spec.NewImage(d.Image.Version, d.Image.Schematic)
			n := d.Spec.Nodes[0]
			content := bytes.Repeat([]byte("medium"), 20_000)
			sum := sha256.Sum256(content)
			s.world.KnowImage(hex.EncodeToString(sum[:]), world.Image{Platform: "nocloud", Version: d.Image.Version, Medium: true})
			c := s.client()
			defer c.Close()
			if h := observe(c, d).Hosts[testHost]; !h.Images.Known || len(h.Images.Value) > 0 {
				t.Fatalf("before: %+v", h.Images)
			}
			s.must(c.Upload(ctx, testHost, n.ImageDatastore, d.Image.Name, int64(len(content)), bytes.NewReader(content), nil))
			var o cluster.Observed
			if observeLater(ctx, c, d, &o); o.Hosts[testHost].Images.Value[d.Image.Name] != int64(len(content)) {
				t.Errorf("%s: it is not seen: %+v", flavour, o.Hosts[testHost].Images)
			}
			s.must(c.Create(ctx, d, n, testHost, d.Image, nil))
			s.must(c.Create(ctx, d, n, testHost, d.Image, nil)) // it is there
			s.must(c.Start(ctx, d, n, nil))
			before, _ := s.host.VM(n.VMID)
			if disk := pveconf.ParseProperties(before.Config["scsi0"]); pveconf.ParseSize(disk["size"]) != n.DiskBytes || disk["serial"] != cluster.SystemDiskSerial {
				t.Errorf("%s: its disk is %s", flavour, before.Config["scsi0"])
			}
			vm := observe(c, d).VMs[n.Name]
			if vm.Hardware.Value.Medium != cluster.MediumDrive || vm.Hardware.Value.Boot != cluster.BootSystemDisk || len(vm.Others) > 0 || unfinished(vm) {
				t.Errorf("%s: it is seen as %+v", flavour, vm)
			}
			for range 2 { // the second time it is out
				s.must(c.Change(ctx, d, n, testHost, []cluster.VMField{cluster.FieldMedium}, nil))
			}
			after, _ := s.host.VM(n.VMID)
			if after.Config["ide0"] != "none,media=cdrom" {
				t.Errorf("%s: the drive has %s", flavour, after.Config["ide0"])
			}
			for key := range before.Config {
				if key != "ide0" && before.Config[key] != after.Config[key] {
					t.Errorf("%s: %s was %q, and is %q", flavour, key, before.Config[key], after.Config[key])
				}
			}
			if vm := observe(c, d).VMs[n.Name]; vm.Hardware.Value.Medium != "" || vm.Active != nil {
				t.Errorf("%s: it is seen as %+v", flavour, vm)
			}
			s.checkRules()
		})
	}
}
