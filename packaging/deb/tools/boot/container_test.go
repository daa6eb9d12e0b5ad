package boot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait: it is for machines that are slow, not for what is
// tested.
const patience = 5 * time.Minute

// container is a Debian with systemd as its first process, in a network of its
// own. The network outlives a reboot, and so does what runs in it outside.
type container struct {
	t    *testing.T
	net  string // name of the network namespace
	root string // its file system
	work string // a folder that is the same inside and outside

	nspawn *exec.Cmd
	ended  chan error
	leader int // its first process, as seen from outside
	log    *bytes.Buffer
}

// newContainer makes a container of a release of Debian and does not boot it.
func newContainer(t *testing.T, release string) *container {
	t.Helper()
	base := debian(t, release)
	work, err := os.MkdirTemp("/var/tmp", "talos-agent-boot-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(work); err != nil {
			t.Error(err)
		}
	})
	disk, err := os.MkdirTemp("/var/tmp", "talos-agent-disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(disk); err != nil {
			t.Error(err)
		}
	})
	c := &container{t: t, net: filepath.Base(work), root: filepath.Join(disk, "root"), work: work}
	for _, dir := range []string{"root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(disk, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	outside(t, "mount", "-t", "overlay", "overlay", "-o", fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", base, disk, disk), c.root)
	t.Cleanup(func() { outside(t, "umount", c.root) })
	outside(t, "ip", "netns", "add", c.net)
	t.Cleanup(func() { outside(t, "ip", "netns", "del", c.net) })
	outside(t, "ip", "-n", c.net, "link", "set", "lo", "up")
	// The journal is kept over a reboot.
	if err := os.MkdirAll(filepath.Join(c.root, "var/log/journal"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.off)
	return c
}

// bases are the file systems of the releases, by release: tests of one release run
// side by side, and one of them fetches it for all.
var bases sync.Map // release → func() error

// debian is the file system of a release, which is fetched once.
func debian(t *testing.T, release string) string {
	t.Helper()
	cache, err := filepath.Abs("../../../../.cache/boot")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, release)
	fetch, _ := bases.LoadOrStore(release, sync.OnceValue(func() error { return bootstrap(release, dir) }))
	if err := fetch.(func() error)(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// bootstrap fetches a release of Debian into a folder, when it is not there whole.
func bootstrap(release, dir string) error {
	const packages = "systemd,systemd-sysv,dbus,ca-certificates,procps"
	done := dir + ".done"
	if has, err := os.ReadFile(done); err == nil && string(has) == packages {
		return nil
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Dir(dir), 0o755)); err != nil {
		return err
	}
	out, err := exec.Command("debootstrap", "--variant=minbase", "--include="+packages, release, dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("debootstrap of %s: %w\n%s", release, err, out)
	}
	return os.WriteFile(done, []byte(packages), 0o644)
}

// outside runs a command on this machine.
func outside(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// beside is a command on this machine in the network of the container.
func (c *container) beside(name string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", c.net, name}, args...)...)
}

// boot starts the container and waits until systemd has started everything.
func (c *container) boot() {
	c.t.Helper()
	c.log = &bytes.Buffer{}
	c.nspawn = exec.Command("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--console=pipe", "--hostname=pve1",
		// A host may use Landlock, which a container may not by itself.
		"--system-call-filter=landlock_create_ruleset landlock_add_rule landlock_restrict_self",
		"--network-namespace-path=/run/netns/"+c.net, "--bind="+c.work, "--directory="+c.root)
	// systemd 257 wants to be told that control groups of version 1 are meant.
	c.nspawn.Env = append(os.Environ(), "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1")
	c.nspawn.Stdout, c.nspawn.Stderr = c.log, c.log
	if err := c.nspawn.Start(); err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func(cmd *exec.Cmd) { ended <- cmd.Wait() }(c.nspawn)
	c.ended, c.leader = ended, 0
	c.until("the container boots", func() (bool, string) {
		if c.leader = c.first(); c.leader == 0 {
			return false, "there is no first process yet"
		}
		out, err := c.try("systemctl", "is-system-running")
		state := strings.TrimSpace(out)
		return state == "running" || state == "degraded", fmt.Sprintf("%s, %v", state, err)
	})
}

// first finds the container's first process, 0 when there is none yet.
func (c *container) first() int {
	pid := c.nspawn.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0
	}
	for _, child := range strings.Fields(string(children)) {
		if comm, err := os.ReadFile("/proc/" + child + "/comm"); err == nil && strings.TrimSpace(string(comm)) == "systemd" {
			n, _ := strconv.Atoi(child)
			return n
		}
	}
	return 0
}

// reboot reboots the container from inside, and waits until it is up again.
func (c *container) reboot() {
	c.t.Helper()
	// How the container ends shows whether it reboots: who asks for it may end with it.
	out, asked := c.try("systemctl", "reboot", "--no-block")
	// With --keep-unit it leaves starting again to whoever started it.
	const again = 133
	err := c.wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != again {
		c.t.Fatalf("the container ended with %v instead of rebooting: %v %s\n%s", err, asked, out, c.log)
	}
	c.boot()
}

// wait waits until the container has ended.
func (c *container) wait() error {
	c.t.Helper()
	select {
	case err := <-c.ended:
		c.ended = nil
		return err
	case <-time.After(patience):
		c.t.Fatal("the container does not end")
		return nil
	}
}

// off ends the container, if it runs.
func (c *container) off() {
	if c.ended == nil {
		return
	}
	// The orderly way for a container's first process to be told: halt.
	if _, err := c.try("systemctl", "poweroff", "--no-block"); err != nil {
		_ = c.nspawn.Process.Kill()
	}
	_ = c.wait()
}

// try runs a command as root in the container.
func (c *container) try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	words := append([]string{"--all", "--target", strconv.Itoa(c.leader), "--wdns=/", "--", name}, args...)
	cmd := exec.CommandContext(ctx, "nsenter", words...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "SYSTEMD_PAGER="}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// run runs a command that must succeed.
func (c *container) run(name string, args ...string) string {
	c.t.Helper()
	out, err := c.try(name, args...)
	if err != nil {
		c.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// sh runs a line of shell that must succeed.
func (c *container) sh(line string) string {
	c.t.Helper()
	return c.run("sh", "-ec", line)
}

// refused runs a command that must fail with this code and say this.
func (c *container) refused(code int, says string, name string, args ...string) {
	c.t.Helper()
	out, err := c.try(name, args...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != code || !strings.Contains(out, says) {
		c.t.Errorf("%s %s: %v, want exit code %d and %q\n%s", name, strings.Join(args, " "), err, code, says, out)
	}
}

// unit is a property of the daemon's unit.
func (c *container) unit(property string) string {
	c.t.Helper()
	return c.run("systemctl", "show", "--property="+property, "--value", "talos-agent.service")
}

// until waits until something is so, and tells how far it came when it never is.
func (c *container) until(what string, so func() (bool, string)) {
	c.t.Helper()
	var state string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		var ok bool
		if ok, state = so(); ok {
			return
		}
		select {
		case err := <-c.ended:
			c.ended = nil
			c.t.Fatalf("%s: the container ended: %v\n%s", what, err, c.log)
		default:
		}
	}
	journal, _ := c.try("journalctl", "--unit=talos-agent", "--no-pager", "--lines=60", "--output=cat")
	c.t.Fatalf("%s: not within %s: %s\n%s", what, patience, state, journal)
}
