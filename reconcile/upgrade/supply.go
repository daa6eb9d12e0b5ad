package upgrade

import (
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// askAgain is after how long a registry that has no installer is asked for it again: somebody may have put it there.
const askAgain = 10 * time.Minute

// MissingInstaller is an image that its registry does not have.
type MissingInstaller struct{ Image, Version, Why string }

// Supply is what is known of the installers of a way to other versions.
type Supply struct {
	Ask     []string // those to look for now
	Unknown bool     // of one at least it is not known whether it is there
	Missing []MissingInstaller
	// Unchecked is why one at least cannot be looked for from this host; "": all can. The pull of each node shows it then.
	Unchecked string
}

// Holds reports whether nothing of the way is to be begun.
func (s Supply) Holds() bool { return s.Unknown || len(s.Missing) > 0 }

// Blocks are those for a cluster of which an installer is missing.
func (s Supply) Blocks(name string) (out []cluster.Block) {
	for _, lack := range s.Missing {
		out = append(out, cluster.Block{Subject: name, Reason: cluster.InstallerMissing, About: lack.Image, Message: fmt.Sprintf("no hop is begun, because there is no installer %s: %s", lack.Image, lack.Why),
			Hint: "change talos.schematic.extensions, or set talos_version back; it is looked for again every ten minutes"})
	}
	return out
}

// Wait is that of a node of which a hop changes something; false: it does not wait for an installer.
func (s Supply) Wait(node string, drifts []cluster.FieldDifference) (w cluster.Wait, holds bool) {
	w = cluster.Wait{Subject: node, Reason: cluster.WaitingForInstaller, About: "supply", Drift: drifts}
	if len(s.Missing) > 0 { // the block for the cluster counts
		w.Message = "waits to be upgraded, because there is no installer of Talos " + s.Missing[0].Version
	} else {
		w.Message, w.Within = "waits to be upgraded until it is known whether the image factory has the installers of all hops", time.Hour
	}
	return w, s.Holds()
}

// Describe is what of the installer of a hop to come is not known, for people; "" : nothing.
func (s Supply) Describe(hop cluster.Hop) string {
	if s.Unchecked == "" || hop.Kind != cluster.HopTalos {
		return ""
	}
	return "; whether its installer is there is seen then, for " + s.Unchecked
}

// JudgeSupply works out whether the installers of all hops that a cluster is to make are there. Versions that are set back
// wait for no registry.
func JudgeSupply(d cluster.Desired, o cluster.Observed) (s Supply) {
	asked := d.Repository()
	if asked.NoWay != "" || asked.Held != "" || asked.Back != (cluster.Back{}) {
		return s
	}
	for _, hop := range asked.Hops {
		if hop.Kind != cluster.HopTalos {
			continue
		}
		image := asked.Spec.InstallerOf(asked.Schematic, hop.To)
		switch seen, looked := o.Installers[image]; {
		case asked.Schematic == "": // it is registered first
			s.Unknown = true
		case !looked:
			s.Unknown, s.Ask = true, append(s.Ask, image)
		case seen.Missing != "":
			s.Missing = append(s.Missing, MissingInstaller{Image: image, Version: hop.To, Why: seen.Missing})
			if o.Now.Sub(seen.At) >= askAgain {
				s.Ask = append(s.Ask, image)
			}
		case seen.Unchecked != "":
			s.Unchecked = seen.Unchecked
		}
	}
	return s
}
