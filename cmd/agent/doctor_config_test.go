package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/host/probe"
)

// TestDoctorAndSealedCredentials: a key that only systemd can open is not told to be
// missing, neither by the loader nor by doctor, who did not look at it.
func TestDoctorAndSealedCredentials(t *testing.T) {
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
	s, problems := config.LoadFrom(path, config.FromStore(store))
	if len(problems) != 1 || !strings.Contains(problems.Error(), "age_key_file: the credential age.key is encrypted: only the daemon gets it opened, by systemd") {
		t.Errorf("the loader: %v", problems)
	}
	checks, usable := doctor.JudgeConfig(path, probe.MayRead(path), problems, s.Hidden)
	if usable || len(checks) != 1 || checks[0].Level != doctor.Skipped || !strings.Contains(checks[0].Message, "age.key") {
		t.Errorf("doctor: %+v, %v", checks, usable)
	}
	// The other way is told as ever.
	if err := os.Remove(filepath.Join(store+".encrypted", "talos-agent.age.key")); err != nil {
		t.Fatal(err)
	}
	s, problems = config.LoadFrom(path, config.FromStore(store))
	if checks, _ := doctor.JudgeConfig(path, probe.MayRead(path), problems, s.Hidden); len(checks) != 1 || checks[0].Level != doctor.Fail {
		t.Errorf("without any key: %+v", checks)
	}
}
