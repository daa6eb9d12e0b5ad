package talos_test

import (
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/client"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// secureGuest is a node's virtual machine with a disk that was made from an image for Secure Boot.
func secureGuest(n node, version string, f *world.Firmware, enrolls bool) world.Guest {
	g := n.guest(version)
	g.Firmware, g.Boot.Image.Signed, g.Boot.Image.Enrolls = f, true, enrolls
	return g
}

// wantVerified checks how a machine shows that it has booted.
func (l *lab) wantVerified(what string, c *client.Client, want bool) {
	l.t.Helper()
	r, err := safe.StateGetByID[*runtimeres.SecurityState](within(5*time.Second), c.COSI, runtimeres.SecurityStateID)
	if err != nil {
		l.t.Fatalf("%s: %v", what, err)
	}
	if got := r.TypedSpec().SecureBoot; got != want {
		l.t.Errorf("%s: secure boot %v, want %v", what, got, want)
	}
}

// TestSecureBoot: a machine takes the keys of its image at the first boot, and boots nothing else from then on: an installer
// that is not signed leaves it without anything to boot, and one that is does not.
func TestSecureBoot(t *testing.T) {
	for _, signed := range []bool{true, false} {
		inBubble(t, world.Config{}, func(l *lab) {
			firmware := &world.Firmware{}
			l.fleet.PowerOn(secureGuest(cp(1), "v1.14.0", firmware, true))
			time.Sleep(l.world.Latency.Boot + time.Second)
			l.wantVerified("in maintenance mode", l.insecure(cp(1)), true)
			l.apply(cp(1), l.config(cp(1), "v1.14.0"))
			time.Sleep(l.world.Latency.Apply + 3*time.Second)
			l.bootstrap(cp(1))
			time.Sleep(2 * time.Minute)
			l.wantVerified("configured", l.admin(cp(1)), true)
			image := "factory.talos.dev/nocloud-installer/" + otherSchematic + ":v1.14.1"
			if signed {
				image = "factory.talos.dev/nocloud-installer-secureboot/" + otherSchematic + ":v1.14.1"
			}
			if err := l.pull(cp(1), inmem, image); err != nil {
				t.Fatal(err)
			}
			l.installed(cp(1), image)
			if err := l.admin(cp(1)).Reboot(within(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Minute)
			v := l.view(cp(1))
			if signed {
				l.wantVerified("after the upgrade", l.admin(cp(1)), true)
				l.wantVersion("after the upgrade", cp(1), "v1.14.1", otherSchematic)
				return
			}
			if v.BootID != "" || v.Stage != "" {
				t.Errorf("it runs what is not signed: %+v", v)
			}
		})
	}
}

// TestNoSecureBoot: an image of a version that brings no keys boots unverified from a firmware without any, as one that is not signed does;
// none boots from a firmware that has those of others.
func TestNoSecureBoot(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.fleet.PowerOn(secureGuest(cp(1), "v1.13.9", &world.Firmware{}, false))
		plain := cp(2).guest("v1.14.1")
		plain.Firmware = &world.Firmware{}
		l.fleet.PowerOn(plain)
		l.fleet.PowerOn(secureGuest(cp(3), "v1.14.1", &world.Firmware{Keys: world.MicrosoftKeys}, true))
		time.Sleep(l.world.Latency.Boot + time.Second)
		l.wantVerified("without keys in the image", l.insecure(cp(1)), false)
		l.wantVerified("not signed", l.insecure(cp(2)), false)
		if v := l.view(cp(3)); v.BootID != "" {
			t.Errorf("it boots in spite of the keys of others: %+v", v)
		}
	})
}

// TestNoTPM: a machine whose volumes a TPM is to open comes no further without one.
func TestNoTPM(t *testing.T) {
	for _, volume := range []string{"apiVersion: v1alpha1\nkind: VolumeConfig\nname: STATE\nencryption: {provider: luks2, keys: [{slot: 0, tpm: {}}]}\n",
		"machine: {systemDiskEncryption: {ephemeral: {provider: luks2, keys: [{slot: 0, tpm: {}}]}}}"} {
		for _, tpm := range []bool{true, false} {
			inBubble(t, world.Config{}, func(l *lab) {
				g := cp(1).guest("v1.13.9")
				g.TPM = tpm
				l.fleet.PowerOn(g)
				time.Sleep(l.world.Latency.Boot + time.Second)
				l.apply(cp(1), l.config(cp(1), "v1.13.9", volume))
				time.Sleep(10 * time.Minute)
				if v := l.view(cp(1)); v.Configured != tpm {
					t.Errorf("with a TPM %v: %+v", tpm, v)
				}
			})
		}
	}
}
