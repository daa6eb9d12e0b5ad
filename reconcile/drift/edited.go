package drift

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

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

// OfWholeMachine compares what a machine runs, and its config also where its versions or its
// image differ: with the config that it was given, as far as that is known. Such a config is
// left, because that of the inventory is for other versions.
func OfWholeMachine(d cluster.Desired, o cluster.Observed, n cluster.Node, mach cluster.Machine) []Drift {
	out := OfMachine(d.Repository(), o, n, mach)
	if len(out) == 0 || out[0].Reason == cluster.ConfigDrift {
		return out
	}
	return append(out, ofGivenConfig(d, o, n, mach)...)
}

// What a config that is left is compared with, for people.
const (
	givenConfig = "the one that it was given"
	uncompared  = "not compared while its versions differ"
)

// IsUncompared reports whether it is a machine config that is not compared before its machine has the versions of the inventory.
func (d Drift) IsUncompared() bool { return d.Reason == cluster.ConfigDrift && d.Have == uncompared }

// ofGivenConfig compares the config of a machine of other versions than those of the inventory
// with what it was seen to have of the inventory, and where that is not known with what a new
// node would get now, if that is for the versions that it runs.
func ofGivenConfig(d cluster.Desired, o cluster.Observed, n cluster.Node, mach cluster.Machine) []Drift {
	dr := Drift{Reason: cluster.ConfigDrift, Field: FieldConfig, Have: mach.ConfigDigest, Want: givenConfig, How: Refuse}
	had, running, v := decodeSettled(o.Facts.Settled[n.Name]), d.Configs[n.Name].Digest, d.Spec.Versions
	_, kept := had[hashField(FieldConfig)]
	given, begun := had[hashField(fieldGiven(FieldConfig))]
	has, seen := versionsOf(n, o)
	comparable := d.Asked != nil && d.Hold == "" && running != "" && seen && has.Talos == v.Talos && has.Kubernetes == v.Kubernetes && (mach.Schematic == "" || mach.Schematic == d.Schematic)
	switch {
	case mach.ConfigDigest == "", mach.ConfigDigest == d.Repository().Configs[n.Name].Digest,
		kept && had.has(FieldConfig, mach.ConfigDigest), had.has(fieldMeanwhile, mach.ConfigDigest), begun && given == hashField(mach.ConfigDigest), !kept && comparable && mach.ConfigDigest == running:
		return nil
	case kept:
		dr.By, dr.Since = byConfigEdit, mach.ConfigSince
	case !comparable:
		dr.Have, dr.Want = uncompared, "that of the inventory"
	default:
		dr.Want = running
	}
	return []Drift{dr}
}

// returned are the fields that a change of the inventory does not reach, because a machine
// has them for its life, and that it is given back where somebody has edited them. (PVE 9.2,
// Talos 1.13.9: a guest that runs does not release its network card.)
var returned = map[string]How{string(cluster.FieldMAC): Reboot, string(cluster.FieldAddress): NextStart}

// IsNetwork reports whether it is the network of a VM that differs.
func (d Drift) IsNetwork() bool {
	return d.Field == string(cluster.FieldBridge) || d.Field == string(cluster.FieldVLAN)
}

// MovesNetwork reports whether to correct some drifts of a VM that runs moves it to another network. One
// without a card is on none, and what is pending for its next start is taken back.
func MovesNetwork(drifts []Drift) bool {
	lost := slices.ContainsFunc(drifts, func(dr Drift) bool { return dr.Field == string(cluster.FieldModel) && dr.Have == "" })
	return !lost && slices.ContainsFunc(drifts, func(dr Drift) bool { return dr.IsNetwork() && !strings.HasSuffix(dr.Have, pendingStart) })
}

// CardOf is what a machine has for its life of its network: MAC and address.
func CardOf(hw cluster.Hardware) string { return hw.MAC + " " + hw.Address }

// OfNodeVM compares the VM of a node with the inventory, as compareVM does, with what becomes of
// its MAC and its address where it had those of the inventory, so that somebody has edited
// them. That a machine without Secure Boot has no TPM either is no drift of its own: one alone would not help. An installation
// medium is one when Talos runs, from the disk: a machine does not leave the medium before it has installed itself.
func OfNodeVM(d cluster.Desired, o cluster.Observed, n cluster.Node, vm cluster.VM) []Drift {
	out := compareVM(wantSince(d, o, n), n, vm)
	if _, differs := OfSecureBoot(d, o.Machines[n.Name]); differs {
		out = slices.DeleteFunc(out, func(dr Drift) bool { return dr.Field == string(cluster.FieldTPM) })
	}
	if mach := o.Machines[n.Name]; mach.Reach != cluster.Configured || mach.Stage != "running" {
		out = slices.DeleteFunc(out, func(dr Drift) bool { return dr.Field == string(cluster.FieldMedium) })
	}
	if card, known := o.Facts.Cards[n.Name]; !known || card != CardOf(WantHardware(d.Spec, n)) {
		return out
	}
	for i, dr := range out {
		how, ok := returned[dr.Field]
		switch {
		case !ok || dr.How != Refuse:
		case vm.Power == cluster.Stopped, dr.Field == string(cluster.FieldMAC) && dr.Have == "":
			out[i].How = InPlace
		default:
			out[i].How = how
		}
	}
	return out
}

// Fixed is what a machine keeps and another config of the inventory would change: what its cluster
// was made with, and the MAC and the address of a VM that stay as they are, because the inventory has
// changed them. With the config alone changed it could not be reached any more, or was another member
// of etcd.
func Fixed(d cluster.Desired, o cluster.Observed, n cluster.Node) []string {
	asked := d.Repository()
	out := o.Machines[n.Name].Summary.Differences(asked.Configs[n.Name].Summary)
	hw, want := o.VMs[n.Name].Hardware, CardOf(WantHardware(asked.Spec, RepositoryNode(d, n)))
	if has := CardOf(hw.Value); hw.Known && has != want && o.Facts.Cards[n.Name] != want {
		out = append(out, fmt.Sprintf("mac and address %s (the inventory has %s)", strings.TrimSpace(has), strings.TrimSpace(want)))
	}
	return out
}
