package cluster

import "testing"

// TestNamesOfImages: what is signed for Secure Boot has another name, in the cache, at the factory and as an installer.
func TestNamesOfImages(t *testing.T) {
	const id = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"
	for secure, want := range map[bool][3]string{
		false: {"talos-v1.14.1-376567988ad3-nocloud-amd64.qcow2", "nocloud-amd64.qcow2", "factory.talos.dev/nocloud-installer/" + id + ":v1.14.1"},
		true:  {"talos-v1.14.1-376567988ad3-nocloud-amd64-secureboot.qcow2", "nocloud-amd64-secureboot.qcow2", "factory.talos.dev/nocloud-installer-secureboot/" + id + ":v1.14.1"},
	} {
		s := Spec{SecureBoot: secure, InstallerRegistry: "factory.talos.dev", Versions: Versions{Talos: "v1.14.1"}}
		if got := [3]string{ImageName("v1.14.1", id, secure), Image{SecureBoot: secure}.Asset(), s.Installer(id)}; got != want {
			t.Errorf("secure boot %v: %v", secure, got)
		}
	}
	if got := ImageName("v1.14.1", "376567988ad3", false); got != "talos-v1.14.1-376567988ad3-nocloud-amd64.qcow2" {
		t.Errorf("of a short id: %s", got)
	}
	if got := ImageName("v1.14.1", "abc", false); got != "talos-v1.14.1-abc-nocloud-amd64.qcow2" {
		t.Errorf("of a shorter one: %s", got)
	}
}
