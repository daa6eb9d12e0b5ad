package reconcile

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/dualstack"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// A cluster keeps some of what it was made with for its life: its keys, its networks, the shape of
// its machine configs. A revision that has another of these never comes into force, so that the
// last good one does, and the cluster is healed by that meanwhile. The planner refuses the same
// where no good one is known.

// fixedChange is what of a revision a cluster that is built cannot take: the reason of the first
// problem, and all of them. No problems: nothing.
type fixedChange struct {
	reason   cluster.Reason
	problems cluster.Problems
}

// fixedKey is what a fixedChange follows from.
type fixedKey struct {
	of          cluster.Revision
	read        time.Time // of one whose name does not identify its files
	fingerprint string    // of the keys that the cluster was built with
	base        cluster.Revision
}

func keyOfFixed(f *Fetched, facts cluster.Facts) fixedKey {
	in, _ := facts.Intent(cluster.IntendConfig)
	key := fixedKey{of: f.Revision, fingerprint: facts.Fingerprint, base: in.Revision}
	if !f.Revision.Unique() {
		key.read = f.At
	}
	return key
}

// blocks are what a cluster cannot take of a revision, which is refused as a whole when it is pushed.
func (f fixedChange) blocks(name string) (out []cluster.Block) {
	for _, p := range f.problems {
		b := cluster.Block{Subject: name, Reason: f.reason, About: f.problems.Place(), Hint: p.Hint}
		p.Hint = ""
		b.Message = "the revision would be refused: " + p.String()
		out = append(out, b)
	}
	return out
}

// mostFixed is how many answers of findFixed are remembered.
const mostFixed = 8

// findFixed returns what of a revision, which is rendered, the cluster cannot take. It is found
// once, and logged then.
func (r *Reconciler) findFixed(ctx context.Context, f *Fetched, d cluster.Desired, facts cluster.Facts, now time.Time) fixedChange {
	key := keyOfFixed(f, facts)
	if known, ok := r.memo.fixed[key]; ok {
		return known
	}
	out, whole := r.compareFixed(ctx, d, facts, now)
	for _, p := range out.problems {
		r.log.Error("the revision changes what a cluster keeps, and does not come into force", logging.Detail, p.String(), logging.Revision, f.Revision.Short())
	}
	if whole {
		if len(r.memo.fixed) >= mostFixed {
			clear(r.memo.fixed)
		}
		r.memo.fixed[key] = out
	}
	return out
}

// compareFixed compares what is rendered with what the cluster was built with. whole is false when
// something could not be compared.
func (r *Reconciler) compareFixed(ctx context.Context, d cluster.Desired, facts cluster.Facts, now time.Time) (out fixedChange, whole bool) {
	if facts.Fingerprint == "" {
		return out, true // nothing is built
	}
	const restore = "restore the file from the history of the repository"
	secrets := cluster.Problem{Severity: cluster.Error, File: path.Join(path.Dir(d.Where[""].File), "secrets.sops.yaml")}
	switch {
	case d.Bundle.IsZero():
		secrets.Message, secrets.Hint = "the file is missing, and without the keys that this cluster was built with none of its nodes can be asked", restore
		return fixedChange{cluster.SecretsMissing, cluster.Problems{secrets}}, true
	case d.Fingerprint != "" && d.Fingerprint != facts.Fingerprint:
		secrets.Message, secrets.Hint = "it holds other keys than the ones this cluster was built with; applying them would lock everybody out", restore+"; to start over with new keys, destroy the cluster first"
		return fixedChange{cluster.SecretsChanged, cluster.Problems{secrets}}, true
	case d.OtherContract != "":
		kept := d.Spec.Versions.Contract
		return fixedChange{cluster.ContractChanged, cluster.Problems{d.At(cluster.Error, "config_contract", "the cluster was made with "+kept+", which it keeps, and this is "+d.OtherContract+"; changing it is not supported yet",
			"write `config_contract: "+kept+"` in cluster.yaml")}}, true
	}
	in, _ := facts.Intent(cluster.IntendConfig)
	if in.Revision == "" || in.Revision == d.Revision && d.Revision.Unique() {
		return out, true
	}
	base, err := r.base.read(ctx, r.c.Source, in.Revision)
	if err != nil {
		r.log.Debug("cannot compare a revision with the one that the nodes run", logging.Revision, in.Revision.Short(), logging.Err, err)
		return out, false
	}
	problems := compareSpecs(base, d.Snapshot)
	if whole = true; len(problems) == 0 && !slices.EqualFunc(base.Spec.Nodes, d.Spec.Nodes, hasSamePatches) {
		base.Bundle = d.Bundle
		ran, _ := r.c.Renderer.Desired(base, facts, now)
		problems, whole = comparePatches(ran, d), len(ran.Configs) > 0 && len(d.Configs) > 0
	}
	return fixedChange{cluster.FixedConfigChanged, problems}, whole
}

// compareSpecs are the fields of cluster.yaml that a cluster keeps and that differ.
func compareSpecs(base, asked cluster.Snapshot) (out cluster.Problems) {
	was, is := base.Spec, asked.Spec
	had, has := was.Network.IPv6, is.Network.IPv6
	if had.On() != has.On() {
		families := map[bool]string{false: "IPv4 alone", true: "IPv4 and IPv6, nodes in " + had.CIDR.String()}
		hint := "remove cidr6, and what else is of IPv6"
		if had.On() {
			hint = "write `cidr6: " + had.CIDR.String() + "`"
		}
		out = append(out, asked.At(cluster.Error, "network.cidr6", "a cluster that lives keeps the address families that it was made with: "+families[had.On()], hint+"; others need another cluster"))
		had, has = dualstack.Networks{}, dualstack.Networks{}
	}
	for _, x := range []struct{ field, what, was, is string }{
		{"cluster_name", "name", was.Name, is.Name},
		{"network.pod_cidr", "pod network", was.Network.PodCIDR.String(), is.Network.PodCIDR.String()},
		{"network.svc_cidr", "service network", was.Network.ServiceCIDR.String(), is.Network.ServiceCIDR.String()},
		{"network.cidr6", "IPv6 network of its nodes", had.CIDR.String(), has.CIDR.String()},
		{"network.pod_cidr6", "IPv6 pod network", had.Pods.String(), has.Pods.String()},
		{"network.svc_cidr6", "IPv6 service network", had.Services.String(), has.Services.String()},
		{"cni", "cni", string(was.CNI), string(is.CNI)},
	} {
		if x.was == x.is || x.field == "cni" && was.CNI != cluster.CNIFlannel && is.CNI != cluster.CNIFlannel {
			continue
		}
		_, name, _ := strings.Cut("."+x.field, ".")
		name = name[strings.LastIndex(name, ".")+1:]
		out = append(out, asked.At(cluster.Error, x.field, "a cluster that lives keeps the "+x.what+" that it was made with, which is "+x.was+", and this is "+x.is,
			"write `"+name+": "+x.was+"`; another one needs another cluster"))
	}
	return out
}

func hasSamePatches(a, b cluster.Node) bool {
	return a.Name == b.Name && slices.EqualFunc(a.Patches, b.Patches, func(p, q cluster.Patch) bool { return p.File == q.File && p.Document.Equal(q.Document) })
}

// comparePatches are the patches by which a machine config has another of what a cluster keeps.
func comparePatches(ran, d cluster.Desired) (out cluster.Problems) {
	for _, n := range d.Spec.Nodes {
		was, ok := ran.Spec.Node(n.Name)
		if !ok || was.Role != n.Role {
			continue
		}
		if differs := ran.Configs[n.Name].Summary.Differences(d.Configs[n.Name].Summary); len(differs) > 0 {
			p := placeOfFixed(was, n)
			p.Message = "a cluster that lives keeps what it was made with: " + strings.Join(differs, ", ")
			p.Hint = "undo the change in the patch; another network, or another cni, needs another cluster"
			if !slices.ContainsFunc(out, func(o cluster.Problem) bool { return o == p }) {
				out = append(out, p)
			}
		}
	}
	return out
}

// fixedKeys are the keys of a machine config under which stands what a cluster keeps.
var fixedKeys = []string{"clusterName:", "dnsDomain:", "podSubnets:", "serviceSubnets:", "cni:"}

// placeOfFixed is where the patches of a node have what a cluster keeps, as near as that is known:
// the first of them that is not as it was, and the line of such a key in it.
func placeOfFixed(was, n cluster.Node) cluster.Problem {
	out := cluster.Problem{Severity: cluster.Error}
	patches := slices.Concat(n.Patches, was.Patches) // or it was taken out
	for i, p := range patches {
		others := was.Patches
		if i >= len(n.Patches) {
			others = n.Patches
		}
		if slices.ContainsFunc(others, func(o cluster.Patch) bool { return o.File == p.File && o.Document.Equal(p.Document) }) {
			continue
		}
		if out.File == "" {
			out.File = p.File
		}
		line := 0
		for text := range strings.Lines(string(p.Document.Reveal())) {
			line++
			for _, key := range fixedKeys {
				if column := strings.Index(text, key); column >= 0 && i < len(n.Patches) {
					at := p.PlaceOf(line, column+1)
					out.File, out.Line, out.Column = p.File, at.Line, at.Column
					return out
				}
			}
		}
	}
	return out
}
