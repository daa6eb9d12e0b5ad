package main

import (
	"crypto/ed25519"
	"crypto/x509/pkix"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	labforge "github.com/talos-agent/talos-agent/internal/lab/forge"
	"github.com/talos-agent/talos-agent/internal/lab/gitserver"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestDaemonOverSSH follows a repository with a deploy key and known_hosts, and
// tells a GitLab. A server that shows another key than the known one is no
// server of ours.
func TestDaemonOverSSH(t *testing.T) {
	r := newRig(t, lab.Config{Forge: labforge.GitLab})
	server, err := gitserver.NewSSH(gitserver.SSHConfig{World: r.lab.World, Addr: net.JoinHostPort(r.base+"8", "2222"), Server: r.lab.Git})
	must(err)
	t.Cleanup(func() { _ = server.Close() })
	r.config["forge"].(map[string]any)["kind"] = "gitlab"
	r.file("deploy.key", string(server.ClientKey()))
	r.file("known_hosts", strings.Fields(string(server.KnownHosts()))[0]+" "+strangersKey())
	r.repository(map[string]any{"url": server.URL(lab.Repository), "token_file": nil, "ssh_key_file": "deploy.key", "known_hosts_file": "known_hosts"})
	commit := r.push(r.inventory(0))

	r.start()
	r.until("the stranger is refused", func() bool { return r.log.has("cannot fetch the repository") })
	if s := r.status(); s.Condition == cluster.Ready || len(r.calls(func(c world.CallRecord) bool { return c.Mutating })) != 0 {
		t.Errorf("a stranger's repository was followed: %+v", s)
	}
	if a := r.try("status"); !a.has("host key") {
		t.Errorf("it is not said whose key is wrong: %v", a)
	}
	// known_hosts is read anew when it changes, as every file that the config names.
	r.file("known_hosts", string(server.KnownHosts()))
	r.untilReady(commit)
	r.told(commit, "success")
	if n := r.calls(func(c world.CallRecord) bool { return c.System == "git" && !strings.HasPrefix(c.Op, "SSH ") }); len(n) != 0 {
		t.Errorf("git was not spoken over ssh alone: %v", n)
	}
}

// TestOwnAuthoritiesAreAddedToTheSystems: an authority for a mirror or for people's
// webhooks takes nothing away from the servers that the system trusts.
func TestOwnAuthoritiesAreAddedToTheSystems(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	r.file("system.pem", string(r.lab.CA()))
	r.env = []string{"SSL_CERT_FILE=" + filepath.Join(r.dir, "system.pem")}
	r.config["ca_file"] = "own.pem"
	own, err := world.NewPKI(pkix.Name{CommonName: "an authority of one's own"})
	must(err)
	r.file("own.pem", string(own.PEM))
	r.write()
	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	r.told(commit, "success")
}

// strangersKey is the public key of nobody, as known_hosts has it.
func strangersKey() string {
	pub, _, err := ed25519.GenerateKey(nil)
	must(err)
	key, err := ssh.NewPublicKey(pub)
	must(err)
	return string(ssh.MarshalAuthorizedKey(key))
}

// TestDaemonFollowsALocalRepository reads a bare repository of the same host
// without a server, and tells a Gitea.
func TestDaemonFollowsALocalRepository(t *testing.T) {
	r := newRig(t, lab.Config{Forge: labforge.Gitea, GitDir: t.TempDir()})
	forge := r.config["forge"].(map[string]any)
	forge["kind"] = "gitea"
	r.repository(map[string]any{"url": r.lab.Repo.Dir(), "token_file": nil})
	first := r.push(r.inventory(0))
	r.start()
	r.untilReady(first)
	r.told(first, "success")

	// A mistake is told at its commit, and the next commit mends it.
	broken := r.push(with(nil, "inventory/dev/nodes.yaml", "controlplane: 3\n"))
	r.run(exitOK, do("reconcile"))
	r.untilStalled("inventory/dev/nodes.yaml:1:15")
	r.told(broken, "failure")
	if s, _ := r.lab.Forge.Latest(broken, "talos-agent/dev"); !strings.Contains(s.Description, "inventory/dev/nodes.yaml:1:15") {
		t.Errorf("the forge was told %q", s.Description)
	}
	mended := r.push(r.inventory(0))
	r.run(exitOK, do("reconcile"))
	r.untilReady(mended)
	r.told(mended, "success")
	if n := r.calls(func(c world.CallRecord) bool { return c.System == "git" }); len(n) != 0 {
		t.Errorf("a local repository was asked for over the network: %v", n)
	}
}

// TestDaemonInTheDark starts before anything answers: it says what it cannot
// see, keeps asking, and goes on by itself when the answers come.
func TestDaemonInTheDark(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	r.lab.World.Inject(
		world.Fault{System: "git", Kind: world.Answer, Status: 503, Text: "maintenance"},
		world.Fault{System: "pve", Kind: world.Answer, Status: 596, Text: "Connection timed out"},
	)
	commit := r.push(r.inventory(0))
	r.start()
	r.until("the repository cannot be read", func() bool { return r.try("status").has("503") })
	r.run(exitStalled, do("status"), "dev  Unknown")
	r.run(exitFailed, do("plan"))
	r.run(exitFailed, do("kubeconfig"), "talos-agent status dev")

	r.lab.World.HealOnly("git")
	r.until("Proxmox VE cannot be seen", func() bool {
		s := r.status()
		return s.Revision.Commit() == commit && s.Condition != cluster.Reconciling
	})
	a := r.run(exitStalled, do("status"), "dev  Unknown", "596")
	if a.has("state is lost") {
		t.Errorf("a host that does not answer is told as lost records: %v", a)
	}
	if n := r.calls(func(c world.CallRecord) bool { return c.Mutating && c.System != "forge" && c.System != "factory" }); len(n) != 0 {
		t.Errorf("it changed what it cannot see: %v", n)
	}
	r.lab.World.Heal()
	r.untilReady(commit)
	for _, s := range r.lab.Forge.Statuses() {
		if s.State == "failure" {
			t.Errorf("the forge was told failure: %+v", s)
		}
	}
}
