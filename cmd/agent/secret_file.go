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

// secretFile is a file with credentials that is to be written: the directory it lies
// in, held open, and what is there. In a folder of somebody else's a path may lead
// elsewhere at any time; whatever is done after the look is done in this directory.
type secretFile struct {
	path string // as it was named
	dir  *os.Root
	name string      // in the directory
	old  fs.FileInfo // nil: there is no such file yet
}

// openSecretFile looks at where credentials are to be written.
func openSecretFile(path string) (*secretFile, error) {
	old, err := statSecret(path)
	if err != nil {
		return nil, err
	}
	to := path
	if old != nil {
		if to, err = filepath.EvalSymlinks(path); err != nil {
			return nil, nameFile(path, err)
		}
	}
	dir, name := filepath.Split(to)
	dir = filepath.Clean(dir)
	root, err := os.OpenRoot(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.WithHint(fmt.Errorf("write %s: there is no directory %s", path, dir), "make it first, or name another file")
	case err != nil:
		return nil, nameFile(path, err)
	}
	f := &secretFile{path: path, dir: root, name: name}
	if err := f.look(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return f, nil
}

// look looks at the file that is there, in the directory that is open.
func (f *secretFile) look() error {
	old, err := f.dir.Lstat(f.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // whether one can be written shows when it is
	case err != nil:
		return nameFile(f.path, err)
	case !old.Mode().IsRegular():
		return f.changed()
	}
	f.old = old
	_, _, err = f.owner()
	return err
}

// changed is the error of a file that is another one than a moment ago.
func (f *secretFile) changed() error {
	return fmt.Errorf("write %s: it was replaced by something else while it was looked at", f.path)
}

// owner returns whom the file is to belong to where that is not us: whose it is now.
// The command is for root, and the file may be of whoever used sudo. In a folder where
// others can write, the file may be of anyone who was there first, and credentials are
// not theirs.
func (f *secretFile) owner() (uid, gid int, err error) {
	if f.old == nil {
		return -1, -1, nil
	}
	uid, gid, ok := platform.Owner(f.old)
	if !ok || uid == os.Geteuid() {
		return -1, -1, nil
	}
	dir, err := f.dir.Stat(".")
	if err != nil {
		return 0, 0, nameFile(f.path, err)
	}
	if of, _, ok := platform.Owner(dir); !ok || of != uid || dir.Mode().Perm()&0o022 != 0 {
		return 0, 0, fault.WithHint(fmt.Errorf("write %s: it belongs to user %d, and its directory is not one where only that user can write", f.path, uid),
			"write to a directory of your own, or remove the file first")
	}
	return uid, gid, nil
}

// read reads the file that is there.
func (f *secretFile) read() ([]byte, error) {
	in, err := f.dir.OpenFile(f.name, os.O_RDONLY|platform.NoWait, 0)
	if err != nil {
		return nil, nameFile(f.path, err)
	}
	defer in.Close()
	if is, err := in.Stat(); err != nil {
		return nil, nameFile(f.path, err)
	} else if !os.SameFile(is, f.old) {
		return nil, f.changed()
	}
	b, err := io.ReadAll(in)
	if err != nil {
		return nil, nameFile(f.path, err)
	}
	return b, nil
}

// saveSecret writes credentials to a file: with merge beside what is there already,
// without after a question about what would be lost.
func saveSecret(env *environment, path string, b []byte, merge bool) error {
	f, err := openSecretFile(path)
	if err != nil {
		return err
	}
	if b, err = f.join(env, b, merge); err == nil {
		err = f.write(b)
	}
	return errors.Join(err, f.dir.Close())
}

// join returns what is to be in the file: what is new, and with merge what is there
// already. What would be lost is asked about.
func (f *secretFile) join(env *environment, b []byte, merge bool) ([]byte, error) {
	if f.old == nil {
		return b, nil
	}
	path := f.path
	have, err := f.read()
	if err != nil {
		return nil, err
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
	if stdin, ok := env.stdin.(*os.File); !ok || !term.IsTerminal(int(stdin.Fd())) {
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

// write replaces the file by one that only its owner can read, who stays.
func (f *secretFile) write(b []byte) error {
	uid, gid, err := f.owner()
	if err != nil {
		return err
	}
	tmp := "." + f.name + ".new"
	if err = f.writeNew(tmp, uid, gid, b); err == nil {
		err = f.dir.Rename(tmp, f.name)
	}
	if err != nil {
		_ = f.dir.Remove(tmp) // as far as it was written
	} else {
		err = platform.SyncDir(f.dir)
	}
	if err != nil {
		return nameFile(f.path, err)
	}
	return nil
}

// writeNew writes a new file of an owner, -1 for ourselves. It is given away while it
// is open and before anything is in it: in a folder of somebody else's the name may by
// then be of another file.
func (f *secretFile) writeNew(name string, uid, gid int, b []byte) error {
	if err := f.dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := f.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if uid >= 0 {
		err = out.Chown(uid, gid)
	}
	if err == nil {
		_, err = out.Write(b)
	}
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}
