package machineconfig

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	talosversion "github.com/siderolabs/talos/pkg/machinery/version"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// The Talos minors that are managed. Nodes from 1.8 on have the nocloud image,
// the config documents and the API calls the agent relies on; before fullMinor
// they lack some of them, which Check reports.
const (
	oldestMinor = 8
	fullMinor   = 10
)

// newestMinor is the newest Talos minor the linked machine library knows. It
// would silently write a newer version's config in the shape of this one, so
// that newer versions must be refused.
func newestMinor() int {
	n, _, err := splitMinor(talosversion.Tag)
	if err != nil {
		panic("machineconfig: the machine library has version " + talosversion.Tag) // it was not built from a release
	}
	return n
}

// splitMinor splits v1.<minor>[.<rest>], the form of Talos' versions and
// contracts.
func splitMinor(version string) (minor int, rest string, err error) {
	digits, ok := strings.CutPrefix(version, "v1.")
	digits, rest, _ = strings.Cut(digits, ".")
	n, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil {
		return 0, "", fmt.Errorf("%q is not a version of Talos 1.x", version)
	}
	return int(n), rest, nil
}

// Check judges the versions a cluster asks for: Talos against what this build
// manages, Kubernetes against the window of that Talos, and the contract
// against both. What it finds points at the fields of cluster.yaml. A snapshot
// without errors can be rendered.
func Check(snap cluster.Snapshot) cluster.Problems {
	v := snap.Spec.Versions
	var ps cluster.Problems
	report := func(sev cluster.Severity, field, hint, format string, args ...any) {
		ps = append(ps, snap.At(sev, field, fmt.Sprintf(format, args...), hint))
	}
	newest := newestMinor()

	talos, patch, err := splitMinor(v.Talos)
	switch {
	case err != nil || patch == "":
		report(cluster.Error, "talos_version", "write it like v1.13.9", "%q is not a version of Talos 1.x", v.Talos)
		return append(ps, checkUnpaired(snap)...)
	case talos < oldestMinor:
		report(cluster.Error, "talos_version", fmt.Sprintf("choose a version from v1.%d to v1.%d", oldestMinor, newest),
			"Talos %s is too old to be managed", v.Talos)
		return append(ps, checkUnpaired(snap)...)
	case talos > newest:
		report(cluster.Error, "talos_version", fmt.Sprintf("update talos-agent first, or write a version up to v1.%d, whole, like v1.13.9", newest),
			"Talos %s is newer than this talos-agent, which knows v1.%d to v1.%d", v.Talos, oldestMinor, newest)
		return append(ps, checkUnpaired(snap)...)
	case talos < fullMinor:
		report(cluster.Warning, "talos_version", fmt.Sprintf("choose v1.%d or newer when you can", fullMinor),
			"Talos %s is managed with limits: a node does not tell its version before it is configured, and a config that waits for a reboot cannot be told from the one in force", v.Talos)
	}

	contract, patch, err := splitMinor(v.Contract)
	switch {
	case err != nil || patch != "":
		report(cluster.Error, "config_contract", "write the minor at which the cluster was made, like v1.13", "%q is not a minor of Talos", v.Contract)
	case contract > talos:
		report(cluster.Error, "config_contract", "it is the minor at which the cluster was made and stays behind when talos_version moves on; for a cluster that is still to be made, write the minor of talos_version",
			"contract %s asks for configs that Talos %s does not know", v.Contract, v.Talos)
	case contract < oldestMinor:
		report(cluster.Error, "config_contract", fmt.Sprintf("choose one from v1.%d to v1.%d", oldestMinor, talos),
			"contract %s is too old to be written", v.Contract)
	}

	ps = append(ps, checkKubernetes(snap)...)
	return ps
}

// checkKubernetes holds the Kubernetes version against the window that the
// compatibility tables give the Talos version.
func checkKubernetes(snap cluster.Snapshot) cluster.Problems {
	if ps := checkUnpaired(snap); len(ps) > 0 {
		return ps
	}
	v := snap.Spec.Versions
	talos, err := compatibility.ParseTalosVersion(&machine.VersionInfo{Tag: v.Talos})
	if err != nil {
		return failKubernetes(snap, "", "compare with Talos %s: %v", v.Talos, err)
	}
	kubernetes, err := compatibility.ParseKubernetesVersion(v.Kubernetes)
	if err != nil || kubernetes.SupportedWith(talos) == nil {
		return nil
	}
	minor, _, err := splitMinor(v.Talos)
	if err != nil {
		return failKubernetes(snap, "", "compare with Talos %s: %v", v.Talos, err)
	}
	first, last := kubernetesOn(minor)
	hint := fmt.Sprintf("choose a version from v1.%d to v1.%d", first, last)
	for newer := minor + 1; newer <= newestMinor(); newer++ {
		if kubernetes.SupportedWith(talosOf(newer)) == nil {
			hint += fmt.Sprintf(", or raise talos_version to one of v1.%d, which runs it", newer)
			break
		}
	}
	return failKubernetes(snap, hint, "Kubernetes %s does not run on Talos %s", v.Kubernetes, v.Talos)
}

// checkUnpaired is what is wrong with the Kubernetes version whatever Talos is to run it.
func checkUnpaired(snap cluster.Snapshot) cluster.Problems {
	version := snap.Spec.Versions.Kubernetes
	if _, err := compatibility.ParseKubernetesVersion(version); err != nil {
		return failKubernetes(snap, "write it like v1.36.1", "%q is not a version of Kubernetes", version)
	}
	_, newest := kubernetesOn(newestMinor())
	if minor, _, err := splitMinor(version); err == nil && minor > newest {
		return failKubernetes(snap, fmt.Sprintf("update talos-agent first, or write a version up to v1.%d", newest),
			"Kubernetes %s is newer than this talos-agent, which knows versions up to v1.%d", version, newest)
	}
	return nil
}

// failKubernetes is an error at the Kubernetes version.
func failKubernetes(snap cluster.Snapshot, hint, format string, args ...any) cluster.Problems {
	return cluster.Problems{snap.At(cluster.Error, "kubernetes_version", fmt.Sprintf(format, args...), hint)}
}

// talosOf is a minor version of Talos 1.x for the compatibility tables, which know no patch levels.
func talosOf(minor int) *compatibility.TalosVersion {
	v, err := compatibility.ParseTalosVersion(&machine.VersionInfo{Tag: fmt.Sprintf("v1.%d.0", minor)})
	if err != nil {
		panic("machineconfig: " + err.Error()) // it is a version
	}
	return v
}

// kubernetesOn returns the first and the last minor version of Kubernetes 1.x that runs on a minor version of Talos; 0 where
// the compatibility tables do not know that one.
func kubernetesOn(talos int) (first, last int) {
	w := kubernetesWindows()[talos]
	return w.first, w.last
}

// kubernetesWindows reads the compatibility tables, by minor version of Talos: once, because every pass checks versions.
var kubernetesWindows = sync.OnceValue(func() map[int]struct{ first, last int } {
	windows := map[int]struct{ first, last int }{}
	for talos := oldestMinor; talos <= newestMinor(); talos++ {
		w := windows[talos]
		for m := range 100 {
			k, err := compatibility.ParseKubernetesVersion(fmt.Sprintf("v1.%d.0", m))
			if err != nil || k.SupportedWith(talosOf(talos)) != nil {
				continue
			}
			if w.first == 0 {
				w.first = m
			}
			w.last = m
		}
		windows[talos] = w
	}
	return windows
})
