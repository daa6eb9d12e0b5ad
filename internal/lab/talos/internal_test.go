package talos

import (
	"net/netip"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	machinetype "github.com/siderolabs/talos/pkg/machinery/config/machine"

	"github.com/talos-agent/talos-agent/internal/lab/talos/rules"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestMemberID knows the id a real etcd had at this address, before and after
// it was wiped.
func TestMemberID(t *testing.T) {
	addr := netip.MustParseAddr("10.5.0.11")
	if got := system.MemberID(addr, time.Time{}); got != 15953761862159307578 {
		t.Errorf("founding member has id %d", got)
	}
	if system.MemberID(addr, time.Unix(1, 0)) == system.MemberID(addr, time.Unix(2, 0)) {
		t.Error("members that join at different times have one id")
	}
}

func TestImageTag(t *testing.T) {
	for image, want := range map[string]string{
		"ghcr.io/siderolabs/kubelet:v1.36.1":                     "v1.36.1",
		"registry.example.org:5000/kubelet:v1.36.1":              "v1.36.1",
		"registry.example.org:5000/kubelet":                      "",
		"registry.k8s.io/kube-apiserver:v1.36.1@sha256:00112233": "v1.36.1",
		"": "",
	} {
		if got := system.TagOf(image); got != want {
			t.Errorf("tag of %q is %q, want %q", image, got, want)
		}
	}
}

// FuzzConfig reads whatever the library takes for a machine config.
func FuzzConfig(f *testing.F) {
	for _, version := range []string{"v1.8", "v1.13", "v1.14"} {
		contract, err := config.ParseContractFromVersion(version)
		if err != nil {
			f.Fatal(err)
		}
		in, err := generate.NewInput("fuzz", "https://10.5.0.11:6443", "1.36.1", generate.WithVersionContract(contract))
		if err != nil {
			f.Fatal(err)
		}
		for _, kind := range []machinetype.Type{machinetype.TypeControlPlane, machinetype.TypeWorker} {
			cfg, err := in.Config(kind)
			if err != nil {
				f.Fatal(err)
			}
			data, err := cfg.Bytes()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Add([]byte("version: v1alpha1\nmachine: {type: worker, network: {interfaces: [{interface: ens18, addresses: [10.5.0.9/24], vip: {ip: x}}]}}\ncluster: {}\n"))
	f.Add([]byte("apiVersion: v1alpha1\nkind: LinkAliasConfig\nname: a\nselector: {match: link.mtu == 1500}\n"))
	m := &machine{guest: world.Guest{VMID: 1, Name: "fuzz", MAC: "bc:24:11:00:00:01", Boot: &world.Disk{}}, f: &Fleet{}}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := configloader.NewFromBytes(data)
		if err != nil {
			return
		}
		for minor := 7; minor <= rules.NewestMinor; minor++ {
			if rules.RefuseDocuments(cfg, data, minor) == nil {
				break
			}
		}
		if _, err := cfg.ValidateAsClient(rules.Mode{}); err != nil {
			return // is refused before it is read
		}
		if !cfg.CompleteForBoot() {
			return
		}
		if s, err := m.readSettings(cfg); err == nil && s.provider == nil {
			t.Error("read nothing")
		}
		if err := rules.RefuseChange(cfg.RawV1Alpha1(), cfg.RawV1Alpha1()); err != nil {
			t.Errorf("a config differs from itself: %v", err)
		}
	})
}
