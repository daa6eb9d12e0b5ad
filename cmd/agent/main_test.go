package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// TestMain lets scripts run this very program as talos-agent.
func TestMain(m *testing.M) {
	testscript.Main(leakless{m}, map[string]func(){
		"talos-agent": func() { os.Exit(run(osEnvironment(), os.Args[1:])) },
	})
}

// leakless fails tests that leave goroutines behind.
type leakless struct{ m *testing.M }

func (l leakless) Run() int {
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
// example repository in example/.
func TestScripts(t *testing.T) {
	examples, err := filepath.Abs("../../examples/repo")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       *update,
		Setup: func(env *testscript.Env) error {
			return os.CopyFS(filepath.Join(env.WorkDir, "example"), os.DirFS(examples))
		},
	})
}
