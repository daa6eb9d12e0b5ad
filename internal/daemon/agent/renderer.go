package agent

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/leases"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

// The agent's own client certificates never leave the process. They are renewed
// long before they end, and backdated by a day: always good for a day at least on
// either side of the host's clock, for nodes may have another one.
const (
	credentialsTTL = 36 * time.Hour
	renewAfter     = 12 * time.Hour
	maxStep        = time.Minute // by which the clock may be set back without a renewal
)

// renderer turns snapshots into what should be, and remembers what it cost:
// configs by their inputs, credentials until they are renewed.
type renderer struct {
	factory *factory.Factory
	policy  func() cluster.Policy
	// addresses has those of nodes that the inventory has none of.
	addresses *leases.Book
	configs   machineconfig.Renderer
	// builtWith returns another cluster that was built with a bundle, "" if there is none.
	builtWith func(fingerprint string) (string, error)

	mu          sync.Mutex
	bundle      cluster.Secret
	fingerprint string
	access      cluster.Access
	// minted is by the host's clock, without the monotonic reading: a clock that was
	// wrong and is set right must show in their age.
	minted time.Time

	certificates atomic.Pointer[[]cluster.Certificate] // of what is open
}

// Desired implements reconcile.Renderer.
func (r *renderer) Desired(snap cluster.Snapshot, facts cluster.Facts, now time.Time) (cluster.Desired, cluster.Problems) {
	snap.Spec = r.addresses.Complete(snap.Spec)
	d := cluster.Desired{Snapshot: snap}
	r.mu.Lock()
	defer r.mu.Unlock()
	problems := machineconfig.Check(snap)
	if err := r.open(&d, now); err != nil {
		problems = append(problems, snap.At(cluster.Error, "", "secrets.sops.yaml: "+err.Error(), fault.HintOf(err)))
	}
	if facts.Fingerprint == "" && d.Fingerprint != "" {
		problems = append(problems, r.checkUnused(d)...)
	}
	if id, ok := r.factory.Known(snap.Spec.Schematic); ok {
		d.Schematic = id
	} else {
		want := snap.Spec.Schematic.Digest()
		for _, pin := range facts.Images {
			if pin.For == want {
				d.Schematic = pin.Schematic
			}
		}
	}
	if d.Schematic == "" || problems.HasErrors() {
		return d, problems
	}
	d.Image = snap.Spec.NewImage(snap.Spec.Versions.Talos, d.Schematic)
	if !snap.Bundle.IsZero() && !r.tooLarge(snap) {
		configs, found := r.configs.Render(snap, d.Schematic)
		d.Configs = configs
		problems = append(problems, found...)
	}
	return d, problems
}

// checkUnused refuses to build a cluster with the secrets of another one, whose folder
// may not be in the repository any longer.
func (r *renderer) checkUnused(d cluster.Desired) cluster.Problems {
	other, err := r.builtWith(d.Fingerprint)
	switch {
	case err != nil:
		return cluster.Problems{d.At(cluster.Error, "secrets", "it is not known whether another cluster was made with these secrets: "+err.Error(), fault.HintOf(err))}
	case other != "":
		return cluster.Problems{d.At(cluster.Error, "secrets", "these are the secrets that cluster "+other+" was made with",
			"a new cluster needs new secrets: remove the file, and `talos-agent secrets new`; if it is that cluster, give folder and cluster_name their names back")}
	}
	return nil
}

// tooLarge reports whether the clusters have more nodes than the host's policy
// allows: they are refused, and thousands of configs would be rendered for
// nothing.
func (r *renderer) tooLarge(snap cluster.Snapshot) bool {
	nodes := len(snap.Spec.Nodes)
	for _, s := range snap.Siblings {
		nodes += s.Nodes
	}
	most := r.policy().Limits.Nodes
	return most > 0 && nodes > most
}

// open mints what opens the cluster from its bundle.
func (r *renderer) open(d *cluster.Desired, now time.Time) error {
	if d.Bundle.IsZero() {
		return nil
	}
	if age := now.Round(0).Sub(r.minted); !d.Bundle.Equal(r.bundle) || age < -maxStep || age > renewAfter {
		bundle, err := r.configs.OpenBundle(d.Snapshot)
		if err != nil {
			return err
		}
		fp, err := bundle.Fingerprint()
		if err != nil {
			return err
		}
		access, err := bundle.Credentials(now, credentialsTTL)
		if err != nil {
			return err
		}
		certificates, err := bundle.Authorities()
		if err != nil {
			return err
		}
		certificates = append(certificates,
			cluster.Certificate{Name: "agent for talos", NotBefore: now, NotAfter: access.Talos.NotAfter},
			cluster.Certificate{Name: "agent for kubernetes", NotBefore: now, NotAfter: access.Kube.NotAfter})
		r.bundle, r.fingerprint, r.access, r.minted = d.Bundle, fp, access, now.Round(0)
		r.certificates.Store(&certificates)
	}
	d.Fingerprint, d.Access = r.fingerprint, r.access
	return nil
}
