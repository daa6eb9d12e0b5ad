package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
)

func TestConfigDefaults(t *testing.T) {
	dir := hosttest.New(t, hosttest.Files(t), map[string]string{"config.yaml": sshConfig})
	s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, c := range []struct{ what, got, want string }{
		{"owner", s.Owner, "talos-agent"}, {"branch", s.Repository.Branch, "main"}, {"folder", s.Folder, "inventory"},
		{"interval", s.Interval.String(), "1m0s"}, {"proxmox", s.Proxmox.URL, "https://127.0.0.1:8006"}, {"pool", s.Proxmox.Pool, "talos"},
		{"image_datastore", s.ImageDatastore, "local"}, {"factory", s.Factory, "https://factory.talos.dev"},
		{"socket", s.Socket, "/run/talos-agent/agent.sock"}, {"state_dir", s.StateDir, "/var/lib/talos-agent"}, {"cache_dir", s.CacheDir, "/var/cache/talos-agent"},
		{"policy", s.PolicyPath, filepath.Join(dir, "policy.yaml")}, {"source", s.Source(), "main of ssh://git@example.org/infra.git"},
		{"token", s.Proxmox.Token.RevealString(), hosttest.CanaryToken},
	} {
		if c.got != c.want {
			t.Errorf("%s is %q, want %q", c.what, c.got, c.want)
		}
	}
	if s.Forge != nil || len(s.Clusters) > 0 || s.Identities == nil || len(s.Repository.SSHKey) == 0 || len(s.Repository.KnownHosts) == 0 || s.PolicyNow.Load().Pool != "talos" {
		t.Errorf("%+v", s)
	}
}

func TestConfigFull(t *testing.T) {
	files := hosttest.Files(t)
	dir := hosttest.New(t, files, map[string]string{"config.yaml": fullConfig})
	if err := os.Mkdir(filepath.Join(dir, "rules"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "rules/policy.yaml")); err != nil {
		t.Fatal(err)
	}
	s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	got := fmt.Sprint(s.Owner, s.Clusters, s.Repository.URL, s.Repository.Branch, s.Folder, s.Interval, s.Proxmox.URL, s.ImageDatastore, s.Forge.Kind, s.Forge.URL, s.Forge.Repository,
		s.Factory, s.Charts, s.Registries, s.Socket, s.StateDir, s.CacheDir, s.Metrics, s.Proxmox.AccessLog)
	want := "north[dev prod]https://example.org/infra.gitprodclusters5m0shttps://pve1.example.org:8006imagesgiteahttps://git.example.orgorg/infra" +
		"https://factory.example.orgmap[https://helm.cilium.io:https://mirror.example.org/cilium oci://ghcr.io:oci://mirror.example.org]" +
		"map[docker.io:https://mirror.example.org ghcr.io:mirror.example.org]/run/north.sock/var/lib/north/var/cache/north{192.0.2.1:9477/run/north/agent.prom}/var/log/pveproxy/access.log"
	if strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if s.Repository.Token != hosttest.CanaryGit || s.Forge.Token != hosttest.CanaryForge || string(s.CA) != files["ca.pem"] || string(s.Proxmox.CA) != files["ca.pem"] || string(s.Repository.CA) != files["ca.pem"] {
		t.Error("a file was not read")
	}
}

// TestConfigDirectory: a directory of this host instead of a repository.
func TestConfigDirectory(t *testing.T) {
	dir := hosttest.New(t, hosttest.Files(t))
	config := filepath.Join(dir, "config.yaml")
	hosttest.Write(t, config, "repository: {directory: "+dir+"}\nage_key_file: age.key\nproxmox: {token_file: proxmox.token}\n", 0o644)
	s, problems := LoadFrom(config, Credentials{})
	if len(problems) > 0 || s.Directory() != dir || s.Source() != dir {
		t.Errorf("%s, %v", s.Source(), problems)
	}
}

// TestConfigCredentials: what systemd hands over is found by its name, or by the
// name the config gives, whatever its permissions are.
func TestConfigCredentials(t *testing.T) {
	files := hosttest.Files(t)
	credentials := hosttest.New(t)
	for name, from := range map[string]string{"age.key": "age.key", "proxmox.token": "proxmox.token", "ssh.key": "deploy.key", "known_hosts": "known_hosts", "git.token": "git.token", "forge.token": "forge.token", "webhook.secret": "age.key", "other": "forge.token"} {
		hosttest.Write(t, filepath.Join(credentials, name), files[from], 0o444)
	}
	load := func(config string) (Settings, cluster.Problems) {
		dir := hosttest.New(t, map[string]string{"config.yaml": config, "policy.yaml": files["policy.yaml"]})
		return LoadFrom(filepath.Join(dir, "config.yaml"), FromSystemd(credentials))
	}
	s, problems := load("repository: {url: \"git@example.org:infra.git\"}\n")
	if len(problems) > 0 || len(s.Repository.SSHKey) == 0 || len(s.Repository.KnownHosts) == 0 || s.Repository.Token != "" || s.Proxmox.Token.RevealString() != hosttest.CanaryToken || s.Identities == nil {
		t.Errorf("ssh: %v", problems)
	}
	s, problems = load("repository: {url: \"https://example.org/infra.git\"}\nforge: {kind: github, repository: a/b}\n")
	if len(problems) > 0 || len(s.Repository.SSHKey) > 0 || s.Repository.Token != hosttest.CanaryGit || s.Forge.Token != hosttest.CanaryForge {
		t.Errorf("https: %v", problems)
	}
	s, problems = load("repository: {url: \"https://example.org/infra.git\"}\nwebhook: {listen: \"127.0.0.1:9478\"}\n")
	if len(problems) > 0 || s.Webhook.Secret.RevealString() != strings.TrimSpace(files["age.key"]) {
		t.Errorf("webhook: %v", problems)
	}
	s, problems = load("repository: {url: \"https://example.org/infra.git\", token_file: \"credential:other\"}\n")
	if len(problems) > 0 || s.Repository.Token != hosttest.CanaryForge || s.Forge != nil {
		t.Errorf("named: %v", problems)
	}
	// The unit hands over an empty line for a credential that is missing.
	hosttest.Write(t, filepath.Join(credentials, "unset"), "\n", 0o400)
	for _, name := range []string{"nope", "unset"} {
		_, problems = load("repository: {url: \"https://example.org/infra.git\", token_file: \"credential:" + name + "\"}\n")
		if want := "repository.token_file: systemd has handed over no credential " + name; len(problems) != 1 || !strings.Contains(problems.Error(), want) ||
			!strings.HasSuffix(problems[0].Hint, "; if /etc/credstore/talos-agent."+name+" is there, `systemctl restart talos-agent` hands it over") {
			t.Errorf("missing: %v, want %s", problems, want)
		}
	}
	must(os.Remove(filepath.Join(credentials, "forge.token")))
	_, problems = load("repository: {url: \"https://example.org/infra.git\"}\nforge: {kind: github, repository: a/b}\n")
	if len(problems) != 1 || !strings.HasSuffix(problems[0].Hint, "; if /etc/credstore/talos-agent.forge.token is there, `systemctl restart talos-agent` hands it over") {
		t.Errorf("put there after the start: %v", problems)
	}
}

// TestConfigCredentialStore: who runs a command by hand, without systemd, takes
// the credentials from where systemd would, and is as careful with them as with
// other files.
func TestConfigCredentialStore(t *testing.T) {
	files := hosttest.Files(t)
	store := hosttest.New(t)
	dir := hosttest.New(t, map[string]string{"config.yaml": "repository: {url: \"https://example.org/infra.git\"}\n", "policy.yaml": files["policy.yaml"]})
	load := func() (Settings, cluster.Problems) {
		return LoadFrom(filepath.Join(dir, "config.yaml"), FromStore(store))
	}
	if _, problems := load(); !problems.HasErrors() {
		t.Error("an empty store was enough")
	}
	for _, name := range []string{"age.key", "proxmox.token", "git.token"} {
		hosttest.Write(t, filepath.Join(store, "talos-agent."+name), files[name], 0o600)
	}
	if s, problems := load(); len(problems) > 0 || s.Repository.Token != hosttest.CanaryGit || s.Proxmox.Token.RevealString() != hosttest.CanaryToken || s.Identities == nil {
		t.Errorf("%v", problems)
	}
	hosttest.Write(t, filepath.Join(store, "talos-agent.age.key"), files["age.key"], 0o644)
	if _, problems := load(); !strings.Contains(problems.Error(), "age_key_file: the file can be read by everybody (mode 0644) (chmod 0600 ") {
		t.Errorf("an open key: %v", problems)
	}
	must(os.Chmod(filepath.Join(store, "talos-agent.age.key"), 0o640))
	if _, problems := load(); !strings.Contains(problems.Error(), "age_key_file: the file can be read by its group (mode 0640) (chmod 0600 ") {
		t.Errorf("a key for its group: %v", problems)
	}
}

// TestSealedCredentials: a key that only systemd can open is not told to be
// missing.
func TestSealedCredentials(t *testing.T) {
	files := hosttest.Files(t)
	host := hosttest.New(t)
	store := filepath.Join(host, "credstore")
	for _, dir := range []string{store, store + ".encrypted"} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(hosttest.New(t, map[string]string{"config.yaml": "repository: {url: \"https://example.org/infra.git\"}\n", "policy.yaml": files["policy.yaml"]}), "config.yaml")
	hosttest.Write(t, filepath.Join(store, "talos-agent.proxmox.token"), files["proxmox.token"], 0o600)
	hosttest.Write(t, filepath.Join(store+".encrypted", "talos-agent.age.key"), "sealed", 0o600)
	s, problems := LoadFrom(path, FromStore(store))
	if len(problems) != 1 || !strings.Contains(problems.Error(), "age_key_file: the credential age.key is encrypted: only the daemon gets it opened, by systemd") {
		t.Errorf("the loader: %v", problems)
	}
	if visible := s.WithoutHidden(problems); len(visible) != 0 {
		t.Errorf("without what is hidden: %v", visible)
	}
	// The other way is reported as ever.
	if err := os.Remove(filepath.Join(store+".encrypted", "talos-agent.age.key")); err != nil {
		t.Fatal(err)
	}
	s, problems = LoadFrom(path, FromStore(store))
	if visible := s.WithoutHidden(problems); len(visible) != 1 || !visible.HasErrors() {
		t.Errorf("without any key: %v", visible)
	}
}

// TestConfigProblems: each thing that is wrong is said at its place, with what
// to write instead, and nothing besides. DIR stands for the host's folder.
func TestConfigProblems(t *testing.T) {
	const ok = "proxmox: {token_file: proxmox.token}\nage_key_file: age.key\n"
	const remote = "repository: {url: \"https://example.org/infra.git\"}\n"
	for _, c := range []struct {
		config string
		want   []string
	}{
		{"", []string{"config.yaml: the file is empty"}},
		{"owner: North\n" + remote + ok, []string{`config.yaml:1:8: owner: "North" is not a DNS label (lower-case letters, digits and -, at most 63) (write one like talos-agent)`}},
		{ok, []string{"config.yaml:1:1: repository: is missing (write repository: {url: \"ssh://git@example.org/infra.git\"})"}},
		{"repository: {branch: main}\n" + ok, []string{"config.yaml:1:1: repository.url: is missing (write url: for a Git repository, or directory: for one of this host)"}},
		{"repository: {url: \"https://example.org/a\", directory: /srv}\n" + ok, []string{"config.yaml:1:55: repository.directory: url and directory are both written (keep one of them)"}},
		{"repository: {directory: /does/not/exist, branch: main, token_file: git.token}\n" + ok, []string{
			"config.yaml:1:25: repository.directory: /does/not/exist does not exist",
			"config.yaml:1:50: repository.branch: has no use with directory, which is read as it is (remove it)",
			"config.yaml:1:68: repository.token_file: has no use with directory, which is read as it is (remove it)"}},
		{"repository: {directory: relative}\n" + ok, []string{`config.yaml:1:25: repository.directory: "relative" is not an absolute path (write one like /srv/infra)`}},
		{"repository: {directory: /dev/null/x}\n" + ok, []string{"config.yaml:1:1: repository: directory: stat /dev/null/x: not a directory"}},
		{"repository: {url: \"http://example.org/a\"}\n" + ok, nil},
		{"repository: {url: \"ssh://git@example.org/a\"}\n" + ok, []string{
			"config.yaml:1:1: repository.known_hosts_file: is missing; a host is never trusted on first sight (run ssh-keyscan example.org, compare the fingerprint (ssh-keygen -lf) with the one the server's owner publishes, and add the line to known_hosts_file)",
			"config.yaml:1:1: repository.ssh_key_file: is missing; ssh needs a deploy key (make one with ssh-keygen -t ed25519 -N '' and add its .pub at the forge as a read-only deploy key)"}},
		{"repository: {url: \"ssh://git@example.org/a\", ssh_key_file: age.key, known_hosts_file: known_hosts}\n" + ok, []string{
			"config.yaml:1:60: repository.ssh_key_file: is not a private key (give the private half of a key made with ssh-keygen -t ed25519 -N '')"}},
		{"repository: {url: \"http://example.org/a\", token_file: git.token}\n" + ok, []string{
			"config.yaml:1:55: repository.token_file: may only be sent over https (use an https:// URL, or remove the token)"}},
		{"repository: {url: \"https://me:c4n4ry@example.org/a\"}\n" + ok, []string{
			"config.yaml:1:19: repository.url: holds a password; it would show up in logs (put the token into token_file)"}},
		{"repository: {url: \"https://example.org/a\", branch: \"a..b\", path: ../x, interval: 2s}\n" + ok, []string{
			`config.yaml:1:52: repository.branch: "a..b" is not a branch name (write the short name, such as main)`,
			`config.yaml:1:66: repository.path: "../x" leaves the repository (write the path from the top of the repository, like inventory)`,
			"config.yaml:1:82: repository.interval: 2s is too short (write 5s or more; a trigger asks at once anyway)"}},
		{remote + "clusters: [dev, Dev, dev]\n" + ok, []string{
			`config.yaml:2:17: clusters[1]: "Dev" is not a DNS label (lower-case letters, digits and -, at most 63) (write one like dev-cp-1)`,
			"config.yaml:2:22: clusters[2]: dev is listed twice (remove one)"}},
		{remote + "clusters: [Dev, Prod]\n" + ok, []string{
			`config.yaml:2:12: clusters[0]: "Dev" is not a DNS label (lower-case letters, digits and -, at most 63) (write one like dev-cp-1)`,
			`config.yaml:2:17: clusters[1]: "Prod" is not a DNS label (lower-case letters, digits and -, at most 63) (write one like dev-cp-1)`}},
		{remote + "proxmox: {token_file: proxmox.token}\n", []string{
			"config.yaml: age_key_file: is missing: nothing opens the secrets of the clusters (`talos-agent init` makes a key; or age-keygen -o age.key; its public half belongs into .sops.yaml of the repository)"}},
		{remote + "proxmox: {token_file: proxmox.token}\nage_key_file: proxmox.token\n", []string{
			"config.yaml:3:15: age_key_file: the file DIR/proxmox.token cannot be used: "}},
		{remote + "age_key_file: nope\n", []string{
			"config.yaml: proxmox.token_file: is missing (`talos-agent init` makes a token; or `pveum user token add`, and name the file that holds it)",
			"config.yaml:2:15: age_key_file: there is no such file (a path that does not begin with / is looked for in DIR)"}},
		{remote + "age_key_file: age.key\nproxmox: {token_file: git.token, url: \"http://127.0.0.1:8006\", fingerprint: \"12:34\", ca_file: age.key}\n", []string{
			"config.yaml:3:23: proxmox.token_file: the file DIR/git.token holds no API token (put one line into it, user@realm!name=secret: the full-tokenid and the value that `pveum user token add` prints)",
			`config.yaml:3:39: proxmox.url: "http://127.0.0.1:8006" is not the https address of a server (write one like "https://127.0.0.1:8006")`,
			`config.yaml:3:77: proxmox.fingerprint: "12:34" is not a SHA-256 fingerprint (32 bytes in hex, with or without colons)`,
			"config.yaml:3:95: proxmox.ca_file: the file DIR/age.key holds no certificate (give certificates in PEM, which begin with -----BEGIN CERTIFICATE-----)"}},
		{remote + "age_key_file: age.key\nproxmox: {token_file: proxmox.token, ca_file: ca.pem, fingerprint: " + strings.Repeat("aB", 32) + "}\n", []string{
			"config.yaml:3:47: warning: proxmox.ca_file: has no effect beside fingerprint (remove one of them)"}},
		{remote + "age_key_file: age.key\nproxmox: {token_file: proxmox.token, fingerprint: " + strings.Repeat("aB", 32) + "}\n", nil},
		{remote + "age_key_file: age.key\nproxmox: nope\n", []string{"config.yaml:3:10: proxmox: "}},
		{remote + ok + "forge: {kind: github, repository: \"a b\"}\n", []string{`config.yaml:4:35: forge.repository: "a b" is not the name of a repository (write one like org/infra)`}},
		{remote + ok + "forge: {kind: gitbub, repository: a/b}\n", []string{`config.yaml:4:15: forge.kind: "gitbub" is not known (did you mean github?)`}},
		// What a forge needs depends on its kind.
		{remote + ok + "forge: {kind: gitbub, repository: a/b, token_file: nope}\n", []string{`config.yaml:4:15: forge.kind: "gitbub" is not known (did you mean github?)`}},
		{remote + ok + "forge: {kind: gitea, repository: a/b}\n", []string{
			"config.yaml:4:1: forge.token_file: is missing (",
			"config.yaml:4:1: forge.url: is missing (write the address of the forge, such as https://git.example.org)"}},
		{remote + ok + "forge: {kind: github, repository: infra, token_file: forge.token, url: \"http://example.org\"}\n", []string{
			"config.yaml:4:35: forge.repository: is not the name of a repository (write owner/name)",
			"config.yaml:4:72: forge.url: is plain http, over which the token would be readable (use https)"}},
		{"repository: {directory: DIR}\n" + ok + "forge: {kind: github, repository: a/b, token_file: forge.token}\n", []string{
			"config.yaml:4:1: warning: forge: has no use with repository.directory: there is no commit to send a status for (remove it, or follow the repository by url)"}},
		{remote + ok + "factory: {url: \"http://f.example.org\"}\nmirrors: {factory: \"http://10.0.0.1\", charts: {nope: \"https://a.b\", \"https://c.d\": \"http://e.f\", \"oci://g.h\": \"i\"}, registries: {\"a b\": c, d.e: \"http://f.g\", h.i: \"j k\"}}\n", []string{
			"config.yaml:4:16: factory.url: is plain http: whoever is between could change what comes over it (use https; plain http is for loopback addresses)",
			"config.yaml:5:20: mirrors.factory: is plain http: whoever is between could change what comes over it (use https; plain http is for loopback addresses)",
			"config.yaml:5:54: mirrors.charts.nope: the key is not the address of a chart repository or registry (write the beginning of its address, like https://helm.cilium.io)",
			"config.yaml:5:84: mirrors.charts.https://c.d: is plain http: whoever is between could change what comes over it (use https; plain http is for loopback addresses)",
			"config.yaml:5:111: mirrors.charts.oci://g.h: is not a web or oci address without user, query, fragment or escapes (write one like https://mirror.example.org/cilium)",
			"config.yaml:5:137: mirrors.registries.a b: the key is not the name of a registry (write a host, like docker.io)",
			"config.yaml:5:145: warning: mirrors.registries.d.e: is plain http: whoever is between it and the nodes chooses what they run (use https where you can)",
			"config.yaml:5:164: mirrors.registries.h.i: is not the address of a registry (write one like https://mirror.example.org)"}},
		{remote + ok + "mirrors: {factory: \"http://127.84.1.1:8080\", charts: {\"https://c.d\": \"http://localhost:1\"}}\n", nil},
		{remote + ok + "mirrors: {charts: {\"https://c.d\": \"http://[e\"}}\n", []string{
			"config.yaml:4:35: mirrors.charts.https://c.d: is not a web or oci address without user, query, fragment or escapes (write one like https://mirror.example.org/cilium)"}},
		{remote + ok + "state_dir: /srv/agent\ncache_dir: /srv/agent/cache\n", nil},
		{remote + ok + "state_dir: /var/cache/talos-agent/state\nsocket: relative.sock\n", []string{
			"config.yaml:4:12: state_dir: lies in cache_dir, which may be deleted; what the agent must remember may not (choose another place for one of them)",
			`config.yaml:5:9: socket: "relative.sock" is not an absolute path (write one like /run/talos-agent/agent.sock)`}},
		{remote + "age_key_file: age.key\nproxmox: {token_file: proxmox.token, access_log: access.log}\n", []string{
			`config.yaml:3:50: proxmox.access_log: "access.log" is not an absolute path (write one like /var/log/pveproxy/access.log)`}},
		{remote + ok + "snapshots: {directory: /mnt/backup, every: 1h, recipients: [" + offline + "]}\n", nil},
		{remote + ok + "snapshots: {disabled: true}\n", nil},
		{remote + ok + "snapshots: {every: 1m, directory: /var/cache/talos-agent/x}\n", []string{
			"config.yaml:4:20: snapshots.every: 1m0s is out of bounds (write 10m or more, and 168h or less; `disabled: true` takes none)",
			"config.yaml:4:35: snapshots.directory: lies in cache_dir, which may be deleted (choose another place)"}},
		{remote + ok + "vault: {url: \"https://vault.example.org:8200\", token_file: git.token, keys: [transit/talos-agent, a/b/c]}\n", nil},
		{remote + ok + "vault: {url: \"http://vault.example.org\", keys: [transit, a//b, \"../sys/x\"], namespace: \"a b\"}\n", []string{
			"config.yaml:4:1: vault.token_file: is missing (name the file of a token that may decrypt with the keys",
			`config.yaml:4:14: vault.url: "http://vault.example.org" is not the https address of a server (write one like "https://vault.example.org:8200")`,
			`config.yaml:4:49: vault.keys[0]: "transit" is not the path of a transit engine and the name of a key (write one like transit/talos-agent)`,
			`config.yaml:4:58: vault.keys[1]: "a//b" is not `, `config.yaml:4:64: vault.keys[2]: "../sys/x" is not `,
			`config.yaml:4:88: vault.namespace: "a b" is not the path of a namespace (write one like team-a)`}},
		{remote + ok + "vault: {token_file: git.token}\n", []string{
			`config.yaml:4:8: vault.keys: is missing (write keys: [transit/talos-agent])`,
			`config.yaml:4:8: vault.url: is missing (write url: "https://vault.example.org:8200")`}},
		{remote + ok + "dhcp: {directory: /var/lib/talos-agent-dhcp/}\n", nil},
		{remote + ok + "dhcp: {}\n", nil},
		{remote + ok + "dhcp: {leases: [/var/lib/misc/dnsmasq.leases, /run/leases/]}\n", nil},
		{remote + ok + "dhcp: {leases: [dnsmasq.leases]}\n", []string{
			`config.yaml:4:17: dhcp.leases[0]: "dnsmasq.leases" is not an absolute path (write one like /var/lib/talos-agent)`}},
		{remote + ok + "dhcp: {directory: /var/lib/talos-agent/dnsmasq}\n", []string{
			"config.yaml:4:19: dhcp.directory: lies in state_dir, which only the agent may read: the DHCP server could not (choose another place, such as /var/lib/talos-agent-dhcp)"}},
		{remote + ok + "dhcp: {directory: /var/cache/talos-agent}\n", []string{
			"config.yaml:4:19: dhcp.directory: lies in cache_dir, which only the agent may read: the DHCP server could not (choose another place, such as /var/lib/talos-agent-dhcp)"}},
		{remote + ok + "port_forwards: {directory: /var/lib/talos-agent-nft}\n", nil},
		{remote + ok + "port_forwards: {directory: /var/lib/talos-agent}\n", []string{
			"config.yaml:4:28: port_forwards.directory: lies in state_dir, which only the agent may read: what loads them could not (choose another place, such as /var/lib/talos-agent-nft)"}},
		{remote + ok + "dhcp: {directory: dnsmasq}\n", []string{
			`config.yaml:4:19: dhcp.directory: "dnsmasq" is not an absolute path (write one like /var/lib/talos-agent-dhcp)`}},
		{remote + ok + "snapshots: {recipients: [" + offline + ", " + offline + ", age1x]}\n", []string{
			"config.yaml:4:90: warning: snapshots.recipients[1]: is listed twice, or is a key of this host, which opens them anyway (remove it)",
			"config.yaml:4:154: snapshots.recipients[2]: recipient age1x is no age or ssh public key (use age1..., age1pq1..., ssh-ed25519 or ssh-rsa public keys)"}},
		{remote + ok + "socket: /" + strings.Repeat("x", 107) + "\n", []string{
			"config.yaml:4:9: socket: is longer than the 107 bytes that a socket's path can have (choose a shorter path)"}},
		{remote + ok + "metrics: {listen: \"localhost:9477\", textfile: /run/metrics.txt}\n", []string{
			`config.yaml:4:19: metrics.listen: "localhost:9477" is not an IP address and a port (write one like "127.0.0.1:9477")`,
			"config.yaml:4:47: metrics.textfile: does not end in .prom (node_exporter reads files whose names end in .prom)"}},
		{remote + ok + "metrics: {listen: \"localhost:9477\"}\n", []string{
			`config.yaml:4:19: metrics.listen: "localhost:9477" is not an IP address and a port (write one like "127.0.0.1:9477")`}},
		{remote + ok + "metrics: {textfile: agent.prom}\n", []string{
			`config.yaml:4:21: metrics.textfile: "agent.prom" is not an absolute path (write one like /run/talos-agent/agent.prom)`}},
		{remote + ok + "metrics: {textfile: /run/talos-agent/agent.prom}\n", nil},
		{remote + ok + "metrics: {}\n", []string{
			"config.yaml:4:1: metrics: sets neither where to listen nor which file to write (write listen: for Prometheus to ask, or textfile: for node_exporter to read)"}},
		{remote + ok + "metrics: {listen: \"127.0.0.1:0\"}\n", []string{
			"config.yaml:4:19: metrics.listen: the port must not be 0: nobody would know which one it is (write one like 127.0.0.1:9477)"}},
		{remote + ok + "metrics: {listen: \"127.0.0.999:1\"}\n", []string{
			"config.yaml:4:19: metrics.listen: 127.0.0.999:1 is not an IP address and a port (write one like 127.0.0.1:9477)"}},
		{remote + ok + "metrics: {listen: \"[::1]:9477\"}\n", nil},
		{remote + ok + "webhook: {listen: \"127.0.0.1:1\"}\nmetrics: {listen: \"127.0.0.1:1\"}\n", []string{
			"config.yaml:4:1: webhook.secret_file: is missing: anybody could pretend to be the forge (make one with `openssl rand -hex 32`, write it into /etc/credstore/talos-agent.webhook.secret, restart the agent, and give the same to the forge)",
			"config.yaml:4:19: webhook.listen: metrics.listen is the same (choose another port for one of them)"}},
		{remote + ok + "webhook: {secret_file: short}\n", []string{
			"config.yaml:4:10: webhook.listen: is missing (write listen: \"127.0.0.1:9478\")",
			"config.yaml:4:24: webhook.secret_file: the file DIR/short holds 12 characters, and at least 16 are needed (make one with `openssl rand -hex 32`, and give the same to the forge)"}},
		{remote + ok + "webhook: {listen: \"127.0.0.1:1\", secret_file: nope}\n", []string{
			"config.yaml:4:47: webhook.secret_file: there is no such file (a path that does not begin with / is looked for in DIR)"}},
		{"repository: {directory: DIR}\n" + ok + "webhook: {listen: \"127.0.0.1:1\", secret_file: age.key}\n", []string{
			"config.yaml:4:1: warning: webhook: has no use with repository.directory (remove it: a directory is watched)"}},
		{remote + ok + "clusters: [dev]\nnotifications:\n  - {name: a, kind: chat, url_file: hook.url, clusters: [dev, prod], on: [Ready, Broken]}\n  - {name: a, kind: webhook, url_file: hook.url, secret_file: short}\n" +
			"  - {name: b, kind: webhook}\n  - {name: c, kind: webhook, url_file: plain.url}\n  - {kind: mail}\n", []string{
			`config.yaml:6:37: notifications[0].url_file: the address in the file DIR/hook.url cannot be used: its service is not known (known are `,
			"config.yaml:6:63: notifications[0].clusters[1]: prod is not among the clusters of this host (this host manages dev)",
			`config.yaml:6:82: notifications[0].on[1]: "Broken" is not known (write Ready or Reconciling or Stalled or Suspended or Unknown)`,
			"config.yaml:7:12: notifications[1].name: another target is called a (choose another)",
			"config.yaml:8:5: notifications[2].url_file: is missing: there is no address to send to (put the address into a file that nobody else can read, and name it here)",
			"config.yaml:9:40: notifications[3].url_file: the address in the file DIR/plain.url cannot be used: it is plain http, over which anybody between could read and write (use https; plain http is for loopback addresses)",
			"config.yaml:10:5: notifications[4].name: is missing (write name: phone)",
			`config.yaml:10:12: notifications[4].kind: "mail" is not known (write webhook or chat)`}},
		{remote + ok + "notifications: [{name: a, kind: webhook, url_file: hook.url, secret_file: short, clusters: [dev]}]\n", nil},
		{remote + ok + "clusters: [dev]\nnotifications: [{name: a, kind: mail}, {kind: webhook}, {name: b, kind: webhook, url_file: hook.url, clusters: [Dev]}]\n", []string{
			`config.yaml:5:33: notifications[0].kind: "mail" is not known (write webhook or chat)`,
			"config.yaml:5:40: notifications[1].name: is missing (write name: phone)",
			`config.yaml:5:113: notifications[2].clusters[0]: "Dev" is not a DNS label`}},
		{remote + ok + "ca_file: ca.pem\nnotifications:\n  - {name: a, kind: chat, url_file: ntfy.url}\n  - {name: b, kind: chat, url_file: mail.url}\n", []string{
			"config.yaml:7:5: warning: notifications[1]: ca_file is not for smtp://, which trusts the authorities of the host alone (if ca_file vouches for its server, make it one of the host's authorities: copy it to /usr/local/share/ca-certificates/talos-agent.crt, run `update-ca-certificates`, take ca_file out of the config and restart the agent)"}},
		{remote + ok + "notifications: [{name: b, kind: chat, url_file: mail.url}]\n", nil},
		{remote + ok + "policy_file: nope.yaml\n", []string{
			"DIR/nope.yaml: there is no policy, so nothing is allowed (write one; the smallest has the lines pool: talos and vmids: [400-599])"}},
		{remote + "age_key_file: \"credential:age.key\"\nproxmox: {token_file: \"me@pve!x=c4n4ry\"}\n", []string{
			"config.yaml:2:15: age_key_file: there are no credentials: systemd has given the program none (start the agent by systemd with LoadCredential=age.key:/path/of/the/file, or write the path here)",
			"config.yaml:3:23: proxmox.token_file: this is not the path of a file, or credential:NAME (write one like proxmox.token)"}},
		{remote + ok + "token: c4n4ry\nca: x\n", []string{
			`config.yaml:4:1: unknown key "token" (known here: `,
			`config.yaml:5:1: unknown key "ca" (did you mean ca_file?)`}},
	} {
		dir := hosttest.New(t, hosttest.Files(t))
		hosttest.Write(t, filepath.Join(dir, "config.yaml"), strings.ReplaceAll(c.config, "DIR", dir), 0o600)
		_, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
		text := strings.ReplaceAll(strings.ReplaceAll(problems.Error(), dir+"/config.yaml", "config.yaml"), dir, "DIR")
		if strings.Contains(text, "c4n4ry") {
			t.Errorf("a secret is told:\n%s", text)
		}
		var lines []string
		if text != "" {
			lines = strings.Split(text, "\n")
		}
		for i := range max(len(lines), len(c.want)) {
			var got, want string
			if i < len(lines) {
				got = lines[i]
			}
			if i < len(c.want) {
				want = c.want[i]
			}
			if got != want && (want == "" || !strings.HasPrefix(got, want) || strings.HasSuffix(want, ")")) {
				t.Errorf("%s\ngot  %s\nwant %s", c.config, got, want)
			}
		}
	}
}

// TestConfigFilesMustBeGuarded: what others may read is no secret, and what
// others may write is nobody's word.
func TestConfigFilesMustBeGuarded(t *testing.T) {
	for name, c := range map[string]struct {
		mode os.FileMode
		want string
	}{
		"proxmox.token": {0o644, "proxmox.token_file: the file can be read by everybody (mode 0644) (chmod 0640 DIR/proxmox.token)"},
		"age.key":       {0o602, "age_key_file: the file can be changed by others than its owner (mode 0602) (chmod 0600 DIR/age.key)"},
		"known_hosts":   {0o666, "repository.known_hosts_file: the file can be changed by others than its owner (mode 0666) (chmod 0664 DIR/known_hosts)"},
		"deploy.key":    {0o604, "repository.ssh_key_file: the file can be read by everybody (mode 0604) (chmod 0600 DIR/deploy.key)"},
		"policy.yaml":   {0o664, "DIR/policy.yaml: can be changed by others than its owner (mode 0664) (chmod 0644 DIR/policy.yaml)"},
		"config.yaml":   {0o646, "DIR/config.yaml: can be changed by others than its owner (mode 0646) (chmod 0644 DIR/config.yaml)"},
	} {
		dir := hosttest.New(t, hosttest.Files(t), map[string]string{"config.yaml": sshConfig})
		if err := os.Chmod(filepath.Join(dir, name), c.mode); err != nil {
			t.Fatal(err)
		}
		_, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
		if text := strings.ReplaceAll(problems.Error(), dir, "DIR"); len(problems) != 1 || !strings.Contains(text, c.want) {
			t.Errorf("got  %s\nwant %s", text, c.want)
		}
	}
	dir := hosttest.New(t, hosttest.Files(t))
	for _, c := range []struct{ file, want string }{{dir, "is not a regular file"}, {"/dev/null", "is not a regular file"}, {filepath.Join(dir, "config.yaml", "x"), "cannot be read: not a directory"},
		{filepath.Join(dir, "nope"), "file does not exist"}} {
		if _, _, err := ReadFile(c.file, 0); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v", c.file, err)
		}
	}
	hosttest.Write(t, filepath.Join(dir, "large"), strings.Repeat("x", MaxFile+1), 0o600)
	if _, _, err := ReadFile(filepath.Join(dir, "large"), 0); err == nil {
		t.Error("a large file was read")
	}
	if _, problems := LoadFrom(filepath.Join(dir, "nope"), Credentials{}); len(problems) != 1 || !strings.Contains(problems.Error(), "there is no config (`talos-agent init` writes it; or name another with --config") {
		t.Errorf("missing: %v", problems)
	}
}

// TestSettingsDoNotPrintSecrets: not with any verb.
func TestSettingsDoNotPrintSecrets(t *testing.T) {
	files := hosttest.Files(t)
	dir := hosttest.New(t, files, map[string]string{"config.yaml": strings.Replace(fullConfig, "rules/", "", 1)})
	s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, verb := range []string{"%v", "%+v", "%s", "%q"} {
		text := fmt.Sprintf(verb, s)
		for _, secret := range []string{"c4n4ry", "AGE-SECRET-KEY", "PRIVATE KEY"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s shows a secret", verb)
			}
		}
	}
	if text, err := json.Marshal(s); err != nil || string(text) != fmt.Sprintf("%q", fmt.Sprint(s)) {
		t.Errorf("as JSON: %s, %v", text, err)
	}
}

// TestSameBut: only the policy may differ, and whatever else differs shows.
func TestSameBut(t *testing.T) {
	files := hosttest.Files(t)
	load := func(config, policy, token string) Settings {
		hosttest.Write(t, filepath.Join(files["dir"], "config.yaml"), config, 0o600)
		hosttest.Write(t, filepath.Join(files["dir"], "policy.yaml"), policy, 0o600)
		hosttest.Write(t, filepath.Join(files["dir"], "git.token"), token, 0o600)
		s, problems := LoadFrom(filepath.Join(files["dir"], "config.yaml"), Credentials{})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return s
	}
	all := hosttest.Files(t)
	files["dir"] = hosttest.New(t, all)
	config := strings.Replace(fullConfig, "rules/", "", 1)
	base := load(config, "pool: talos\nvmids: [400-599]\n", "a")
	if again := load(config, "pool: talos\nvmids: [400-499]\nlimits: {nodes: 3}\n", "a"); !again.EqualButPolicy(base) {
		t.Error("another policy is another config")
	}
	for name, other := range map[string]Settings{
		"config": load(strings.Replace(config, "branch: prod", "branch: dev", 1), "pool: talos\nvmids: [400-599]\n", "a"),
		"token":  load(config, "pool: talos\nvmids: [400-599]\n", "b"),
		"pool":   load(config, "pool: other\nvmids: [400-599]\n", "a"),
		"ports":  load(config+"port_forwards: {directory: /srv/nft}\n", "pool: talos\nvmids: [400-599]\n", "a"),
		"dhcp":   load(config+"dhcp: {directory: /srv/dhcp}\n", "pool: talos\nvmids: [400-599]\n", "a"),
	} {
		if other.EqualButPolicy(base) {
			t.Errorf("another %s goes unnoticed", name)
		}
	}
}

// offline is the public half of a key that lies elsewhere.
const offline = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"

// TestSnapshotsOfEtcd: the keys of this host always open them, and there is a place without any
// config.
func TestSnapshotsOfEtcd(t *testing.T) {
	for text, want := range map[string]Snapshots{
		"\n": {Directory: "/var/lib/north/snapshots", Every: 6 * time.Hour},
		"snapshots: {directory: /mnt/backup/etcd/, every: 1h, recipients: [" + offline + "]}\n": {Directory: "/mnt/backup/etcd", Every: time.Hour},
	} {
		dir := hosttest.New(t, hosttest.Files(t), map[string]string{"config.yaml": strings.Replace(fullConfig, "rules/", "", 1) + text})
		s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
		if problems.HasErrors() {
			t.Fatal(problems)
		}
		var public []string
		for _, r := range s.Snapshots.Recipients {
			public = append(public, r.String())
		}
		if n := len(public); n == 0 || public[0] != s.Identities.Recipients()[0] || (text != "\n") != (n == 2 && public[1] == offline) {
			t.Errorf("%q: recipients %v", text, public)
		}
		if s.Snapshots.Directory != want.Directory || s.Snapshots.Every != want.Every || s.Snapshots.Disabled {
			t.Errorf("%q: %+v", text, s.Snapshots)
		}
	}
}

// FuzzConfig checks that decoding a config ends, that problems are printable and
// that the secrets of the files are in none of them.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{"", sshConfig, fullConfig, "repository: []\nproxmox: 1\nforge: ~\nmirrors: {charts: {a: b}}", "policy_file: \"\"\nsocket: /x", "age_key_file: credential:x\nca_file: /dev/zero"} {
		f.Add(s)
	}
	dir := hosttest.New(f, hosttest.Files(f))
	f.Fuzz(func(t *testing.T, text string) {
		// Whatever a file is called, none outside the folder is read.
		if strings.Contains(text, "/") && strings.Contains(text, "_file") || strings.Contains(text, "directory") {
			t.Skip("what it names may be a file of this machine")
		}
		hosttest.Write(t, filepath.Join(dir, "config.yaml"), text, 0o600)
		s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
		for _, p := range problems {
			if line := p.String(); p.File == "" || p.Message == "" || strings.ContainsAny(line, "\n\r\x00\x1b") || strings.Contains(line, "c4n4ry") {
				t.Errorf("problem %q", line)
			}
		}
		if !problems.HasErrors() && (s.Proxmox.Token.IsZero() || s.Identities == nil || s.Policy.Pool == "" || s.Repository.URL == "") {
			t.Error("no problem, but not whole")
		}
	})
}

// TestLeaderElection: the pool is one for this alone, with room for others in it, and a lease leaves time for requests.
func TestLeaderElection(t *testing.T) {
	for text, want := range map[string]struct {
		election Election
		wrong    string // "": nothing
	}{
		"": {},
		"leader_election: {pool: talos-agent-leader}\n":     {Election{"talos-agent-leader", 30 * time.Second}, ""},
		"leader_election: {pool: ops/leader, lease: 15s}\n": {Election{"ops/leader", 15 * time.Second}, ""},
		"leader_election: {pool: leader, lease: 1m}\n":      {Election{"leader", time.Minute}, ""},
		"leader_election: {pool: leader, lease: 14s}\n":     {Election{}, "leader_election.lease"},
		"leader_election: {pool: leader, lease: 61s}\n":     {Election{}, "leader_election.lease"},
		"leader_election: {lease: 30s}\n":                   {Election{}, "leader_election.lease"},
		"leader_election: {pool: a/b/c}\n":                  {Election{}, "leader_election.pool"},
		"leader_election: {pool: talos}\n":                  {Election{}, "leader_election.pool"},
		"leader_election: {pool: \"../talos\"}\n":           {Election{}, "leader_election.pool"},
	} {
		dir := hosttest.New(t, hosttest.Files(t), map[string]string{"config.yaml": strings.Replace(fullConfig, "rules/", "", 1) + text})
		s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
		var wrong []string
		for _, p := range problems {
			if p.Severity == cluster.Error {
				wrong = append(wrong, p.Field)
			}
		}
		if got := strings.Join(wrong, ","); got != want.wrong || want.wrong == "" && s.Election != want.election {
			t.Errorf("%q: %+v, wrong: %s", text, s.Election, got)
		}
	}
}

// TestPortsThatLeadNowhere: a policy that allows ports, and a config that has them
// written nowhere, do not fit.
func TestPortsThatLeadNowhere(t *testing.T) {
	files := hosttest.Files(t)
	for config, want := range map[string]bool{fullConfig: true, fullConfig + "port_forwards: {directory: /srv/nft}\n": false} {
		all := maps.Clone(files)
		all["config.yaml"] = strings.Replace(config, "rules/", "", 1)
		all["policy.yaml"] = "pool: talos\nvmids: [400-599]\nport_forwards: [443]\n"
		_, problems := Load(filepath.Join(hosttest.New(t, all), "config.yaml"))
		if got := strings.Contains(fmt.Sprint(problems), "port_forwards.directory: is missing: the policy allows ports of this host, and they lead nowhere"); got != want || problems.HasErrors() {
			t.Errorf("%v: %v", want, problems)
		}
	}
}
