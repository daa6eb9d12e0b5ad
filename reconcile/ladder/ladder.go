// Package ladder finds the way from the versions that a cluster runs to those that its inventory
// has: the hops of Talos and Kubernetes, in their order, or why there is none.
//
// It is pure. What it knows of versions are tables (versions.go), which its tests hold against
// those of Talos' own library.
package ladder

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Find returns the hops that lead from one pair of versions to another. Each goes to the next
// minor version at most, after each both work together, and Talos goes first wherever it can:
// a new Talos runs the Kubernetes of before, and a new Kubernetes seldom runs on an old Talos.
//
// Talos leaves a minor version from its newest known patch, and meets those between at theirs, as
// its documentation asks; Kubernetes only the latter. The error is why there is no way.
func Find(from, to cluster.Versions) ([]cluster.Hop, error) {
	talos, kubernetes, err := parsePair(from)
	if err != nil {
		return nil, err
	}
	wantTalos, wantKubernetes, err := parsePair(to)
	if err != nil {
		return nil, err
	}
	if err := checkEnds(talos, kubernetes, wantTalos, wantKubernetes); err != nil {
		return nil, err
	}
	var hops []cluster.Hop
	for talos != wantTalos || kubernetes != wantKubernetes {
		nextTalos, nextKubernetes := nextOf(talos, wantTalos, lastTalos, true), nextOf(kubernetes, wantKubernetes, lastKubernetes, false)
		switch {
		case nextTalos != talos && windows[nextTalos.minor].has(kubernetes):
			hops = append(hops, cluster.Hop{Kind: cluster.HopTalos, From: talos.String(), To: nextTalos.String()})
			talos = nextTalos
		case nextKubernetes != kubernetes && windows[talos.minor].has(nextKubernetes):
			hops = append(hops, cluster.Hop{Kind: cluster.HopKubernetes, From: kubernetes.String(), To: nextKubernetes.String()})
			kubernetes = nextKubernetes
		default:
			return nil, fmt.Errorf("no version of Kubernetes between %s and %s runs on Talos %s and the next one", kubernetes, wantKubernetes, talos)
		}
	}
	return hops, nil
}

// checkEnds refuses what no hop leads out of or to.
func checkEnds(talos, kubernetes, wantTalos, wantKubernetes version) error {
	for _, v := range []version{talos, wantTalos} {
		if _, ok := windows[v.minor]; !ok {
			return fmt.Errorf("which Kubernetes runs on Talos %s is not known", v)
		}
	}
	switch {
	case wantTalos.isOlder(talos):
		return fmt.Errorf("a downgrade of Talos, from %s to %s, is not made", talos, wantTalos)
	case wantKubernetes.isOlder(kubernetes):
		return fmt.Errorf("a downgrade of Kubernetes, from %s to %s, is not made", kubernetes, wantKubernetes)
	case !windows[wantTalos.minor].has(wantKubernetes):
		return fmt.Errorf("on Talos %s Kubernetes %s does not run, but %s", wantTalos, wantKubernetes, windows[wantTalos.minor])
	case !windows[talos.minor].has(kubernetes):
		return fmt.Errorf("what runs is not meant for each other: on Talos %s Kubernetes %s, and not %s", talos, kubernetes, windows[talos.minor])
	}
	return nil
}

// nextOf returns where a hop leads that begins at one version and ends at another, by the newest
// known patch of each minor version. leaves is whether a minor version is left from its newest
// patch only.
func nextOf(at, want version, last map[int]int, leaves bool) version {
	newest := version{minor: at.minor, patch: last[at.minor]}
	switch {
	case at.minor == want.minor:
		return want
	case leaves && at.isOlder(newest):
		return newest
	case at.minor+1 == want.minor:
		return want
	}
	return version{minor: at.minor + 1, patch: last[at.minor+1]}
}

func parsePair(v cluster.Versions) (talos, kubernetes version, err error) {
	if talos, err = parseVersion(v.Talos); err != nil {
		return version{}, version{}, fmt.Errorf("version of Talos: %w", err)
	}
	if kubernetes, err = parseVersion(v.Kubernetes); err != nil {
		return version{}, version{}, fmt.Errorf("version of Kubernetes: %w", err)
	}
	return talos, kubernetes, nil
}
