package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// The tests of the daemon run the real program as processes of its own, over
// real sockets and files, against a lab on loopback. Nothing is timed: they wait
// for what must happen, and daemonPatience only ends a test that hangs.
const daemonPatience = 2 * time.Minute

// rigKeys open the clusters of all rigs. They are not the simulation's, which may
// have been made in a bubble, where it is the year 2000.
var rigKeys = sync.OnceValue(func() *keyring { return newKeyring("") })

// keyring is what opens a cluster, from an age key on.
type keyring struct {
	ageKey    []byte
	plain     []byte // secrets.sops.yaml, decrypted
	encrypted []byte
}

// newKeyring makes keys; more is laid behind the Talos bundle.
func newKeyring(more string) *keyring {
	id, err := age.GenerateX25519Identity()
	must(err)
	k := &keyring{ageKey: []byte(id.String() + "\n")}
	k.plain, err = machineconfig.NewBundle("v1.13", time.Now())
	must(err)
	k.plain = append(k.plain, more...)
	k.encrypted, err = secrets.Encrypt(k.plain, []string{id.Recipient().String()})
	must(err)
	return k
}

// rig is a make-believe host with a daemon of its own.
type rig struct {
	t    *testing.T
	lab  *lab.Lab
	keys *keyring
	base string // of the lab's addresses, "127.84.7."
	dir  string // of the host's files
	work string // a person's

	// config is config.yaml by its keys; write puts it there.
	config map[string]any

	log  *output // of all daemons there were
	proc *daemonProcess
	env  []string
	// before is what a shell does in a mount namespace of the daemon's own before
	// it becomes the daemon; "": there is no such namespace.
	before string
}

// newRig starts a lab and writes the files of a host, for a daemon that start
// starts.
func newRig(t *testing.T, c lab.Config) *rig {
	t.Helper()
	t.Parallel()
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Fatal(err)
	}
	c.Prefix = prefix
	if c.Speed == 0 {
		c.Speed = 200
	}
	l, err := lab.Start(c)
	if err != nil {
		release()
		t.Fatal(err)
	}
	r := &rig{t: t, lab: l, keys: rigKeys(), dir: t.TempDir(), work: t.TempDir(), log: &output{}}
	base := prefix.Addr().As4()
	r.base = netip.AddrFrom4([4]byte{base[0], base[1], base[2], 0}).String()
	r.base = r.base[:len(r.base)-1]
	t.Cleanup(func() {
		r.kill()
		r.private()
		l.Close()
		release()
		if err := l.Broken(); err != nil {
			t.Errorf("broken law: %v", err)
		}
		if t.Failed() || testing.Verbose() {
			t.Logf("log of the daemon:\n%s", r.log)
		}
	})
	r.config = map[string]any{
		"owner":        "rig",
		"repository":   map[string]any{"url": l.Repo.URL(), "token_file": "git.token", "interval": "1h"},
		"clusters":     []string{"dev"},
		"age_key_file": "age.key",
		"proxmox":      map[string]any{"url": l.PVE.URL(), "token_file": "proxmox.token", "ca_file": "ca.pem"},
		"forge":        map[string]any{"kind": "github", "url": l.Forge.URL(), "repository": lab.Repository, "token_file": "forge.token"},
		"mirrors":      map[string]any{"factory": l.Factory.URL(), "charts": map[string]any{"https://helm.cilium.io": l.Charts.URL()}},
		"ca_file":      "ca.pem",
		"socket":       r.socket(),
		"state_dir":    filepath.Join(r.dir, "state"),
		"cache_dir":    filepath.Join(r.dir, "cache"),
	}
	r.file("policy.yaml", "pool: talos\nvmids: [400-599]\nbridges: [vmbr1]\n")
	r.file("age.key", string(r.keys.ageKey))
	r.file("proxmox.token", l.Token)
	r.file("git.token", lab.GitToken)
	r.file("forge.token", lab.ForgeToken)
	r.file("ca.pem", string(l.CA()))
	r.write()
	return r
}

// private makes sure that whatever the daemon has written is for its user only.
func (r *rig) private() {
	for _, dir := range []string{"state", "cache"} {
		err := filepath.WalkDir(filepath.Join(r.dir, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err == nil && info.Mode().Perm()&0o077 != 0 {
				r.t.Errorf("%s has mode %v", path, info.Mode())
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.t.Error(err)
		}
	}
}

func (r *rig) socket() string { return filepath.Join(r.dir, "agent.sock") }

// file writes one of the host's files, as an editor does: beside it, then in
// its place.
func (r *rig) file(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	must(os.WriteFile(path+".new", []byte(text), 0o600))
	must(os.Rename(path+".new", path))
}

// write writes config.yaml. JSON is YAML.
func (r *rig) write() {
	r.t.Helper()
	b, err := json.MarshalIndent(r.config, "", "  ")
	must(err)
	r.file("config.yaml", string(b))
}

// repository sets keys of the config's repository; nil removes one.
func (r *rig) repository(keys map[string]any) {
	block := r.config["repository"].(map[string]any)
	for k, v := range keys {
		if v == nil {
			delete(block, k)
			continue
		}
		block[k] = v
	}
	r.write()
}

// inventory is a cluster of one control plane and some workers, with Talos' own
// network.
func (r *rig) inventory(workers int) map[string][]byte {
	nodes := fmt.Sprintf("controlplane:\n  - {name: dev-cp-1, ip: %s11}\nworkers:\n", r.base)
	for i := range workers {
		nodes += fmt.Sprintf("  - {name: dev-wk-%d, ip: %s%d}\n", i+1, r.base, 21+i)
	}
	if workers == 0 {
		nodes = strings.TrimSuffix(nodes, "workers:\n")
	}
	return map[string][]byte{
		"inventory/dev/cluster.yaml": fmt.Appendf(nil, `cluster_name: dev
talos_version: v1.13.9
kubernetes_version: v1.36.1
network: {cidr: %s0/24, gateway: %s1}
proxmox: {node: pve1, bridge: vmbr1}
`, r.base, r.base),
		"inventory/dev/nodes.yaml":        []byte(nodes),
		"inventory/dev/secrets.sops.yaml": r.keys.encrypted,
	}
}

// push commits files to the branch and returns the commit.
func (r *rig) push(files map[string][]byte) string {
	r.t.Helper()
	hash, err := r.lab.Repo.Commit("main", files, "a change")
	must(err)
	return hash
}

// start starts a daemon and waits until it answers.
func (r *rig) start() {
	r.t.Helper()
	r.launch()
	r.until("the daemon answers", func() bool {
		if r.proc.over() {
			r.t.Fatalf("the daemon ended: %s", r.log)
		}
		// That of all clusters is a list of none while no agent runs.
		a := r.try("status", "dev")
		return a.code == exitOK || a.code == exitReconciling || a.code == exitStalled || a.has("no such cluster")
	})
}

// launch starts a daemon.
func (r *rig) launch() {
	r.t.Helper()
	// Whoever starts a daemon may have the umask that forbids nothing.
	args := []string{"sh", "-c", r.before + `umask 0 && exec talos-agent run --config "$1"`, "sh", filepath.Join(r.dir, "config.yaml")}
	if r.before != "" {
		args = append([]string{"unshare", "--mount"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}, r.env...)
	cmd.Stderr, cmd.Stdout = r.log, r.log
	must(cmd.Start())
	p := &daemonProcess{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	r.proc = p
}

// daemonProcess is a program that runs.
type daemonProcess struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error
}

func (p *daemonProcess) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end waits for the end of a process and returns its exit code. That it comes
// soon is TestEveryStop's to say, whose time is virtual.
func (p *daemonProcess) end(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(daemonPatience):
		_ = p.cmd.Process.Kill()
		<-p.done
		t.Errorf("%v does not end", p.cmd.Args)
	}
	return p.cmd.ProcessState.ExitCode()
}

// kill ends the daemon as a power cut does.
func (r *rig) kill() {
	if r.proc != nil {
		_ = r.proc.cmd.Process.Kill() // which may have ended by itself
		<-r.proc.done
		r.proc = nil
	}
}

// stop ends the daemon as systemd does, and returns its exit code.
func (r *rig) stop() int {
	r.t.Helper()
	r.signal(syscall.SIGTERM)
	p := r.proc
	r.proc = nil
	return p.end(r.t)
}

func (r *rig) signal(s os.Signal) {
	r.t.Helper()
	must(r.proc.cmd.Process.Signal(s))
}

// answer is what a command said.
type answer struct {
	args        []string
	out, errOut string
	code        int
}

func (a answer) has(text string) bool { return strings.Contains(a.out+a.errOut, text) }

func (a answer) String() string {
	return fmt.Sprintf("talos-agent %s: exit code %d\n%s%s", strings.Join(a.args, " "), a.code, a.out, a.errOut)
}

// try runs a command against the daemon. It is no program of its own, as what people
// type is in the scripts: to start one takes a hundred times what the command does, and
// tests wait by it.
func (r *rig) try(args ...string) answer {
	r.t.Helper()
	if args[0] == "doctor" || args[0] == "support-bundle" {
		return r.as(nil, args...) // what they read opens clusters: they change their process for good
	}
	a := answer{args: args}
	var out, errOut bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(&environment{stdin: strings.NewReader(""), stdout: &out, stderr: &errOut}, append([]string{"--socket", r.socket()}, args...))
	}()
	select {
	case a.code = <-ended:
	case <-time.After(daemonPatience):
		r.t.Fatalf("talos-agent %v does not end", args)
	}
	a.out, a.errOut = out.String(), errOut.String()
	return a
}

// as runs a command as a program of its own, of another user where cred is set.
func (r *rig) as(cred *syscall.Credential, args ...string) answer {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), daemonPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "talos-agent", append([]string{"--socket", r.socket()}, args...)...)
	cmd.Dir = r.work
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if ctx.Err() != nil {
		r.t.Fatalf("talos-agent %v does not end", args)
	}
	a := answer{args: args, out: out.String(), errOut: errOut.String()}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		a.code = exit.ExitCode()
	} else {
		must(err)
	}
	return a
}

// run runs a command that must end with a code and say all of the texts.
func (r *rig) run(code int, args []string, texts ...string) answer {
	r.t.Helper()
	a := r.try(args...)
	if a.code != code {
		r.t.Fatalf("want exit code %d of %v", code, a)
	}
	for _, text := range texts {
		if !a.has(text) {
			r.t.Fatalf("want %q of %v", text, a)
		}
	}
	return a
}

func do(args ...string) []string { return args }

// status is the status of the cluster dev, as JSON.
func (r *rig) status() cluster.Status {
	r.t.Helper()
	return r.statusOf("dev")
}

// statusOf is the status of a cluster, as the command says it in JSON.
func (r *rig) statusOf(name string) cluster.Status {
	r.t.Helper()
	a := r.try("status", name, "--output", "json")
	var list struct {
		Kind string
		Data []cluster.Status
	}
	if err := json.Unmarshal([]byte(a.out), &list); err != nil || len(list.Data) != 1 {
		return cluster.Status{Message: a.String()}
	}
	return list.Data[0]
}

// until waits for something to become true.
func (r *rig) until(what string, holds func() bool) {
	r.t.Helper()
	if !soon(holds) {
		r.t.Fatalf("never: %s\n%s\nlab: %s", what, r.try("status"), r.story())
	}
}

// soon waits for something to become true, and reports whether it did.
func soon(holds func() bool) bool {
	for end := time.Now().Add(daemonPatience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// untilReady waits for Ready at a commit.
func (r *rig) untilReady(commit string) cluster.Status {
	r.t.Helper()
	var s cluster.Status
	r.until("Ready at "+commit, func() bool {
		s = r.status()
		return s.Condition == cluster.Ready && s.Applied == s.Revision && (commit == "" || s.Revision.Commit() == commit)
	})
	return s
}

// untilStalled waits until a person must act.
func (r *rig) untilStalled(because string) cluster.Status {
	r.t.Helper()
	var s cluster.Status
	r.until("Stalled because "+because, func() bool {
		s = r.status()
		return s.Condition == cluster.Stalled && strings.Contains(s.Message, because)
	})
	return s
}

// vms are the VMs of the host by name: what must be the same when a cluster is
// made again.
func (r *rig) vms() map[string]string {
	out := map[string]string{}
	for _, vm := range r.lab.PVE.VMs() {
		out[vm.Name] = fmt.Sprint(vm.VMID, " ", vm.Config["net0"], " ", vm.Config["ipconfig0"], " ", vm.Config["smbios1"])
	}
	return out
}

// calls counts calls to the lab by what they are, as far as keep says.
func (r *rig) calls(keep func(world.CallRecord) bool) map[string]int {
	n := map[string]int{}
	for _, c := range r.lab.World.Calls() {
		if keep(c) {
			n[strings.TrimSpace(c.System+" "+c.Op+" "+c.Subject)]++
		}
	}
	return n
}

func (r *rig) story() string {
	all := r.lab.World.Events()
	var b strings.Builder
	for _, e := range all[max(0, len(all)-20):] {
		fmt.Fprintf(&b, "\n  %s: %s", e.Subject, e.Text)
	}
	return b.String()
}

// told waits until the forge was told a state for a commit.
func (r *rig) told(commit, state string) {
	r.t.Helper()
	r.until("the forge is told "+state+" for "+commit, func() bool {
		s, ok := r.lab.Forge.Latest(commit, "talos-agent/dev")
		return ok && s.State == state
	})
}

// output is what processes wrote, while they still write.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func (o *output) has(text string) bool { return strings.Contains(o.String(), text) }

// with lays files over others.
func with(files map[string][]byte, more ...string) map[string][]byte {
	out := map[string][]byte{}
	for k, v := range files {
		out[k] = v
	}
	for pair := range slices.Chunk(more, 2) {
		out[pair[0]] = []byte(pair[1])
	}
	return out
}
