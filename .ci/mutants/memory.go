package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	if err := add("this program", own); err != nil {
		return "", err
	}
	for _, s := range suites {
		if err := add("the tests", s.binary); err != nil {
			return "", err
		}
		err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			name, err := filepath.Rel(s.dir, path)
			return errors.Join(err, add(name, path))
		})
		if err != nil {
			return "", err
		}
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

// remember writes down what came of the mutants of a package.
func remember(at string, outcomes []outcome) error {
	if at == "" {
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
