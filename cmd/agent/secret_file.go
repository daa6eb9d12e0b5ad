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
	"github.com/talos-agent/talos-agent/internal/platform"
)

// joinWithFile returns what is to be in a file with credentials: what is new, and
// with merge what is there already. What would be lost is asked about.
func joinWithFile(env *environment, path string, b []byte, merge bool) ([]byte, error) {
	if old, err := statSecret(path); err != nil {
		return nil, err
	} else if old == nil {
		return b, nil // whether one can be written shows when it is
	}
	have, err := os.ReadFile(path)
	if err != nil {
		return nil, nameFile(path, err)
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

// statSecret returns what is at a path: a regular file, or nil where there is none.
func statSecret(path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if link, err := os.Lstat(path); err == nil && link.Mode().Type() == fs.ModeSymlink {
			return nil, fault.WithHint(fmt.Errorf("write %s: it is a symbolic link to nothing", path), "make the file it leads to, or remove the link")
		}
		return nil, nil
	case err != nil:
		return nil, nameFile(path, err)
	case info.IsDir():
		return nil, fault.WithHint(fmt.Errorf("write %s: it is a directory", path), "name a file in it")
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("write %s: it is not a regular file", path)
	}
	return info, nil
}

// nameFile puts the file that was named before the reason, which may be of another
// one, such as the temporary file.
func nameFile(path string, err error) error {
	var at *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &at):
		err = at.Err
	case errors.As(err, &link):
		err = link.Err
	}
	return fmt.Errorf("write %s: %w", path, err)
}

// writeSecret replaces a file by one that only its owner can read. The owner stays:
// the command is for root, and the file may be of whoever used sudo.
func writeSecret(path string, b []byte) error {
	old, err := statSecret(path)
	if err != nil {
		return err
	}
	to := path
	if old != nil {
		if to, err = filepath.EvalSymlinks(path); err != nil {
			return nameFile(path, err)
		}
	}
	dir, name := filepath.Split(to)
	dir = filepath.Clean(dir)
	tmp := filepath.Join(dir, "."+name+".new")
	if err = writeAs(tmp, old, b); err == nil {
		err = os.Rename(tmp, to)
	}
	if err != nil {
		_ = os.Remove(tmp) // as far as it was written
	} else {
		err = platform.Sync(dir)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.WithHint(fmt.Errorf("write %s: there is no directory %s", path, dir), "make it first, or name another file")
	case err != nil:
		return nameFile(path, err)
	}
	return nil
}

// writeAs writes a new file, of the owner of an old one. It is given away while it is
// open and before anything is in it: in a folder of somebody else's the name may by
// then be of another file.
func writeAs(path string, old fs.FileInfo, b []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if old != nil {
		if uid, gid, ok := platform.Owner(old); ok && uid != os.Geteuid() {
			err = f.Chown(uid, gid)
		}
	}
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
