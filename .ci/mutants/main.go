// Mutants looks for guards that no test would miss. It takes one clause at a time out of
// the source of some packages, each operand of && and ||, each guard that leaves early, each
// case of a switch, and runs the tests of its package, then those of packages that use it. A
// mutant that passes all of them survives: there is a test missing, or the clause decides
// nothing.
//
// The tree is not changed: the compiler is given the mutants in an overlay, all at once where
// that compiles, so that a package's tests are linked once and given the number of one. What
// came of a package is remembered beside what Go remembers of its tests, and holds for the same
// program over the same files.
// Survivors that are accepted stand in a file, each with its reason.
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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "the root of the repository")
	flag.StringVar(&o.accepted, "accepted", ".ci/mutants/accepted.txt", "the survivors that are accepted, a line each, below the root")
	flag.StringVar(&o.above, "above", "", "packages whose tests run when those of the mutant's own pass, with commas between them")
	flag.StringVar(&o.base, "base", "", "only lines that were changed since this commit")
	flag.IntVar(&o.sample, "sample", 0, "at most so many mutants of each package, the same ones always; 0: all")
	flag.IntVar(&o.atLeast, "killed", 95, "the least share of viable mutants that must not survive, in percent")
	flag.StringVar(&o.memory, "memory", "", "the folder that remembers what came of mutants; \"\": every one is tried")
	flag.DurationVar(&o.within, "within", 2*time.Minute, "how long the tests of a package may take; a mutant that takes longer is killed")
	flag.Parse()
	o.packages = flag.Args()
	if err := o.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

type options struct {
	root, accepted, above, base, memory string
	sample, atLeast                     int
	within                              time.Duration
	packages                            []string
}

// outcome is what became of a mutant.
type outcome string

const (
	killed    outcome = "killed"
	survived  outcome = "survived"
	accepted  outcome = "accepted"
	notViable outcome = "not viable" // it does not compile
	stuck     outcome = "stuck"      // its tests did not end, or were ended from outside
)

func (o options) run(ctx context.Context) error {
	if len(o.packages) == 0 {
		return errors.New("which packages? such as internal/cluster, or reconcile:journal.go,learn.go for some files of one")
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
	for _, name := range o.packages {
		pkg, files, _ := strings.Cut(name, ":")
		mutants, err := o.listMutants(pkg, splitList(files))
		if err != nil {
			return err
		}
		if len(mutants) == 0 { // nothing of it has changed
			continue
		}
		outcomes, err := o.outcomesOf(ctx, dir, pkg, mutants)
		if err != nil {
			return err
		}
		count := map[outcome]int{}
		for i, m := range mutants {
			out := outcomes[i]
			if out == stuck { // a machine that is busy looks the same
				out = killed
			}
			if out == survived {
				if reasons[m.key()] != "" {
					out = accepted
				} else {
					fmt.Printf("survives at line %d: %s\n", m.line, m.key())
				}
			}
			count[out]++
			all[out]++
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

// outcomesOf tries the mutants of a package, unless it is remembered what came of them.
func (o options) outcomesOf(ctx context.Context, dir, pkg string, mutants []mutant) ([]outcome, error) {
	suites, err := o.compile(ctx, dir, pkg, mutants)
	if err != nil {
		return nil, err
	}
	at, err := o.memoryOf(pkg, mutants, suites)
	if err != nil {
		return nil, err
	}
	if outcomes := recall(at, len(mutants)); outcomes != nil {
		fmt.Fprintf(os.Stderr, "%s: as before", pkg)
		return outcomes, nil
	}
	if out, err := o.test(ctx, "", pkg); err != nil || out != survived {
		return nil, fmt.Errorf("%s: its tests fail as it is: %w", pkg, err)
	}
	for _, s := range suites {
		if out, err := o.runSuite(ctx, s, 0); err != nil || out != survived {
			return nil, fmt.Errorf("%s: its tests fail with no mutant chosen of those in %s: %w", s.dir, pkg, err)
		}
	}
	outcomes, err := o.tryAll(ctx, dir, pkg, mutants, suites)
	if err != nil {
		return nil, err
	}
	return outcomes, remember(at, outcomes)
}

func describe(count map[outcome]int) string {
	return fmt.Sprintf("%d killed, %d survived, %d accepted, %d do not compile", count[killed], count[survived], count[accepted], count[notViable])
}

// splitList splits a list at its commas; that of nothing is empty.
func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// listMutants lists the mutants of a package, or of some files of it, that are to be tried.
func (o options) listMutants(pkg string, only []string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(o.root, pkg, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range only {
		if !slices.Contains(files, filepath.Join(o.root, pkg, name)) {
			return nil, fmt.Errorf("%s has no file %s: is it called otherwise now?", pkg, name)
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no Go files: is it called otherwise now?", pkg)
	}
	changed, err := o.changedLines(pkg)
	if err != nil {
		return nil, err
	}
	var out []mutant
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") || len(only) > 0 && !slices.Contains(only, filepath.Base(path)) {
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
	if o.base == "" && len(out) == 0 {
		return nil, fmt.Errorf("%s: no mutants in %q: are the files called otherwise?", pkg, only)
	}
	if o.sample > 0 && len(out) > o.sample {
		slices.SortFunc(out, func(a, b mutant) int { return int(int64(digest(a.key())) - int64(digest(b.key()))) })
		out = out[:o.sample]
	}
	for i := range out {
		out[i].number = i + 1
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

// suite are the tests of a package, compiled with all mutants of one in them.
type suite struct {
	dir, binary string
	flags       []string
}

// tested are the packages whose tests run over the mutants of one.
func (o options) tested(pkg string) []string { return append([]string{pkg}, splitList(o.above)...) }

// flagsOf are flags of the tests of a package: a property that fails is neither made smaller
// nor written into the tree.
func (o options) flagsOf(pkg string) []string {
	files, _ := filepath.Glob(filepath.Join(o.root, pkg, "*_test.go")) // the pattern is well formed
	for _, path := range files {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), `"pgregory.net/rapid"`) {
			return []string{"-rapid.nofailfile", "-rapid.shrinktime=1ms"}
		}
	}
	return nil
}

// compile compiles the tests with all mutants in them. It returns none where that does not
// compile: then each mutant is tried by itself.
func (o options) compile(ctx context.Context, dir, pkg string, mutants []mutant) ([]suite, error) {
	byFile := map[string][]mutant{}
	for _, m := range mutants {
		byFile[m.file] = append(byFile[m.file], m)
	}
	overlay := newOverlay(dir)
	name := ""
	for file, of := range byFile {
		path, err := filepath.Abs(filepath.Join(o.root, file))
		if err != nil {
			return nil, err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if name, err = packageOf(source); err != nil {
			return nil, err
		}
		if err := overlay.put(path, switchAll(source, of)); err != nil {
			return nil, err
		}
		if err := overlay.put(filepath.Join(filepath.Dir(path), switchFile), fmt.Appendf(nil, switchSource, name)); err != nil {
			return nil, err
		}
	}
	if name == "" {
		return nil, nil
	}
	at, err := overlay.write()
	if err != nil {
		return nil, err
	}
	var out []suite
	for i, tested := range o.tested(pkg) {
		s := suite{dir: filepath.Join(o.root, tested), binary: filepath.Join(dir, fmt.Sprintf("suite-%d.test", i)), flags: o.flagsOf(tested)}
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", at, "-o", s.binary, "./"+tested)
		cmd.Dir = o.root
		if text, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: all mutants at once do not compile, so each is by itself: %s\n", pkg, text)
			return nil, nil
		}
		out = append(out, s)
	}
	return out, nil
}

// runSuite runs compiled tests over a mutant by its number; 0: over none.
func (o options) runSuite(ctx context.Context, s suite, number int) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, o.within+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, append([]string{"-test.short", "-test.failfast", "-test.timeout", o.within.String()}, s.flags...)...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", chosenMutant, number))
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return survived, nil
	case ctx.Err() != nil, errors.As(err, &exit) && (!exit.Exited() || strings.Contains(string(text), "panic: test timed out after ")):
		return stuck, nil
	case exit != nil:
		return killed, nil
	}
	return "", err
}

// overlay is what the compiler is given in the place of files.
type overlay struct {
	dir     string
	replace map[string]string
}

func newOverlay(dir string) overlay { return overlay{dir, map[string]string{}} }

// put has the compiler see a file with a content.
func (l overlay) put(path string, content []byte) error {
	if l.replace[path] == "" {
		l.replace[path] = filepath.Join(l.dir, fmt.Sprintf("overlaid-%d.go", len(l.replace)))
	}
	return os.WriteFile(l.replace[path], content, 0o600)
}

// write writes the file that the compiler is given, and returns its path.
func (l overlay) write() (string, error) {
	text, err := json.Marshal(map[string]map[string]string{"Replace": l.replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(l.dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}

// tryAll runs the tests over every mutant, several at a time: many a mutant has tests wait for
// what it keeps from happening. The outcomes are in the order of the mutants.
func (o options) tryAll(ctx context.Context, dir, pkg string, mutants []mutant, suites []suite) ([]outcome, error) {
	outcomes, errs := make([]outcome, len(mutants)), make([]error, len(mutants))
	var next, tried atomic.Int64
	var workers sync.WaitGroup
	for worker := range 4 * runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			own := filepath.Join(dir, fmt.Sprintf("worker-%d", worker))
			for i := int(next.Add(1)) - 1; i < len(mutants); i = int(next.Add(1)) - 1 {
				if errs[i] = os.MkdirAll(own, 0o700); errs[i] == nil {
					outcomes[i], errs[i] = o.try(ctx, own, pkg, mutants[i], suites)
				}
				fmt.Fprintf(os.Stderr, "\r%s %d of %d ", pkg, tried.Add(1), len(mutants))
			}
		})
	}
	workers.Wait()
	return outcomes, errors.Join(errs...)
}

// try runs the tests over one mutant.
func (o options) try(ctx context.Context, dir, pkg string, m mutant, suites []suite) (outcome, error) {
	if len(suites) > 0 && !m.edit.removes {
		for _, s := range suites {
			if out, err := o.runSuite(ctx, s, m.number); err != nil || out != survived {
				return out, err
			}
		}
		return survived, nil
	}
	path, err := filepath.Abs(filepath.Join(o.root, m.file))
	if err != nil {
		return "", err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	overlay := newOverlay(dir)
	if err := overlay.put(path, m.edit.apply(source)); err != nil {
		return "", err
	}
	at, err := overlay.write()
	if err != nil {
		return "", err
	}
	for _, tested := range o.tested(pkg) {
		out, err := o.test(ctx, at, tested)
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
	cmd := exec.CommandContext(ctx, "go", append(append(args, "./"+pkg), o.flagsOf(pkg)...)...)
	cmd.Dir = o.root
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return survived, nil
	case ctx.Err() != nil, strings.Contains(string(text), "panic: test timed out after "):
		return stuck, nil
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
