package upgrade

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// KeepContract gives a snapshot the config contract that the cluster was made with.
// One that is written and is another is returned, to be reported; one that merely
// follows from talos_version is a warning.
func KeepContract(snap cluster.Snapshot, facts cluster.Facts) (_ cluster.Snapshot, other string) {
	in, ok := facts.Intent(cluster.IntendConfig)
	have, kept := snap.Spec.Versions.Contract, in.Versions.Contract
	if !ok || kept == "" || kept == have || MinorOf(kept) > MinorOf(snap.Spec.Versions.Talos) {
		return snap, "" // an older Talos knows nothing of it; that is refused as such
	}
	snap.Spec.Versions.Contract = kept
	if _, written := snap.Where["config_contract"]; written {
		return snap, have
	}
	snap.Warnings = append(snap.Warnings[:len(snap.Warnings):len(snap.Warnings)], snap.At(cluster.Warning, "config_contract",
		fmt.Sprintf("it is not written and would follow talos_version to %s; the cluster keeps %s, with which it was made", have, kept), "write `config_contract: "+kept+"`"))
	return snap, ""
}

// MinorOf returns the minor of a Talos version or contract.
func MinorOf(version string) int {
	_, rest, _ := strings.Cut(version, ".")
	digits, _, _ := strings.Cut(rest, ".")
	n, _ := strconv.Atoi(digits)
	return n
}
