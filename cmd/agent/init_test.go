package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/host/setup/wizard"
	"github.com/talos-agent/talos-agent/internal/lab/pvehost"
	"github.com/talos-agent/talos-agent/internal/lab/pvesh"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// fresh is a host as the installer of Proxmox VE leaves it, and its root.
type fresh struct {
	*pvehost.Bare
	dir string
	t   *testing.T
	// fault, if set, is asked before each change by pvesh: it may break it.
	fault  func(args []string) pveshFault
	pveshs [][]string // what was called, changes only
}

// pveshFault is how a call of pvesh goes wrong.
type pveshFault int

const (
	noFault   pveshFault = iota
	notDone              // it fails, and nothing was changed
	replyLost            // the change is made, and nobody hears of it
)

func newFresh(t *testing.T, flavour string) *fresh { return newFreshCluster(t, flavour)[0] }

// newFreshCluster are the hosts of a cluster of Proxmox VE; without names it is
// pve1, by itself.
func newFreshCluster(t *testing.T, flavour string, names ...string) []*fresh {
	t.Helper()
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Fatal(err)
	}
	h, err := pvehost.StartBare(pvehost.Config{Dir: t.TempDir(), Prefix: prefix, Flavour: flavour, Speed: 200}, "/bin/false", names...)
	if err != nil {
		release()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.Close()
		release()
	})
	hosts := []*fresh{{Bare: h, dir: h.Dir, t: t}}
	for i, name := range names {
		if i == 0 {
			continue
		}
		other, err := h.Join(name, t.TempDir(), "/bin/false")
		must(err)
		hosts = append(hosts, &fresh{Bare: other, dir: other.Dir, t: t})
	}
	return hosts
}

// run is pvesh in this process.
func (h *fresh) run(ctx context.Context, name string, args ...string) ([]byte, error) {
	if _, err := os.Stat(h.dir + "/etc/systemd/system/" + setup.UnitName); err == nil && name == "systemctl" {
		return nil, nil
	}
	if filepath.Base(name) != "pvesh" {
		return nil, fmt.Errorf("%s was run below another root", name)
	}
	fault := noFault
	if args[0] != "get" {
		h.pveshs = append(h.pveshs, args)
		if h.fault != nil {
			fault = h.fault(args)
		}
	}
	if fault == notDone {
		return nil, errors.New("broken before")
	}
	var out, said bytes.Buffer
	err := pvesh.Run(ctx, &out, &said, h.Access, args)
	if err != nil {
		err = errors.Join(err, errors.New(said.String()))
	}
	if fault == replyLost {
		err = errors.New("broken after")
	}
	return out.Bytes(), err
}

// initAnswer is what a run of init said.
type initAnswer struct {
	out, errOut string
	err         error
}

func (a initAnswer) String() string { return fmt.Sprintf("%v\n%s\n%s", a.err, a.out, a.errOut) }

// init runs init on the host, with what the lab has it told and the arguments.
func (h *fresh) init(ctx context.Context, args ...string) initAnswer {
	h.t.Helper()
	return h.bare(ctx, append(h.InitFlags(), args...)...)
}

// bare runs init with the arguments only.
func (h *fresh) bare(ctx context.Context, args ...string) initAnswer {
	h.t.Helper()
	var out, errOut bytes.Buffer
	env := &environment{stdin: strings.NewReader(""), stdout: &out, stderr: &errOut}
	cmd := newInitWith(env, h.run)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{"--root", h.dir}, args...))
	err := cmd.ExecuteContext(ctx)
	return initAnswer{out.String(), errOut.String(), err}
}

// done runs init, which must succeed.
func (h *fresh) done(args ...string) initAnswer {
	h.t.Helper()
	a := h.init(h.t.Context(), append([]string{"--yes"}, args...)...)
	if a.err != nil {
		h.t.Fatal(a)
	}
	return a
}

// state is the host as it is: what Proxmox VE says, and the files. Secrets, and
// what names them, are shown as being there.
func (h *fresh) state() string {
	h.t.Helper()
	var b strings.Builder
	b.WriteString(h.says("/pools", "/access/roles", "/access/users --full 1", "/access/acl", "/storage"))
	for _, path := range setup.Files() {
		info, err := os.Stat(h.dir + path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		fmt.Fprintf(&b, "%s %s\n", path, info.Mode())
	}
	return b.String()
}

// says is what Proxmox VE has at paths.
func (h *fresh) says(paths ...string) string {
	h.t.Helper()
	var b strings.Builder
	for _, path := range paths {
		text, err := h.run(h.t.Context(), "pvesh", append([]string{"get"}, append(strings.Fields(path), "--output-format", "json")...)...)
		if err != nil {
			h.t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

// file is what a file of the host holds.
func (h *fresh) file(path string) string {
	h.t.Helper()
	text, err := os.ReadFile(h.dir + path)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

// TestInitConverges: whatever step is cut off, before or after its deed, a second
// run finishes, a third finds nothing to do, and the host is the same as one on
// which nothing went wrong.
func TestInitConverges(t *testing.T) {
	good := newFresh(t, "9.2")
	good.done()
	want := good.state()
	calls := good.pveshs
	if len(calls) < 10 {
		t.Fatalf("only %d calls of pvesh", len(calls))
	}
	for n := 0; n < len(calls); n += daemontest.Thinner {
		for name, fault := range map[string]pveshFault{"not done": notDone, "reply lost": replyLost} {
			t.Run(fmt.Sprintf("%02d %s", n, name), func(t *testing.T) {
				h := newFresh(t, "9.2")
				h.fault = func([]string) pveshFault {
					if len(h.pveshs) == n+1 {
						return fault
					}
					return noFault
				}
				if a := h.init(t.Context(), "--yes"); a.err == nil || !strings.Contains(a.err.Error(), "broken") {
					t.Fatalf("the fault was not told: %v", a)
				}
				h.fault = nil
				h.finishes(want)
			})
		}
	}
}

// TestInitRemembers: what a person has given is on the host before Proxmox VE is
// changed, so that a run that is interrupted there goes on without being told again.
func TestInitRemembers(t *testing.T) {
	good := newFresh(t, "9.2")
	good.done()
	h := newFresh(t, "9.2")
	h.fault = func([]string) pveshFault { return notDone }
	if a := h.init(t.Context(), "--yes"); a.err == nil {
		t.Fatalf("the fault was not told: %v", a)
	}
	h.fault = nil
	if a := h.bare(t.Context(), "--yes"); a.err != nil {
		t.Fatalf("without the flags: %v", a)
	}
	if got, want := h.state(), good.state(); got != want {
		t.Errorf("the host is\n%s\nand should be\n%s", got, want)
	}
}

// finishes runs init again, and once more.
func (h *fresh) finishes(want string) {
	h.t.Helper()
	h.done()
	if got := h.state(); got != want {
		h.t.Errorf("the host is\n%s\nand should be\n%s", got, want)
	}
	before := len(h.pveshs)
	if a := h.done(); !strings.Contains(a.out, "nothing to do") || len(h.pveshs) != before {
		h.t.Errorf("a third run finds something to do: %v", a)
	}
	h.works()
}

// TestInitStopped: stopped by a signal behind any step, it goes on from there.
func TestInitStopped(t *testing.T) {
	good := newFresh(t, "9.2")
	steps := strings.Count(good.done().out, "done: ")
	want := good.state()
	for n := 1; n < steps; n += daemontest.Thinner {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newFresh(t, "9.2")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			h.stopAfter(ctx, cancel, n)
			h.finishes(want)
		})
	}
}

// stopAfter runs init and stops it behind its nth step.
func (h *fresh) stopAfter(ctx context.Context, stop func(), n int) {
	h.t.Helper()
	out := &lines{after: n, what: "done: ", do: stop}
	cmd := newInitWith(&environment{stdin: strings.NewReader(""), stdout: out, stderr: out}, h.run)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append(h.InitFlags(), "--root", h.dir, "--yes"))
	if err := cmd.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		h.t.Fatalf("%v\n%s", err, out.text.String())
	}
}

// lines does something behind the nth line that begins with a word.
type lines struct {
	text  bytes.Buffer
	after int
	what  string
	do    func()
}

func (l *lines) Write(p []byte) (int, error) {
	if l.text.Write(p); strings.HasPrefix(string(p), l.what) {
		if l.after--; l.after == 0 {
			l.do()
		}
	}
	return len(p), nil
}

// works holds the agent's token, as it is stored, against what the agent needs.
func (h *fresh) works() { h.worksIn("talos", "pve1") }

// worksIn does so for a pool and the hosts there are.
func (h *fresh) worksIn(pool string, hosts ...string) {
	h.t.Helper()
	token := strings.TrimSpace(h.file(setup.Credential(setup.ProxmoxToken)))
	a := administrator{t: h.t, lab: h.Lab, token: token}
	have := a.permissions()
	for _, g := range setup.Grants(setup.Scope{Pool: pool, Datastores: []string{"local", "local-lvm"}, Images: "local", Bridges: []string{"vmbr0"}, Hosts: hosts}) {
		role, _ := setup.RoleNamed(g.Role)
		for _, p := range role.Names() {
			if _, ok := have[g.Path][p]; !ok {
				h.t.Errorf("the token has no %s at %s: it has %v", p, g.Path, slices.Sorted(maps.Keys(have[g.Path])))
			}
		}
	}
	s, problems := config.LoadFrom(h.dir+setup.ConfigFile, config.FromStore(h.dir+setup.CredentialDir))
	if len(problems) > 0 || s.Proxmox.Token.RevealString() != token {
		h.t.Errorf("the agent cannot work with its config: %v", problems)
	}
}

// certificate puts a certificate in the place of Proxmox VE's own, as an upload
// or ACME does.
func (h *fresh) certificate(names ...string) []byte {
	h.t.Helper()
	dir := filepath.Join(h.dir, "etc/pve/nodes/pve1")
	must(os.MkdirAll(dir, 0o755))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: names, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	must(err)
	hosttest.Write(h.t, filepath.Join(dir, "pveproxy-ssl.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), 0o640)
	return der
}

// TestInitWithAnotherCertificate: where Proxmox VE shows one that its own
// authority has not signed, the agent is told its fingerprint.
func TestInitWithAnotherCertificate(t *testing.T) {
	h := newFresh(t, "8.4")
	fingerprint := sha256Of(h.certificate("pve1.example.org"))
	h.done()
	s, problems := config.LoadFrom(h.dir+setup.ConfigFile, config.FromStore(h.dir+setup.CredentialDir))
	if len(problems) > 0 || s.Proxmox.Fingerprint != fingerprint || s.Proxmox.CA != nil {
		t.Errorf("%v %q", problems, s.Proxmox.Fingerprint)
	}
	if a := h.done(); !strings.Contains(a.out, "nothing to do") {
		t.Errorf("a second run finds something to do: %v", a)
	}
	// It is renewed, then taken away again; then somebody says what counts.
	load := func() config.Settings {
		s, problems := config.LoadFrom(h.dir+setup.ConfigFile, config.FromStore(h.dir+setup.CredentialDir))
		if len(problems) > 0 {
			t.Error(problems)
		}
		return s
	}
	fingerprint = sha256Of(h.certificate("pve1.example.org"))
	if h.done(); load().Proxmox.Fingerprint != fingerprint {
		t.Errorf("renewed: %q", load().Proxmox.Fingerprint)
	}
	must(os.Remove(filepath.Join(h.dir, "etc/pve/nodes/pve1/pveproxy-ssl.pem")))
	if h.done(); load().Proxmox.Fingerprint != "" || load().Proxmox.CA == nil {
		t.Errorf("taken away: %q", load().Proxmox.Fingerprint)
	}
	said := strings.Repeat("AB:", 31) + "AB"
	h.done("--fingerprint", said)
	h.certificate("pve1.example.org")
	if h.done(); load().Proxmox.Fingerprint != said {
		t.Errorf("said: %q", load().Proxmox.Fingerprint)
	}
}

// TestInitRefuses: what is not right is told before anything is changed.
func TestInitRefuses(t *testing.T) {
	h := newFresh(t, "9.2")
	before := h.state()
	for want, args := range map[string][]string{
		"--bridge: there is no bridge vmbr9 on pve1 (there is vmbr0, vmbr1)":           {"--bridge", "vmbr9"},
		"--datastore: storage local takes no disks of VMs":                             {"--datastore", "local"},
		"--vmids \"7\": write ranges of VMIDs from 100 on":                             {"--vmids", "7"},
		"policy.yaml (as it would be written):":                                        {"--limit-ram", "64"},
		"config.yaml (as it would be written):":                                        {"--proxmox-url", "http://127.0.0.1:8006"},
		"--repository: url: holds a password; it would show up in logs":                {"--repository", "https://me:c4n4ry@example.org/a"},
		"--known-host: is not what known_hosts has":                                    {"--known-host", "nonsense"},
		"--known-hosts-file: has no key for other.example.org:22":                      {"--repository", "git@other.example.org:infra.git"},
		"--forge needs --forge-repository":                                             {"--forge-repository", ""},
		"--output json goes with --dry-run":                                            {"-o", "json"},
		"--repository and --directory exclude each other":                              {"--directory", "/srv/infra"},
		"--ssh-key: " + h.dir + "/forge.token: is not a private key":                   {"--ssh-key", h.dir + "/forge.token"},
		"--ca-file: " + h.dir + "/authorized_keys: holds no certificate":               {"--ca-file", h.dir + "/authorized_keys"},
		"--git-token-file: " + h.dir + "/authorized_keys: is empty":                    {"--git-token-file", h.dir + "/authorized_keys"},
		"--image-datastore: storage local-lvm is of type lvmthin and cannot hold imag": {"--image-datastore", "local-lvm"},
	} {
		a := h.init(t.Context(), append([]string{"--yes"}, args...)...)
		if a.err == nil || !strings.Contains(a.err.Error(), want) || strings.Contains(a.String(), "c4n4ry") {
			t.Errorf("%v: %v\nwant %s", args, a, want)
		}
	}
	unnamed := h.init(t.Context(), "--yes", "--repository", "")
	if unnamed.err == nil || !strings.HasSuffix(unnamed.err.Error(), "so:\n--repository: which repository is to be followed? (use --repository ssh://git@git.example.org/infra.git)") {
		t.Errorf("without a repository: %v", unnamed)
	}
	if a := h.init(t.Context()); a.err == nil || exitCode(a.err) != exitUsage || !strings.Contains(fault.HintOf(a.err), "use --yes") {
		t.Errorf("with nobody to ask: %v", a)
	}
	if h.state() != before || len(h.pveshs) > 0 {
		t.Errorf("something was changed: %v", h.pveshs)
	}
}

// TestInitLeavesStoragesAlone: the content types of a storage are not changed
// against somebody's will, and it is said what follows.
func TestInitLeavesStoragesAlone(t *testing.T) {
	h := newFresh(t, "9.2")
	a := h.done("--no-import")
	if !strings.Contains(a.out, "storage local does not take images to import, and is left so: no VM can be made from a disk image until `pvesh set /storage/local --content iso,vztmpl,backup,import`") {
		t.Errorf("%v", a)
	}
	if got := (administrator{t: t, lab: h.Lab, token: h.PVE.AdminToken()}).storages(); !slices.Contains(got, "local: iso,vztmpl,backup") {
		t.Errorf("%v", got)
	}
	if a := h.done(); !strings.Contains(a.out, "done: let storage local hold images") {
		t.Errorf("changed its mind: %v", a)
	}
}

// TestInitDryRun: the steps are told exactly as they are taken then, and nothing
// is changed.
func TestInitDryRun(t *testing.T) {
	h := newFresh(t, "9.2")
	before := h.state()
	a := h.init(t.Context(), "--dry-run", "-o", "json")
	var told struct {
		Kind string
		Data struct {
			Steps []wizard.StepView
			Notes []string
		}
	}
	if a.err != nil || json.Unmarshal([]byte(a.out), &told) != nil || told.Kind != "InitPlan" {
		t.Fatal(a)
	}
	if h.state() != before || len(h.pveshs) > 0 {
		t.Errorf("something was changed: %v", h.pveshs)
	}
	h.showsTheSame(told.Data.Steps)
	h.done()
	var calls [][]string
	for _, s := range told.Data.Steps {
		if s.Pvesh != nil {
			calls = append(calls, append(s.Pvesh, "--output-format", "json"))
		}
		if s.File != "" {
			if info, err := os.Stat(h.dir + s.File); err != nil || fmt.Sprintf("%04o", info.Mode()) != s.Mode {
				t.Errorf("%s: %v, and not %s (%v)", s.File, info.Mode(), s.Mode, err)
			}
		}
	}
	if !slices.EqualFunc(calls, h.pveshs, slices.Equal[[]string]) {
		t.Errorf("told\n%v\ndone\n%v", calls, h.pveshs)
	}
}

// showsTheSame holds the steps that a page shows against those that are told.
func (h *fresh) showsTheSame(told []wizard.StepView) {
	h.t.Helper()
	shown := 0
	for _, p := range readPages(h.t) {
		for _, b := range p.blocks {
			if b.language != "json" || !strings.Contains(b.text, `"InitPlan"`) {
				continue
			}
			var page struct {
				Data struct{ Steps []wizard.StepView }
			}
			must(json.Unmarshal([]byte(b.text), &page))
			for _, s := range page.Data.Steps {
				shown++
				if !slices.ContainsFunc(told, func(o wizard.StepView) bool { return reflect.DeepEqual(s, o) }) {
					h.t.Errorf("%s: %+v is none of the steps", b.at(), s)
				}
			}
		}
	}
	if shown < 3 {
		h.t.Errorf("pages show only %d steps", shown)
	}
}

// sha256Of is a certificate's fingerprint as Proxmox VE shows it.
func sha256Of(der []byte) string {
	return strings.ToUpper(strings.ReplaceAll(fmt.Sprintf("% x", sha256.Sum256(der)), " ", ":"))
}
