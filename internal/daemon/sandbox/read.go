package sandbox

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/worker"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// readClusters is the job of a worker. It reports which clusters it rendered, and returns nothing: that
// it ends is what counts.
var readClusters = worker.RegisterTyped("read-clusters", func(r request, ask worker.Ask) (struct{}, error) {
	files, budget := askedFiles{ask}, inventory.NewBudget()
	var snaps []cluster.Snapshot
	for _, folder := range r.Folders {
		if _, err := files.question(opBegin, folder); err != nil {
			return struct{}{}, err
		}
		snap, valid := readCluster(files, folder, r, budget)
		if !valid {
			continue
		}
		if _, err := files.question(opRendered, folder); err != nil {
			return struct{}{}, err
		}
		snaps = append(snaps, snap)
	}
	if _, err := files.question(opBegin, ""); err != nil {
		return struct{}{}, err
	}
	inventory.CheckTogether(snaps)
	return struct{}{}, nil
})

// readCluster does what the daemon is going to do with a cluster, as far as it depends on
// what was pushed. What is wrong the daemon finds, too.
func readCluster(files askedFiles, folder string, r request, budget *inventory.Budget) (cluster.Snapshot, bool) {
	name := path.Join(folder, inventory.SecretsFile)
	if encrypted, err := inventory.ReadFile(files, name); err == nil {
		_ = secrets.Check(name, encrypted) // see above
	}
	snap, problems := inventory.Load(files, folder, inventory.Options{Owner: r.Owner, Pool: r.Pool, ImageDatastore: r.ImageDatastore, Mirrors: r.Mirrors, Budget: budget})
	if problems.HasErrors() {
		return snap, false
	}
	renderHeaviest(snap)
	return snap, true
}

// mostRendered is how many nodes of a cluster are rendered: those that were given most. The
// others take no more.
const mostRendered = 32

// renderHeaviest renders the machine configs of the nodes that were given most: one of each
// that have the same patches.
func renderHeaviest(snap cluster.Snapshot) {
	bundle, err := machineconfig.PlaceholderBundle(snap.Spec.Versions.Contract, time.Now())
	if err != nil {
		return // the contract is not known, and nothing is rendered with it
	}
	heaviest := map[string]cluster.Node{}
	for _, n := range snap.Spec.Nodes {
		files := []string{string(n.Role)}
		for _, p := range n.Patches {
			files = append(files, p.File)
		}
		key := strings.Join(files, "\x00")
		if other, known := heaviest[key]; !known || weigh(n) > weigh(other) {
			heaviest[key] = n
		}
	}
	snap.Spec.Nodes = snap.Spec.Nodes[:0:0]
	for _, n := range heaviest {
		snap.Spec.Nodes = append(snap.Spec.Nodes, n)
	}
	slices.SortFunc(snap.Spec.Nodes, func(a, b cluster.Node) int {
		return cmp.Or(cmp.Compare(weigh(b), weigh(a)), cmp.Compare(a.Name, b.Name))
	})
	snap.Spec.Nodes = snap.Spec.Nodes[:min(len(snap.Spec.Nodes), mostRendered)]
	snap.Bundle = bundle
	new(machineconfig.Renderer).Render(snap, machineconfig.PlaceholderSchematic)
}

// weigh is how much a node's machine config is made from, in bytes.
func weigh(n cluster.Node) (bytes int) {
	for _, p := range n.Patches {
		bytes += len(p.Document.RevealString())
	}
	for _, m := range []map[string]string{n.Labels, n.Taints} {
		for key, value := range m {
			bytes += len(key) + len(value)
		}
	}
	return bytes
}
