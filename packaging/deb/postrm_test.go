package deb

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPurgeKeepsAgeKeys runs postrm on a tree: a purge removes what is in
// /etc/talos-agent but for files with age keys, which may be all that opens the
// secrets of a repository, and touches nothing that a link there leads to.
func TestPurgeKeepsAgeKeys(t *testing.T) {
	const key = "# created: today\n# public key: age1\nAGE-SECRET-KEY-1EXAMPLE\n"
	for name, c := range map[string]struct {
		files, links map[string]string
		stays        []string
		said         []string
	}{
		"nothing": {},
		"no key": {
			files: map[string]string{"etc/talos-agent/config.yaml": "a: b\n", "etc/talos-agent/certs/ca.pem": "x", "var/lib/talos-agent/dev.json": "{}", "var/lib/talos-agent-dhcp/talos-agent.dev.cp-1": "x", "var/lib/talos-agent-nft/talos-agent.dev.nft": "x"},
		},
		"keys": {
			files: map[string]string{"etc/talos-agent/config.yaml": "age_key_file: age.key\n", "etc/talos-agent/age.key": key, "etc/talos-agent/certs/ca.pem": "x",
				"etc/talos-agent/old keys/a b.txt": key, "etc/talos-agent/old keys/token": "x", "etc/credstore/talos-agent.age.key": key, "etc/credstore/talos-agent.ssh.key": "x"},
			links: map[string]string{"etc/talos-agent/link": "age.key"},
			stays: []string{"etc/credstore/talos-agent.age.key", "etc/talos-agent/age.key", "etc/talos-agent/old keys/a b.txt"},
			said:  []string{"/etc/talos-agent/age.key stays: keep a copy", "/etc/talos-agent/old keys/a b.txt stays", "/etc/credstore/talos-agent.age.key stays"},
		},
		"links": {
			files: map[string]string{"srv/config.yaml": "a: b\n", "srv/dir/age.key": key, "srv/dir/x": "x", "etc/talos-agent/policy.yaml": "x"},
			links: map[string]string{"etc/talos-agent/config.yaml": "../../srv/config.yaml", "etc/talos-agent/dir": "../../srv/dir"},
			stays: []string{"srv/config.yaml", "srv/dir/age.key", "srv/dir/x"},
		},
		"itself a link": {
			files: map[string]string{"srv/talos/config.yaml": "a: b\n", "srv/talos/age.key": key, "etc/motd": "x"},
			links: map[string]string{"etc/talos-agent": "../srv/talos"},
			stays: []string{"etc/motd", "srv/talos/age.key", "srv/talos/config.yaml"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range c.files {
				write(t, filepath.Join(root, path), text, 0o600)
			}
			for path, to := range c.links {
				if err := os.Symlink(to, filepath.Join(root, path)); err != nil {
					t.Fatal(err)
				}
			}
			out := purge(t, root)
			if left := listFiles(t, root); !slices.Equal(left, c.stays) {
				t.Errorf("left %q, want %q", left, c.stays)
			}
			for _, say := range c.said {
				if !strings.Contains(out, root+say) {
					t.Errorf("%q is not printed:\n%s", say, out)
				}
			}
			if n := strings.Count(out, " stays:"); n != len(c.said) {
				t.Errorf("%d files stay by what is printed:\n%s", n, out)
			}
			if _, err := os.Lstat(filepath.Join(root, "etc/talos-agent/certs")); err == nil {
				t.Error("an empty directory is left")
			}
			// Interrupted and asked again, dpkg runs it once more.
			if purge(t, root); !slices.Equal(listFiles(t, root), c.stays) {
				t.Errorf("left the second time: %q", listFiles(t, root))
			}
		})
	}
}

// purge runs postrm as dpkg does, with a directory in the place of /, and without
// the programs that change accounts and services.
func purge(t *testing.T, root string) string {
	t.Helper()
	script, err := os.ReadFile("scripts/postrm")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for _, name := range []string{"systemctl", "deb-systemd-helper", "getent", "userdel", "groupdel", "dpkg-query"} {
		write(t, filepath.Join(bin, name), "#!/bin/sh\nexit 1\n", 0o700)
	}
	path := filepath.Join(bin, "postrm")
	write(t, path, strings.NewReplacer("/etc/", root+"/etc/", "/var/", root+"/var/", "/run/", root+"/run/").Replace(string(script)), 0o700)
	cmd := exec.Command(path, "purge")
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func write(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// listFiles are the files below a directory; links are not followed.
func listFiles(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			out = append(out, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
