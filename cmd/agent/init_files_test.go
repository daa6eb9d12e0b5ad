package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	deb "github.com/talos-agent/talos-agent/packaging/deb"
)

// TestInitWritesWhatIsWished: the files of the package, filled in, say to the
// daemon's own loader exactly what is wished, and keep their comments.
func TestInitWritesWhatIsWished(t *testing.T) {
	files := hosttest.Files(t)
	load := func(w setup.Wishes) config.Settings {
		t.Helper()
		conf, policy := setup.Config(deb.Config, w), setup.Policy(deb.Policy, w)
		for name, text := range map[string][]byte{"config": conf, "policy": policy} {
			if strings.Count(string(text), "# ") < 8 || !strings.HasSuffix(string(text), "\n") || strings.HasSuffix(string(text), "\n\n") {
				t.Errorf("the %s has lost its comments, or its end:\n%s", name, text)
			}
		}
		dir := hosttest.New(t, map[string]string{"config.yaml": string(conf), "policy.yaml": string(policy), "ca.pem": files["ca.pem"], "pve-root-ca.pem": files["ca.pem"], "known_hosts": files["known_hosts"]})
		store := hosttest.New(t)
		for credential, file := range map[string]string{"age.key": "age.key", "proxmox.token": "proxmox.token", "ssh.key": "deploy.key", "git.token": "git.token", "forge.token": "forge.token"} {
			hosttest.Write(t, filepath.Join(store, "talos-agent."+credential), files[file], 0o600)
		}
		s, problems := config.LoadFrom(filepath.Join(dir, "config.yaml"), config.FromStore(store))
		if len(problems) > 0 {
			t.Errorf("%v\n%s%s", problems, conf, policy)
		}
		return s
	}
	least := setup.Wishes{Pool: "talos", VMIDs: []cluster.Range{{First: 400, Last: 599}}, Datastores: []string{"tank"}, Images: "local", Bridges: []string{"vmbr1"},
		Repository: setup.Repository{URL: "git@example.org:infra.git", Branch: "main", Path: "inventory"}}
	s := load(least)
	if s.Repository.URL != least.Repository.URL || s.Repository.Branch != "main" || s.Folder != "inventory" || len(s.Repository.KnownHosts) == 0 || len(s.Repository.SSHKey) == 0 ||
		s.Proxmox.URL != "https://127.0.0.1:8006" || len(s.Proxmox.CA) == 0 || s.ImageDatastore != "local" || s.Forge != nil || s.CA != nil || s.Charts != nil || s.Socket != config.DefaultSocket {
		t.Errorf("the least: %+v", s.Repository.URL)
	}
	if p := s.Policy; p.Pool != "talos" || !reflect.DeepEqual(p.VMIDs, least.VMIDs) || !reflect.DeepEqual(p.Datastores, []string{"local", "tank"}) ||
		!reflect.DeepEqual(p.Bridges, least.Bridges) || p.Limits != (cluster.Limits{}) || p.Charts != nil {
		t.Errorf("the least policy: %+v", p)
	}
	most := least
	most.VMIDs = []cluster.Range{{First: 400, Last: 499}, {First: 700, Last: 700}}
	most.Datastores, most.Bridges = []string{"a", "b"}, []string{"vmbr1", "vmbr2"}
	most.Limits = setup.Limits{Nodes: 7, Cores: 20, RAM: "48GiB", Disk: "2TiB"}
	most.Repository = setup.Repository{URL: "https://example.org/infra.git", Branch: "prod", Path: "clusters/here"}
	most.Forge = &setup.Forge{Kind: "gitea", URL: "https://git.example.org", Repository: "org/infra"}
	most.Mirrors = setup.Mirrors{Factory: "https://factory.example.org", Charts: map[string]string{"https://helm.cilium.io": "https://m.example.org/cilium", "https://b.example.org": "https://m.example.org/b"}}
	most.ProxmoxURL, most.Fingerprint, most.Authorities = "https://pve.example.org:8006", strings.Repeat("AB:", 31)+"AB", true
	s = load(most)
	if s.Repository.URL != most.Repository.URL || s.Repository.Branch != "prod" || s.Folder != "clusters/here" || s.Repository.KnownHosts != nil || s.Repository.Token == "" ||
		s.Proxmox.URL != most.ProxmoxURL || s.Proxmox.Fingerprint != most.Fingerprint || s.Proxmox.CA != nil || s.Forge == nil || s.Forge.URL != most.Forge.URL ||
		len(s.CA) == 0 || !reflect.DeepEqual(s.Charts, most.Mirrors.Charts) || s.Factory != most.Mirrors.Factory {
		t.Errorf("the most: %v", s.Repository.URL)
	}
	if p := s.Policy; !reflect.DeepEqual(p.VMIDs, most.VMIDs) || p.Limits != (cluster.Limits{Nodes: 7, Cores: 20, MemoryMiB: 48 << 10, DiskBytes: 2 << 40}) {
		t.Errorf("the most policy: %+v", p)
	}
	here := least
	here.Repository = setup.Repository{Directory: t.TempDir(), Branch: "main", Path: "inventory"}
	here.SystemTrust = true
	if s := load(here); s.Directory() != here.Repository.Directory || s.Proxmox.CA != nil {
		t.Errorf("a directory: %q", s.Directory())
	}
}

// TestInitTellsNoSecret looks for every secret of a host in what init prints, in
// what it remembers and in the arguments of pvesh, on good days and bad ones.
func TestInitTellsNoSecret(t *testing.T) {
	h := newFresh(t, "9.2")
	var heard strings.Builder
	hear := func(a initAnswer) initAnswer {
		heard.WriteString(a.String())
		return a
	}
	hear(h.init(t.Context(), "--dry-run"))
	hear(h.init(t.Context(), "--dry-run", "-o", "json"))
	hear(h.done())
	c := canaries{}
	for _, name := range []string{setup.AgeKey, setup.ProxmoxToken, setup.SSHKey, setup.ForgeToken} {
		text := h.file(setup.Credential(name))
		for line := range strings.Lines(text) {
			// The public half, and the frame of a key, are no secrets.
			if len(line) > 20 && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "-----") {
				c.add(fmt.Sprintf("%s, line %d", name, len(c)), line)
			}
		}
		info, err := os.Stat(h.dir + setup.Credential(name))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	_, secret, _ := strings.Cut(strings.TrimSpace(h.file(setup.Credential(setup.ProxmoxToken))), "=")
	c.add("the secret of the token", secret)
	if len(c) < 8 {
		t.Fatalf("only %d secrets", len(c))
	}
	hear(h.done())
	// A key that is none, one that would be replaced, and one that is.
	id, err := age.GenerateX25519Identity()
	must(err)
	other, broken := filepath.Join(t.TempDir(), "age.key"), filepath.Join(t.TempDir(), "age.key")
	hosttest.Write(t, other, id.String()+"\n", 0o600)
	c.add("another age key", id.String())
	hosttest.Write(t, broken, strings.ToLower(id.String())+"\n", 0o600)
	c.add("a broken age key", strings.ToLower(id.String()))
	before := h.state()
	if a := hear(h.init(t.Context(), "--yes", "--force", "--age-key", broken)); a.err == nil || !strings.Contains(a.err.Error(), "--age-key: "+broken) {
		t.Errorf("a broken age key: %v", a)
	}
	if a := hear(h.init(t.Context(), "--yes", "--age-key", other)); a.err == nil || !strings.Contains(a.err.Error(), "talos-agent.age.key: somebody else wrote") {
		t.Errorf("another age key: %v", a)
	}
	if h.state() != before {
		t.Error("something was changed")
	}
	if hear(h.done("--force", "--age-key", other)); h.file(setup.Credential(setup.AgeKey)) != id.String()+"\n" {
		t.Error("the age key is the old one still")
	}
	if hear(h.done("--rotate-token")); strings.Contains(h.file(setup.Credential(setup.ProxmoxToken)), secret) {
		t.Error("the token is the old one still")
	}
	hear(h.bare(t.Context(), "--undo", "--dry-run"))
	hear(h.bare(t.Context(), "--undo", "--yes"))
	calls, err := json.Marshal(h.pveshs)
	must(err)
	for what, text := range map[string]string{"init says": heard.String(), "arguments of pvesh have": string(calls)} {
		if found := c.in([]byte(text)); len(found) > 0 {
			t.Errorf("%s %v", what, found)
		}
	}
}
