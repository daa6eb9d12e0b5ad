package formats

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
)

const (
	hintOneDisk = "a VM has one system disk, on which Talos is installed"
	hintByPatch = "write a patch of the machine config, and name it in patches of cluster.yaml or of the node"
)

// talhelperHints are keys of talconfig.yaml that have no place in an inventory.
var talhelperHints = map[string]string{
	"nodes[].installDisk":                hintOneDisk,
	"nodes[].installDiskSelector":        hintOneDisk,
	"nodes[].ignoreHostname":             "the name of a node is its host name",
	"nodes[].filenameTmpl":               "no files of machine configs are written",
	"nodes[].overrideExtraManifests":     "extraManifests are not taken over",
	"nodes[].overrideMachineCertSANs":    "network.cert_sans has the names of all nodes",
	"imageFactory.schematicEndpoint":     "the host's config.yaml has where the image factory is",
	"imageFactory.protocol":              "the host's config.yaml has where the image factory is",
	"imageFactory.installerURLTmpl":      "talos.installer_registry has the registry alone",
	"imageFactory.ISOURLTmpl":            hintTemplate,
	"cniConfig.urls":                     "write cni: cilium, or an addon with the network: docs/how-to/addons.md",
	"cniConfig.flannel":                  hintByPatch,
	"nodes[].schematic.overlay":          "VMs need no overlay",
	"nodes[].networkInterfaces[].mtu":    hintByPatch,
	"nodes[].networkInterfaces[].bond":   "bond the interfaces of the host below the bridge instead",
	"nodes[].networkInterfaces[].bridge": "VMs are attached to a bridge of the host: proxmox.bridge",
}

// groupHints are keys that nodes and groups of them share.
var groupHints = map[string]string{
	"extraManifests":      "write them as addons, docs/how-to/addons.md, or a patch with cluster.extraManifests",
	"machineDisks":        "write disks: in nodes.yaml, which have the serial talos-NAME, and userVolumes or a patch that mounts them",
	"talosImageURL":       "write the extensions of the image into talos.schematic.extensions",
	"noSchematicValidate": "the image factory checks the extensions when the image is made",
	"imageSchematic":      hintTemplate,
	"filenameTmpl":        "no files of machine configs are written",
}

// talhelperNode is a node, or a group of nodes, that is being read.
type talhelperNode struct {
	*section
	role cluster.Role
	node *draft.Value // nil for a group
	name string       // of the node or the group
}

// readTalhelper reads a talconfig.yaml.
func (r *reading) readTalhelper(f source) {
	s := newSection(r.d, f.Name, "", f.value)
	s.open = explainOpen
	putText := func(key, written string, path ...string) {
		if written != "" {
			s.put(key, draft.Text(written), path...)
		}
	}
	putText("clusterName", s.text("clusterName"), "cluster_name")
	putText("talosVersion", withV(s.text("talosVersion")), "talos_version")
	putText("kubernetesVersion", withV(s.text("kubernetesVersion")), "kubernetes_version")
	putText("endpoint", s.text("endpoint"), "network", "endpoint")
	for key, path := range map[string]string{"clusterPodNets": "pod_cidr", "clusterSvcNets": "svc_cidr"} {
		if nets := s.texts(key); len(nets) > 0 {
			putText(key, nets[0], "network", path)
			if len(nets) > 1 {
				s.leave(key, "has more than one network", "network."+path+" takes one, of IPv4")
			}
		}
	}
	for _, key := range []string{"additionalApiServerCertSans", "additionalMachineCertSans"} {
		if sans := s.texts(key); len(sans) > 0 {
			r.addTexts(s.origin(key), sans, []string{"network", "cert_sans"})
		}
	}
	r.readCNI(s)
	if factory := s.section("imageFactory"); factory != nil {
		if registry := factory.text("registryURL"); registry != "" {
			factory.put("registryURL", draft.Text(registry), "talos", "installer_registry")
		}
		factory.rest(talhelperHints)
	}
	r.readClusterPatch(s)
	t := talhelperReader{reading: r, file: f}
	t.addPatches(s, "all", nil)
	groups := map[cluster.Role]*section{cluster.ControlPlane: s.section("controlPlane"), cluster.Worker: s.section("worker")}
	for _, role := range roles {
		if g := groups[role]; g != nil {
			t.readGroup(g, role)
		}
	}
	for _, n := range s.sections("nodes") {
		t.readNode(n, groups)
	}
	s.rest(talhelperHints)
}

// explainOpen is why a text of a talconfig.yaml is not a value yet, and what to do; "" if it is
// one.
func explainOpen(s string) (why, hint string) {
	switch {
	case strings.Contains(s, "${"):
		return "has a variable of the environment, which is not read", "write its value by hand"
	case strings.Contains(s, "{{"):
		return "has a template", "write by hand what it comes to"
	}
	return "", ""
}

// readCNI reads which network the pods have.
func (r *reading) readCNI(s *section) {
	cni := s.section("cniConfig")
	if cni == nil {
		return
	}
	switch name := cni.text("name"); name {
	case "", "flannel":
	case "none", "custom":
		cni.put("name", draft.Text("none"), "cni")
		cni.leave("name", "leaves the network of the pods to somebody else", "with Cilium write cni: cilium and addons/cilium.yaml, else an addon of yours: docs/how-to/addons.md")
	default:
		cni.leave("name", "is no network that is known", "write cni: flannel, cilium or none")
	}
	cni.rest(talhelperHints)
}

// readClusterPatch makes a patch out of settings of the whole cluster that are settings of
// the machine config.
func (r *reading) readClusterPatch(s *section) {
	patch := draft.Mapping()
	var from draft.Origin
	if domain := s.text("domain"); domain != "" && domain != "cluster.local" {
		from = s.origin("domain")
		patch.Set(from, draft.Text(domain), "cluster", "network", "dnsDomain")
	}
	for _, key := range []string{"allowSchedulingOnControlPlanes", "allowSchedulingOnMasters"} {
		if yes, ok := s.truth(key); ok && yes {
			from = s.origin(key)
			patch.Set(from, draft.Literal("true"), "cluster", "allowSchedulingOnControlPlanes")
		}
	}
	if patch.Len() > 0 {
		r.addTexts(draft.Origin{}, []string{r.d.AddPatch(from, "cluster", patch.YAML())}, []string{"patches", "all"})
	}
}

// talhelperReader reads the nodes of a talconfig.yaml, and the groups of them.
type talhelperReader struct {
	*reading
	file        source
	nameservers string // of the first node that has some
	schematic   string // of the first node that has one
}

// readNode reads a node; what it does not have itself it has from its group.
func (t *talhelperReader) readNode(s *section, groups map[cluster.Role]*section) {
	n := talhelperNode{section: s, role: cluster.Worker, node: draft.Mapping(), name: s.text("hostname")}
	if plane, _ := s.truth("controlPlane"); plane {
		n.role = cluster.ControlPlane
	}
	if n.name == "" {
		s.leave("hostname", "a node without a name", "write it into nodes.yaml")
		return
	}
	n.node.Set(draft.Origin{}, draft.Text(n.name), "name")
	own := t.readAddress(n)
	n.node.Ask("the address of the node", "ip")
	group := groups[n.role]
	for key, to := range map[string]string{"nodeLabels": "labels", "nodeAnnotations": "annotations", "nodeTaints": "taints"} {
		t.readTexts(n, key, to)
		if group != nil && group.value.get(key) != nil {
			inherited := talhelperNode{section: group, node: n.node}
			t.readTexts(inherited, key, to)
		}
	}
	t.readInterfaces(n, own)
	if override, _ := s.truth("overridePatches"); override && group != nil && group.value.has("patches") {
		s.leave("overridePatches", "cannot be: the patches of a role are those of all its nodes", "move patches of the group to the nodes that are to have them")
	}
	t.readShared(n)
	t.d.AddNode(n.role, n.node)
	s.rest(talhelperHints)
}

// readGroup reads what all nodes of a role have.
func (t *talhelperReader) readGroup(s *section, role cluster.Role) {
	n := talhelperNode{section: s, role: role, name: string(role)}
	for _, key := range []string{"nodeLabels", "nodeAnnotations", "nodeTaints"} {
		s.taken[key] = true // nodes take them
	}
	if s.value.has("networkInterfaces") {
		s.leave("networkInterfaces", "of a whole role are not taken over", hintByPatch)
	}
	t.readShared(n)
	s.rest(nil)
}

// readAddress reads the address of a node. There may be several.
func (t *talhelperReader) readAddress(n talhelperNode) (own netip.Addr) {
	written := n.text("ipAddress")
	for i, s := range strings.Split(written, ",") {
		a, _, ok := parseIPv4(s)
		switch {
		case ok && !own.IsValid():
			own = a
			n.node.Set(draft.Origin{}, draft.Text(a.String()), "ip")
		case i > 0:
			n.leave("ipAddress", "is more than one address", "nodes have one, of IPv4")
		case written != "":
			n.leave("ipAddress", "is no IPv4 address", "write ip: in nodes.yaml")
		}
	}
	return own
}

// readTexts reads a mapping of texts of a node. What is there stays.
func (t *talhelperReader) readTexts(n talhelperNode, key, to string) {
	s := n.section.section(key)
	if s == nil {
		return
	}
	for _, e := range s.value.keys {
		if v := s.take(e.key, "a text", text, number, truth); v != nil && s.isClosed(e.key, v) {
			n.node.Set(draft.Origin{}, draft.Text(v.text), to, e.key)
		}
	}
}

// readShared reads what nodes and groups of nodes have alike.
func (t *talhelperReader) readShared(n talhelperNode) {
	if servers := n.texts("nameservers"); len(servers) > 0 {
		joined := strings.Join(servers, ",")
		if t.nameservers == "" {
			t.nameservers = joined
			n.put("nameservers", draft.Texts(servers...), "network", "nameservers")
		} else if joined != t.nameservers {
			n.leave("nameservers", "are others than those of the first node", "network.nameservers are those of all nodes; "+hintByPatch)
		}
	}
	if sans := n.texts("certSANs"); len(sans) > 0 {
		t.addTexts(n.origin("certSANs"), sans, []string{"network", "cert_sans"})
	}
	t.readSchematic(n)
	t.readSpec(n)
	t.readDocuments(n)
	t.addPatches(n.section, n.name, n.node)
	for key, hint := range groupHints {
		if n.value.get(key) != nil {
			n.leave(key, "has no place in the inventory", hint)
		}
	}
}

// readSchematic reads the extensions and arguments of an image. The inventory has one image
// for all nodes.
func (t *talhelperReader) readSchematic(n talhelperNode) {
	s := n.section.section("schematic")
	if s == nil {
		return
	}
	c := s.section("customization")
	if c == nil {
		s.rest(talhelperHints)
		return
	}
	var extensions []string
	if e := c.section("systemExtensions"); e != nil {
		extensions = e.texts("officialExtensions")
		e.rest(nil)
	}
	arguments := c.texts("extraKernelArgs")
	all := fmt.Sprintf("%q %q", slices.Sorted(slices.Values(extensions)), arguments)
	if t.schematic != "" && t.schematic != all {
		n.leave("schematic", "is another than that of the first node: the extensions and arguments of both are joined", "all nodes have one image: remove from talos.schematic what not all of them may have")
	}
	t.schematic = all
	if len(extensions) > 0 {
		t.addTexts(n.origin("schematic"), extensions, []string{"talos", "schematic", "extensions"})
	}
	if len(arguments) > 0 {
		t.addTexts(n.origin("schematic"), arguments, []string{"talos", "schematic", "extra_kernel_args"})
	}
	c.rest(nil)
	s.rest(talhelperHints)
}

// readSpec reads what the machine is.
func (t *talhelperReader) readSpec(n talhelperNode) {
	s := n.section.section("machineSpec")
	if s == nil {
		return
	}
	if arch := s.text("arch"); arch != "" && arch != "amd64" {
		s.leave("arch", "is not supported", "nodes are amd64")
	}
	if secure, _ := s.truth("secureboot"); secure {
		s.leave("secureboot", "is of the whole cluster here", "write `talos: {secureboot: true}` into cluster.yaml, which takes Talos v1.14 or newer")
	}
	for _, key := range []string{"mode", "bootMethod", "useUKI", "imageSuffix"} {
		s.taken[key] = true // how a real machine boots its installer
	}
	s.rest(nil)
}
