package pvehost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab"
)

// WriteFiles writes what an administrator of the lab's host would have written:
// the agent's config and policy, its tokens and keys, and the lab's authority.
// The agent that reads them is the one people run.
// The host owns the named clusters of the repository; no name means all.
func WriteFiles(l *lab.Lab, dir string, ageKey []byte, clusters []string) (config string, err error) {
	config = filepath.Join(dir, "config.yaml")
	files := map[string]string{
		"config.yaml": fmt.Sprintf(`# Written by talos-agent lab: a simulated Proxmox VE host.
owner: lab
clusters: [%s]
repository:
  url: %s
  branch: main
  token_file: git.token
  interval: 10s
age_key_file: age.key
proxmox:
  url: %s
  token_file: proxmox.token
  ca_file: ca.pem
forge:
  kind: github
  url: %s
  repository: %s
  token_file: forge.token
mirrors:
  factory: %s
  charts:
    https://helm.cilium.io: %s
  registries: {factory.talos.dev: "%[8]s", ghcr.io: "%[8]s", registry.k8s.io: "%[8]s"}
ca_file: ca.pem
socket: %[9]s
state_dir: %[10]s
cache_dir: %[11]s
`, strings.Join(clusters, ", "), l.Repo.URL(), l.PVE.URL(), l.Forge.URL(), lab.Repository, l.Factory.URL(), l.Charts.URL(),
			l.Registry.URL(), filepath.Join(dir, "agent.sock"), filepath.Join(dir, "state"), filepath.Join(dir, "cache")),
		"policy.yaml": `# What the host allows, whatever is in the repository.
pool: talos
vmids: [100-9999]
datastores: [local, local-lvm]
bridges: [vmbr1]
limits: {nodes: 20, cores: 128, ram: 512GiB, disk: 4TiB}
`,
		"age.key":       string(ageKey),
		"proxmox.token": l.Token + "\n",
		"git.token":     lab.GitToken + "\n",
		"forge.token":   lab.ForgeToken + "\n",
		"ca.pem":        string(l.CA()),
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("write the host's files: %w", err)
	}
	var errs []error
	for name, text := range files {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return config, errors.Join(errs...)
}
