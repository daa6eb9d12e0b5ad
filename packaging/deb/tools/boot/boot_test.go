// Package boot installs the package of talos-agent on a Debian that was booted
// by systemd, lets it bring a cluster up on a make-believe host, and does to it
// what happens to a daemon in its life. It tests a package, not this module:
// .ci/boot says where two of them are.
package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Where .ci/boot tells the test what to do.
const (
	releasesVariable = "TALOS_AGENT_BOOT"      // releases of Debian, separated by spaces
	packagesVariable = "TALOS_AGENT_BOOT_DEBS" // an older and a newer package, separated by a space
)

// packages are two of talos-agent, the older one first.
type packages struct{ older, newer string }

// TestBooted is the life of a package on each release of Debian.
func TestBooted(t *testing.T) {
	t.Parallel()
	releases := strings.Fields(os.Getenv(releasesVariable))
	debs := strings.Fields(os.Getenv(packagesVariable))
	if len(releases) == 0 {
		t.Skip("run by .ci/boot")
	}
	if len(debs) != 2 {
		t.Fatalf("%s is %q: it must name two packages", packagesVariable, debs)
	}
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			life(t, release, packages{debs[0], debs[1]})
		})
	}
}

// life is one: the steps in their order, each on what the one before left.
func life(t *testing.T, release string, p packages) {
	c := newContainer(t, release)
	p = packages{c.bring(p.older), c.bring(p.newer)}
	outside(t, "dpkg-deb", "--extract", p.older, filepath.Join(c.work, "program"))
	example, err := filepath.Abs("../../../../examples/repo")
	if err != nil {
		t.Fatal(err)
	}
	l := startLab(c, filepath.Join(c.work, "program/usr/bin/talos-agent"), flavours[release], example)
	before := c.files()
	c.unbooted(p.older, before)

	c.boot()
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"install", func() { c.install(p.older) }},
		{"init", func() { c.setUp(l); c.confined() }},
		{"socket", func() { c.socket() }},
		{"push", func() { l.push("bring up the cluster"); l.untilMidway() }},
		{"upgrade midway", func() { c.upgrade(p.newer); l.untilReady(3) }},
		{"kill midway", func() { l.workers(3); l.push("one worker more"); l.untilMidway(); c.kill(); l.untilReady(4) }},
		{"reboot midway", func() { l.workers(4); l.push("another worker"); l.untilMidway(); c.reboot(); l.untilReady(5) }},
		{"reload", func() { c.reload() }},
		{"journal", func() { c.journal() }},
		{"support bundle", func() { c.bundle() }},
		{"doctor", func() { c.replaced(); c.doctor("root", "pass"); c.doctor("anna", "skipped") }},
		{"stopped stays stopped", func() { c.stopped(p.newer) }},
		{"encrypted", func() { c.encrypted(); l.untilReady(5); c.doctor("root", "skipped") }},
		{"remove", func() { c.remove(); c.again(p.newer); l.untilReady(5) }},
		{"undo", func() { c.refused(1, "VMs", "talos-agent", "init", "--undo", "--yes") }},
		{"purge", func() { c.purge(before) }},
		{"never", func() { l.never(t, 5) }},
		{"etc/pve", func() {
			outside(t, "diff", "--recursive", filepath.Join(l.dir, "etc/pve"), filepath.Join(c.root, "etc/pve"))
		}},
	} {
		t.Logf("%s: %s", release, step.name)
		if step.do(); t.Failed() {
			t.Fatalf("%s: %s", release, step.name)
		}
	}
}

// flavours are the versions of Proxmox VE that are made of a release.
var flavours = map[string]string{"bookworm": "8.4", "trixie": "9.2"}

// unbooted installs and purges the package where systemd does not run, as one
// does who makes the image of a disk.
func (c *container) unbooted(deb string, before map[string]bool) {
	c.t.Helper()
	outside(c.t, "cp", deb, filepath.Join(c.root, "tmp"))
	outside(c.t, "chroot", c.root, "dpkg", "--install", "/tmp/"+filepath.Base(deb))
	if _, err := os.Lstat(filepath.Join(c.root, "etc/systemd/system/multi-user.target.wants/talos-agent.service")); err != nil {
		c.t.Errorf("installed without systemd the unit is not enabled: %v", err)
	}
	outside(c.t, "chroot", c.root, "dpkg", "--purge", "talos-agent")
	c.left(before)
}

// bring puts a package where the container sees it.
func (c *container) bring(deb string) string {
	c.t.Helper()
	outside(c.t, "cp", deb, c.work)
	return filepath.Join(c.work, filepath.Base(deb))
}

// apt runs apt-get, and returns what it prints.
func (c *container) apt(args ...string) string {
	c.t.Helper()
	return c.run("apt-get", append([]string{"--yes", "--quiet", "--no-install-recommends"}, args...)...)
}

// install installs the package on a host that has never seen it.
func (c *container) install(deb string) {
	out := c.apt("install", deb)
	if !strings.Contains(out, "talos-agent init") {
		c.t.Errorf("nothing says what to do next:\n%s", out)
	}
	if state := c.unit("ActiveState"); state != "inactive" || c.unit("UnitFileState") != "enabled" || c.unit("ConditionResult") != "no" {
		c.t.Errorf("without a config the unit is %s, %s, its condition %s", state, c.unit("UnitFileState"), c.unit("ConditionResult"))
	}
	c.same("files of the package that differ", "", c.sh("dpkg --verify talos-agent"))
	c.same("the user", "talos-agent:/var/lib/talos-agent:/usr/sbin/nologin", c.sh("getent passwd talos-agent | cut -d: -f1,6,7"))
	c.same("what is in /etc/talos-agent", "", c.sh("ls -A /etc/talos-agent"))
	for path, want := range map[string]string{
		"/etc/talos-agent": "root:root 755", "/var/lib/talos-agent": "talos-agent:talos-agent 700", "/var/cache/talos-agent": "talos-agent:talos-agent 700",
		"/var/lib/talos-agent-dhcp": "talos-agent:talos-agent 755",
		"/var/lib/talos-agent-nft":  "talos-agent:talos-agent 755",
		"/etc/credstore":            "root:root 700", "/etc/credstore.encrypted": "root:root 700", "/usr/bin/talos-agent": "root:root 755",
	} {
		c.owned(path, want)
	}
	// A package that is there already is installed over itself without a change.
	c.run("dpkg", "--install", deb)
	c.same("the unit", "inactive", c.unit("ActiveState"))
}

// same compares what was found with what must be.
func (c *container) same(what, want, got string) {
	c.t.Helper()
	if got != want {
		c.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// owned compares owner, group and mode of a file.
func (c *container) owned(path, want string) {
	c.t.Helper()
	c.same(path, want, c.run("stat", "--format=%U:%G %a", path))
}

// setUp prepares the host for the agent with init, and starts it.
func (c *container) setUp(l *lab) {
	// The example's secrets are for a key that everybody knows, and may read.
	key := filepath.Join(c.work, "age.key")
	outside(c.t, "install", "-m", "600", filepath.Join(l.repo, "lab-age-key.txt"), key)
	flags := " --yes --vmids 900-999 --bridge vmbr1 --age-key " + key + " " + l.once(initCommand)
	out := c.sh("talos-agent init --start" + flags)
	c.same("the unit", "active", c.unit("ActiveState"))
	// The forge's owner lets the new deploy key in.
	deploy := regexp.MustCompile(`ssh-ed25519 \S+`).FindString(out)
	if err := os.WriteFile(filepath.Join(l.dir, "authorized_keys"), []byte(deploy+"\n"), 0o600); err != nil {
		c.t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/etc/talos-agent/config.yaml": "root:talos-agent 640", "/etc/talos-agent/policy.yaml": "root:root 644", "/etc/credstore": "root:root 700",
		"/etc/credstore/talos-agent.age.key": "root:root 600", "/etc/credstore/talos-agent.proxmox.token": "root:root 600", "/etc/credstore/talos-agent.ssh.key": "root:root 600",
	} {
		c.owned(path, want)
	}
	if again := c.sh("talos-agent init" + flags); !strings.Contains(again, "nothing to do") {
		c.t.Errorf("a second init finds something to do:\n%s", again)
	}
}

// confined checks that the daemon is what the unit says: nobody, who may do
// nothing.
func (c *container) confined() {
	pid := c.unit("MainPID")
	state := map[string]string{}
	for line := range strings.Lines(c.run("cat", "/proc/"+pid+"/status") + "\n") {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		state[key] = strings.TrimSpace(value)
	}
	const none = "0000000000000000"
	for key, want := range map[string]string{"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none, "NoNewPrivs": "1", "Seccomp": "2"} {
		c.same("the daemon's "+key, want, state[key])
	}
	c.run("systemd-analyze", "security", "--threshold=13", "--no-pager", "talos-agent.service")
	uid := c.run("id", "--user", "talos-agent")
	c.same("the daemon's user", strings.Join([]string{uid, uid, uid, uid}, "\t"), state["Uid"])
	// Its secrets are neither in its arguments nor in its environment; what can
	// be read there is where the credentials lie.
	c.same("the daemon's arguments", "/usr/bin/talos-agent\x00run", strings.Trim(c.run("cat", "/proc/"+pid+"/cmdline"), "\x00"))
	// The processes that read what is pushed may confine themselves, as far as the kernel has
	// it outside of the unit.
	want := "Landlock: yes, seccomp: yes"
	if version := c.run("systemd-run", "--wait", "--pipe", "--quiet", "perl", "-e", "print syscall(444, 0, 0, 1)"); version == "-1" { // landlock_create_ruleset
		c.t.Log("this kernel has no Landlock")
		want = "Landlock: no, seccomp: yes"
	}
	c.until("the daemon logs how workers are confined", func() (bool, string) {
		out := c.run("journalctl", "--unit=talos-agent", "--boot", "--output=verbose", "--no-pager")
		return strings.Contains(out, "DETAIL="+want+"\n"), out
	})
	for _, dir := range []string{"/run/credentials/talos-agent.service", "/var/lib/talos-agent"} {
		c.refused(2, "Permission denied", "runuser", "--user", "nobody", "--", "ls", dir)
	}
}

// socket checks who may do what over the daemon's socket.
func (c *container) socket() {
	c.owned("/run/talos-agent", "talos-agent:talos-agent 755")
	c.owned("/run/talos-agent/agent.sock", "talos-agent:talos-agent 660")
	c.run("useradd", "--groups", "talos-agent", "anna")
	c.run("useradd", "bert")
	as := func(user string, args ...string) []string {
		return append([]string{"--user", user, "--", "talos-agent"}, args...)
	}
	c.refused(3, "no cluster yet", "runuser", as("anna", "status")...) // nothing was pushed
	c.refused(1, "root", "runuser", as("anna", "suspend", cluster)...)
	c.refused(1, "root", "runuser", as("anna", "kubeconfig", cluster)...)
	c.refused(5, "permission denied", "runuser", as("bert", "status")...)
}

// upgrade installs a newer package while the daemon works.
func (c *container) upgrade(deb string) {
	pid, started := c.unit("MainPID"), c.unit("ExecMainStartTimestampMonotonic")
	c.apt("install", deb)
	c.same("the unit", "active", c.unit("ActiveState"))
	if c.unit("MainPID") == pid && c.unit("ExecMainStartTimestampMonotonic") == started {
		c.t.Error("the upgrade has not started the new daemon")
	}
	c.same("how the old one ended", "success", c.unit("Result"))
	version := strings.Fields(c.run("talos-agent", "version"))
	if want := "v" + upstream(filepath.Base(deb)); !slices.Contains(version, want) {
		c.t.Errorf("after the upgrade to %s the program says %v", want, version)
	}
}

// upstream is the version in the name of a package, without Debian's part.
func upstream(deb string) string {
	_, rest, _ := strings.Cut(deb, "_")
	version, _, _ := strings.Cut(rest, "-")
	return version
}

// kill kills the daemon as nothing in the program can prevent.
func (c *container) kill() {
	pid := c.unit("MainPID")
	// Told of the whole unit, systemd 252 complains where control groups are of
	// both versions; there is one process.
	c.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "talos-agent.service")
	c.until("systemd starts the daemon again", func() (bool, string) {
		now, state := c.unit("MainPID"), c.unit("ActiveState")
		return state == "active" && now != pid && now != "0", state + " " + now
	})
}

// reload has the daemon read its files again, and stay the same process.
func (c *container) reload() {
	pid := c.unit("MainPID")
	c.sh("sed -i 's/^vmids:.*/vmids: [900-998]/' /etc/talos-agent/policy.yaml")
	c.run("systemctl", "reload", "talos-agent.service")
	c.until("the policy is loaded", func() (bool, string) {
		out := c.run("journalctl", "--unit=talos-agent", "--boot", "--output=cat", "--no-pager")
		return strings.Contains(out, "config and policy loaded"), out
	})
	c.same("the unit", "active", c.unit("ActiveState"))
	c.same("the process", pid, c.unit("MainPID"))
}

// journal checks that records have their fields, and that nothing in the journal
// is a secret.
func (c *container) journal() {
	out := c.run("journalctl", "--unit=talos-agent", "--output=json", "--no-pager")
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			c.t.Fatalf("%v: %s", err, line)
		}
		for field := range record {
			seen[field] = true
		}
	}
	for _, field := range []string{"CLUSTER", "NODE", "VMID", "REVISION", "ACTION", "PHASE", "CONDITION", "DETAIL", "DURATION_MS"} {
		if !seen[field] {
			c.t.Errorf("no record has the field %s", field)
		}
	}
	c.noSecret("the journal", c.run("journalctl", "--output=verbose", "--all", "--no-pager"))
}

// bundle checks that a support bundle can be had whole where systemd runs, and
// that it holds no secret.
func (c *container) bundle() {
	const file = "/root/bundle.tar.gz"
	if out := c.run("talos-agent", "support-bundle", "--file", file); strings.Contains(out, "without") {
		c.t.Errorf("something could not be had:\n%s", out)
	}
	c.owned(file, "root:root 600")
	all := c.run("tar", "--extract", "--gzip", "--to-stdout", "--file", file)
	for _, part := range []string{"saw a new revision", "LoadState=loaded", "goroutine "} {
		if !strings.Contains(all, part) {
			c.t.Errorf("the bundle does not hold %q", part)
		}
	}
	c.noSecret("the bundle", all)
}

// noSecret checks that a text holds none of the keys and tokens of this host.
func (c *container) noSecret(what, text string) {
	c.t.Helper()
	for _, file := range strings.Fields(c.sh("ls /etc/credstore/talos-agent.*")) {
		for line := range strings.Lines(c.run("cat", file)) {
			// What begins a key's file is the same in all of them.
			line = strings.TrimSpace(line)
			if line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "-----") && strings.Contains(text, line) {
				c.t.Errorf("%s holds what is in %s", what, file)
			}
		}
	}
}

// replaced checks that doctor sees with which key of the store the daemon was not
// started, and that a restart is the cure.
func (c *container) replaced() {
	const token = "/etc/credstore/talos-agent.proxmox.token"
	c.sh("echo >> " + token) // which opens the same
	out, err := c.try("talos-agent", "doctor")
	if want := token + ": has changed since the agent started"; !strings.Contains(out, want) {
		c.t.Errorf("doctor does not say %q: %v\n%s", want, err, out)
	}
	c.run("systemctl", "restart", "talos-agent.service")
}

// doctor checks what doctor says to a user: the host is as it must be, and the
// level of the config is as wanted. It does not judge the network, which has
// nothing in it but the lab.
func (c *container) doctor(user, config string) {
	// It fails because the lab keeps no time.
	out, err := c.try("runuser", "--user", user, "--", "talos-agent", "doctor", "--output", "json")
	var answer struct {
		Data struct {
			Checks []struct{ Name, Level, Subject, Message string }
		}
	}
	if json.Unmarshal([]byte(out), &answer) != nil {
		c.t.Fatalf("doctor says to %s: %v\n%s", user, err, out)
	}
	told := map[string]bool{}
	for _, check := range answer.Data.Checks {
		told[check.Name] = true
		want := "pass"
		switch check.Name {
		case "config":
			want = config
		case "files", "credentials":
			if user != "root" && check.Level == "skipped" {
				continue
			}
		case "daemon", "api", "certificate", "version", "token", "privileges", "excess", "pool", "repository", "inventory", "forge", "storage":
		default:
			continue
		}
		if check.Level != want {
			c.t.Errorf("doctor says to %s: %+v, want %s", user, check, want)
		}
	}
	for _, name := range []string{"config", "daemon", "files", "credentials", "token", "privileges", "repository"} {
		if !told[name] {
			c.t.Errorf("doctor says nothing of %s to %s", name, user)
		}
	}
}

// stopped checks that an upgrade does not start a daemon that somebody stopped.
func (c *container) stopped(deb string) {
	c.run("systemctl", "stop", "talos-agent.service")
	c.same("how it stopped", "success", c.unit("Result"))
	c.apt("install", "--reinstall", deb)
	c.same("the unit after an upgrade", "inactive", c.unit("ActiveState"))
	c.run("systemctl", "start", "talos-agent.service")
}

// fence is a block of a page of the documentation.
var fence = regexp.MustCompile("(?ms)^```(sh|ini)\n(.*?)^```$")

// encrypted does what the page about encrypted keys says, and sees that the
// daemon has its key.
func (c *container) encrypted() {
	page, err := os.ReadFile("../../../../docs/how-to/encrypted-credentials.md")
	if err != nil {
		c.t.Fatal(err)
	}
	const edited = "/etc/systemd/system/talos-agent.service.d"
	blocks := fence.FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 3 {
		c.t.Fatalf("the page has %d blocks", len(blocks))
	}
	for _, b := range blocks {
		if b[1] == "sh" {
			c.sh(b[2])
			continue
		}
		// What systemctl edit does.
		c.run("mkdir", "--parents", edited)
		if err := os.WriteFile(filepath.Join(c.root, edited, "override.conf"), []byte(b[2]), 0o644); err != nil {
			c.t.Fatal(err)
		}
		c.run("systemctl", "daemon-reload")
	}
	c.refused(1, "", "test", "-e", "/etc/credstore/talos-agent.age.key")
	c.run("systemctl", "restart", "talos-agent.service")
}

// remove removes the package, which keeps everything that is not in it.
func (c *container) remove() {
	out := c.apt("remove", "talos-agent")
	if !strings.Contains(out, "VMs") {
		c.t.Errorf("nothing says what becomes of the VMs:\n%s", out)
	}
	c.same("the unit", "not-found", c.unit("LoadState"))
	c.same("the program", "", c.sh("command -v talos-agent || true"))
	c.same("processes of the user", "", c.sh("ps -u talos-agent -o pid= || true"))
	c.same("/run/talos-agent", "", c.sh("ls -d /run/talos-agent 2>/dev/null || true"))
	c.same("links that lead nowhere", "", c.sh("find /etc/systemd/system -xtype l -name 'talos-agent*'"))
	c.run("test", "-s", "/etc/talos-agent/config.yaml")
	c.run("test", "-s", "/etc/credstore.encrypted/talos-agent.age.key")
	if c.sh("ls -A /var/lib/talos-agent") == "" {
		c.t.Error("the state is gone")
	}
}

// again installs the package on what is left of it.
func (c *container) again(deb string) {
	c.apt("install", deb)
	c.same("the unit of a host that was set up", "active", c.unit("ActiveState"))
	c.same("that unit at the next boot", "enabled", c.unit("UnitFileState"))

	// A unit that an administrator disabled stays so.
	c.run("systemctl", "disable", "--now", "talos-agent.service")
	c.remove()
	c.apt("install", deb)
	c.same("a unit that was disabled", "disabled", c.unit("UnitFileState"))
	c.same("a unit that was disabled", "inactive", c.unit("ActiveState"))
	c.run("systemctl", "enable", "--now", "talos-agent.service")
}

// purge takes everything away.
func (c *container) purge(before map[string]bool) {
	const beside = "/etc/talos-agent/age.key"
	c.sh("echo AGE-SECRET-KEY-1 > " + beside)
	out := c.apt("purge", "talos-agent")
	if !strings.Contains(out, "VMs") {
		c.t.Errorf("nothing says what becomes of the VMs:\n%s", out)
	}
	c.same("the user", "", c.sh("getent passwd talos-agent || true"))
	c.same("the group", "", c.sh("getent group talos-agent || true"))
	// It may be all that opens the secrets in the repository.
	const key = "/etc/credstore.encrypted/talos-agent.age.key"
	for _, key := range []string{key, beside} {
		if !strings.Contains(out, key+" stays") {
			c.t.Errorf("nothing says that the age key stays:\n%s", out)
		}
		c.dropKey(key, before)
	}
	c.run("userdel", "anna")
	c.run("userdel", "bert")
	c.run("rm", "--recursive", "/etc/systemd/system/talos-agent.service.d") // is the administrator's own
	c.left(before)
}

// dropKey removes the age key that a purge leaves, and the directory that is there
// for it.
func (c *container) dropKey(key string, before map[string]bool) {
	c.t.Helper()
	if err := os.Remove(filepath.Join(c.root, key)); err != nil {
		c.t.Error(err)
	}
	if dir := filepath.Dir(key); !before[dir] {
		if err := os.Remove(filepath.Join(c.root, dir)); err != nil {
			c.t.Error(err)
		}
	}
}

// left checks that nothing is on the disk that was not before, but what Debian
// itself keeps.
func (c *container) left(before map[string]bool) {
	c.t.Helper()
	var left []string
	for path := range c.files() {
		if !before[path] && !ofDebian.MatchString(path) {
			left = append(left, path)
		}
	}
	slices.Sort(left)
	if len(left) > 0 {
		c.t.Errorf("left after a purge:\n%s", strings.Join(left, "\n"))
	}
}

// ofDebian are files that Debian's own programs make and keep while a system
// lives: at midnight, too.
var ofDebian = regexp.MustCompile(`^/(var/log|var/backups|var/cache/(apt|ldconfig|debconf|private)|var/lib/(apt|dpkg|systemd|dbus|private)|var/tmp|tmp|run|dev|root)(/|$)` +
	`|^/etc/((passwd|group|shadow|gshadow|subuid|subgid)-?|machine-id|resolv\.conf|\.updated|\.pwd\.lock|mtab|localtime|timezone|ld\.so\.cache)$|^/var/\.updated$`)

// files lists what is on the container's disk.
func (c *container) files() map[string]bool {
	c.t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir(c.root, func(path string, _ os.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != c.root:
			return nil // gone while the container lives on
		case err != nil:
			return fmt.Errorf("list the container's files: %w", err)
		}
		out["/"+strings.TrimPrefix(strings.TrimPrefix(path, c.root), "/")] = true
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}
