package lab

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// talosctl is a real talosctl in a home of its own.
type talosctl struct {
	t       *testing.T
	program string
	home    string
	env     []string
}

func newTalosctl(t *testing.T) *talosctl {
	t.Helper()
	program := os.Getenv("TALOS_AGENT_TALOSCTL")
	if program == "" {
		t.Skip("TALOS_AGENT_TALOSCTL does not name the program built from internal/lab/clients/talosctl; .ci/clients builds it")
	}
	home := t.TempDir()
	return &talosctl{t: t, program: program, home: home, env: append(os.Environ(), "HOME="+home, "TALOSCONFIG="+filepath.Join(home, "talosconfig"), "TALOS_HOME="+home, "EDITOR=true")}
}

// command prepares a command, which is ended after longer than any should take.
func (c *talosctl) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	c.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, c.program, args...)
	cmd.Dir, cmd.Env = c.home, c.env
	return cmd
}

// ok runs a command line that succeeds and prints what matches the patterns.
func (c *talosctl) ok(line string, patterns ...string) string {
	c.t.Helper()
	out, err := c.run(line)
	if err != nil {
		c.t.Errorf("talosctl %s: %v\n%.800s", line, err, out)
	}
	c.expect(line, out, patterns)
	return out
}

// fails runs a command line that fails.
func (c *talosctl) fails(line string, patterns ...string) {
	c.t.Helper()
	out, err := c.run(line)
	if err == nil {
		c.t.Errorf("talosctl %s succeeds\n%.800s", line, out)
	}
	c.expect(line, out, patterns)
}

func (c *talosctl) run(line string) (string, error) {
	out, err := c.command(strings.Fields(line)...).CombinedOutput()
	return string(out), err
}

func (c *talosctl) expect(line, out string, patterns []string) {
	c.t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(out) {
			c.t.Errorf("talosctl %s: no %q in\n%.800s", line, p, out)
		}
	}
}

// follow runs a command line that goes on until it prints what matches.
func (c *talosctl) follow(line, pattern string) {
	c.t.Helper()
	cmd := c.command(strings.Fields(line)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // as it was made to
	}()
	var seen strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if regexp.MustCompile(pattern).MatchString(lines.Text()) {
			return
		}
		fmt.Fprintln(&seen, lines.Text())
	}
	c.t.Errorf("talosctl %s: ended without %q\n%s", line, pattern, &seen)
}

// write writes a file that commands name.
func (c *talosctl) write(name, text string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.home, name), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// TestRealTalosctl brings a cluster up on loopback with a real talosctl, and types its
// everyday commands.
func TestRealTalosctl(t *testing.T) {
	c := newTalosctl(t)
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	l, err := Start(Config{Prefix: prefix, Speed: 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	b := prefix.Addr().As4()
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{b[0], b[1], b[2], last}) }
	cp, wk := at(11), at(21)
	for vmid, a := range map[int]netip.Addr{401: cp, 501: wk} {
		l.Talos.PowerOn(world.Guest{
			VMID: vmid, Name: map[int]string{401: "cp-1", 501: "wk-1"}[vmid], Host: "pve1", UUID: fmt.Sprintf("00000000-0000-5000-8000-%012d", vmid), MAC: fmt.Sprintf("bc:24:11:00:00:%02x", vmid%256),
			Cores: 2, MemoryMiB: 2048, Address: netip.PrefixFrom(a, 24), Gateway: at(1),
			Boot: &world.Disk{Bytes: 20 << 30, Image: world.Image{Platform: "nocloud", Version: "v1.13.9", Schematic: "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"}},
		})
	}
	c.bringUp(cp.String(), wk.String())
	c.lookAround(cp.String(), wk.String())
	c.lookInside()
	c.askMore()
	c.askEtcd(cp.String())
	c.changeConfig(wk.String())
	c.upgrade(cp.String(), wk.String())
	c.takeDown(cp.String(), wk.String())
	if err := l.Broken(); err != nil {
		t.Error(err)
	}
}

// bringUp makes machine configs, applies them in maintenance mode, and bootstraps.
func (c *talosctl) bringUp(cp, wk string) {
	c.ok("gen secrets -o secrets.yaml")
	c.ok("gen config lab https://" + cp + ":6443 --with-secrets secrets.yaml --kubernetes-version 1.36.1 --talos-version v1.13 --install-disk /dev/sda --output made")
	for kind, name := range map[string]string{"controlplane": "cp-1", "worker": "wk-1"} {
		c.write(name+".patch", "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: off\nhostname: "+name+"\n")
		c.ok("machineconfig patch made/" + kind + ".yaml --patch @" + name + ".patch -o " + name + ".yaml")
	}
	c.ok("config merge made/talosconfig")
	c.ok("config endpoint " + cp)
	c.ok("config node " + cp)
	c.ok("config info", `Current context: +lab`, `Endpoints: +`+regexp.QuoteMeta(cp))
	c.waitFor("version --insecure -n "+cp, `Tag: +v1.13.9`)
	c.waitFor("version --insecure -n "+wk, `Tag: +v1.13.9`)
	c.ok("get disks --insecure -n "+cp, `sda`)
	c.ok("get machinestatus --insecure -n "+cp, `maintenance`)
	c.fails("get machineconfig --insecure -n "+cp, `PermissionDenied`)
	c.ok("apply-config --insecure -n "+cp+" -f cp-1.yaml --dry-run", `Dry run summary:`)
	c.ok("apply-config --insecure -n "+cp+" -f cp-1.yaml", `Applied configuration without a reboot`)
	c.ok("apply-config --insecure -n "+wk+" -f wk-1.yaml", `Applied configuration without a reboot`)
	c.waitFor("version", `Tag: +v1.13.9`)
	c.ok("bootstrap")
	c.fails("bootstrap", `AlreadyExists`)
	c.ok("health --server=false --wait-timeout 2m --control-plane-nodes "+cp+" --worker-nodes "+wk, `waiting for all k8s nodes to report ready: OK`)
	c.ok("kubeconfig made/kubeconfig", ``)
	if _, err := os.Stat(filepath.Join(c.home, "made", "kubeconfig")); err != nil {
		c.t.Errorf("talosctl kubeconfig writes nothing: %v", err)
	}
}

// waitFor repeats a command line until it prints what matches.
func (c *talosctl) waitFor(line, pattern string) {
	c.t.Helper()
	var out string
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if out, _ = c.run(line); regexp.MustCompile(pattern).MatchString(out) {
			return
		}
	}
	c.t.Fatalf("talosctl %s: no %q in\n%s", line, pattern, out)
}

// lookAround looks at a cluster that has come up.
func (c *talosctl) lookAround(cp, wk string) {
	c.ok("version", `Client:`, `NODE: +`+regexp.QuoteMeta(cp), `Tag: +v1.13.9`, `Enabled: +RBAC`)
	c.ok("version -n "+cp+","+wk, `NODE: +`+regexp.QuoteMeta(wk))
	c.ok("get rd", `machinestatuses.runtime.talos.dev`)
	c.ok("get members", `cp-1 +controlplane +Talos \(v1.13.9\)`)
	c.ok("get machinestatus", `running +true`)
	c.ok("get machinestatus -o yaml", `stage: running`)
	c.ok("get nodename", `cp-1`)
	c.ok("get hostname", `cp-1`)
	c.ok("get addresses", regexp.QuoteMeta(cp)+`/24`)
	c.ok("get links", `eth0|ens`)
	c.ok("get routes")
	c.ok("get disks", `sda`)
	c.ok("get volumestatus", `EPHEMERAL`)
	c.ok("get services", `kubelet`)
	c.ok("get machineconfig v1alpha1 -o yaml", `type: MachineConfigs.config.talos.dev`, `hostname: cp-1`)
	c.ok("get kubeletspec", ``)
	c.ok("get staticpods", `kube-apiserver`)
	c.fails("get nosuch", `resource "nosuch" is not registered`)
	c.ok("services", `etcd +Running +OK`, `kubelet +Running +OK`, `trustd +Running +OK`)
	c.ok("service kubelet", `STATE +Running`, `HEALTH +OK`, `EVENTS`)
	c.fails("service nosuch", `service "nosuch" is not registered`)
	c.ok("service -n "+wk, `kubelet +Running +OK`)
	c.ok("memory", `TOTAL`)
	c.ok("memory -v", `MemTotal: \d+`)
	c.ok("processes", `kubelet`, `etcd`)
	c.ok("stats", `apid`)
	c.ok("containers", `apid`)
	c.ok("containers -k", `kube-system/kube-apiserver-cp-1`)
	c.ok("mounts", `/var`)
	c.ok("image list", `registry.k8s.io/kube-apiserver:v1.36.1`)
	c.ok("image list --namespace system", `kubelet:v1.36.1`)
	c.ok("image pull registry.k8s.io/pause:3.9", `pulled image registry.k8s.io/pause@sha256:`)
	c.ok("time", `time.cloudflare.com`)
}

// lookInside reads logs, events and files.
func (c *talosctl) lookInside() {
	c.ok("dmesg", `Brought up 1 node, 2 CPUs`)
	c.ok("logs kubelet", `Kubelet version`)
	c.ok("logs kubelet --tail 1")
	c.follow("events --tail 10", `machine\.`)
	c.follow("dmesg -f", `Brought up`)
	c.ok("list /", `proc`)
	c.ok("list -l /", `MODE`)
	c.ok("read /proc/cmdline", `talos.platform=nocloud`)
	c.ok("support --no-encryption -O made/all.zip", `Support bundle is written to made/all.zip`)
	c.fails("read /nosuch", `no such file or directory`)
}

// askMore has commands that the lab does not answer, each with the reason. One that it
// begins to answer belongs elsewhere.
func (c *talosctl) askMore() {
	for line, reason := range map[string]string{
		"inspect dependencies":        `unknown service inspect.InspectService`, // no controllers run
		"usage /var":                  `method DiskUsage not implemented`,       // there are no files to add up
		"copy /proc/cmdline -":        `method Copy not implemented`,            // likewise
		"netstat":                     `method Netstat not implemented`,         // no connections are counted
		"pcap -i ens18 --duration 1s": `method PacketCapture not implemented`,   // there are no packets
		"restart kube-system/nosuch":  `method Restart not implemented`,         // no program runs in a container
		"meta write 0x0a x":           `method MetaWrite not implemented`,       // META holds nothing
		"wipe disk sda":               `method BlockDeviceWipe not implemented`,
		"etcd downgrade validate 3.5": `method EtcdDowngradeValidate not implemented`,
		"health --wait-timeout 2s":    `unknown service cluster.ClusterService`, // see health --server=false
	} {
		c.fails(line, reason)
	}
}

// askEtcd asks about etcd.
func (c *talosctl) askEtcd(cp string) {
	c.ok("etcd members", `cp-1 +https://`+regexp.QuoteMeta(cp)+`:2380`)
	c.ok("etcd status", `MEMBER`, regexp.QuoteMeta(cp))
	c.ok("etcd alarm list")
	c.ok("etcd defrag")
	c.ok("etcd snapshot made/etcd.snapshot", `etcd snapshot saved to "made/etcd.snapshot"`, `snapshot info: hash [0-9a-f]{8}, revision \d{2,}, total keys \d{2,}`)
	c.fails("bootstrap --recover-from made/etcd.snapshot", `etcd data directory is not empty`)
	c.fails("etcd forfeit-leadership", `cannot forfeit leadership, only one member`)
	c.fails("etcd remove-member 1", `NotFound|not found`)
}

// changeConfig changes the machine config of a worker.
func (c *talosctl) changeConfig(wk string) {
	c.write("sysctl.patch", "machine:\n  sysctls:\n    net.core.somaxconn: \"65535\"\n")
	c.ok("patch mc -n "+wk+" --patch @sysctl.patch --dry-run", `Dry run summary`, `\+ .*net.core.somaxconn`)
	c.ok("patch mc -n "+wk+" --patch @sysctl.patch", `Applied configuration without a reboot`)
	c.ok("get mc -n "+wk+" -o yaml", `net.core.somaxconn`)
	c.ok("edit mc -n "+wk, `Apply was skipped: no changes detected`)
	c.ok("apply-config -n "+wk+" -f wk-1.yaml --dry-run", `- .*net.core.somaxconn`)
	c.ok("apply-config -n "+wk+" -f wk-1.yaml --mode no-reboot", `Applied configuration without a reboot`)
}

// upgrade brings a worker to another version over both APIs, and back.
func (c *talosctl) upgrade(cp, wk string) {
	ready := func(version string) {
		c.waitFor("version -n "+wk, `Tag: +`+regexp.QuoteMeta(version))
		c.ok("health --server=false --wait-timeout 2m --control-plane-nodes "+cp+" --worker-nodes "+wk, `waiting for all k8s nodes to report ready: OK`)
	}
	c.fails("rollback -n "+wk, `previous UKI not found`)
	c.fails("upgrade --progress plain --image ghcr.io/siderolabs/installer:v9.9.9 -n "+wk, `not found`)
	c.ok("upgrade --progress plain --image ghcr.io/siderolabs/installer:v1.13.10 --no-reboot -n " + wk)
	c.ok("version -n "+wk, `Tag: +v1.13.9`)
	c.ok("upgrade --progress plain --image ghcr.io/siderolabs/installer:v1.13.11 --timeout 2m -n " + wk)
	ready("v1.13.11")
	c.ok("rollback -n " + wk)
	ready("v1.13.10") // the one without a reboot took the place of the first
	c.ok("upgrade --progress plain --legacy --image ghcr.io/siderolabs/installer:v1.13.9 --timeout 2m -n " + wk)
	ready("v1.13.9")
}

// takeDown reboots, resets and shuts down.
func (c *talosctl) takeDown(cp, wk string) {
	c.ok("service kubelet restart -n "+wk, `Service "kubelet" restarted`)
	c.ok("reboot -n "+wk+" --timeout 2m", ``)
	c.ok("health --server=false --wait-timeout 2m --control-plane-nodes "+cp+" --worker-nodes "+wk, `waiting for all k8s nodes to report ready: OK`)
	c.ok("reset -n " + wk + " --graceful=false --reboot --wait=false --system-labels-to-wipe STATE --system-labels-to-wipe EPHEMERAL")
	c.waitFor("version --insecure -n "+wk, `Tag: +v1.13.9`)
	c.ok("shutdown --force --wait=false")
}
