package config

import "time"

// The types in this file are the format of the host's config: the decoder, the
// JSON Schema and the reference read names, rules, defaults and examples from
// the tags, which yamlschema.Language lists, and the meaning from the comments.

// configFile is config.yaml: which repository this host follows, and how the
// agent reaches everything it talks to.
type configFile struct {
	// The name of this agent. With the name of a cluster it is the identity of
	// the cluster's VMs: two agents on one host differ here, and another owner
	// does not know any VM made before.
	Owner string `yaml:"owner" is:"label" default:"talos-agent" example:"talos-agent"`
	// Where the inventory is.
	Repository repositoryFile `yaml:"repository" required:"true" example:"{url: \"ssh://git@example.org/infra.git\"}"`
	// The clusters of the repository that this host manages, by the names of
	// their folders. A cluster is for one agent: where several follow one repository,
	// each names its own.
	Clusters []string `yaml:"clusters" is:"label" default:"all in the repository" example:"[dev]"`
	// The age keys that open secrets.sops.yaml, one per line, as age-keygen
	// writes them. Credential: age.key.
	AgeKeyFile string `yaml:"age_key_file" is:"path" default:"the credential age.key" example:"age.key"`
	// Vault or OpenBao, for secrets files that the agent's own key does not open.
	Vault vaultFile `yaml:"vault" example:"{url: \"https://vault.example.org:8200\", token_file: vault.token, keys: [transit/talos-agent]}"`
	// The Proxmox VE host.
	Proxmox proxmoxFile `yaml:"proxmox" example:"{url: \"https://127.0.0.1:8006\", token_file: proxmox.token}"`
	// Where commit statuses are sent. Without it none are.
	Forge forgeFile `yaml:"forge"`
	// Who is notified when a cluster changes its condition.
	Notifications []notificationFile `yaml:"notifications"`
	// Where forges report that something was pushed, so that it is fetched at once.
	Webhook webhookFile `yaml:"webhook" example:"{listen: \"127.0.0.1:9478\", secret_file: webhook.secret}"`
	// Numbers for Prometheus.
	Metrics metricsFile `yaml:"metrics" example:"{listen: \"127.0.0.1:9477\"}"`
	// The image factory that Talos images come from.
	Factory factoryFile `yaml:"factory"`
	// Places that serve what others serve, for hosts without internet.
	Mirrors mirrorsFile `yaml:"mirrors"`
	// Authorities (PEM) to trust besides those of the system, for every https
	// connection except that to Proxmox VE, which has a ca_file of its own, and
	// those to chat services that are not ntfy, Gotify, Mattermost, Rocket.Chat,
	// PagerDuty or Pushover.
	CAFile string `yaml:"ca_file" is:"path" example:"ca.pem"`
	// What the repository may ask of this host.
	PolicyFile string `yaml:"policy_file" is:"path" default:"policy.yaml beside this file" example:"policy.yaml"`
	// How much of the past is kept for `talos-agent history`.
	History historyFile `yaml:"history"`
	// Snapshots of the etcd of each cluster.
	Snapshots snapshotsFile `yaml:"snapshots" example:"{directory: /mnt/backup/etcd, every: 6h}"`
	// A DHCP server of this host that gives nodes their addresses.
	DHCP dhcpFile `yaml:"dhcp" example:"{directory: /var/lib/talos-agent-dhcp}"`
	// Several agents on hosts of one cluster of Proxmox VE, of which one acts and the others stand by.
	LeaderElection electionFile `yaml:"leader_election" example:"{pool: talos-agent-leader}"`
	// Ports of this host that lead to nodes.
	PortForwards forwardsFile `yaml:"port_forwards" example:"{directory: /var/lib/talos-agent-nft}"`
	// The unix socket that the commands talk to.
	Socket string `yaml:"socket" is:"absolute" default:"/run/talos-agent/agent.sock" example:"/run/talos-agent/agent.sock"`
	// What the agent must remember: little, and written rarely.
	StateDir string `yaml:"state_dir" is:"absolute" default:"/var/lib/talos-agent" example:"/var/lib/talos-agent"`
	// What can be fetched again: images, charts and the copy of the repository.
	CacheDir string `yaml:"cache_dir" is:"absolute" default:"/var/cache/talos-agent" example:"/var/cache/talos-agent"`
}

type electionFile struct {
	// A resource pool of Proxmox VE for this alone, in which the agents note who leads. The agent's user and its
	// token need Pool.Audit and Pool.Allocate on /pool/ and its name. Without it this agent is the only one.
	Pool string `yaml:"pool" is:"pool" example:"talos-agent-leader"`
	// How long the agent acts after it could note that it leads, from 15s to 1m. Another one takes over after
	// about three times as long.
	Lease time.Duration `yaml:"lease" default:"30s" example:"30s"`
}

type repositoryFile struct {
	// The address of a Git repository: ssh, https, or the absolute path of one
	// on this host. Either it or directory.
	URL string `yaml:"url" is:"giturl" example:"\"ssh://git@example.org/infra.git\""`
	// Instead of url: a directory of this host. It is read as it is, and watched.
	Directory string `yaml:"directory" is:"absolute" example:"/srv/infra"`
	// The one branch that is followed. Only with url.
	Branch string `yaml:"branch" is:"branch" default:"main" example:"main"`
	// The folder that holds the clusters' folders.
	Path string `yaml:"path" is:"folder" default:"inventory" example:"inventory"`
	// How often the repository is asked for something new. A trigger asks at
	// once. At least 5s.
	Interval time.Duration `yaml:"interval" default:"60s" example:"60s"`
	// The private half of a deploy key, without a passphrase. Needed for ssh.
	// Credential: ssh.key.
	SSHKeyFile string `yaml:"ssh_key_file" is:"path" default:"the credential ssh.key" example:"deploy.key"`
	// The host keys of the ssh server, as ssh-keyscan prints them. Needed for
	// ssh: no server is trusted on first use. Credential: known_hosts.
	KnownHostsFile string `yaml:"known_hosts_file" is:"path" default:"the credential known_hosts" example:"known_hosts"`
	// A token that may read the repository. For https only. Credential:
	// git.token.
	TokenFile string `yaml:"token_file" is:"path" default:"the credential git.token" example:"git.token"`
}

type vaultFile struct {
	// The address of its API.
	URL string `yaml:"url" is:"httpsurl" required:"true" example:"\"https://vault.example.org:8200\""`
	// A token, which needs `update` on ENGINE/decrypt/NAME of each key. A new one in
	// the file is used within seconds. Credential: vault.token.
	TokenFile string `yaml:"token_file" is:"path" default:"the credential vault.token" example:"vault.token"`
	// The keys of transit engines that are asked, each as ENGINE/NAME. No other is,
	// whatever a file of the repository names.
	Keys []string `yaml:"keys" is:"transitkey" required:"true" example:"[transit/talos-agent]"`
	// The namespace of the engines.
	Namespace string `yaml:"namespace" is:"namespace" default:"the root namespace" example:"team-a"`
}

type proxmoxFile struct {
	// The address of the API.
	URL string `yaml:"url" is:"httpsurl" default:"https://127.0.0.1:8006" example:"\"https://127.0.0.1:8006\""`
	// The API token, one line: user@realm!name=secret. Credential:
	// proxmox.token.
	TokenFile string `yaml:"token_file" is:"path" default:"the credential proxmox.token" example:"proxmox.token"`
	// The authority (PEM) that signed the certificate of the API. Proxmox VE's
	// own is /etc/pve/pve-root-ca.pem; give the agent a copy it can read. It
	// takes the place of the system's authorities.
	CAFile string `yaml:"ca_file" is:"path" default:"the system's authorities" example:"pve-root-ca.pem"`
	// Instead of ca_file: the SHA-256 fingerprint of the certificate itself, as
	// `pvenode cert info` shows it.
	Fingerprint string `yaml:"fingerprint" is:"fingerprint"`
	// The storage that Talos images are uploaded to, for clusters that name
	// none. Its content types must include `import`.
	ImageDatastore string `yaml:"image_datastore" is:"storage" default:"local" example:"local"`
	// The access log of pveproxy on this host, from which the agent takes who edited a VM
	// by a request that leaves no task. Its user must be allowed to read it.
	AccessLog string `yaml:"access_log" is:"absolute" default:"none is read" example:"/var/log/pveproxy/access.log"`
}

type forgeFile struct {
	// What kind of forge it is. Forgejo is a gitea.
	Kind string `yaml:"kind" enum:"github,gitlab,gitea" required:"true" example:"github"`
	// The address of GitHub's API, or the front page of GitLab or Gitea.
	URL string `yaml:"url" is:"weburl" default:"https://api.github.com or https://gitlab.com; a gitea has none" example:"\"https://api.github.com\""`
	// The repository there: owner/name, or a GitLab project with its groups.
	Repository string `yaml:"repository" is:"project" required:"true" example:"org/infra"`
	// A token that may set commit statuses, and nothing more. Credential:
	// forge.token.
	TokenFile string `yaml:"token_file" is:"path" default:"the credential forge.token" example:"forge.token"`
}

type notificationFile struct {
	// What the target is called in the log and in metrics.
	Name string `yaml:"name" is:"label" required:"true" example:"phone"`
	// webhook: a POST of JSON to a web address. chat: a message for people, over
	// the service that the address names.
	Kind string `yaml:"kind" enum:"webhook,chat" required:"true" example:"chat"`
	// The file that holds the address, one line. It is a secret: whoever knows
	// it can speak there. Credential: notify-NAME.
	URLFile string `yaml:"url_file" is:"path" default:"the credential notify-NAME" example:"phone.url"`
	// A key that signs what is sent, so that the other side knows who sent it.
	// Only for a webhook. Credential: notify-NAME.secret.
	SecretFile string `yaml:"secret_file" is:"path" default:"the credential notify-NAME.secret, if there is one" example:"hook.secret"`
	// The clusters whose conditions are sent.
	Clusters []string `yaml:"clusters" is:"label" default:"all" example:"[dev]"`
	// The conditions that are reported. Unknown includes a repository that cannot
	// be fetched.
	On []string `yaml:"on" enum:"Ready,Reconciling,Stalled,Suspended,Unknown" default:"[Ready, Stalled, Unknown]" example:"[Stalled]"`
}

type webhookFile struct {
	// The address and port to listen at. On a loopback address a reverse proxy
	// on this host gives it TLS and a name.
	Listen string `yaml:"listen" is:"listen" required:"true" example:"\"127.0.0.1:9478\""`
	// The secret that the forge knows too, at least 16 characters, one line.
	// Credential: webhook.secret.
	SecretFile string `yaml:"secret_file" is:"path" default:"the credential webhook.secret" example:"webhook.secret"`
}

type metricsFile struct {
	// The address and port to serve /metrics at. Whoever can reach it can read
	// the names and the states of the clusters.
	Listen string `yaml:"listen" is:"listen" example:"\"127.0.0.1:9477\""`
	// A file to write the same to, for the textfile collector of node_exporter.
	// Its name ends in .prom, and the agent must be able to write to its folder.
	Textfile string `yaml:"textfile" is:"absolute" example:"/run/talos-agent/agent.prom"`
}

type historyFile struct {
	// Runs of each cluster that are kept, the newest. Of very long ones fewer
	// are: the file of a cluster never has more than 1 MiB.
	Keep int `yaml:"keep" unit:"number of runs" default:"50" min:"1" max:"500" example:"50"`
}

type snapshotsFile struct {
	// The folder that they are kept in: best on a storage that is not lost with the VMs. The
	// agent must be allowed to write to it, and there must be room for each one twice.
	Directory string `yaml:"directory" is:"absolute" default:"snapshots in state_dir" example:"/mnt/backup/etcd"`
	// How often one is taken. At least 10m, at most 168h.
	Every time.Duration `yaml:"every" default:"6h" example:"6h"`
	// Public keys, each of which opens them as those of age_key_file do: age1..., or of ssh. Name one
	// whose private half lies elsewhere, for the day on which this host is lost.
	Recipients []string `yaml:"recipients" is:"recipient" example:"[age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p]"`
	// None are taken, also not before an upgrade or before a control plane is removed.
	Disabled bool `yaml:"disabled" default:"false"`
}

type dhcpFile struct {
	// The directory that the agent writes the reservations of all nodes to that get their addresses by
	// DHCP, one file each, for dnsmasq's `dhcp-hostsdir`. Everybody may read them. It must be there, and the
	// agent must be allowed to write to it: of the package's own, /var/lib/talos-agent-dhcp, both is so.
	Directory string `yaml:"directory" is:"absolute" default:"none is written" example:"/var/lib/talos-agent-dhcp"`
	// The lease files of DHCP servers of this host, as dnsmasq writes them: of nodes that get an address by DHCP which
	// is not in the inventory the agent finds it there, by their MACs. The table of neighbours is looked at in any case.
	Leases []string `yaml:"leases" is:"absolute" example:"[/var/lib/misc/dnsmasq.leases]"`
}

type forwardsFile struct {
	// The directory that the agent writes the `port_forwards` of clusters to, one file each, in the language
	// of nftables. Everybody may read them. It must be there, and the agent must be allowed to write to it: of
	// the package's own, /var/lib/talos-agent-nft, both is so. What loads them is up to root.
	Directory string `yaml:"directory" is:"absolute" default:"none is written" example:"/var/lib/talos-agent-nft"`
}

type factoryFile struct {
	// The address of the factory. One of your own needs `installer_registry` in
	// cluster.yaml too.
	URL string `yaml:"url" is:"weburl" default:"https://factory.talos.dev" example:"\"https://factory.talos.dev\""`
}

type mirrorsFile struct {
	// Asked instead of the factory.
	Factory string `yaml:"factory" is:"weburl" example:"\"https://factory.example.org\""`
	// Chart repositories and registries, and what is asked instead of each. The
	// beginning of an address is enough.
	Charts map[string]string `yaml:"charts" example:"{\"https://helm.cilium.io\": \"https://mirror.example.org/cilium\"}"`
	// Registries, and what the nodes pull from instead of each. It becomes part
	// of their machine config.
	Registries map[string]string `yaml:"registries" example:"{docker.io: \"https://mirror.example.org\"}"`
}
