package drift

import (
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TargetOf identifies what should become of a node, not what it has.
func TargetOf(drifts []Drift) string {
	var parts []string
	for _, dr := range drifts {
		parts = append(parts, dr.Field, dr.Want)
	}
	return DigestText(parts)
}

// PartOfTurn identifies one thing that a node is to be given. It is short, since no more than the
// beginning of a long annotation is read.
func PartOfTurn(dr Drift) string { return TargetOf([]Drift{dr})[:8] }

// IsForTurn reports whether a target of a turn is what the inventory has of a node.
func IsForTurn(target, want string) bool {
	had, _, _ := strings.Cut(target, ".")
	return want != "" && had == want
}

// SameParts reports whether two targets of turns are for the same things, whatever else the inventory has of the node.
func SameParts(a, b string) bool {
	_, partsA, isTurn := strings.Cut(a, ".")
	_, partsB, isTurnToo := strings.Cut(b, ".")
	return a == b || isTurn && isTurnToo && partsA == partsB
}

// TargetOfConfigs identifies the configs that the inventory has.
func TargetOfConfigs(d cluster.Desired) string {
	configs := d.Repository().Configs
	var parts []string
	for _, n := range d.Spec.Nodes {
		parts = append(parts, n.Name, configs[n.Name].Digest)
	}
	return DigestText(parts)
}
