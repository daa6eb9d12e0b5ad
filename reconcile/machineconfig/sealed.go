package machineconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	cfgconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// listSealed lists the volumes of a config whose key a TPM gives out, by name, sorted: those of documents, and the two
// that the v1alpha1 document may have.
func listSealed(p config.Provider) []string {
	var names []string
	note := func(name string, e cfgconfig.EncryptionConfig) {
		if e != nil && slices.ContainsFunc(e.Keys(), func(k cfgconfig.EncryptionKey) bool { return k.TPM() != nil }) {
			names = append(names, name)
		}
	}
	for _, doc := range p.Documents() {
		if volume, ok := doc.(interface {
			Name() string
			Encryption() cfgconfig.EncryptionConfig
		}); ok {
			note(volume.Name(), volume.Encryption())
		}
	}
	if m := p.Machine(); m != nil {
		for _, label := range []string{constants.StatePartitionLabel, constants.EphemeralPartitionLabel} {
			note(label, m.SystemDiskEncryption().Get(label))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// sealedWithoutTPM warns of nodes whose volumes are encrypted with a key of a TPM, while their VMs are made without one:
// Talos makes no such volume, and never finishes its boot. None: there are no such nodes.
func sealedWithoutTPM(snap cluster.Snapshot, ins []input, results []rendered) cluster.Problems {
	var nodes, volumes []string
	for i, res := range results {
		if len(res.sealed) > 0 {
			nodes, volumes = append(nodes, ins[i].Name), append(volumes, res.sealed...)
		}
	}
	if snap.Spec.SecureBoot || len(nodes) == 0 {
		return nil
	}
	slices.Sort(volumes)
	who := nodes[0]
	if len(nodes) > 1 {
		who += fmt.Sprintf(" and %d more", len(nodes)-1)
	}
	return cluster.Problems{snap.At(cluster.Warning, "talos.secureboot",
		fmt.Sprintf("patches encrypt %s with a TPM, and the VMs of %s are made without one: such a node does not finish its first boot", strings.Join(slices.Compact(volumes), ", "), who),
		"write talos: {secureboot: true}, or take the keys with `tpm` out of the patches; a TPM that you have added to a VM by hand is left")}
}
