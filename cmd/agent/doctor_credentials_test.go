package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
)

// TestCredentialsOfARunningAgent: root sees which keys of the store the agent was
// not started with, and nothing is told where systemd started none.
func TestCredentialsOfARunningAgent(t *testing.T) {
	dir := t.TempDir()
	v := hostView{store: filepath.Join(dir, "credstore"), given: filepath.Join(dir, "given")}
	for _, sub := range []string{v.store, v.store + config.EncryptedSuffix} {
		must(os.Mkdir(sub, 0o700))
	}
	store := func(name, text string) { write(t, filepath.Join(v.store, name), text, 0o600) }
	store("talos-agent.age.key", "the same\n")
	if f := v.credentials(); f.Known || f.Why != "" {
		t.Errorf("no agent: %+v", f)
	}
	must(os.Mkdir(v.given, 0o700))
	for name, text := range map[string]string{"age.key": "the same\n", "proxmox.token": "the old one", "forge.token": "sealed", "extra": "from elsewhere"} {
		write(t, filepath.Join(v.given, name), text, 0o400)
	}
	store("talos-agent.proxmox.token", "the new one")
	store("talos-agent.webhook.secret", "came later")
	store("talos-agent.forge.token", "a copy that is not used")
	write(t, filepath.Join(v.store+config.EncryptedSuffix, "talos-agent.forge.token"), "cipher", 0o600)
	store("another.secret", "not ours")
	store("talos-agent.ssh.key.pub", "what ssh-keygen lays beside a key")
	at := func(name string) string { return filepath.Join(v.store, "talos-agent."+name) }
	want := []doctor.Credential{{Path: at("age.key"), Given: true, Same: true}, {Path: at("proxmox.token"), Given: true}, {Path: at("webhook.secret")}}
	if f := v.credentials(); !f.Known || !slices.Equal(f.Value, want) {
		t.Errorf("%+v, want %+v", f, want)
	}
	must(os.Remove(at("age.key")))
	must(os.Mkdir(at("age.key"), 0o700))
	if f := v.credentials(); f.Known || f.Why != at("age.key")+" is not a regular file" {
		t.Errorf("what is no file: %+v", f)
	}
}

// TestDoctorAndSealedCredentials: a key that only systemd can open is not told to be
// missing, neither by the loader nor by doctor, who did not look at it.
func TestDoctorAndSealedCredentials(t *testing.T) {
	files := hostFiles(t)
	host := newHost(t)
	store := filepath.Join(host, "credstore")
	for _, dir := range []string{store, store + ".encrypted"} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(newHost(t, map[string]string{"config.yaml": "repository: {url: \"https://example.org/infra.git\"}\n", "policy.yaml": files["policy.yaml"]}), "config.yaml")
	write(t, filepath.Join(store, "talos-agent.proxmox.token"), files["proxmox.token"], 0o600)
	write(t, filepath.Join(store+".encrypted", "talos-agent.age.key"), "sealed", 0o600)
	s, problems := config.LoadFrom(path, config.FromStore(store))
	if len(problems) != 1 || !strings.Contains(problems.Error(), "age_key_file: the credential age.key is encrypted: only the daemon gets it opened, by systemd") {
		t.Errorf("the loader: %v", problems)
	}
	checks, usable := configChecks(path, problems, s.Hidden)
	if usable || len(checks) != 1 || checks[0].Level != doctor.Skipped || !strings.Contains(checks[0].Message, "age.key") {
		t.Errorf("doctor: %+v, %v", checks, usable)
	}
	// The other way is told as ever.
	if err := os.Remove(filepath.Join(store+".encrypted", "talos-agent.age.key")); err != nil {
		t.Fatal(err)
	}
	s, problems = config.LoadFrom(path, config.FromStore(store))
	if checks, _ := configChecks(path, problems, s.Hidden); len(checks) != 1 || checks[0].Level != doctor.Fail {
		t.Errorf("without any key: %+v", checks)
	}
}
