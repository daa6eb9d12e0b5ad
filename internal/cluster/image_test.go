package cluster

import "testing"

// TestNamesOfImages: what is signed for Secure Boot has another name, in the cache, at the factory and as an installer.
func TestNamesOfImages(t *testing.T) {
	const id = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"
	for _, tc := range []struct {
		spec Spec
		want [4]string
	}{
		{Spec{}, [4]string{"talos-v1.14.1-376567988ad3-nocloud-amd64.qcow2", "nocloud-amd64.qcow2", "import", "factory.talos.dev/nocloud-installer/" + id + ":v1.14.1"}},
		{Spec{SecureBoot: true}, [4]string{"talos-v1.14.1-376567988ad3-nocloud-amd64-secureboot.qcow2", "nocloud-amd64-secureboot.qcow2", "import", "factory.talos.dev/nocloud-installer-secureboot/" + id + ":v1.14.1"}},
		{Spec{ISO: true}, [4]string{"talos-v1.14.1-376567988ad3-nocloud-amd64.iso", "nocloud-amd64.iso", "iso", "factory.talos.dev/nocloud-installer/" + id + ":v1.14.1"}},
		{Spec{ISO: true, SecureBoot: true}, [4]string{"talos-v1.14.1-376567988ad3-nocloud-amd64-secureboot.iso", "nocloud-amd64-secureboot.iso", "iso", "factory.talos.dev/nocloud-installer-secureboot/" + id + ":v1.14.1"}},
	} {
		s := tc.spec
		s.InstallerRegistry, s.Versions.Talos = "factory.talos.dev", "v1.14.1"
		i := s.NewImage("v1.14.1", id)
		if got := [4]string{i.Name, i.Asset(), i.Content(), s.Installer(id)}; got != tc.want {
			t.Errorf("%+v: %v", tc.spec, got)
		}
	}
	if got := (Spec{}).NewImage("v1.14.1", "376567988ad3").Name; got != "talos-v1.14.1-376567988ad3-nocloud-amd64.qcow2" {
		t.Errorf("of a short id: %s", got)
	}
	if got := (Spec{}).NewImage("v1.14.1", "abc").Name; got != "talos-v1.14.1-abc-nocloud-amd64.qcow2" {
		t.Errorf("of a shorter one: %s", got)
	}
}
