package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// memoryOf names the file that remembers what came of the mutants of a package: it has the name
// of all that decides it, the compiled tests with the mutants in them, the files that they find
// beside them, this program, and which mutants there are. It is "" where nothing is
// remembered, as where each mutant is compiled by itself.
func (o options) memoryOf(pkg string, mutants []mutant, suites []suite) (string, error) {
	if o.memory == "" || len(suites) == 0 {
		return "", nil
	}
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	add := func(name, path string) error {
		text, err := os.ReadFile(path)
		fmt.Fprintf(h, "%s %x\n", name, sha256.Sum256(text))
		return err
	}
	addAll := func(dir string) error {
		return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			name, err := filepath.Rel(dir, path)
			return errors.Join(err, add(name, path))
		})
	}
	fmt.Fprintln(h, o.within, o.above)
	err = add("this program", own)
	for _, s := range suites {
		err = errors.Join(err, add("the tests", s.binary), addAll(s.dir))
	}
	docs := filepath.Join(o.root, "docs", "reference") // tests compare what is generated with these
	if _, missing := os.Stat(docs); !errors.Is(missing, fs.ErrNotExist) {
		err = errors.Join(err, addAll(docs))
	}
	if err != nil {
		return "", err
	}
	for _, m := range mutants {
		fmt.Fprintf(h, "%s %d\n", m.key(), m.line)
	}
	return filepath.Join(o.memory, fmt.Sprintf("%s-%x.json", filepath.Base(pkg), h.Sum(nil)[:16])), nil
}

// recall reads what came of so many mutants, nil where it is not remembered: a file that
// cannot be read, or is of others, is no memory.
func recall(at string, n int) []outcome {
	if at == "" {
		return nil
	}
	text, err := os.ReadFile(at)
	if err != nil {
		return nil
	}
	var out []outcome
	if json.Unmarshal(text, &out) != nil || len(out) != n {
		return nil
	}
	return out
}

// remember writes down what came of the mutants of a package, unless that may not come again.
func remember(at string, outcomes []outcome) error {
	if at == "" || slices.Contains(outcomes, stuck) { // that may have been the machine
		return nil
	}
	text, err := json.Marshal(outcomes)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(at+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}
