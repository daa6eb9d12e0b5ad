package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/setup"
)

// fresh is a host as the installer of Proxmox VE leaves it, and its root.
type fresh struct {
	*bareHost
	t *testing.T
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

func newFresh(t *testing.T, flavour string) *fresh {
	t.Helper()
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Fatal(err)
	}
	h, err := startBareLab(t.TempDir(), "/bin/false", prefix.String(), flavour, 200)
	if err != nil {
		release()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.Close()
		release()
	})
	return &fresh{bareHost: h, t: t}
}

// run is pvesh in this process.
func (h *fresh) run(ctx context.Context, name string, args ...string) ([]byte, error) {
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
	err := standIn(ctx, &environment{stdin: strings.NewReader(""), stdout: &out, stderr: &said}, h.door, args)
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
	return h.bare(ctx, append(h.initFlags(), args...)...)
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
	for _, path := range []string{"/pools", "/access/roles", "/access/users --full 1", "/access/acl", "/storage"} {
		text, err := h.run(h.t.Context(), "pvesh", append([]string{"get"}, append(strings.Fields(path), "--output-format", "json")...)...)
		if err != nil {
			h.t.Fatal(err)
		}
		b.Write(text)
	}
	for _, path := range setup.Files() {
		info, err := os.Stat(h.dir + path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		fmt.Fprintf(&b, "%s %s\n", path, info.Mode())
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
	t.Parallel()
	good := newFresh(t, "9.2")
	good.done()
	want := good.state()
	calls := good.pveshs
	if len(calls) < 10 {
		t.Fatalf("only %d calls of pvesh", len(calls))
	}
	for n := range calls {
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
	t.Parallel()
	good := newFresh(t, "9.2")
	steps := strings.Count(good.done().out, "done: ")
	want := good.state()
	for n := 1; n < steps; n++ {
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
	cmd.SetArgs(append(h.initFlags(), "--root", h.dir, "--yes"))
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
func (h *fresh) works() {
	h.t.Helper()
	token := strings.TrimSpace(h.file(setup.Credential(setup.ProxmoxToken)))
	a := administrator{t: h.t, lab: h.Lab, token: token}
	have := a.permissions()
	for _, g := range setup.Grants(setup.Scope{Pool: "talos", Datastores: []string{"local-lvm"}, Images: "local", Bridges: []string{"vmbr0"}, Hosts: []string{"pve1"}}) {
		role, _ := setup.RoleNamed(g.Role)
		for _, p := range role.Names() {
			if _, ok := have[g.Path][p]; !ok {
				h.t.Errorf("the token has no %s at %s: it has %v", p, g.Path, slices.Sorted(maps.Keys(have[g.Path])))
			}
		}
	}
	s, problems := loadConfigFrom(h.dir+setup.ConfigFile, inStore(h.dir+setup.CredentialDir))
	if len(problems) > 0 || s.proxmox.Token.RevealString() != token {
		h.t.Errorf("the agent cannot work with its config: %v", problems)
	}
}
