package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/repo/repotest"
	"github.com/talos-agent/talos-agent/internal/repo/validation"
)

// BenchmarkValidate is a cold process that checks a cluster of 100 nodes with
// its secrets: the CPU it takes is what counts.
func BenchmarkValidate(b *testing.B) {
	dir := repotest.LargeRepository(b, "../../examples/repo", 100)
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	var cpu time.Duration
	for b.Loop() {
		cmd := exec.Cmd{Path: exe, Args: []string{"talos-agent", "validate", dir, "--age-key", filepath.Join(dir, "lab-age-key.txt")}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "100 machine configs validated") {
			b.Fatalf("%v\n%s", err, out)
		}
		cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	b.ReportMetric(cpu.Seconds()/float64(b.N), "cpu-s/op")
}

// TestValidateCommandsNothing: in the log of a job a line that begins with "::", or has
// "##[" in it, commands the runner. Whatever folders and files are called, and whatever
// is in them, validate prints no such line but those that --annotations makes.
func TestValidateCommandsNothing(t *testing.T) {
	odd := rapid.OneOf(
		rapid.SampledFrom([]string{"::warning title=x::owned", "::stop-commands::x", " ::add-mask::a", "##[group]x", "\n::error::x", "a\n \t::group::x", "a\r::error::x", "\u00a0::debug::x", "dev"}),
		rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"::", "error", "##[", "group]", "\n", " ", "\t", "\r", "a", "%0A", "\v", "\u2028", "\x1b[0m", "\xff"}), 1, 8).Draw(t, "name"), "")
		}))
	top := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		dir := filepath.Join(top, strconv.Itoa(n))
		folder := filepath.Join(dir, "inventory", odd.Draw(rt, "folder"))
		must(os.MkdirAll(filepath.Join(folder, "patches"), 0o755))
		text := odd.Draw(rt, "text")
		must(errors.Join(
			os.WriteFile(filepath.Join(folder, "cluster.yaml"), []byte("cluster_name: dev\nowner: "+strconv.Quote(text)+" # "+text+"\n"+text+"\n"), 0o644),
			os.WriteFile(filepath.Join(folder, "nodes.yaml"), []byte("controlplane:\n  - {name: a, "+text+": 1} # "+text+"\n"), 0o644),
			os.WriteFile(filepath.Join(folder, "patches", odd.Draw(rt, "file")+".yaml"), []byte("machine: {}\n"), 0o644)))
		args := []string{"validate", dir}
		if rapid.Bool().Draw(rt, "one cluster") {
			args = append(args, "--cluster", filepath.Base(folder))
		}
		found, err := validation.Validate(t.Context(), dir, validation.Config{Folder: "inventory", Owner: "talos-agent"}, time.Now())
		if err != nil {
			return // a name that Git refuses; nothing is printed but that
		}
		for _, annotations := range []bool{false, true} {
			var out bytes.Buffer
			root := newRoot(&environment{stdin: strings.NewReader(""), stdout: &out, stderr: io.Discard})
			root.SetArgs(args)
			if annotations {
				root.SetArgs(append(args, "--annotations"))
			}
			var code *exitError
			if err := root.ExecuteContext(t.Context()); err != nil && !errors.As(err, &code) {
				rt.Fatal(err)
			}
			for line := range strings.FieldsFuncSeq(out.String(), func(r rune) bool { return r == '\n' || r == '\r' }) {
				isOurs := annotations && slices.ContainsFunc(found.Problems, func(p cluster.Problem) bool { return validation.WorkflowCommand(p, dir) == line })
				if !isOurs && (strings.HasPrefix(strings.TrimSpace(line), "::") || strings.Contains(line, "##[")) {
					rt.Fatalf("annotations %v: a command: %q\nin %q", annotations, line, out.String())
				}
			}
		}
	})
}

// TestReportOverLink: a checkout may have a symbolic link where the report is written.
// It is refused, what it leads to stays as it is, and nothing but reports is left.
func TestReportOverLink(t *testing.T) {
	top := t.TempDir()
	checkout, outside := filepath.Join(top, "checkout"), filepath.Join(top, "outside")
	in := func(name string) string { return filepath.Join(checkout, name) }
	must(errors.Join(os.Mkdir(checkout, 0o755), os.WriteFile(outside, []byte("precious"), 0o600), os.WriteFile(in("old"), []byte("old"), 0o600),
		os.Symlink("../outside", in("link")), os.Symlink("../nothing", in("dangling")), os.Mkdir(in("folder"), 0o755)))
	for _, name := range []string{"new", "old"} {
		must(writeReport(in(name), validation.Result{}, "."))
		b, err := os.ReadFile(in(name))
		info, err2 := os.Lstat(in(name))
		if must(errors.Join(err, err2)); string(b) != "[]\n" || info.Mode() != 0o644 {
			t.Errorf("%s: %q, %v", name, b, info.Mode())
		}
	}
	for _, name := range []string{"link", "dangling", "folder"} {
		err := writeReport(in(name), validation.Result{}, ".")
		if err == nil || err.Error() != "write "+in(name)+": it is there and not a regular file" || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "precious" {
		t.Errorf("the file outside has %q, %v", b, err)
	}
	if err := writeReport(in("none/x"), validation.Result{}, "."); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	for dir, want := range map[string]int{checkout: 5, top: 2} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != want {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}
