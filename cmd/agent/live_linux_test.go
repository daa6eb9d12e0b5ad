package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/pvehost"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// live is the real program in a process of its own, against a lab on loopback
// in this one: what is measured of the process is the agent's alone.
type live struct {
	t      *testing.T
	lab    *lab.Lab
	dir    string
	net    string // the first two parts of the lab's addresses, "127.100"
	client *api.Client
	agent  *process // nil: none runs
}

// newLive starts a lab whose repository is empty yet.
func newLive(t *testing.T, c lab.Config) *live {
	t.Helper()
	prefix, release, err := world.FreeLargePrefix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	// Unix sockets have short names.
	dir, err := os.MkdirTemp("", "figures-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c.Prefix, c.Hosts = prefix, []pve.Host{roomy()}
	l, err := lab.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	h := &live{t: t, lab: l, dir: dir, client: api.NewClient(filepath.Join(dir, "agent.sock"))}
	a := prefix.Addr().As4()
	h.net = fmt.Sprintf("%d.%d", a[0], a[1])
	if _, err := pvehost.WriteFiles(l, dir, daemontest.Keys().AgeKey, []string{"dev"}); err != nil {
		t.Fatal(err)
	}
	h.edit("config.yaml", "interval: 10s", "interval: 5s", "  charts:\n", "  charts:\n    https://charts.example.org: "+l.Charts.URL()+"\n")
	h.edit("config.yaml", "age_key_file:", "metrics: {listen: \""+h.metricsAddress()+"\"}\nage_key_file:")
	h.edit("policy.yaml", "nodes: 20, cores: 128, ram: 512GiB, disk: 4TiB", "nodes: 2000, cores: 8000, ram: 32TiB, disk: 128TiB")
	t.Cleanup(func() {
		if h.agent != nil {
			h.kill()
		}
		if err := l.Broken(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// metricsAddress is where the agent gives its metrics.
func (h *live) metricsAddress() string { return h.net + ".200.1:9477" }

// scrape reads the agent's metrics.
func (h *live) scrape() map[string]float64 {
	h.t.Helper()
	res, err := http.Get("http://" + h.metricsAddress() + "/metrics")
	if err != nil {
		h.t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		h.t.Fatal(err)
	}
	return series(h.t, b)
}

// roomy is a host that has room for 1,000 nodes.
func roomy() pve.Host {
	storages := pve.InstalledStorages()
	storages[0].Content = append(storages[0].Content, "import")
	for i := range storages {
		storages[i].TotalBytes = 128 << 40
	}
	return pve.Host{MemoryBytes: 16 << 40, Storages: storages}
}

// edit replaces texts, given in pairs, in one of the host's files.
func (h *live) edit(name string, pairs ...string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		if !bytes.Contains(b, []byte(pairs[i])) {
			h.t.Fatalf("%s has no %q", name, pairs[i])
		}
	}
	if err := os.WriteFile(path, []byte(strings.NewReplacer(pairs...).Replace(string(b))), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// push commits a cluster of that size, at the lab's addresses.
func (h *live) push(sz size) { h.pushFiles(sz.Files(), sz.String()) }

// pushFiles commits files, at the lab's addresses.
func (h *live) pushFiles(files map[string][]byte, message string) {
	h.t.Helper()
	for name, b := range files {
		if !strings.HasSuffix(name, ".sops.yaml") {
			files[name] = bytes.ReplaceAll(b, []byte("10.10."), []byte(h.net+"."))
		}
	}
	if _, err := h.lab.Repo.Commit("main", files, message); err != nil {
		h.t.Fatal(err)
	}
}

// grow brings a cluster up to a size.
func (h *live) grow(sz size) {
	h.t.Helper()
	for workers := min(sz.Workers, atOnce-sz.ControlPlanes); ; workers = min(sz.Workers, workers+atOnce) {
		h.push(size{ControlPlanes: sz.ControlPlanes, Workers: workers})
		h.look()
		h.untilReady(10*time.Minute, 500*time.Millisecond)
		if workers == sz.Workers {
			return
		}
	}
}

// look has the daemon look now.
func (h *live) look() {
	h.t.Helper()
	if err := h.client.Reconcile(h.t.Context(), "dev"); err != nil {
		h.t.Fatalf("have the daemon look: %v\n%s", err, h.agent.out)
	}
}

// process is one life of the program.
type process struct {
	cmd   *exec.Cmd
	ended chan error
	out   *bytes.Buffer
	ready time.Duration // from exec to READY=1
}

// command is the program with arguments.
func command(args ...string) (*exec.Cmd, error) {
	path := *program
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		path = self
	}
	// The test's own binary is talos-agent when it is called so.
	return &exec.Cmd{Path: path, Args: append([]string{"talos-agent"}, args...), Env: []string{}}, nil
}

// start runs the daemon and waits until it tells systemd that it is ready.
func (h *live) start() *process {
	h.t.Helper()
	notify := filepath.Join(h.dir, "notify")
	_ = os.Remove(notify)
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = systemd.Close() }()
	cmd, err := command("run", "--config", filepath.Join(h.dir, "config.yaml"))
	if err != nil {
		h.t.Fatal(err)
	}
	p := &process{cmd: cmd, ended: make(chan error, 1), out: &bytes.Buffer{}}
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+notify)
	cmd.Stdout, cmd.Stderr = p.out, p.out
	if err := systemd.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		h.t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		p.ended <- cmd.Wait()
		_ = systemd.SetReadDeadline(time.Now()) // nobody will write any more
	}()
	buf := make([]byte, 4096)
	for {
		n, err := systemd.Read(buf)
		if err != nil {
			_ = cmd.Process.Kill()
			h.t.Fatalf("the agent does not become ready: %v; it ended with %v\n%s", err, <-p.ended, p.out)
		}
		if strings.Contains(string(buf[:n]), "READY=1") {
			p.ready = time.Since(began)
			h.agent = p
			return p
		}
	}
}

// kill ends the agent as a power cut would.
func (h *live) kill() { h.end(syscall.SIGKILL) }

// stop ends the agent as systemd does.
func (h *live) stop() { h.end(syscall.SIGTERM) }

func (h *live) end(sig syscall.Signal) {
	h.t.Helper()
	p := h.agent
	h.agent = nil
	if err := p.cmd.Process.Signal(sig); err != nil {
		h.t.Fatalf("the agent has ended already: %v\n%s", err, p.out)
	}
	err := <-p.ended
	var exit *exec.ExitError
	if sig == syscall.SIGTERM && err != nil || sig == syscall.SIGKILL && !errors.As(err, &exit) {
		h.t.Errorf("the agent ended with %v\n%s", err, p.out)
	}
}

// untilReady waits until the cluster is Ready at the pushed commit.
func (h *live) untilReady(within, every time.Duration) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), within)
	defer cancel()
	head, err := h.lab.Repo.Head("main")
	if err != nil {
		h.t.Fatal(err)
	}
	var last cluster.Status
	err = waitUntil(ctx, every, func() (bool, error) {
		s, err := h.client.Status(ctx, "dev")
		var refused *api.Error
		if errors.As(err, &refused) {
			return false, nil // it has not read the repository yet
		}
		last = s
		return s.Condition == cluster.Ready && s.Revision == s.Applied && s.Revision.Commit() == head, err
	})
	if err != nil {
		h.t.Fatalf("not Ready: %v\n%s\n%s", err, describe(last), h.agent.out)
	}
}

// cpu is the processor time the process has used so far, to the nanosecond.
func (p *process) cpu() (time.Duration, error) {
	// The clock of another process: clock_getcpuclockid(3).
	const scheduled = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|scheduled), &ts); err != nil {
		return 0, fmt.Errorf("read the processor time of the agent: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// anonymous is the process's resident memory that is not a file's, in bytes.
func (p *process) anonymous() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, io.ErrUnexpectedEOF
}
