package machineconfig

import (
	"slices"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
)

// TestMayDisconnect: only what has nothing to do with how a machine is reached is let through
// without a trial.
func TestMayDisconnect(t *testing.T) {
	kubelet, network := "machine: {kubelet: {extraArgs: {v: \"4\"}}}", "machine: {sysctls: {net.ipv4.conf.all.rp_filter: \"1\"}}"
	firewall := "apiVersion: v1alpha1\nkind: NetworkDefaultActionConfig\ningress: block\n"
	volume := "apiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nprovisioning: {maxSize: 20GiB}\n"
	for _, contract := range contracts {
		render := func(patch string) []byte {
			s := snapshot(t, contract)
			if patch != "" {
				withPatch(&s, "1-change.yaml", patch)
			}
			return mustRender(t, s)[s.Spec.Nodes[0].Name].Bytes.Reveal()
		}
		plain := render("")
		for patch, may := range map[string]bool{"": false, kubelet: false, volume: false, "debug: true": false, network: true, firewall: true} {
			if patch == kubelet && contract == "v1.14" {
				continue // it has a document of its own there
			}
			if got := MayDisconnect(plain, render(patch)); got != may {
				t.Errorf("%s at %s: %v", patch, contract, got)
			}
			if got := MayDisconnect(render(patch), plain); got != may {
				t.Errorf("back from %s at %s: %v", patch, contract, got)
			}
		}
	}
	if !MayDisconnect([]byte("machine: {nosuch: 1}"), []byte("machine: {}")) || !MayDisconnect([]byte("machine: {}"), []byte("{")) {
		t.Error("what cannot be read is let through")
	}
}

// TestReachableKindsExist: a list of kinds is right only with kinds that exist.
func TestReachableKindsExist(t *testing.T) {
	for _, kind := range reachableKinds {
		_, err := configloader.NewFromBytes([]byte("apiVersion: v1alpha1\nkind: " + kind + "\nnosuch: 1\n"))
		if err == nil || !slices.Contains([]bool{kindSince[kind] > 0, slices.Contains([]string{"KmsgLogConfig", "VolumeConfig"}, kind)}, true) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
