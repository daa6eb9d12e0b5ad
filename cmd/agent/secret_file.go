package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/contexts"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/state"
)

// joinWithFile returns what is to be in a file with credentials: what is new, and
// with merge what is there already. What would be lost is asked about.
func joinWithFile(env *environment, path string, b []byte, merge bool) ([]byte, error) {
	have, err := os.ReadFile(path)
	if err != nil {
		return b, nil // there is none; whether one can be written shows when it is
	}
	if merge {
		b, err = contexts.Merge(have, b)
		if err != nil {
			return nil, fmt.Errorf("merge into %s: %w", path, err)
		}
		return b, nil
	}
	others, err := contexts.Others(have, b)
	what := strings.Join(others, ", ")
	if err != nil {
		what = "something else"
	} else if len(others) == 0 {
		return b, nil
	}
	if f, ok := env.stdin.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, &fault.Usage{Err: fault.WithHint(fmt.Errorf("write %s: it holds %s, which would be lost", path, what), "keep it with `--merge`, or name another file")}
	}
	_, _ = fmt.Fprintf(env.stderr, "%s holds %s. Type yes to replace it: ", path, what)
	line, err := bufio.NewReader(env.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if strings.TrimSpace(line) != "yes" {
		return nil, fmt.Errorf("write %s: not confirmed; nothing was changed", path)
	}
	return b, nil
}

// writeSecret replaces a file by one that only its owner can read.
func writeSecret(path string, b []byte) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fault.WithHint(fmt.Errorf("write %s: it is a directory", path), "name a file in it")
	}
	dir, name := filepath.Split(path)
	s := state.Dir{Path: filepath.Clean(dir)}
	tmp := "." + name + ".new"
	err := s.Write(tmp, b)
	if err == nil {
		err = s.Rename(tmp, name)
	}
	if err != nil {
		_ = os.Remove(filepath.Join(s.Path, tmp)) // as far as it was written
	}
	var at *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.WithHint(fmt.Errorf("write %s: there is no directory %s", path, s.Path), "make it first, or name another file")
	case errors.As(err, &at):
		return fmt.Errorf("write %s: %w", path, at.Err)
	}
	return err
}
