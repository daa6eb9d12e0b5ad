package inventory

import (
	_ "embed"

	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// modelSource is where the meaning of every key is written: the comments of
// the types it is decoded into.
//
//go:embed model.go
var modelSource string

//go:embed model_hardware.go
var hardwareSource string

// language is how the files of an inventory are written.
var language = yamlschema.Language{Formats: formats, Synonyms: synonyms, Foreseen: foreseen, Foreign: foreign, Sources: []string{modelSource, hardwareSource}}

// formats are the rules of texts by name. Whatever reaches Proxmox VE, Talos or
// a URL from the inventory is bounded by one of them: the alphabets leave no
// room for the commas, equal signs and slashes that mean something there. For
// what Proxmox VE names (hosts, storages, bridges, pools) they are as narrow as
// its API's or narrower. No path of a URL climbs with dots: the host's policy
// compares beginnings.
var formats = map[string]yamlschema.Format{
	"label":        yamlschema.Text("a DNS label (lower-case letters, digits and -, at most 63)", "dev-cp-1", `^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`, 63),
	"pattern":      yamlschema.Text("a DNS label with {n} for the number of the node", `"dev-wk-{n}"`, `^([a-z0-9][a-z0-9-]*)?\{n\}([a-z0-9-]*[a-z0-9])?$`, 60),
	"host":         yamlschema.Text("a host name or an address", "ntp.example.org", `^[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?$`, 253),
	"pvenode":      yamlschema.Text("the name of a Proxmox VE host", "pve1", `^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`, 63),
	"version":      yamlschema.Text("a version: v, then three numbers", "v1.13.9", `^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(alpha|beta|rc)\.\d+)?$`, 32),
	"contract":     yamlschema.Text("a minor version: v, then two numbers", "v1.13", `^v(0|[1-9]\d*)\.(0|[1-9]\d*)$`, 16),
	"endpoint":     yamlschema.Text("an https URL with a port", "https://k8s.example.org:6443", `^https://[A-Za-z0-9.-]+:[1-9]\d{0,4}$`, 300),
	"macprefix":    yamlschema.Text("the first three bytes of a MAC address", `"BC:24:11"`, `^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){2}$`, 8),
	"mac":          yamlschema.Text("a MAC address", `"BC:24:11:00:00:21"`, `^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$`, 17),
	"storage":      yamlschema.Text("the name of a storage", "local-lvm", `^[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?$`, 100),
	"bridge":       yamlschema.Text("the name of a bridge", "vmbr1", `^[A-Za-z][A-Za-z0-9_.-]*$`, 15),
	"pool":         yamlschema.Text("the name of a resource pool", "talos-dev", `^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+){0,2}$`, 100),
	"tag":          yamlschema.Text("a tag (letters, digits and . _ + -)", "team-a", `^[^,;]+$`, 60),
	"cputype":      yamlschema.Text("the name of a processor type", "x86-64-v2-AES", `^[A-Za-z0-9][A-Za-z0-9_.-]*$`, 60),
	"cpuflag":      yamlschema.Text("a flag of the processor with + or - in front: one that Proxmox VE lets a VM have", "+aes", `^[+-](aes|amd-no-ssb|amd-ssbd|ibpb|md-clear|pcid|pdpe1gb|spec-ctrl|ssbd|virt-ssbd)$`, 20),
	"hagroup":      yamlschema.Text("the name of a group of hosts", "racks", `^[A-Za-z][A-Za-z0-9_-]+$`, 64),
	"mapping":      yamlschema.Text("the name of a resource mapping", "gpu", `^[A-Za-z][A-Za-z0-9_-]+$`, 64),
	"hostprefix":   yamlschema.Text("an IPv4 address with the length of its network", "10.20.0.21/24", `^\d{1,3}(\.\d{1,3}){3}/\d{1,2}$`, 18),
	"machine":      yamlschema.Text("q35, or a version of it", "pc-q35-9.2", `^(q35|pc-q35-\d{1,2}\.\d{1,2}(\+pve\d{1,2})?)$`, 40),
	"diskname":     yamlschema.Text("the name of a disk (lower-case letters, digits and -, at most 14)", "longhorn", `^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`, 14),
	"extension":    yamlschema.Text("the name of a system extension", "siderolabs/iscsi-tools", `^[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*$`, 128),
	"kernelarg":    yamlschema.Text("one argument of the kernel", "console=ttyS0", `^-?[A-Za-z0-9_][!-~]*$`, 256),
	"registry":     yamlschema.Text("a registry: a host, with a port if it needs one", "factory.talos.dev", `^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?$`, 253),
	"file":         yamlschema.Text("a path of the repository", "patches/common.yaml", `^[A-Za-z0-9._@+ -][A-Za-z0-9._@+ /-]*$`, 300),
	"token":        yamlschema.Text("a token (letters, digits, ., _ and -, at most 63)", "2026-11-23", `^[A-Za-z0-9][A-Za-z0-9._-]*$`, 63),
	"release":      yamlschema.Text("the name of a Helm release (lower-case letters, digits and -, at most 53)", "cilium", `^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`, 53),
	"clock":        yamlschema.Text("a time of the day", "\"22:00\"", `^([01][0-9]|2[0-3]):[0-5][0-9]$`, 5),
	"timezone":     yamlschema.Text("the name of a time zone", "Europe/Berlin", `^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$`, 64),
	"condition":    yamlschema.Text("an expression in CEL", "objects.all(o, o.status.ready)", `^[^\x00]*\S[^\x00]*$`, 4096),
	"apiversion":   yamlschema.Text("an API version", "apps/v1", `^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?v[0-9][a-z0-9]*$`, 253),
	"kind":         yamlschema.Text("a kind of objects", "Deployment", `^[A-Z][A-Za-z0-9]*$`, 63),
	"objectname":   yamlschema.Text("the name of an object", "longhorn-manager", `^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`, 253),
	"selector":     yamlschema.Text("a label selector, as kubectl takes it", "app=ceph", `^(!?([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])? *(=|==|!=) *[A-Za-z0-9._-]*|([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])? +(in|notin) *\([A-Za-z0-9._-]*( *, *[A-Za-z0-9._-]*)*\))( *, *(!?([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])? *(=|==|!=) *[A-Za-z0-9._-]*|([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])? +(in|notin) *\([A-Za-z0-9._-]*( *, *[A-Za-z0-9._-]*)*\)))*$`, 500),
	"chartname":    yamlschema.Text("the name of a chart", "cilium", `^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`, 250),
	"chartversion": yamlschema.Text("an exact chart version", "1.19.3", `^v?\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`, 64),
	"https":        yamlschema.Text("an https URL without user, query, fragment or escapes", "https://charts.example.org", `^https://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?(/[A-Za-z0-9_~+-][A-Za-z0-9._~+-]*)*/?$`, 500),
	"oci":          yamlschema.Text("the oci URL of a chart", "oci://ghcr.io/org/charts/name", `^oci://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?(/[a-z0-9][a-z0-9._-]*)+$`, 500),
	"sha256":       yamlschema.Text("a SHA-256 in hex (64 digits)", "", `^[0-9a-f]{64}$`, 64).OrEmpty(),
	"digest":       yamlschema.Text("a digest: sha256: and 64 hex digits", "", `^sha256:[0-9a-f]{64}$`, 71).OrEmpty(),
}

// Format returns the rule that the inventory has for a kind of text, such as
// "storage" or "label", for files beside it that name the same things.
func Format(name string) yamlschema.Format {
	f, ok := formats[name]
	if !ok {
		panic("inventory: no rule is called " + name)
	}
	return f
}

// synonyms are words that other tools use for a key of ours.
var synonyms = map[string][]string{
	"ram":                {"memory", "mem", "memory_mib"},
	"cpu_limit":          {"cpulimit"},
	"cpu_units":          {"cpuunits"},
	"cpu":                {"cores", "vcpu", "cpus"},
	"disk":               {"disk_size", "root_disk", "boot_disk"},
	"ip":                 {"address", "ip_address"},
	"name":               {"hostname"},
	"cidr6":              {"cidr_v6", "ipv6_cidr", "cidr_ipv6"},
	"svc_cidr":           {"service_cidr", "services_cidr"},
	"pod_cidr":           {"pods_cidr", "cluster_cidr"},
	"workers":            {"worker"},
	"controlplane":       {"controlplanes", "control_plane", "control_planes", "masters"},
	"node":               {"host", "target_node"},
	"nodes":              {"hosts", "target_nodes"},
	"datastore":          {"storage", "datastore_id"},
	"cluster_name":       {"name"},
	"talos_version":      {"talos"},
	"kubernetes_version": {"kubernetes", "k8s_version"},
	"depends_on":         {"dependsOn", "dependencies"},
	"values_files":       {"valuesFiles", "values_file", "valueFiles"},
	"time_servers":       {"ntp", "ntp_servers"},
	"nameservers":        {"dns", "dns_servers"},
	"vlan":               {"vlan_id", "vlan_tag"},
	"profiles":           {"defaults"},
}

// foreseen are keys of features that are planned, with what to write until they
// are there.
var foreseen = map[string]string{
	"arch":     "every node is amd64: remove it; Proxmox VE lets only root@pam set the architecture of a VM, and never a token",
	"meta":     "write ip: under the node; addresses come from the cloud-init drive",
	"template": "remove it: VMs are made from the factory's disk image",
}

// rootOnly answers keys of what no token may set.
const rootOnly = "remove it: Proxmox VE lets only root@pam itself set it, and never a token, which is what the agent has"

// rawDevice answers devices of the host without a mapping.
const rawDevice = "write mapping: and the name of a resource mapping of Proxmox VE; a device without one only root@pam itself may pass to a VM, and never a token, which is what the agent has"

// foreign are keys of the Terraform and Ansible repositories for Talos on Proxmox VE that people come from, with what to write here.
var foreign = map[string]string{
	"sizing":                 "write it by role: profiles: {controlplane: {cpu: 4, ram: 8192, disk: 40G}, worker: {cpu: 4, ram: 8192, disk: 60G}}",
	"resource_config":        "write it by role: profiles: {controlplane: {cpu: 4, ram: 8192, disk: 40G}, worker: {cpu: 4, ram: 8192, disk: 60G}}",
	"control_plane_count":    "write a row of `counted` in nodes.yaml: {role: controlplane, count: 3, name: \"dev-cp-{n}\"}, whose addresses begin at 10 in network.cidr unless it has an `offset` or a first_ip; or list each of them there",
	"worker_count":           "write a row of `counted` in nodes.yaml: {role: worker, count: 3, name: \"dev-wk-{n}\"}, whose addresses begin at 20 in network.cidr unless it has an `offset` or a first_ip; or list each of them there",
	"node_config":            "write the nodes into nodes.yaml: {name: dev-wk-1, ip: 10.0.10.21}, or offset: 21 in the place of ip; equal ones as a row of `counted`",
	"node_distribution":      "write the hosts as proxmox.nodes, and placement: spread; or `node:` under each node in nodes.yaml",
	"vm_id_ranges":           "write proxmox: {vmid_ranges: {controlplane: 2000-2999, worker: 3000-3999}}",
	"tagging_config":         "write proxmox.tags, and `tags` under nodes",
	"template_config":        "remove it: VMs are made from the factory's disk image",
	"proxmox_config":         "write it under proxmox; what the agent reaches Proxmox VE with is in the host's config.yaml",
	"network_config":         "write it under network",
	"cluster_config":         "write its keys at the top: cluster_name, talos_version, kubernetes_version",
	"network_cidr":           "write network.cidr",
	"control_plane_vip":      "write network.vip",
	"headscale_login_server": "write it into a patch of the kind ExtensionServiceConfig, for the extension siderolabs/tailscale, and the key into `values` of secrets.sops.yaml",
	"dhcp":                   "remove it, and the address of a worker, with network.address_mode: dhcp-discover; or write ip: the address of the lease; without network.cidr and network.gateway the DHCP server is expected to give it, and validate prints its reservations",
	"talos.iso":              "write boot: iso; the medium comes from the image factory, or lies on proxmox.image_datastore under the name that `talos-agent plan` shows",
	"proxmox.endpoint":       "remove it: the host's config.yaml has where Proxmox VE answers (proxmox.url)",
	"proxmox.vlan_id":        "write network.vlan",
	"proxmox.insecure":       "remove it: the host's config.yaml has whom to trust (proxmox.ca_file or proxmox.fingerprint)",
	"startup":                "remove it: the order of starts is the host's, and takes Sys.Modify on /, which the agent's token does not have; set it as root, `qm set VMID --startup order=1,up=30`: the agent leaves it",
	"hostpci":                "write pci: [{mapping: NAME}] with a resource mapping of Proxmox VE: Datacenter > Resource Mappings",
	"pci.host":               rawDevice,
	"usb.host":               rawDevice,
	"affinity":               rootOnly,
	"args":                   rootOnly,
	"hookscript":             rootOnly,
	"hugepages":              rootOnly,
	"vm_id":                  "write vmid",
	"instances":              "write the nodes into nodes.yaml: {name: dev-wk-1, ip: 10.0.10.21}, or offset: 21 in the place of ip; equal ones as a row of `counted`",
}
