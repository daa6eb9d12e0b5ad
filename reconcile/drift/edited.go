package drift

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// WantDigest identifies all that the inventory has of a node, as journals up to version 8 have it;
// "" while it is not known what its config is.
func WantDigest(d cluster.Desired, n cluster.Node) string {
	cfg, ok := d.Repository().Configs[n.Name]
	if !ok || cfg.Digest == "" {
		return ""
	}
	hw, err := json.Marshal(WantHardware(d.Spec, n)) // maps are sorted
	if err != nil {
		return ""
	}
	parts := append([]string{string(hw), cfg.Digest}, n.VMTags()...)
	if n.Replace != "" {
		parts = append(parts, "replace", n.Replace)
	}
	// No machine config has annotations.
	if note := (cluster.NodeMeta{Annotations: RepositoryNode(d, n).Annotations}).Encode(); note != "" {
		parts = append(parts, note)
	}
	return DigestText(parts)
}

// DigestText identifies some texts, in their order.
func DigestText(texts []string) string {
	h := sha256.New()
	for _, t := range texts {
		fmt.Fprintf(h, "%q\n", t)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// returned are the fields that a change of the inventory does not reach, because a machine
// has them for its life, and that it is given back where somebody has edited them. (PVE 9.2,
// Talos 1.13.9: a guest that runs does not release its network card.)
var returned = map[string]How{string(cluster.FieldMAC): Reboot, string(cluster.FieldAddress): NextStart}

// CardOf is what a machine has for its life of its network: MAC and address.
func CardOf(hw cluster.Hardware) string { return hw.MAC + " " + hw.Address }

// OfNodeVM compares the VM of a node with the inventory, as OfVM does, with what becomes of
// its MAC and its address where it had those of the inventory, so that somebody has edited
// them.
func OfNodeVM(d cluster.Desired, o cluster.Observed, n cluster.Node, vm cluster.VM) []Drift {
	out := OfVM(d.Spec, n, vm)
	if card, known := o.Facts.Cards[n.Name]; !known || card != CardOf(WantHardware(d.Spec, n)) {
		return out
	}
	for i, dr := range out {
		how, ok := returned[dr.Field]
		switch {
		case !ok || dr.How != Refuse:
		case vm.Power == cluster.Stopped:
			out[i].How = InPlace
		default:
			out[i].How = how
		}
	}
	return out
}
