package main

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// TestKeysReplaced takes every key and token from a running daemon, one after the
// other, and gives it another in its place. It must say what is refused and what
// to do, must change nothing meanwhile, and must go on with the new one after what
// the page about it says: a restart for a credential, a reload for a file.
func TestKeysReplaced(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	creds := filepath.Join(r.dir, "creds")
	must(os.Mkdir(creds, 0o755))
	credential := func(text string) {
		path := filepath.Join(creds, "proxmox.token")
		must(os.WriteFile(path+".new", []byte(text), 0o400))
		must(os.Rename(path+".new", path))
	}
	credential(r.lab.Token)
	delete(r.config["proxmox"].(map[string]any), "token_file")
	r.env = []string{"CREDENTIALS_DIRECTORY=" + creds}
	r.repository(map[string]any{"interval": "5s"})
	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	before := r.vms()
	replaced := func(file, text string) {
		t.Helper()
		r.file(file, text)
		r.signal(syscall.SIGHUP)
	}

	// Proxmox VE has another token of that name. systemd keeps handing the old one
	// to a daemon that runs, and so a reload says.
	token := r.lab.PVE.Token("talos-agent@pve", "pve1", true)
	r.run(exitOK, do("reconcile"))
	r.until("the refused token is told, and the cure", func() bool {
		a := r.try("status")
		return a.code != exitOK && a.has("401 Authentication failed!") && a.has("`talos-agent init --rotate-token` makes another")
	})
	r.signal(syscall.SIGHUP)
	r.until("a reload says what it leaves", func() bool { return r.log.has("new ones take `systemctl restart talos-agent`") })
	credential(token)
	if code := r.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	r.start()
	r.untilReady(commit)

	// Git: a cluster that is Ready stays so, and says that nothing new is seen.
	replaced("git.token", "canary-another-token")
	r.until("git's refusal is told, and the cure", func() bool {
		a := r.try("status")
		return a.has("the server refuses the token") && a.has("a new one takes `systemctl restart talos-agent`")
	})
	replaced("git.token", lab.GitToken)
	commit = r.push(with(r.inventory(0), "README.md", "seen with the new token"))
	r.untilReady(commit)
	r.told(commit, "success")

	forgeRefused(t, r, replaced)
	notificationRefused(t, r)

	// The age key: the secrets that it does not open stop everything, until they
	// are encrypted to it.
	other := newKeyring("")
	replaced("age.key", string(other.ageKey))
	r.untilStalled("the agent's key is age1")
	r.run(exitStalled, do("status"), "give the agent the key of one of these recipients, or add its own to .sops.yaml")
	ids, err := secrets.ParseIdentities(other.ageKey)
	must(err)
	encrypted, err := secrets.Encrypt(r.keys.plain, ids.Recipients())
	must(err)
	commit = r.push(map[string][]byte{"inventory/dev/secrets.sops.yaml": encrypted})
	r.untilReady(commit)
	if after := r.vms(); !maps.Equal(after, before) {
		t.Errorf("VMs\n%v\nand before\n%v", after, before)
	}
	if n := r.calls(func(c world.CallRecord) bool { return c.System == "pve" && strings.HasPrefix(c.Op, "DELETE") }); len(n) != 0 {
		t.Errorf("deleted: %v", n)
	}
}

// forgeRefused: a forge that takes no commit status is told in the status, where
// else nobody would know, and once in the log.
func forgeRefused(t *testing.T, r *rig, replaced func(file, text string)) {
	replaced("forge.token", "canary-another-token")
	commit := r.push(with(r.inventory(0), "README.md", "not told"))
	r.untilReady(commit)
	r.until("the forge's refusal is told", func() bool { return r.try("status").has("problem forge: dev: cannot report the status: ") })
	a := r.run(exitOK, do("status"), "the forge answers 401", "a new one takes `systemctl restart talos-agent`")
	if a.has("canary-another-token") {
		t.Errorf("the token is told: %v", a)
	}
	posts := func() (n int) {
		for _, times := range r.calls(func(c world.CallRecord) bool { return c.System == "forge" && c.Subject == commit }) {
			n += times
		}
		return n
	}
	r.until("it is tried again", func() bool { return posts() > 2 })
	if n := strings.Count(r.log.String(), "of "+commit[:12]+": the forge answers 401"); n != 1 {
		t.Errorf("the log has it %d times", n)
	}
	replaced("forge.token", lab.ForgeToken)
	r.told(commit, "success")
	r.until("the trouble is over", func() bool { return !r.try("status").has("problem") })
}

// notificationRefused: so is somebody who is to be told and does not listen.
func notificationRefused(t *testing.T, r *rig) {
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(refuses.Close)
	takes := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(takes.Close)
	r.file("phone.url", refuses.URL+"/secret-path")
	r.config["notifications"] = []map[string]any{{"name": "phone", "kind": "webhook", "url_file": "phone.url", "on": []string{string(cluster.Ready)}}}
	r.write()
	r.until("the refusal is told", func() bool {
		return r.try("status").has("problem notifications: phone: cannot report the status: ")
	})
	if a := r.run(exitOK, do("status"), "401"); a.has("secret-path") {
		t.Errorf("the address is told: %v", a)
	}
	r.file("phone.url", takes.URL)
	r.signal(syscall.SIGHUP)
	r.until("the trouble is over", func() bool { return !r.try("status").has("problem") })
}

// TestTokenRevokedMidway: a token that is taken away while VMs are being made
// leaves nothing behind that the next token does not finish: the same VMs, none
// made twice, and one etcd.
func TestTokenRevokedMidway(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	commit := r.push(r.inventory(2))
	reached, revoked := make(chan struct{}), make(chan struct{})
	arrived, let := sync.OnceFunc(func() { close(reached) }), sync.OnceFunc(func() { close(revoked) })
	t.Cleanup(let)
	r.lab.World.OnCall(func(c world.CallRecord) {
		if c.System == "pve" && strings.HasPrefix(c.Op, "POST ") && strings.HasSuffix(c.Op, "/qemu") {
			arrived()
			<-revoked
		}
	})
	r.start()
	<-reached
	token := r.lab.PVE.Token("talos-agent@pve", "pve1", true)
	let()
	r.until("the refused token is told", func() bool { return r.try("status").has("401 Authentication failed!") })
	r.file("proxmox.token", token)
	r.signal(syscall.SIGHUP)
	r.untilReady(commit)
	if n := len(r.vms()); n != 3 {
		t.Errorf("%d VMs", n)
	}
	founded := 0
	for _, e := range r.lab.World.Events() {
		if strings.Contains(e.Text, "founds etcd") {
			founded++
		}
	}
	if founded != 1 {
		t.Errorf("etcd was founded %d times", founded)
	}
}
