package probe

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
)

// TestCredentialsOfARunningAgent: root sees which keys of the store the agent was
// not started with, and nothing is reported where systemd started none.
func TestCredentialsOfARunningAgent(t *testing.T) {
	dir := t.TempDir()
	v := Inspector{Store: filepath.Join(dir, "credstore"), Given: filepath.Join(dir, "given")}
	for _, sub := range []string{v.Store, v.Store + config.EncryptedSuffix} {
		must(os.Mkdir(sub, 0o700))
	}
	store := func(name, text string) { hosttest.Write(t, filepath.Join(v.Store, name), text, 0o600) }
	store("talos-agent.age.key", "the same\n")
	if f := v.compareCredentials(); f.Known || f.Why != "" {
		t.Errorf("no agent: %+v", f)
	}
	must(os.Mkdir(v.Given, 0o700))
	for name, text := range map[string]string{"age.key": "the same\n", "proxmox.token": "the old one", "forge.token": "sealed", "extra": "from elsewhere"} {
		hosttest.Write(t, filepath.Join(v.Given, name), text, 0o400)
	}
	store("talos-agent.proxmox.token", "the new one")
	store("talos-agent.webhook.secret", "came later")
	store("talos-agent.forge.token", "a copy that is not used")
	hosttest.Write(t, filepath.Join(v.Store+config.EncryptedSuffix, "talos-agent.forge.token"), "cipher", 0o600)
	store("another.secret", "not ours")
	store("talos-agent.ssh.key.pub", "what ssh-keygen lays beside a key")
	at := func(name string) string { return filepath.Join(v.Store, "talos-agent."+name) }
	want := []doctor.Credential{{Path: at("age.key"), Given: true, Same: true}, {Path: at("proxmox.token"), Given: true}, {Path: at("webhook.secret")}}
	if f := v.compareCredentials(); !f.Known || !slices.Equal(f.Value, want) {
		t.Errorf("%+v, want %+v", f, want)
	}
	must(os.Remove(at("age.key")))
	must(os.Mkdir(at("age.key"), 0o700))
	if f := v.compareCredentials(); f.Known || f.Why != at("age.key")+" is not a regular file" {
		t.Errorf("what is no file: %+v", f)
	}
}
