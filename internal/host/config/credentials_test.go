package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// TestCredentialsAreUsedWhereTheyHaveAUse: what systemd hands over for one kind of
// repository is not in the way of another.
func TestCredentialsAreUsedWhereTheyHaveAUse(t *testing.T) {
	files := hosttest.Files(t)
	credentials := hosttest.New(t)
	for name, from := range map[string]string{"age.key": "age.key", "proxmox.token": "proxmox.token", "ssh.key": "deploy.key", "known_hosts": "known_hosts", "git.token": "git.token"} {
		hosttest.Write(t, filepath.Join(credentials, name), files[from], 0o400)
	}
	for url, want := range map[string]struct {
		ssh   bool
		token string
	}{
		"ssh://git@example.org/infra.git": {ssh: true},
		"git@example.org:infra.git":       {ssh: true},
		"https://example.org/infra.git":   {token: hosttest.CanaryGit},
		"http://example.org/infra.git":    {},
		"/srv/infra.git":                  {},
	} {
		dir := hosttest.New(t, map[string]string{"config.yaml": "repository: {url: \"" + url + "\"}\n", "policy.yaml": files["policy.yaml"]})
		s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), FromSystemd(credentials))
		if r := s.Repository; len(problems) > 0 || (len(r.SSHKey) > 0) != want.ssh || (len(r.KnownHosts) > 0) != want.ssh || r.Token != want.token {
			t.Errorf("%s: %v; a key: %v, a token: %v", url, problems, len(r.SSHKey) > 0, r.Token != "")
		}
	}
}

// TestCredentialsGiven: one file that systemd hands over is enough, whichever it is.
func TestCredentialsGiven(t *testing.T) {
	files := hosttest.Files(t)
	for name, c := range map[string]struct {
		given []string
		want  bool
	}{"none": {nil, false}, "the first": {[]string{"age.key"}, true}, "the last": {[]string{"proxmox.token"}, true}} {
		credentials := hosttest.New(t)
		config := "repository: {url: \"https://example.org/infra.git\"}\nage_key_file: age.key\nproxmox: {token_file: proxmox.token}\n"
		for _, file := range c.given {
			hosttest.Write(t, filepath.Join(credentials, file), files[file], 0o400)
			config = strings.Replace(config, ": "+file, ": \"credential:"+file+"\"", 1)
		}
		dir := hosttest.New(t, files, map[string]string{"config.yaml": config})
		s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), FromSystemd(credentials))
		if len(problems) > 0 || s.CredentialsGiven != c.want {
			t.Errorf("%s: %v, %v", name, s.CredentialsGiven, problems)
		}
	}
}

// TestCredentialProblems: what is wrong with a credential is reported of it, as far as it can
// be known.
func TestCredentialProblems(t *testing.T) {
	const remote = "repository: {url: \"https://example.org/infra.git\"}\n"
	const age = "age_key_file: age.key\n"
	const proxmox = "proxmox: {token_file: proxmox.token}\n"
	for name, c := range map[string]struct {
		config string
		from   func(dir string) Credentials
		want   []string // lines, or how they begin
	}{
		"an empty one in the store": {remote + age, func(dir string) Credentials {
			must(os.WriteFile(filepath.Join(dir, "talos-agent.proxmox.token"), nil, 0o600))
			return FromStore(dir)
		}, []string{"proxmox.token_file: the file DIR/talos-agent.proxmox.token is empty (write it again)"}},
		"one of the store, by its name": {remote + "age_key_file: \"credential:age.key\"\n" + proxmox, func(dir string) Credentials {
			must(os.Rename(filepath.Join(dir, "age.key"), filepath.Join(dir, "talos-agent.age.key")))
			return FromStore(dir)
		}, nil},
		"host keys in the store, which are for everybody": {sshConfig[strings.Index(sshConfig, "\n")+1:] + "repository: {url: \"ssh://git@example.org/infra.git\", ssh_key_file: deploy.key}\n", func(dir string) Credentials {
			hosts, err := os.ReadFile(filepath.Join(dir, "known_hosts"))
			must(err)
			must(os.WriteFile(filepath.Join(dir, "talos-agent.known_hosts"), hosts, 0o644))
			must(os.Chmod(filepath.Join(dir, "talos-agent.known_hosts"), 0o644))
			return FromStore(dir)
		}, nil},
		// A file of the config is not in the store: a group may have it.
		"a key for a group": {remote + age + proxmox, func(dir string) Credentials {
			must(os.Chmod(filepath.Join(dir, "age.key"), 0o640))
			return FromStore(dir)
		}, nil},
		"none that can be looked at": {remote + "age_key_file: \"credential:age.key\"\n" + proxmox, func(dir string) Credentials {
			return FromSystemd(filepath.Join(dir, "config.yaml"))
		}, []string{"age_key_file: the file cannot be read: not a directory"}},
		"none, and one that systemd has not opened": {remote + proxmox, func(dir string) Credentials {
			must(os.MkdirAll(filepath.Join(dir, "store"+EncryptedSuffix), 0o700))
			must(os.WriteFile(filepath.Join(dir, "store"+EncryptedSuffix, "age.key"), []byte("x"), 0o600))
			return FromSystemd(filepath.Join(dir, "store"))
		}, []string{"age_key_file: is missing: nothing opens the secrets of the clusters ("}},
		// Only what is missing may be there after a restart.
		"none, and something else": {"repository: {url: \"https://example.org/infra.git\", interval: 2s}\n" + age + proxmox, FromSystemd,
			[]string{"repository.interval: 2s is too short (write 5s or more; a trigger asks at once anyway)"}},
	} {
		dir := hosttest.New(t, hosttest.Files(t), map[string]string{"config.yaml": c.config})
		_, problems := LoadFrom(filepath.Join(dir, "config.yaml"), c.from(dir))
		ok := len(problems) == len(c.want)
		for i := range min(len(problems), len(c.want)) {
			_, text, _ := strings.Cut(strings.ReplaceAll(problems[i].String(), dir, "DIR"), problems[i].Field+": ")
			text = problems[i].Field + ": " + text
			ok = ok && strings.HasPrefix(text, c.want[i]) && (text == c.want[i] || !strings.HasSuffix(c.want[i], ")"))
		}
		if !ok {
			t.Errorf("%s:\ngot  %v\nwant %v", name, problems, c.want)
		}
	}
}

// TestNoCredentialsOfTheWorkingDirectory: who has no credentials has none, wherever the
// program is started.
func TestNoCredentialsOfTheWorkingDirectory(t *testing.T) {
	files := hosttest.Files(t)
	here := hosttest.New(t, map[string]string{"age.key": files["age.key"]})
	must(os.Mkdir(filepath.Join(here, EncryptedSuffix), 0o700))
	must(os.WriteFile(filepath.Join(here, EncryptedSuffix, "proxmox.token"), []byte("sealed"), 0o600))
	t.Chdir(here)
	dir := hosttest.New(t, map[string]string{"config.yaml": "repository: {url: \"https://example.org/infra.git\"}\n", "policy.yaml": files["policy.yaml"]})
	s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
	if len(problems) != 2 || !strings.HasPrefix(problems[0].Message, "is missing") || !strings.HasPrefix(problems[1].Message, "is missing") || len(s.Hidden) > 0 {
		t.Errorf("%v, hidden: %v", problems, s.Hidden)
	}
}

// TestPathsOfTheConfig: a path may be relative to the folder of the config, or absolute.
func TestPathsOfTheConfig(t *testing.T) {
	dir := hosttest.New(t, hosttest.Files(t))
	elsewhere := hosttest.New(t, map[string]string{"git.token": "another"})
	config := filepath.Join(dir, "config.yaml")
	for path, want := range map[string]string{"git.token": hosttest.CanaryGit, filepath.Join(elsewhere, "git.token"): "another"} {
		hosttest.Write(t, config, "repository: {url: \"https://example.org/a\", token_file: "+path+"}\nage_key_file: age.key\nproxmox: {token_file: proxmox.token}\n", 0o600)
		if s, problems := LoadFrom(config, Credentials{}); len(problems) > 0 || s.Repository.Token != want {
			t.Errorf("%s: %v", path, problems)
		}
	}
	// In a folder that was deleted a path is relative to nothing.
	here := t.TempDir()
	t.Chdir(here)
	must(os.Remove(here))
	if _, problems := LoadFrom("config.yaml", Credentials{}); len(problems) != 1 || !strings.HasPrefix(problems[0].Message, "cannot be found: ") {
		t.Errorf("in a folder that was deleted: %v", problems)
	}
}

// TestPublicURL: what is shown of a repository's address has no password.
func TestPublicURL(t *testing.T) {
	for url, want := range map[string]string{
		"https://me:c4n4ry@example.org/a.git": "https://me:xxxxx@example.org/a.git",
		"ssh://git@example.org/a.git":         "ssh://git@example.org/a.git",
		"git@example.org:a.git":               "git@example.org:a.git",
		"/srv/a.git":                          "/srv/a.git",
	} {
		if got := PublicURL(url); got != want {
			t.Errorf("%s: %s", url, got)
		}
	}
}

// TestCheckText: what a person typed is refused where a file of the host would be.
func TestCheckText(t *testing.T) {
	check := CheckText("branch", "main")
	for text, want := range map[string]string{
		"main":                   "",
		strings.Repeat("x", 200): "",
		"":                       "it is needed",
		"a b":                    `"a b" is not the name of a branch (write one like main)`,
		strings.Repeat("x", 201): `"` + strings.Repeat("x", 201) + `" is not the name of a branch (write one like main)`,
	} {
		if err := check(text); err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestRefusalsAreReportedOnce: what another room has against a field is reported, unless an
// error of that field is; a warning is none.
func TestRefusalsAreReportedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		before func(l *loader)
		want   int
	}{
		"nothing":              {func(*loader) {}, 1},
		"a warning":            {func(l *loader) { l.Warn("repository", "", "is odd") }, 2},
		"an error":             {func(l *loader) { l.Wrong("repository", "", "is wrong") }, 1},
		"one of another field": {func(l *loader) { l.Wrong("owner", "", "is wrong") }, 2},
	} {
		l := &loader{Report: yamlschema.NewReport()}
		c.before(l)
		l.reportRefused("repository", errors.New("is refused"))
		if len(l.Problems) != c.want || c.want == 2 && l.Problems[1].Severity != cluster.Error {
			t.Errorf("%s: %v", name, l.Problems)
		}
	}
}
