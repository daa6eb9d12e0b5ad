package doctor

// Kind is a kind of check.
type Kind struct {
	Name  string
	Group string
	// Looks is what is looked at; Levels what it can come to beside pass; Hint
	// what to do then, in one sentence.
	Looks, Levels, Hint string
	// Root is true when it is looked at by root on the host, not by the agent.
	Root bool
}

// The groups of checks, in their order.
const (
	groupAgent   = "Agent"
	groupProxmox = "Proxmox VE"
	groupStore   = "Storages and bridges"
	groupNetwork = "Network"
	groupTime    = "Clocks"
	groupSources = "Repository and sources"
)

// Catalogue lists every kind of check, in the order of the report.
// docs/reference/doctor.md is made from it.
var Catalogue = []Kind{
	{"config", groupAgent, "config and policy can be loaded, and every file they name", "warn, fail, skipped", "correct the line of the file that it names", true},
	{"daemon", groupAgent, "the daemon answers on its socket", "warn", "`systemctl start talos-agent`, then `journalctl -u talos-agent`", true},
	{"files", groupAgent, "keys and tokens are readable by nobody else, config and policy changed by nobody else, /etc/credstore is root's alone", "warn, fail, skipped", "the `chown` and `chmod` that it prints", true},
	{"credentials", groupAgent, "the agent that runs was started with the keys and tokens that lie in /etc/credstore now; checked where systemd runs it", "warn, skipped", "`systemctl restart talos-agent`", true},
	{"agents", groupAgent, "where other hosts of the Proxmox VE cluster have agents as well, the config names the clusters that are this one's", "warn, skipped", "name them under `clusters` in each host's config.yaml", true},
	{"snapshots", groupAgent, "snapshots of etcd are taken, on another file system than that of the agent's state, and two keys open them", "warn, skipped", "name a folder of another storage, and a key that is kept elsewhere, under `snapshots` in config.yaml", true},
	{"reservations", groupAgent, "where `dhcp.directory` is named, everybody can read it, as dnsmasq must", "warn, skipped", "the `install` or `chmod` that it prints", true},

	{"api", groupProxmox, "the API answers at `proxmox.url`", "fail", "start pveproxy, or correct the address", false},
	{"certificate", groupProxmox, "its certificate is trusted, has the right name and is valid for two weeks more", "warn, fail, skipped", "give `proxmox.ca_file`, one of the certificate's names in `proxmox.url`, or `proxmox.fingerprint`; renew it", false},
	{"version", groupProxmox, "Proxmox VE is 8.4 or 9", "warn, fail, skipped", "upgrade the host", false},
	{"token", groupProxmox, "the token is accepted, has any privilege at all, and is not another host's", "warn, fail, skipped", "`talos-agent init`; give every privilege to the token as well as to its user", false},
	{"privileges", groupProxmox, "at each path the token has the privileges that are needed there", "warn, fail, skipped", "the `pveum acl modify` that it prints, or `talos-agent init`", false},
	{"excess", groupProxmox, "the token has no privileges that are not needed", "warn, skipped", "take them away: `pveum acl delete`", false},
	{"privsep", groupProxmox, "what the token's user was given where it is needed, the token was given, too", "fail, skipped", "the `pveum acl modify` that it prints, or `talos-agent init`", true},
	{"pool", groupProxmox, "the pool of the policy exists", "fail, skipped", "`pveum pool add NAME`", false},
	{"quorum", groupProxmox, "the Proxmox VE cluster can be written to", "fail, skipped", "bring the missing hosts back", false},
	{"ha", groupProxmox, "high availability does not manage our VMs", "warn, skipped", "`ha-manager remove vm:ID`", false},
	{"backup", groupProxmox, "no backup job suspends or stops our VMs", "warn, skipped", "exclude them, or use mode snapshot", false},
	{"accesslog", groupProxmox, "the agent can read the access log that `proxmox.access_log` names", "warn, skipped", "the `setfacl` that it prints, or remove the key", false},

	{"storage", groupStore, "each storage that is asked for exists, is active and takes what is to be put there", "fail, skipped", "the `pvesm set` that it prints, or another storage", false},
	{"space", groupStore, "it has room for the VMs that are still to be made", "warn, fail, skipped", "make room, ask for less, or use another storage", false},
	{"metadata", groupStore, "the metadata of the host's LVM thin pools has room", "warn, fail, skipped", "the `lvextend` that it prints", true},
	{"bridge", groupStore, "each bridge that is asked for exists, is up and has an address of the host", "warn, fail, skipped", "correct /etc/network/interfaces, then `ifreload -a`", false},
	{"vlan", groupStore, "a VLAN can work on its bridge", "fail, skipped", "make the bridge VLAN-aware, or leave `network.vlan` out", false},

	{"route", groupNetwork, "the host reaches the nodes' addresses directly, over their bridge", "warn, fail, skipped", "give the host an address on the bridge", true},
	{"addresses", groupNetwork, "nobody else answers at the nodes' addresses and the VIP", "warn, fail, skipped", "choose another address, or take it away from the other machine", true},
	{"gateway", groupNetwork, "the gateway of the nodes answers", "warn, skipped", "correct `network.gateway`, or start the router", true},
	{"dhcp", groupNetwork, "with reservations, a DHCP server serves the bridge", "warn, skipped", "start one on the host, or make sure that the network has one", true},

	{"clock", groupTime, "the clock of the host is synchronised", "warn, skipped", "`systemctl enable --now chrony`, then `chronyc tracking`", true},
	{"skew", groupTime, "the clocks of the agent and of the API agree", "warn, fail, skipped", "synchronise both", false},
	{"timeserver", groupTime, "the time servers of the nodes answer", "warn, fail, skipped", "name one that answers under `network.time_servers`", true},

	{"repository", groupSources, "the repository can be fetched with the agent's credentials", "warn, fail", "what it prints: the key, the token, the host key, the address", false},
	{"inventory", groupSources, "the clusters of this host are valid", "fail", "correct the line that it names; `talos-agent validate` shows more", false},
	{"forge", groupSources, "the forge takes commit statuses from the token", "fail", "make a token that may set commit statuses", false},
	{"source", groupSources, "image factory, charts and registries answer, over mirrors and authorities of the config", "warn, fail", "open the way, name a proxy or a mirror", false},
}

// KindOf returns the kind of a check.
func KindOf(name string) Kind {
	for _, k := range Catalogue {
		if k.Name == name {
			return k
		}
	}
	return Kind{Name: name}
}
