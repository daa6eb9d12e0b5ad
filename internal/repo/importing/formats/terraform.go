package formats

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
)

// variable is a value of a variable that is no mapping, by the path that leads to it.
type variable struct {
	path   string
	value  *value
	origin draft.Origin
}

// form is how a variable becomes a key of the inventory.
type form int

const (
	asText form = iota
	asVersion
	asNumber
	asTruth
	asTexts
	asDisk // a number of GiB
	asHosts
	asEndpoint
)

// target is the key of the inventory that a variable is, and its form there.
type target struct {
	key  string
	form form
}

// targets are the variables that Terraform repositories for Talos on Proxmox VE have, in
// groups or without, by their paths.
var targets = spellTargets(map[string]string{
	"cluster_name cluster_config.name cluster_config.cluster_name":                              "cluster_name",
	"environment cluster_config.environment":                                                    "environment",
	"talos_version talos.version cluster_config.talos_version":                                  "talos_version version",
	"kubernetes_version k8s_version cluster_config.kubernetes_version talos.kubernetes_version": "kubernetes_version version",
	"ha_enabled": "ha_enabled truth",
	"proxmox.target_nodes target_nodes proxmox.target_node target_node proxmox.node_name proxmox.node proxmox_node proxmox_node_name proxmox_config.node_name node_name":     "proxmox hosts",
	"proxmox.datastore_id datastore_id proxmox.datastore datastore proxmox_config.vm_datastore_id vm_datastore_id":                                                           "proxmox.datastore",
	"proxmox_config.talos_disk_image_datastore_id talos_disk_image_datastore_id proxmox_config.iso_datastore_id":                                                             "proxmox.image_datastore",
	"proxmox_config.cloud_init_datastore_id cloud_init_datastore_id":                                                                                                         "proxmox.cloudinit_datastore",
	"proxmox.bridge bridge network_config.bridge network_bridge":                                                                                                             "proxmox.bridge",
	"proxmox.pool pool proxmox_config.pool":                                                                                                                                  "proxmox.pool",
	"tagging_config.common_tags common_tags tagging_config.extra_tags extra_tags tagging_config.tags tags":                                                                   "proxmox.tags texts",
	"proxmox.vlan_id vlan_id network_config.vlan_id network_config.vlan":                                                                                                     "network.vlan number",
	"network_config.cidr network_config.network_cidr network_cidr":                                                                                                           "network.cidr",
	"network_config.gateway network_config.network_gateway network_gateway gateway":                                                                                          "network.gateway",
	"proxmox_config.dns_servers network_config.dns_servers network_config.nameservers dns_servers nameservers":                                                               "network.nameservers texts",
	"network_config.ntp_servers ntp_servers":                                                                                                                                 "network.time_servers texts",
	"cluster_config.endpoint_override cluster_config.endpoint cluster_endpoint":                                                                                              "network.endpoint endpoint",
	"network_config.pod_cidr pod_cidr cluster_config.pod_cidr":                                                                                                               "network.pod_cidr",
	"network_config.svc_cidr network_config.service_cidr service_cidr svc_cidr cluster_config.service_cidr":                                                                  "network.svc_cidr",
	"sizing.control_plane.cpu sizing.control_plane.vcpu sizing.control_plane.cores sizing.control_plane.cpu_cores":                                                           "profiles.controlplane.cpu number",
	"sizing.control_plane.memory sizing.control_plane.memory_mb sizing.control_plane.ram":                                                                                    "profiles.controlplane.ram number",
	"sizing.control_plane.disk sizing.control_plane.disk_gb sizing.control_plane.disk_size":                                                                                  "profiles.controlplane.disk disk",
	"sizing.worker.cpu sizing.worker.vcpu sizing.worker.cores sizing.worker.cpu_cores":                                                                                       "profiles.worker.cpu number",
	"sizing.worker.memory sizing.worker.memory_mb sizing.worker.ram":                                                                                                         "profiles.worker.ram number",
	"sizing.worker.disk sizing.worker.disk_gb sizing.worker.disk_size":                                                                                                       "profiles.worker.disk disk",
	"resource_config.controlplane.cpu_cores resource_config.controlplane.cpu resource_config.controlplane_cpu_cores resource_config.controlplane_cpu controlplane_cpu_cores": "profiles.controlplane.cpu number",
	"resource_config.controlplane.memory resource_config.controlplane_memory controlplane_memory":                                                                            "profiles.controlplane.ram number",
	"resource_config.controlplane.disk_size resource_config.controlplane.disk resource_config.controlplane_disk_size controlplane_disk_size":                                 "profiles.controlplane.disk disk",
	"resource_config.worker.cpu_cores resource_config.worker.cpu resource_config.worker_cpu_cores resource_config.worker_cpu worker_cpu_cores":                               "profiles.worker.cpu number",
	"resource_config.worker.memory resource_config.worker_memory worker_memory":                                                                                              "profiles.worker.ram number",
	"resource_config.worker.disk_size resource_config.worker.disk resource_config.worker_disk_size worker_disk_size":                                                         "profiles.worker.disk disk",
})

// spellTargets reads the table: names with spaces between them, then a key and its form.
func spellTargets(table map[string]string) map[string]target {
	forms := map[string]form{"": asText, "version": asVersion, "number": asNumber, "truth": asTruth, "texts": asTexts, "disk": asDisk, "hosts": asHosts, "endpoint": asEndpoint}
	out := map[string]target{}
	for names, written := range table {
		key, f, _ := strings.Cut(written, " ")
		for name := range strings.FieldsSeq(names) {
			out[name] = target{key, forms[f]}
		}
	}
	return out
}

const (
	hintEndpoint = "`talos-agent init` writes into the host's config.yaml where Proxmox VE answers, and whom to trust"
	hintTemplate = "VMs are made from the disk image of the image factory: neither a template nor an ISO is needed"
	hintByHand   = "if it matters, write it by hand: docs/reference/inventory.md has every key"
)

// elsewhere are variables, or groups of them, that have no place in an inventory.
var elsewhere = map[string]string{
	"proxmox.endpoint": hintEndpoint, "endpoint": hintEndpoint, "proxmox_config.endpoint": hintEndpoint, "proxmox_endpoint": hintEndpoint, "proxmox_api_url": hintEndpoint,
	"proxmox.insecure": hintEndpoint, "insecure": hintEndpoint, "proxmox_config.insecure": hintEndpoint, "proxmox_insecure": hintEndpoint,
	"template_config": hintTemplate, "proxmox_config.template_datastore_id": hintTemplate, "template_datastore_id": hintTemplate, "template_node": hintTemplate,
	"image_download_node": hintTemplate, "controlplane_template_id": hintTemplate, "worker_template_id": hintTemplate, "talos_iso_url": hintTemplate, "talos_iso": hintTemplate,
	"network_config.interface": "Talos finds the interface of a VM by its MAC address", "network_interface": "Talos finds the interface of a VM by its MAC address",
	"placement.pinned": "write node: under each node in nodes.yaml",
}

// readTerraform collects the variables of a file. What they mean is found out when all files
// are read, because later ones win.
func (r *reading) readTerraform(f source) {
	for _, e := range f.value.keys {
		r.collect(f, e.key, e)
	}
}

// collect flattens a variable. A variable that is set again replaces that of before.
func (r *reading) collect(f source, path string, e entry) {
	if !strings.Contains(path, ".") {
		var kept []variable
		for _, v := range r.vars {
			if v.origin.File != f.Name && (v.path == path || strings.HasPrefix(v.path, path+".")) {
				r.d.Leave(v.origin, v.path, "is set again in "+f.Name, "the last file that sets a variable counts")
				continue
			}
			kept = append(kept, v)
		}
		r.vars = kept
	}
	if e.value.kind == mapping && !isByHost(path) && len(e.value.keys) > 0 {
		for _, inner := range e.value.keys {
			r.collect(f, path+"."+inner.key, inner)
		}
		return
	}
	if e.value.kind == null || e.value.kind == unread || e.value.kind == mapping && len(e.value.keys) == 0 {
		return
	}
	r.vars = append(r.vars, variable{path, e.value, draft.Origin{File: f.Name, Line: e.line, Name: path}})
}

// isByHost reports whether a mapping has names of hosts or nodes for keys.
func isByHost(path string) bool {
	return path == "pve_capacity" || path == "node_distribution" || path == "placement.pinned" || slices.Contains(listedNodes, path)
}

// finishTerraform turns the variables into keys of the inventory, and into nodes.
func (r *reading) finishTerraform() {
	if len(r.vars) == 0 {
		return
	}
	t := terraformNodes{r: r, first: map[cluster.Role]variable{}, count: map[cluster.Role]variable{}, limits: map[string]variable{}}
	for _, v := range r.vars {
		switch to, ok := targets[v.path]; {
		case ok:
			r.translate(v, to)
		case slices.Contains(listedNodes, v.path) && t.listed == nil:
			t.listed = &v
		case !t.take(v):
			r.leaveVariable(v)
		}
	}
	t.finish()
}

// leaveVariable reports a variable that has no place.
func (r *reading) leaveVariable(v variable) {
	group, _, _ := strings.Cut(v.path, ".")
	for _, path := range []string{v.path, group} {
		if hint, ok := elsewhere[path]; ok {
			r.d.Leave(v.origin, v.path, "has no place in the inventory", hint)
			return
		}
	}
	if secretWord.MatchString(v.path) {
		r.d.Leave(v.origin, v.path, "is a credential", hintCredential)
		return
	}
	r.d.Leave(v.origin, v.path, "is not known to import", hintByHand)
}

// translate sets the key that a variable is.
func (r *reading) translate(v variable, to target) {
	path := strings.Split(to.key, ".")
	set := func(value *draft.Value) { putInto(r.d, r.d.Cluster, v.origin, value, path...) }
	isScalar := v.value.kind == text || v.value.kind == number || v.value.kind == truth
	switch {
	case to.form == asTexts || to.form == asHosts:
		texts, ok := v.texts()
		switch {
		case !ok && to.form == asHosts:
			r.d.Leave(v.origin, v.path, "is no list of hosts", "write proxmox.node, or proxmox.nodes and node: under each node")
		case !ok:
			r.d.Leave(v.origin, v.path, "is no list of texts", "write "+to.key+" by hand")
		case to.form == asHosts:
			r.setHosts(v, texts)
		case len(texts) > 0:
			r.addTexts(v.origin, texts, path)
		}
	case !isScalar:
		r.d.Leave(v.origin, v.path, "is "+kindNames[v.value.kind]+", and not one value", "write "+to.key+" by hand")
	case v.value.text == "":
	case to.form == asVersion:
		set(draft.Text(withV(v.value.text)))
	case to.form == asNumber:
		if _, err := strconv.Atoi(v.value.text); err != nil {
			r.d.Leave(v.origin, v.path, "is not a whole number", "write "+to.key+" by hand")
			return
		}
		set(draft.Literal(v.value.text))
	case to.form == asTruth:
		if v.value.text != "true" && v.value.text != "false" {
			r.d.Leave(v.origin, v.path, "is neither true nor false", "write "+to.key+" by hand")
			return
		}
		set(draft.Literal(v.value.text))
	case to.form == asDisk:
		if isLiteral(v.value.text) {
			v.value.text += "G"
		}
		set(draft.Text(v.value.text))
	case to.form == asEndpoint:
		set(draft.Text(completeEndpoint(v.value.text)))
	default:
		set(draft.Text(v.value.text))
	}
}

var endsInPort = pattern.New(`:\d+$`)

// completeEndpoint writes the address of the Kubernetes API as a URL with a port.
func completeEndpoint(s string) string {
	if !strings.Contains(s, "://") {
		s = "https://" + s
	}
	if !endsInPort.MatchString(s) {
		s = strings.TrimSuffix(s, "/") + ":6443"
	}
	return s
}

// texts are the items of a list, or the one text that there is.
func (v variable) texts() (out []string, ok bool) {
	if v.value.kind == text {
		return strings.FieldsFunc(v.value.text, func(r rune) bool { return r == ',' || r == ' ' }), true
	}
	for _, item := range v.value.items {
		switch item.kind {
		case text, number:
			out = append(out, item.text)
		case unread: // which is reported
		default:
			return nil, false
		}
	}
	return out, v.value.kind == list
}

// setHosts sets the host, or the hosts.
func (r *reading) setHosts(v variable, hosts []string) {
	switch c := r.d.Cluster; {
	case c.Get("proxmox", "node") != nil || c.Get("proxmox", "nodes") != nil:
		if c.Get("proxmox", "node").String() != strings.Join(hosts, ",") {
			r.d.Leave(v.origin, v.path, "names hosts again", "keep those that are right in proxmox.node or proxmox.nodes")
		}
	case len(hosts) == 1:
		c.Set(v.origin, draft.Text(hosts[0]), "proxmox", "node")
	case len(hosts) > 1:
		c.Set(v.origin, draft.Texts(hosts...), "proxmox", "nodes")
	}
}

// addTexts sets a list, or adds to it what it does not have.
func (r *reading) addTexts(o draft.Origin, texts []string, path []string) {
	have := r.d.Cluster.Get(path...)
	if have == nil {
		have = draft.List()
		r.d.Cluster.Set(o, have, path...)
	}
	for _, s := range texts {
		if !strings.Contains("\n"+have.YAML(), "\n- "+strings.TrimPrefix(draft.Texts(s).YAML(), "- ")) {
			have.Append(draft.Text(s))
		}
	}
}

// cidrOf is the network of the nodes, as far as it is known.
func (r *reading) cidrOf() (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(r.d.Cluster.Get("network", "cidr").String())
	return p, err == nil && p.Addr().Is4()
}

// isoVersion finds the version of Talos in the name of an image.
var isoVersion = pattern.New(`[0-9]+\.[0-9]+\.[0-9]+`)

func (r *reading) takeISO(v variable) {
	hint := hintTemplate
	if m := isoVersion.FindString(v.value.text); m != "" {
		if _, ok := r.d.Cluster.Set(v.origin, draft.Text("v"+m), "talos_version"); ok {
			hint += fmt.Sprintf("; its version became talos_version: v%s", m)
		}
	}
	r.d.Leave(v.origin, v.path, "has no place in the inventory", hint)
}
