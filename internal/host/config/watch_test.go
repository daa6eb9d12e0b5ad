package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/hosttest"
)

// TestUsedFiles: whatever a config is made from is known, also what is not there
// yet, and also when the config is wrong.
func TestUsedFiles(t *testing.T) {
	const token = "age_key_file: age.key\nproxmox: {token_file: proxmox.token, ca_file: ca.pem}\n"
	const remote = "repository: {url: \"https://example.org/infra.git\", token_file: git.token}\n"
	for name, c := range map[string]struct {
		config string
		want   []string
	}{
		"ssh": {sshConfig, []string{"config.yaml", "policy.yaml", "age.key", "deploy.key", "known_hosts", "proxmox.token"}},
		"https, a forge, targets, a webhook": {remote + token + "ca_file: ca.pem\nforge: {kind: github, repository: a/b, token_file: forge.token}\n" +
			"webhook: {listen: \"127.0.0.1:9478\", secret_file: age.key}\nnotifications: [{name: a, kind: webhook, url_file: hook.url, secret_file: short}]\n",
			[]string{"config.yaml", "policy.yaml", "ca.pem", "age.key", "git.token", "proxmox.token", "forge.token", "hook.url", "short"}},
		"a transit engine":            {remote + token + "vault: {url: \"https://a.b\", token_file: forge.token, keys: [a/b]}\n", []string{"config.yaml", "policy.yaml", "age.key", "git.token", "ca.pem", "proxmox.token", "forge.token"}},
		"a policy elsewhere":          {remote + token + "policy_file: rules/policy.yaml\n", []string{"config.yaml", "rules/policy.yaml", "age.key", "git.token", "ca.pem", "proxmox.token"}},
		"a directory":                 {"repository: {directory: DIR}\n" + token, []string{"config.yaml", "policy.yaml", "age.key", ".", "ca.pem", "proxmox.token"}},
		"credentials":                 {"repository: {url: \"https://example.org/infra.git\"}\n", []string{"config.yaml", "policy.yaml", "creds/age.key", "creds/git.token", "creds/proxmox.token"}},
		"a key that is not there":     {remote + strings.Replace(token, "age.key", "new.key", 1), []string{"config.yaml", "policy.yaml", "new.key", "git.token", "ca.pem", "proxmox.token"}},
		"no YAML":                     {"owner: [\n", []string{"config.yaml"}},
		"a directory that is no path": {"repository: {directory: relative}\n" + token, []string{"config.yaml", "policy.yaml", "age.key", "ca.pem", "proxmox.token"}},
		"a url that is none":          {"repository: {url: \"a b\"}\n" + token, []string{"config.yaml", "policy.yaml", "age.key", "ca.pem", "proxmox.token"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := hosttest.New(t, hosttest.Files(t))
			config := filepath.Join(dir, "config.yaml")
			hosttest.Write(t, config, strings.ReplaceAll(c.config, "DIR", dir), 0o600)
			s, _ := LoadFrom(config, FromSystemd(filepath.Join(dir, "creds")))
			var got []string
			for _, f := range s.Used {
				name, err := filepath.Rel(dir, f.Path)
				must(err)
				got = append(got, name)
			}
			if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(c.want))) {
				t.Errorf("used %v, want %v", got, c.want)
			}
		})
	}
}

// TestOwnFiles: a change is seen however it is made, once it is over, and
// nothing else is.
func TestOwnFiles(t *testing.T) {
	// The files lie as those of a secret that a volume or a credential store
	// exchanges whole: token -> ..data/token, ..data -> 1.
	place := func(t *testing.T) string {
		dir := t.TempDir()
		for _, sub := range []string{"1", "2", "plain"} {
			must(os.Mkdir(filepath.Join(dir, sub), 0o700))
			hosttest.Write(t, filepath.Join(dir, sub, "token"), "token of "+sub, 0o600)
		}
		must(os.Symlink("1", filepath.Join(dir, "..data")))
		must(os.Symlink("..data/token", filepath.Join(dir, "token")))
		return dir
	}
	in := filepath.Join
	for name, c := range map[string]struct {
		change func(dir string) error
		want   []string
	}{
		"written":  {func(d string) error { return os.WriteFile(in(d, "plain/token"), []byte("another one"), 0o600) }, []string{"plain/token"}},
		"emptied":  {func(d string) error { return os.Truncate(in(d, "plain/token"), 0) }, []string{"plain/token"}},
		"replaced": {func(d string) error { return os.Rename(in(d, "2/token"), in(d, "plain/token")) }, []string{"plain/token"}},
		"removed":  {func(d string) error { return os.Remove(in(d, "plain/token")) }, []string{"plain/token"}},
		"made":     {func(d string) error { return os.WriteFile(in(d, "plain/later"), []byte("x"), 0o600) }, []string{"plain/later"}},
		"made with its folder": {func(d string) error {
			return os.Rename(in(d, "2"), in(d, "none"))
		}, []string{"none/token"}},
		"opened to others":   {func(d string) error { return os.Chmod(in(d, "plain/token"), 0o644) }, []string{"plain/token"}},
		"its folder removed": {func(d string) error { return os.Rename(in(d, "plain"), in(d, "gone")) }, []string{"plain", "plain/token"}},
		"its folder replaced": {func(d string) error {
			if err := os.Rename(in(d, "plain"), in(d, "gone")); err != nil {
				return err
			}
			return os.Rename(in(d, "2"), in(d, "plain"))
		}, []string{"plain", "plain/token"}},
		"a link exchanged": {func(d string) error {
			if err := os.Symlink("2", in(d, "..new")); err != nil {
				return err
			}
			return os.Rename(in(d, "..new"), in(d, "..data"))
		}, []string{"token"}},
		"written behind links":   {func(d string) error { return os.WriteFile(in(d, "1/token"), []byte("x"), 0o600) }, []string{"token"}},
		"read":                   {func(d string) error { _, err := os.ReadFile(in(d, "plain/token")); return err }, nil},
		"another file beside it": {func(d string) error { return os.WriteFile(in(d, "plain/other"), []byte("x"), 0o600) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := place(t)
			var own Watch
			for _, p := range []string{"token", "plain", "plain/token", "plain/later", "none/token"} {
				own.used = append(own.used, UsedFile{Path: in(dir, p), was: readStamp(in(dir, p))})
			}
			for range 3 {
				if own.Poll() {
					t.Fatal("nothing has changed, and something is seen")
				}
			}
			must(c.change(dir))
			if own.Poll() {
				t.Error("taken up while it may still be written")
			}
			var got []string
			if own.Poll() {
				for _, p := range own.Changed() {
					name, err := filepath.Rel(dir, p)
					must(err)
					got = append(got, name)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("changed %v, want %v", got, c.want)
			}
		})
	}

	// Whoever writes on and on is waited for.
	dir := t.TempDir()
	path := in(dir, "token")
	hosttest.Write(t, path, "", 0o600)
	own := Watch{used: []UsedFile{{Path: path, was: readStamp(path)}}}
	for i := range 5 {
		hosttest.Write(t, path, strings.Repeat("x", i+1), 0o600)
		if own.Poll() {
			t.Fatal("taken up while it is written")
		}
	}
	if !own.Poll() {
		t.Error("not taken up when it is written")
	}
}
