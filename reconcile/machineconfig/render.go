package machineconfig

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// PlaceholderSchematic stands for the image factory's id while the factory was
// not asked: good enough to check a configuration, never to be applied.
const PlaceholderSchematic = "0000000000000000000000000000000000000000000000000000000000000000"

// Renderer renders the machine configs of clusters and remembers them, so that
// only what changed is rendered again. The zero value is ready; it may be used
// by several goroutines. What it remembers is bounded by the two newest renderings
// of each node, because what a cluster runs and what its repository has may be two;
// and it is as secret as the configs themselves.
type Renderer struct {
	mu       sync.Mutex
	clusters map[string]map[string][]rendered // by Spec.ID and node name, newest first
	bundles  map[string]*Bundle               // by Spec.ID
	texts    map[[sha256.Size]byte]*cluster.Config
	count    int
}

// rendered is the outcome for one node.
type rendered struct {
	input    [sha256.Size]byte
	text     [sha256.Size]byte // of the config
	config   cluster.Config
	problems cluster.Problems
	idle     bool     // it takes no ordinary workloads
	sealed   []string // the volumes whose key a TPM gives out
}

// Count is how many node configs were rendered so far; what came from memory
// does not count.
func (r *Renderer) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// Render returns the machine config of every node by name, in the shape of the
// cluster's version contract, with the user's patches applied last and in
// order, and validated by the machine library without any request. The
// schematic is the image factory's id, or PlaceholderSchematic.
//
// Problems name the file of the patch that causes them. A node whose config has
// an error is missing from the result; if nothing can be rendered, because the
// versions do not fit (as Check reports) or there is no whole secrets bundle,
// the result is nil. No problem quotes the value of a setting that could be a
// secret.
//
// Equal input gives equal bytes.
func (r *Renderer) Render(snap cluster.Snapshot, schematic string) (map[string]cluster.Config, cluster.Problems) {
	if ps := Check(snap); ps.HasErrors() {
		return nil, ps
	}
	ins, keys, err := listInputs(snap, schematic)
	if err != nil {
		return nil, cluster.Problems{snap.At(cluster.Error, "", err.Error(), "")}
	}

	r.mu.Lock()
	known := r.clusters[snap.Spec.ID]
	r.mu.Unlock()

	results := make([]rendered, len(ins))
	var todo []int
	for i, in := range ins {
		if at := slices.IndexFunc(known[in.Name], func(old rendered) bool { return old.input == keys[i] }); at >= 0 {
			results[i] = known[in.Name][at]
		} else {
			todo = append(todo, i)
		}
	}
	if len(todo) > 0 {
		bundle, err := r.OpenBundle(snap)
		if err != nil {
			file := path.Join(path.Dir(snap.Where[""].File), "secrets.sops.yaml")
			return nil, cluster.Problems{{Severity: cluster.Error, File: file, Message: err.Error(), Hint: fault.HintOf(err)}}
		}
		g, problem := newGenerator(snap, ins[todo[0]].shared, bundle)
		if problem != nil {
			return nil, cluster.Problems{*problem}
		}
		runEach(len(todo), func(n int) {
			i := todo[n]
			results[i] = g.render(snap, &ins[i])
			results[i].input = keys[i]
		})
		r.remember(snap.Spec.ID, ins, results, len(todo))
	}
	configs, ps := collectResults(ins, results)
	placeProblems(ps, snap)
	if !slices.ContainsFunc(results, func(res rendered) bool { return !res.idle }) {
		ps = append(ps, idleCluster(snap, ins))
	}
	ps = append(ps, sealedWithoutTPM(snap, ins, results)...)
	return configs, ps
}

// OpenBundle opens the bundle of a snapshot, or returns the one that it opened
// before from the same text: a bundle is parsed once a snapshot.
func (r *Renderer) OpenBundle(snap cluster.Snapshot) (*Bundle, error) {
	r.mu.Lock()
	b := r.bundles[snap.Spec.ID]
	r.mu.Unlock()
	if b.isOf(snap.Bundle, snap.Spec.Versions.Contract) {
		return b, nil
	}
	b, err := OpenBundle(snap.Bundle, snap.Spec.Versions.Contract)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bundles == nil {
		r.bundles = map[string]*Bundle{}
	}
	r.bundles[snap.Spec.ID] = b
	return b, nil
}

func (r *Renderer) remember(id string, ins []input, results []rendered, fresh int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes := make(map[string][]rendered, len(ins))
	for i, in := range ins {
		nodes[in.Name] = []rendered{results[i]}
		for _, old := range r.clusters[id][in.Name] {
			if old.input != results[i].input && len(nodes[in.Name]) < 2 {
				nodes[in.Name] = append(nodes[in.Name], old)
			}
		}
	}
	if r.clusters == nil {
		r.clusters = map[string]map[string][]rendered{}
	}
	r.clusters[id] = nodes
	r.count += fresh
	r.texts = map[[sha256.Size]byte]*cluster.Config{}
	for _, of := range r.clusters {
		for _, all := range of {
			for i := range all {
				r.texts[all[i].text] = &all[i].config
			}
		}
	}
}

// Digest is Digest of a machine config. One that was rendered here, as most that machines have were, is not read again.
func (r *Renderer) Digest(config []byte) (string, error) {
	if c := r.recall(config); c != nil {
		return c.Digest, nil
	}
	return Digest(config)
}

// Summarize is Summarize in the same way.
func (r *Renderer) Summarize(config []byte) (cluster.ConfigSummary, error) {
	if c := r.recall(config); c != nil {
		return c.Summary, nil
	}
	return Summarize(config)
}

// recall returns the rendering that has a text; nil: none of those that are remembered has.
func (r *Renderer) recall(config []byte) *cluster.Config {
	sum := sha256.Sum256(config)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.texts[sum]
}

// collectResults gathers the outcomes. A patch that is wrong for many nodes is
// reported once.
func collectResults(ins []input, results []rendered) (map[string]cluster.Config, cluster.Problems) {
	configs := make(map[string]cluster.Config, len(ins))
	var ps cluster.Problems
	reported := map[cluster.Problem]bool{}
	for i, res := range results {
		for _, p := range res.problems {
			if !reported[p] {
				reported[p] = true
				ps = append(ps, p)
			}
		}
		if !res.problems.HasErrors() {
			configs[ins[i].Name] = res.config
		}
	}
	return configs, ps
}

// placeProblems moves problems from the lines of patches' texts to those of their
// files. What is remembered of a node does not depend on them: a patch with
// another comment in it is the same patch.
func placeProblems(ps cluster.Problems, snap cluster.Snapshot) {
	patches := map[string]cluster.Patch{}
	for _, n := range snap.Spec.Nodes {
		for _, p := range n.Patches {
			patches[p.File] = p
		}
	}
	for i := range ps {
		if p, ok := patches[ps[i].File]; ok && ps[i].Line > 0 {
			at := p.PlaceOf(ps[i].Line, ps[i].Column)
			ps[i].Line, ps[i].Column = at.Line, at.Column
		}
	}
}

// idleCluster warns of a cluster in which nothing can run but what tolerates
// control planes.
func idleCluster(snap cluster.Snapshot, ins []input) cluster.Problem {
	hint := "add a worker, or a patch: cluster: {allowSchedulingOnControlPlanes: true}"
	if len(ins) > 0 && ins[0].Minor >= 14 {
		hint = "add a worker, or a patch of the KubeNodeConfig document: taints: {" + constants.LabelNodeRoleControlPlane + ": {$patch: delete}}"
	}
	return snap.At(cluster.Warning, "", "there are no workers, and the control planes take no workloads", hint)
}

// runEach calls f for every number below n, on all processors.
func runEach(n int, f func(int)) {
	var wg sync.WaitGroup
	numbers := make(chan int)
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := range numbers {
				f(i)
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
}

// listInputs takes from a snapshot what each node's config depends on, with its
// digest.
func listInputs(snap cluster.Snapshot, schematic string) ([]input, [][sha256.Size]byte, error) {
	spec := snap.Spec
	talos, _, err := splitMinor(spec.Versions.Talos)
	if err != nil {
		return nil, nil, err
	}
	contract, _, err := splitMinor(spec.Versions.Contract)
	if err != nil {
		return nil, nil, err
	}
	all := &shared{
		Cluster:    spec.Name,
		Talos:      talos,
		Contract:   spec.Versions.Contract,
		Minor:      contract,
		Kubernetes: spec.Versions.Kubernetes,
		Installer:  spec.Installer(schematic),
		ISO:        spec.ISO,
		Network:    spec.Network,
		CNI:        spec.CNI,
		Mirrors:    spec.Mirrors,
		Bundle:     snap.Bundle.RevealString(),
	}
	common, err := json.Marshal(all)
	if err != nil {
		return nil, nil, fmt.Errorf("digest the cluster's settings: %w", err)
	}
	start := sha256.Sum256(common)

	ins := make([]input, len(spec.Nodes))
	keys := make([][sha256.Size]byte, len(spec.Nodes))
	for i, n := range spec.Nodes {
		patches := make([]patch, len(n.Patches))
		for j, p := range n.Patches {
			patches[j] = patch{p.File, p.Document.RevealString()}
		}
		if n.Leased {
			n.IP = netip.Addr{} // its config does not depend on it
		}
		if !spec.Network.IPv6.On() {
			n.IP6 = netip.Addr{} // the networks may be those that the nodes run
		}
		ins[i] = input{shared: all, Name: n.Name, Role: n.Role, IP: n.IP, IP6: n.IP6, Leased: n.Leased, MAC: n.MAC, Labels: n.Labels, Taints: n.Taints, Patches: patches, Components: n.Components, Devices: n.Devices}
		own, err := json.Marshal(&ins[i])
		if err != nil {
			return nil, nil, fmt.Errorf("digest the settings of node %s: %w", n.Name, err)
		}
		keys[i] = sha256.Sum256(append(start[:len(start):len(start)], own...))
	}
	return ins, keys, nil
}

// generator makes the configs of one cluster's nodes.
type generator struct{ generate *generate.Input }

// newGenerator prepares what the nodes have in common.
// The problem, if any, stops the whole cluster.
func newGenerator(snap cluster.Snapshot, s *shared, bundle *Bundle) (*generator, *cluster.Problem) {
	stop := func(p cluster.Problem) (*generator, *cluster.Problem) { return nil, &p }
	c, err := config.ParseContractFromVersion(s.Contract)
	if err != nil {
		return stop(snap.At(cluster.Error, "config_contract", err.Error(), ""))
	}
	in, err := generate.NewInput(s.Cluster, s.Network.Endpoint, strings.TrimPrefix(s.Kubernetes, "v"), listOptions(s, c, bundle.parsed)...)
	if err != nil {
		return stop(snap.At(cluster.Error, "", fmt.Sprintf("generate machine config: %v", err), ""))
	}
	in.PodNet = []string{s.Network.PodCIDR.String()}
	in.ServiceNet = []string{s.Network.ServiceCIDR.String()}
	if six := s.Network.IPv6; six.On() { // Kubernetes takes that of the first as a node's first family
		in.PodNet = append(in.PodNet, six.Pods.String())
		in.ServiceNet = append(in.ServiceNet, six.Services.String())
	}
	return &generator{in}, nil
}

// compose lays a node's settings over what the generator writes for its role.
// Every node gets a generation of its own: it takes microseconds, and a clone
// of a config is not deep everywhere (the library's v1alpha1 endpoint is not),
// so that a patch of one node could reach another.
func (g *generator) compose(in *input) (config.Provider, error) {
	role, err := machine.ParseType(string(in.Role)) // we and Talos call roles the same
	if err != nil {
		return nil, err
	}
	base, err := g.generate.Config(role)
	if err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	text, err := writeDraft(in).encode()
	if err != nil {
		return nil, fmt.Errorf("write settings: %w", err)
	}
	doc, err := configloader.NewFromBytes(text, configloader.WithAllowPatchDelete(), configloader.WithNoValidation())
	if err != nil {
		return nil, fmt.Errorf("load settings: %w", err)
	}
	composed, err := configpatcher.StrategicMerge(base, configpatcher.NewStrategicMergePatch(doc))
	if err != nil {
		return nil, fmt.Errorf("merge settings: %w", err)
	}
	return composed, nil
}

// listOptions returns the settings for which the generator itself knows the
// place.
func listOptions(s *shared, c *config.VersionContract, bundle *secrets.Bundle) []generate.Option {
	opts := []generate.Option{
		generate.WithVersionContract(c),
		generate.WithSecretsBundle(bundle),
		generate.WithAdditionalSubjectAltNames(listSANs(s.Network, c.PopulateClusterSANsFromEndpoint())),
		// The public discovery service would learn of every node, and nodes on an
		// internal bridge could not reach it. Nothing the agent or Talos does needs
		// it: members find each other through the endpoint.
		generate.WithClusterDiscovery(false),
	}
	for _, host := range slices.Sorted(maps.Keys(s.Mirrors)) {
		mirror := s.Mirrors[host]
		if !strings.Contains(mirror, "://") {
			mirror = "https://" + mirror
		}
		opts = append(opts, generate.WithRegistryMirror(host, mirror))
	}
	return opts
}

// listSANs returns the names beside its own that the certificates of a machine
// and of the Kubernetes API are valid for. Up to contract 1.11 the generator adds
// the endpoint by itself.
func listSANs(n cluster.Network, added bool) []string {
	var endpoint string
	if u, err := url.Parse(n.Endpoint); err == nil {
		endpoint = u.Hostname()
	}
	names := []string{endpoint}
	if n.VIP.IsValid() {
		names = append(names, n.VIP.String())
	}
	var out []string
	for _, s := range append(names, n.CertSANs...) {
		if s != "" && !slices.Contains(out, s) && !(added && s == endpoint) {
			out = append(out, s)
		}
	}
	return out
}

// render makes one node's config.
func (g *generator) render(snap cluster.Snapshot, in *input) rendered {
	own := func(err error) rendered {
		return rendered{problems: cluster.Problems{snap.At(cluster.Error, "", fmt.Sprintf("machine config of node %s: %v", in.Name, err), fault.HintOf(err))}}
	}
	base, err := recoverPanic(func() (config.Provider, error) { return g.compose(in) })
	if err != nil {
		return own(err)
	}
	patched, problems := applyPatches(base, in)
	var final cluster.Images
	if !problems.HasErrors() {
		role := cluster.Worker
		if in.controlPlane() {
			role = cluster.ControlPlane
		}
		if final, err = recoverPanic(func() (cluster.Images, error) { return listImages(patched, role), nil }); err != nil {
			return own(err)
		}
		staged, err := recoverPanic(func() (config.Provider, error) { return stageComponents(patched, in) })
		if err != nil {
			return own(err)
		}
		patched = staged
	}
	for i := range problems {
		if problems[i].File == "" { // no patch is to blame
			problems[i].File = snap.Where[""].File
		}
	}
	if problems.HasErrors() {
		return rendered{problems: problems}
	}
	out, err := recoverPanic(func() (rendered, error) { return finishConfig(patched) })
	if err != nil {
		return own(err)
	}
	out.problems, out.config.Final = problems, final
	return out
}

// finishConfig writes a config down.
func finishConfig(c config.Provider) (rendered, error) {
	text, err := c.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return rendered{}, fmt.Errorf("encode: %w", err)
	}
	// The digest loads the text again, and so shows that a node can.
	digest, err := Digest(text)
	if err != nil {
		return rendered{}, err
	}
	_, idle := c.K8sNodeConfig().Taints()[constants.LabelNodeRoleControlPlane]
	dns := c.K8sCoreDNSConfig()
	return rendered{text: sha256.Sum256(text), config: cluster.Config{Bytes: cluster.NewSecret(text), Digest: digest, DNS: dns != nil && dns.Enabled(), Summary: summarize(c), Addresses: addressesOf(c)}, idle: idle, sealed: listSealed(c)}, nil
}
