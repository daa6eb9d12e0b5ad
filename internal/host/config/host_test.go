package config

const (
	sshConfig = `repository: {url: "ssh://git@example.org/infra.git", ssh_key_file: deploy.key, known_hosts_file: known_hosts}
age_key_file: age.key
proxmox: {token_file: proxmox.token}
`
	fullConfig = `owner: north
repository:
  url: https://example.org/infra.git
  branch: prod
  path: clusters
  interval: 5m
  token_file: git.token
clusters: [dev, prod]
age_key_file: age.key
proxmox:
  url: https://pve1.example.org:8006/
  token_file: proxmox.token
  ca_file: ca.pem
  image_datastore: images
  access_log: /var/log/pveproxy/access.log
forge: {kind: gitea, url: https://git.example.org, repository: org/infra, token_file: forge.token}
factory: {url: https://factory.example.org}
mirrors:
  charts: {"https://helm.cilium.io": https://mirror.example.org/cilium, oci://ghcr.io: oci://mirror.example.org}
  registries: {docker.io: https://mirror.example.org, ghcr.io: mirror.example.org}
ca_file: ca.pem
metrics: {listen: "192.0.2.1:9477", textfile: /run/north/agent.prom}
policy_file: rules/policy.yaml
socket: /run/north.sock
state_dir: /var/lib/north
cache_dir: /var/cache/north
`
)

// must fails where a test cannot go on.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
