package setup

import "slices"

// Where the host's files lie.
const (
	ConfigDir       = "/etc/talos-agent"
	ConfigFile      = ConfigDir + "/config.yaml"
	PolicyFile      = ConfigDir + "/policy.yaml"
	KnownHostsFile  = ConfigDir + "/known_hosts"
	RootCAFile      = ConfigDir + "/pve-root-ca.pem"
	AuthoritiesFile = ConfigDir + "/ca.pem"
	RecordFile      = ConfigDir + "/init.json"

	// LockFile is held by the one init that is at work.
	LockFile = "/run/talos-agent-init.lock"

	// ServiceUser is the user, and the group, that the daemon runs as.
	ServiceUser = "talos-agent"
	// UnitName is the daemon's unit.
	UnitName = "talos-agent.service"

	// CredentialDir is where systemd looks for the credentials of the unit, and
	// EncryptedDir for those that systemd-creds has encrypted.
	CredentialDir = "/etc/credstore"
	EncryptedDir  = "/etc/credstore.encrypted"

	credentialMark = "/talos-agent."
)

// The credentials that the unit loads and init writes.
const (
	AgeKey       = "age.key"
	ProxmoxToken = "proxmox.token"
	SSHKey       = "ssh.key"
	GitToken     = "git.token"
	ForgeToken   = "forge.token"
)

// Credential is the file of a credential.
func Credential(name string) string { return CredentialDir + credentialMark + name }

// encryptedPath is the file of a credential that systemd-creds has encrypted.
func encryptedPath(name string) string { return EncryptedDir + credentialMark + name }

// Files are the paths, of files and of two directories, that Facts.Files has to
// report.
func Files() []string {
	out := []string{ConfigDir, CredentialDir, ConfigFile, PolicyFile, KnownHostsFile, RootCAFile, AuthoritiesFile}
	for _, name := range []string{AgeKey, ProxmoxToken, SSHKey, GitToken, ForgeToken} {
		out = append(out, Credential(name), encryptedPath(name))
	}
	slices.Sort(out)
	return out
}
