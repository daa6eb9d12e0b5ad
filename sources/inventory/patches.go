package inventory

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// patchFile is a patch as it was read.
type patchFile struct {
	ok    bool
	bytes int // of its document
	patch cluster.Patch
	// services are the extension services it configures.
	services []string
}

// resolvePatches gives every node its patches: all, role, node.
func (l *loader) resolvePatches() {
	p := l.cluster.Patches
	all := l.readPatches("patches.all", p.All)
	byRole := map[cluster.Role][]patchFile{
		cluster.ControlPlane: append(slices.Clone(all), l.readPatches("patches.controlplane", p.ControlPlane)...),
		cluster.Worker:       append(slices.Clone(all), l.readPatches("patches.worker", p.Worker)...),
	}
	own := map[string][]patchFile{}
	for i, n := range l.nodes.ControlPlane {
		at := yamlschema.Element("nodes.controlplane", i)
		own[n.Name] = l.readPatches(at+".patches", n.Patches)
	}
	for i, n := range l.nodes.Workers {
		at := yamlschema.Element("nodes.workers", i)
		own[n.Name] = l.readPatches(at+".patches", n.Patches)
	}
	left := len(l.spec.Nodes)
	for i, c := range l.nodes.Counted {
		if left -= c.Count; left < 0 {
			break // more than there may be, which is reported
		}
		files := l.readPatches(yamlschema.Element("nodes.counted", i)+".patches", c.Patches)
		for n := range c.Count {
			own[c.nameOf(n)] = files
		}
	}
	for i := range l.spec.Nodes {
		n := &l.spec.Nodes[i]
		size := bytesOf(byRole[n.Role]) + bytesOf(own[n.Name])
		if size > maxNodePatches {
			l.Wrong("nodes."+n.Name, "name each patch once, and only what the node needs", "the patches of %s have %d KiB together, and %d KiB at most are taken: one that is named several times counts each time",
				n.Name, size>>10, maxNodePatches>>10)
			return
		}
		if why, hint := l.spend.takePatches(size); why != "" {
			l.Wrong("patches", hint, "%s", why)
			return
		}
		files := slices.Concat(byRole[n.Role], own[n.Name])
		for _, f := range files {
			n.Patches = append(n.Patches, f.patch)
		}
		l.checkServices(n, files)
	}
}

// bytesOf is how much patches have together.
func bytesOf(files []patchFile) (n int) {
	for _, f := range files {
		n += max(f.bytes, leastPatch)
	}
	return n
}

// hungryExtensions are extensions whose service waits for its configuration
// and holds up the boot of the node until it comes.
var hungryExtensions = map[string]string{"siderolabs/tailscale": "tailscale"}

// checkServices refuses an image whose services would wait for ever.
func (l *loader) checkServices(n *cluster.Node, files []patchFile) {
	lists := []string{"patches.all", "patches." + string(n.Role)}
	if slices.ContainsFunc(lists, l.Misspelt) {
		return // it may stand there
	}
	for i, e := range l.cluster.Talos.Schematic.Extensions {
		service, hungry := hungryExtensions[e]
		if !hungry || l.unreadPatch || slices.ContainsFunc(files, func(f patchFile) bool { return slices.Contains(f.services, service) }) {
			continue
		}
		l.Wrong(yamlschema.Element("talos.schematic.extensions", i),
			"add a patch for all nodes with a document kind: ExtensionServiceConfig, name: "+service,
			"%s waits for its configuration, and the nodes never finish booting: %s has none", e, n.Name)
		return
	}
}

func (l *loader) readPatches(field string, names []string) []patchFile {
	var out []patchFile
	for i, name := range names {
		if name == "" {
			l.unreadPatch = true
			continue
		}
		at := yamlschema.Element(field, i)
		file, ok := l.locate(at, name)
		if !ok {
			l.unreadPatch = true
			continue
		}
		p, read := l.patches[file]
		if !read {
			p = l.readPatch(at, name)
			l.patches[file] = p
		}
		if !p.ok {
			l.unreadPatch = true // reported where the file was named first
			continue
		}
		out = append(out, p)
	}
	return out
}

// readPatch reads one patch file, checks what can be checked without Talos'
// library, and fills its values in.
func (l *loader) readPatch(field, name string) patchFile {
	file, data, ok := l.fetch(field, name)
	if !ok {
		return patchFile{}
	}
	d := yamlschema.Document{File: file, Report: l.Report}
	before := len(l.Problems)
	docs := d.Parse(data)
	var kept []*yaml.Node
	out := patchFile{patch: cluster.Patch{File: file}}
	for _, n := range docs {
		if yamlschema.IsNull(n) {
			continue
		}
		if n.Kind != yaml.MappingNode {
			d.Problem(n.Line, n.Column, "", "not a strategic-merge patch, but "+yamlschema.KindOf(n),
				"write the part of the machine config that should change; JSON patches are not supported")
			continue
		}
		checkWidth(d, n)
		checkOwned(d, n)
		checkIdentity(d, n)
		kind, service := yamlschema.Lookup(n, "kind"), yamlschema.Lookup(n, "name")
		if kind != nil && kind.Value == "ExtensionServiceConfig" && service != nil {
			out.services = append(out.services, service.Value)
		}
		l.substitute(d, n)
		kept = append(kept, n)
	}
	if len(l.Problems) == before && len(kept) == 0 {
		d.Problem(0, 0, "", "the file is empty", "remove it from "+field)
	}
	if l.Problems[before:].HasErrors() {
		return patchFile{}
	}
	doc, err := encodeDocs(kept)
	if err != nil {
		d.Problem(0, 0, "", "cannot be written as YAML again", "simplify its values")
		return patchFile{}
	}
	out.bytes = len(doc.Reveal())
	out.ok, out.patch.Document, out.patch.Places = true, doc, placesOf(file, kept, doc)
	return out
}

// placesOf pairs the places of a text that was written from nodes with those that
// the nodes have in their file.
func placesOf(file string, docs []*yaml.Node, text cluster.Secret) []cluster.PatchPlace {
	var out []cluster.PatchPlace
	var pair func(written, n *yaml.Node)
	pair = func(written, n *yaml.Node) {
		if written.Kind == yaml.ScalarNode {
			out = append(out, cluster.PatchPlace{Line: written.Line, Column: written.Column,
				At: cluster.Position{File: file, Line: n.Line, Column: n.Column}})
		}
		for i := range min(len(written.Content), len(n.Content)) {
			pair(written.Content[i], n.Content[i])
		}
	}
	written := yamlschema.Document{File: file, Report: yamlschema.NewReport()}.Parse(text.Reveal())
	for i := range min(len(written), len(docs)) {
		pair(written[i], docs[i])
	}
	return out
}

// owned are the parts of a machine config that the agent sets, and where the
// inventory has them.
var owned = []struct{ path, instead string }{
	{"machine.type", "the lists controlplane and workers of nodes.yaml decide it"},
	{"machine.token", "it comes from secrets.sops.yaml"},
	{"machine.ca", "it comes from secrets.sops.yaml"},
	{"machine.network.hostname", "the name of the node in nodes.yaml is its host name"},
	{"machine.install.image", "talos_version and talos.schematic in cluster.yaml decide it"},
	{"cluster.id", "it comes from secrets.sops.yaml"},
	{"cluster.secret", "it comes from secrets.sops.yaml"},
	{"cluster.token", "it comes from secrets.sops.yaml"},
	{"cluster.ca", "it comes from secrets.sops.yaml"},
	{"cluster.aggregatorCA", "it comes from secrets.sops.yaml"},
	{"cluster.serviceAccount", "it comes from secrets.sops.yaml"},
	{"cluster.secretboxEncryptionSecret", "it comes from secrets.sops.yaml"},
	{"cluster.aescbcEncryptionSecret", "it comes from secrets.sops.yaml"},
	{"cluster.etcd.ca", "it comes from secrets.sops.yaml"},
	{"cluster.clusterName", "write cluster_name in cluster.yaml"},
	{"cluster.controlPlane.endpoint", "write network.endpoint in cluster.yaml"},
	{"cluster.network.podSubnets", "write network.pod_cidr and network.pod_cidr6 in cluster.yaml"},
	{"cluster.network.serviceSubnets", "write network.svc_cidr and network.svc_cidr6 in cluster.yaml"},
}

// maxKeys is how many keys one mapping of a patch may have. No machine config has one of
// this size, and Talos' library takes time by its square, for every node again: a patch of
// 1 MB with 60,000 keys took half a minute of processor a node.
const maxKeys = 1000

// checkWidth refuses mappings with more keys than maxKeys.
func checkWidth(d yamlschema.Document, n *yaml.Node) {
	if n.Kind == yaml.MappingNode && len(n.Content)/2 > maxKeys {
		d.Problem(n.Line, n.Column, "", fmt.Sprintf("a mapping with more than %d keys", maxKeys), "check that it is the right file: a patch is the part of the machine config that should change")
		return
	}
	for _, inner := range n.Content {
		checkWidth(d, inner)
	}
}

// checkIdentity refuses secrets in the keys that identify the document: they
// are shown in messages, and decide what else is checked.
func checkIdentity(d yamlschema.Document, n *yaml.Node) {
	for _, key := range []string{"apiVersion", "kind", "name", "type"} {
		if at := yamlschema.Lookup(n, key); at != nil && strings.Contains(at.Value, "${") {
			d.Problem(at.Line, at.Column, key, "${ in what names the document: it is no place for a secret", "write the "+key+" out")
		}
	}
}

// checkOwned refuses a patch of what the inventory sets elsewhere: two places
// for one fact disagree sooner or later.
func checkOwned(d yamlschema.Document, n *yaml.Node) {
	if kind := yamlschema.Lookup(n, "kind"); kind != nil {
		if kind.Value == "HostnameConfig" {
			d.Problem(kind.Line, kind.Column, "kind", "a patch must not set the host name", "the name of the node in nodes.yaml is its host name")
		}
		return
	}
	for _, o := range owned {
		at := n
		for key := range strings.SplitSeq(o.path, ".") {
			if at = yamlschema.Lookup(at, key); at == nil {
				break
			}
		}
		if at != nil {
			d.Problem(at.Line, at.Column, o.path, "a patch must not set it", fmt.Sprintf("remove it: %s", o.instead))
		}
	}
}
