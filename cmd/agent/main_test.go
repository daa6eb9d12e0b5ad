package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pvehost"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/repo/sealed"
)

// TestMain lets scripts run this very program as talos-agent.
func TestMain(m *testing.M) {
	// Programs that tests start read files of the repository. Whoever keeps results of
	// tests names in here what those files are: a variable that is read is part of
	// what a result holds for.
	_ = os.Getenv("TALOS_AGENT_TREE")
	testscript.Main(leakless{m}, map[string]func(){
		"talos-agent": func() { os.Exit(run(osEnvironment(), os.Args[1:])) },
		"age-keygen":  ageKeygen, // for the documentation
	})
}

// leakless fails tests that leave goroutines behind.
type leakless struct{ m *testing.M }

func (l leakless) Run() int {
	// Thousands of clusters are brought up in here: memory for time.
	debug.SetGCPercent(400)
	code := l.m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// TestScripts runs the scripts of testdata/script: whole commands, with the
// example repository in example/, the addon files in addons/, and the repositories that people come from in coming-from/.
func TestScripts(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	nobody := reachable(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       golden.Update(),
		Cmds:                scriptCommands,
		Condition: func(cond string) (bool, error) {
			if cond == "nobody" { // as-nobody works
				return nobody, nil
			}
			return false, fmt.Errorf("there is no condition %q", cond)
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("RECIPIENT", sealed.ExampleRecipient)
			id, err := age.ParseX25519Identity(strings.TrimSpace(anotherKey()))
			if err != nil {
				return err
			}
			env.Setenv("OTHER", id.Recipient().String())
			snapshot, err := writeSnapshot(t.TempDir())
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(env.WorkDir, "db.snapshot"), snapshot, 0o600); err != nil {
				return err
			}
			for dir, from := range map[string]string{"addons": "addons", "coming-from": "coming-from", "example": "repo"} {
				if err := os.CopyFS(filepath.Join(env.WorkDir, dir), os.DirFS(filepath.Join(examples, from))); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

// scriptCommands are what the scripts can do besides testscript's own commands.
var scriptCommands = map[string]func(*testscript.TestScript, bool, []string){
	// code N PROGRAM ARGS: the program ends with exit code N.
	"code": func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) < 2 {
			ts.Fatalf("usage: code N program [args...]")
		}
		want, err := strconv.Atoi(args[0])
		ts.Check(err)
		wantCode(ts, want, ts.Exec(args[1], args[2:]...))
	},
	// wrong PROGRAM ARGS: the program calls it wrong usage and prints nothing.
	"wrong": func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) == 0 {
			ts.Fatalf("usage: wrong program [args...]")
		}
		wantCode(ts, exitUsage, ts.Exec(args[0], args[1:]...))
		if out := ts.ReadFile("stdout"); out != "" {
			ts.Fatalf("wrong usage printed to standard output:\n%s", out)
		}
	},
	// as-nobody N PROGRAM ARGS: like code, as a user who is nobody. Root only.
	"as-nobody": func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) < 2 {
			ts.Fatalf("usage: as-nobody N program [args...]")
		}
		want, err := strconv.Atoi(args[0])
		ts.Check(err)
		wantCode(ts, want, ts.Exec("setpriv", append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", "--"}, args[1:]...)...))
	},
	// bare DIR [FLAVOUR]: a Proxmox VE host as its installer leaves it, in DIR,
	// until the end of the script. $REPO is the address of its repository.
	"bare": func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) < 1 || len(args) > 2 {
			ts.Fatalf("usage: bare dir [flavour]")
		}
		program, err := exec.LookPath("talos-agent")
		ts.Check(err)
		prefix, release, err := world.FreePrefix()
		ts.Check(err)
		h, err := pvehost.StartBare(pvehost.Config{Dir: ts.MkAbs(args[0]), Prefix: prefix, Flavour: append(args, "9.2")[1], Speed: 200}, program)
		if err != nil {
			release()
			ts.Check(err)
		}
		ts.Defer(func() {
			h.Close()
			release()
		})
		ts.Setenv("REPO", h.SSH.URL(lab.Repository))
		ts.Setenv("PROXMOX", h.PVE.URL())
	},
	// stale SOCKET: a socket that nobody listens on any more.
	"stale": func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) != 1 {
			ts.Fatalf("usage: stale socket")
		}
		l, err := net.Listen("unix", ts.MkAbs(args[0]))
		ts.Check(err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		ts.Check(l.Close())
	},
}

func wantCode(ts *testscript.TestScript, want int, err error) {
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// waitUntil waits until ready says so, or ctx ends.
func waitUntil(ctx context.Context, every time.Duration, ready func() (bool, error)) error {
	for {
		ok, err := ready()
		if err != nil || ok {
			return err
		}
		if err := sleepOrStop(ctx, every); err != nil {
			return err
		}
	}
}
