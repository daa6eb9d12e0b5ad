// Mutants looks for guards that no test would miss. It takes one clause at a time out of
// the source of some packages, each operand of && and ||, each guard that leaves early, each
// case of a switch, and runs the tests of its package, then those of packages that use it. A
// mutant that passes all of them survives: there is a test missing, or the clause decides
// nothing.
//
// The tree is not changed: the compiler is given the mutant in an overlay. Survivors that
// are accepted stand in a file, each with its reason.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "the root of the repository")
	flag.StringVar(&o.accepted, "accepted", ".ci/mutants/accepted.txt", "the survivors that are accepted, a line each, below the root")
	flag.StringVar(&o.above, "above", "", "packages whose tests run when those of the mutant's own pass, with commas between them")
	flag.StringVar(&o.files, "files", "", "only these files of the packages, by name, with commas between them")
	flag.StringVar(&o.base, "base", "", "only lines that were changed since this commit")
	flag.IntVar(&o.sample, "sample", 0, "at most so many mutants of each package, the same ones always; 0: all")
	flag.IntVar(&o.atLeast, "killed", 95, "the least share of viable mutants that must not survive, in percent")
	flag.DurationVar(&o.within, "within", 2*time.Minute, "how long the tests of a package may take; a mutant that takes longer is killed")
	flag.Parse()
	o.packages = flag.Args()
	if err := o.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

type options struct {
	root, accepted, above, base, files string
	sample, atLeast                    int
	within                             time.Duration
	packages                           []string
}

// outcome is what became of a mutant.
type outcome string

const (
	killed    outcome = "killed"
	survived  outcome = "survived"
	accepted  outcome = "accepted"
	notViable outcome = "not viable" // it does not compile
)

func (o options) run(ctx context.Context) error {
	if len(o.packages) == 0 {
		return errors.New("which packages? such as reconcile/quorum internal/cluster")
	}
	reasons, err := o.readAccepted()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing of it is needed any longer
	all := map[outcome]int{}
	for _, pkg := range o.packages {
		mutants, err := o.listMutants(pkg)
		if err != nil {
			return err
		}
		if out, err := o.test(ctx, "", pkg); err != nil || out != survived {
			return fmt.Errorf("%s: its tests fail as it is: %w", pkg, err)
		}
		count := map[outcome]int{}
		for i, m := range mutants {
			out, err := o.try(ctx, dir, pkg, m)
			if err != nil {
				return err
			}
			if out == survived {
				if reasons[m.key()] != "" {
					out = accepted
				} else {
					fmt.Printf("%s:%d: %s survives in %s: %s\n", m.file, m.line, m.kind, m.in, m.text)
				}
			}
			count[out]++
			all[out]++
			fmt.Fprintf(os.Stderr, "\r%s %d of %d ", pkg, i+1, len(mutants))
		}
		fmt.Fprintln(os.Stderr)
		fmt.Printf("%s: %s\n", pkg, describe(count))
	}
	fmt.Printf("all: %s\n", describe(all))
	if viable := all[killed] + all[survived]; viable > 0 && all[killed]*100 < viable*o.atLeast {
		return fmt.Errorf("%d of %d mutants are killed, and at least %d %% must be: give each survivor a test, or a line with its reason in %s", all[killed], viable, o.atLeast, o.accepted)
	}
	return nil
}

func describe(count map[outcome]int) string {
	return fmt.Sprintf("%d killed, %d survived, %d accepted, %d do not compile", count[killed], count[survived], count[accepted], count[notViable])
}

// splitList splits a list at its commas; that of nothing is empty.
func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// listMutants lists the mutants of a package that are to be tried.
func (o options) listMutants(pkg string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(o.root, pkg, "*.go"))
	if err != nil {
		return nil, err
	}
	changed, err := o.changedLines(pkg)
	if err != nil {
		return nil, err
	}
	var out []mutant
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") || o.files != "" && !slices.Contains(splitList(o.files), filepath.Base(path)) {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name := filepath.ToSlash(filepath.Join(pkg, filepath.Base(path)))
		found, err := mutate(name, source)
		if err != nil {
			return nil, err
		}
		if o.base != "" {
			found = slices.DeleteFunc(found, func(m mutant) bool { return !changed[name][m.line] })
		}
		out = append(out, found...)
	}
	if o.files != "" && len(out) == 0 {
		return nil, fmt.Errorf("%s: no mutants in %s: are the files called otherwise?", pkg, o.files)
	}
	if o.sample > 0 && len(out) > o.sample {
		slices.SortFunc(out, func(a, b mutant) int { return int(int64(digest(a.key())) - int64(digest(b.key()))) })
		out = out[:o.sample]
	}
	return out, nil
}

func digest(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // it never fails
	return h.Sum32()
}

// changedLines are the lines of the files of a package that are not those of the base.
func (o options) changedLines(pkg string) (map[string]map[int]bool, error) {
	if o.base == "" {
		return nil, nil
	}
	cmd := exec.Command("git", "diff", "-U0", "--no-color", o.base, "--", pkg)
	cmd.Dir = o.root
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list what has changed since %s: %w", o.base, err)
	}
	return parseDiff(string(text)), nil
}

// parseDiff returns the lines that a diff without context adds, by file.
func parseDiff(text string) map[string]map[int]bool {
	out := map[string]map[int]bool{}
	file := ""
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "+++ b/"); ok {
			file = name
			out[file] = map[int]bool{}
		}
		if !strings.HasPrefix(line, "@@ ") || file == "" {
			continue
		}
		_, after, _ := strings.Cut(line, "+")
		span, _, _ := strings.Cut(after, " ")
		from, count, several := strings.Cut(span, ",")
		start, err := strconv.Atoi(from)
		n := 1
		if several && err == nil {
			n, err = strconv.Atoi(count)
		}
		if err != nil {
			continue
		}
		for i := range n {
			out[file][start+i] = true
		}
	}
	return out
}

// try runs the tests over one mutant.
func (o options) try(ctx context.Context, dir, pkg string, m mutant) (outcome, error) {
	path, err := filepath.Abs(filepath.Join(o.root, m.file))
	if err != nil {
		return "", err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	mutated, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(mutated, m.edit.apply(source), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return "", err
	}
	for _, tested := range append([]string{pkg}, splitList(o.above)...) {
		out, err := o.test(ctx, overlay, tested)
		if err != nil || out != survived {
			return out, err
		}
	}
	return survived, nil
}

// test runs the tests of a package, with an overlay if there is one.
func (o options) test(ctx context.Context, overlay, pkg string) (outcome, error) {
	// The tests end by themselves, with what they wait for; this is for a program that does not.
	ctx, cancel := context.WithTimeout(ctx, o.within+3*time.Minute)
	defer cancel()
	args := []string{"test", "-vet=off", "-ldflags=-s -w", "-short", "-failfast", "-count=1", "-timeout", o.within.String()}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir = o.root
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return survived, nil
	case ctx.Err() != nil:
		return killed, nil
	case !errors.As(err, &exit):
		return "", err
	case strings.Contains(string(text), "[build failed]"), strings.Contains(string(text), "[setup failed]"):
		return notViable, nil
	}
	return killed, nil
}

// readAccepted reads the survivors that are accepted: lines of "key # reason".
func (o options) readAccepted() (map[string]string, error) {
	f, err := os.Open(filepath.Join(o.root, o.accepted))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	out := map[string]string{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, reason, ok := strings.Cut(line, " # ")
		if !ok || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s:%d: a survivor without a reason: write \"KEY # REASON\"", o.accepted, n)
		}
		out[strings.TrimSpace(key)] = strings.TrimSpace(reason)
	}
	return out, lines.Err()
}
