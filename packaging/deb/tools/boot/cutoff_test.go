package boot

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCutOff kills each script of the package before each of its commands, as a
// power cut does, and empties /run with it. dpkg asked again must bring about what
// it would have: nothing kept is lost, and the daemon runs that would run.
func TestCutOff(t *testing.T) {
	t.Parallel()
	releases := strings.Fields(os.Getenv(releasesVariable))
	debs := strings.Fields(os.Getenv(packagesVariable))
	if len(releases) == 0 || len(debs) != 2 {
		t.Skip("run by .ci/boot")
	}
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, release)
			var names []string
			for _, deb := range debs {
				names = append(names, c.slim(deb))
			}
			c.played()
			before := c.files()
			c.installCutOff(names[0])
			c.upgradeCutOff(names[0], names[1])
			c.removeCutOff(names[0], before)
		})
	}
}

// slim brings a package without its program into the container, which is installed
// a hundred times.
func (c *container) slim(deb string) string {
	c.t.Helper()
	tree, name := filepath.Join(c.t.TempDir(), "tree"), filepath.Join("/root", filepath.Base(deb))
	outside(c.t, "dpkg-deb", "--raw-extract", deb, tree)
	if err := os.WriteFile(filepath.Join(tree, "usr/bin/talos-agent"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	outside(c.t, "dpkg-deb", "-Znone", "--build", tree, filepath.Join(c.root, name))
	return name
}

// played has programs in the place of systemd's: they say that it runs, whether
// the daemon does, and what they were told to do about it.
func (c *container) played() {
	c.t.Helper()
	for name, text := range map[string]string{
		"usr/local/sbin/systemctl":          "#!/bin/sh\ncase \"$1\" in show) cat /root/is ;; esac\n",
		"usr/local/sbin/deb-systemd-invoke": "#!/bin/sh\necho \"$1\" >> /root/told\ncase \"$1\" in stop) echo inactive ;; *) echo active ;; esac > /root/is\n",
	} {
		if err := os.WriteFile(filepath.Join(c.root, name), []byte(text), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	c.daemon("inactive")
	c.powerCut()
}

// daemon says how the daemon is, and forgets what was told of it.
func (c *container) daemon(state string) {
	c.t.Helper()
	for name, text := range map[string]string{"root/is": state + "\n", "root/told": ""} {
		if err := os.WriteFile(filepath.Join(c.root, name), []byte(text), 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
}

// powerCut empties /run.
func (c *container) powerCut() {
	c.t.Helper()
	run := filepath.Join(c.root, "run")
	outside(c.t, "find", run, "-mindepth", "1", "-delete")
	for _, dir := range []string{"systemd/system", "lock"} {
		if err := os.MkdirAll(filepath.Join(run, dir), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
}

// dpkg runs dpkg in the container, which is not booted.
func (c *container) dpkg(args ...string) (string, error) {
	const with = `mount -t proc proc "$0/proc" && exec chroot "$0" dpkg --force-unsafe-io "$@"`
	out, err := exec.Command("unshare", append([]string{"--mount", "sh", "-c", with, c.root}, args...)...).CombinedOutput()
	return string(out), err
}

func (c *container) mustDpkg(args ...string) {
	c.t.Helper()
	if out, err := c.dpkg(args...); err != nil {
		c.t.Fatalf("dpkg %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// cutOff runs dpkg while a script lives for a number of its commands only, and
// reports whether that was less than it has.
func (c *container) cutOff(script string, lives int, args ...string) bool {
	c.t.Helper()
	path := filepath.Join(c.root, "var/lib/dpkg/info/talos-agent."+script)
	whole, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(whole), "\n")
	mark := filepath.Join(c.root, "root/cut")
	dies := fmt.Sprintf("#!/bin/bash\nlived=0\ntrap '((++lived > %d)) && { : > /root/cut; kill -9 $$; }' DEBUG\n", lives)
	// One command more: a script may also die when it has done everything.
	if err := os.WriteFile(path, []byte(dies+text+"\n:\n"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	out, err := c.dpkg(args...)
	_, cut := os.Lstat(mark)
	if (err != nil) != (cut == nil) {
		c.t.Fatalf("dpkg %s, %s lives for %d commands: %v\n%s", strings.Join(args, " "), script, lives, err, out)
	}
	if cut == nil {
		c.powerCut()
		if err := os.Remove(mark); err != nil {
			c.t.Fatal(err)
		}
	}
	if _, err := os.Lstat(path); err == nil { // a purge takes it away
		if err := os.WriteFile(path, whole, 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	return cut == nil
}

// keep lays down what must not be lost, and kept reports what is.
func (c *container) keep() {
	c.t.Helper()
	for _, name := range kept {
		if err := os.WriteFile(filepath.Join(c.root, name), []byte(name), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
}

var kept = []string{"etc/talos-agent/config.yaml", "var/lib/talos-agent/dev.json", "etc/credstore/talos-agent.age.key"}

func (c *container) kept(when string) {
	c.t.Helper()
	for _, name := range kept {
		if text, err := os.ReadFile(filepath.Join(c.root, name)); err != nil || string(text) != name {
			c.t.Errorf("%s: %s: %q, %v", when, name, text, err)
		}
	}
}

// mended checks that the package is installed and its daemon was told to run.
func (c *container) mended(when, state, told string) {
	c.t.Helper()
	status := outside(c.t, "chroot", c.root, "dpkg-query", "--show", "--showformat", "${Status}", "talos-agent")
	text, err := os.ReadFile(filepath.Join(c.root, "root/told"))
	if status != state || err != nil || !strings.Contains(string(text), told) {
		c.t.Errorf("%s: it is %q; the daemon was told %q (%v), want %q", when, status, text, err, told)
	}
}

// installCutOff installs the package where a removed one has left its config, so
// that its daemon has something to do.
func (c *container) installCutOff(deb string) {
	for lives, cut := 0, true; cut; lives++ {
		when := fmt.Sprintf("installed, cut off after %d commands", lives)
		c.mustDpkg("--install", deb)
		c.keep()
		c.mustDpkg("--remove", "talos-agent")
		c.daemon("inactive")
		c.mustDpkg("--unpack", deb)
		cut = c.cutOff("postinst", lives, "--configure", "talos-agent")
		c.mustDpkg("--configure", "--pending")
		c.mended(when, "install ok installed", "start")
		c.kept(when)
		// What was stopped afterwards stays stopped at the next upgrade.
		c.daemon("inactive")
		c.mustDpkg("--install", deb)
		if text, err := os.ReadFile(filepath.Join(c.root, "root/told")); err != nil || len(text) > 0 {
			c.t.Errorf("%s, stopped and upgraded: the daemon was told %q, %v", when, text, err)
		}
	}
}

func (c *container) upgradeCutOff(older, newer string) {
	for lives, cut := 0, true; cut; lives++ {
		when := fmt.Sprintf("upgraded, cut off after %d commands", lives)
		c.mustDpkg("--install", older)
		c.daemon("active")
		c.mustDpkg("--unpack", newer)
		cut = c.cutOff("postinst", lives, "--configure", "talos-agent")
		c.mustDpkg("--configure", "--pending")
		c.mended(when, "install ok installed", "restart")
		c.kept(when)
	}
}

// removeGivenUp lets prerm fail wherever it can: dpkg gives the removal up and has
// postinst unwind it. The daemon is then as it was.
func (c *container) removeGivenUp(deb string) {
	for _, was := range []string{"active", "inactive"} {
		for lives, cut := 0, true; cut; lives++ {
			when := fmt.Sprintf("%s, and its removal given up after %d commands of prerm", was, lives)
			c.mustDpkg("--install", deb)
			c.daemon(was)
			if cut = c.cutOff("prerm", lives, "--remove", "talos-agent"); !cut {
				break // it is removed
			}
			is, err := os.ReadFile(filepath.Join(c.root, "root/is"))
			if strings.TrimSpace(string(is)) != was || err != nil {
				c.t.Errorf("%s: the daemon is %q, %v", when, is, err)
			}
			c.mended(when, "deinstall ok installed", "") // wanted away, and there
			// What was stopped afterwards stays stopped at the next upgrade.
			c.daemon("inactive")
			c.mustDpkg("--install", deb)
			if text, err := os.ReadFile(filepath.Join(c.root, "root/told")); err != nil || len(text) > 0 {
				c.t.Errorf("%s, stopped and upgraded: the daemon was told %q, %v", when, text, err)
			}
		}
	}
}

func (c *container) removeCutOff(deb string, before map[string]bool) {
	for _, script := range []string{"prerm", "postrm"} {
		for lives, cut := 0, true; cut; lives++ {
			when := fmt.Sprintf("removed, %s cut off after %d commands", script, lives)
			c.mustDpkg("--install", deb)
			c.keep()
			c.daemon("active")
			if cut = c.cutOff(script, lives, "--remove", "talos-agent"); cut {
				c.mustDpkg("--remove", "--force-remove-reinstreq", "talos-agent")
			}
			c.mended(when, "deinstall ok config-files", "stop")
			c.kept(when)
		}
	}
	c.removeGivenUp(deb)
	for lives, cut := 0, true; cut; lives++ {
		c.mustDpkg("--install", deb)
		c.keep()
		const beside = "/etc/talos-agent/age.key"
		if err := os.WriteFile(filepath.Join(c.root, beside), []byte("AGE-SECRET-KEY-1\n"), 0o600); err != nil {
			c.t.Fatal(err)
		}
		c.mustDpkg("--remove", "talos-agent")
		if cut = c.cutOff("postrm", lives, "--purge", "talos-agent"); cut {
			c.mustDpkg("--purge", "talos-agent")
		}
		c.dropKey("/etc/credstore/talos-agent.age.key", before)
		c.dropKey(beside, before)
		c.left(before)
	}
}
