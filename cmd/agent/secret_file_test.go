package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// writeSecret writes a file without a look at what would be lost.
func writeSecret(path string, b []byte) error {
	f, err := openSecretFile(path)
	if err != nil {
		return err
	}
	return errors.Join(f.write(b), f.dir.Close())
}

// joinWithFile returns what would be written.
func joinWithFile(env *environment, path string, b []byte, merge bool) ([]byte, error) {
	f, err := openSecretFile(path)
	if err != nil {
		return nil, err
	}
	b, err = f.join(env, b, merge)
	return b, errors.Join(err, f.dir.Close())
}

// ownerOf is the user that a file belongs to, itself and not what it leads to.
func ownerOf(path string) int {
	info, err := os.Lstat(path)
	must(err)
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// TestWriteSecret: a file that is there is replaced, and what stands in the way is
// told of the file that was named.
func TestWriteSecret(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "dev.kubeconfig")
	must(os.WriteFile(path, []byte("old"), 0o644))
	must(writeSecret(path, []byte("new")))
	if b, err := os.ReadFile(path); err != nil || string(b) != "new" {
		t.Errorf("%q %v", b, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	err := writeSecret(filepath.Join(dir, "nowhere", "x"), []byte("new"))
	if want := "write " + dir + "/nowhere/x: there is no directory " + dir + "/nowhere"; err == nil || err.Error() != want || fault.HintOf(err) == "" {
		t.Errorf("got %v, want %s", err, want)
	}
	// A secret that does not come to its place is left nowhere.
	folder := filepath.Join(dir, "folder")
	must(os.Mkdir(folder, 0o755))
	for _, path := range []string{folder, folder + "/"} {
		err := writeSecret(path, []byte("new"))
		if want := "write " + path + ": it is a directory"; err == nil || err.Error() != want || fault.HintOf(err) == "" {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, in := range []string{dir, folder} {
		if left, err := filepath.Glob(filepath.Join(in, ".*")); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}

// TestWriteSecretInPlace: root writes for somebody else, whose file it stays; where
// it is a symbolic link, as dotfiles are, its target is replaced and not the link.
func TestWriteSecretInPlace(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "files", "config"), filepath.Join(dir, "config")
	must(os.Mkdir(filepath.Dir(file), 0o755))
	must(os.WriteFile(file, []byte("old"), 0o644))
	must(os.Symlink("files/config", link))
	owner := os.Geteuid()
	if owner == 0 {
		owner = 65534
		must(errors.Join(os.Chown(filepath.Dir(file), owner, owner), os.Chown(file, owner, owner)))
	}
	must(writeSecret(link, []byte("new")))
	if to, err := os.Readlink(link); err != nil || to != "files/config" {
		t.Errorf("the link: %s %v", to, err)
	}
	b, err := os.ReadFile(file)
	must(err)
	info, err := os.Lstat(file)
	must(err)
	if string(b) != "new" || info.Mode() != 0o600 || ownerOf(file) != owner {
		t.Errorf("%q %v of %d, want one of %d", b, info.Mode(), ownerOf(file), owner)
	}

	nowhere := filepath.Join(dir, "nowhere")
	must(os.Symlink("gone", nowhere))
	if err := writeSecret(nowhere, []byte("new")); err == nil || err.Error() != "write "+nowhere+": it is a symbolic link to nothing" || fault.HintOf(err) == "" {
		t.Errorf("a link to nothing: %v", err)
	}
	for _, in := range []string{dir, filepath.Dir(file)} {
		if left, err := filepath.Glob(filepath.Join(in, ".*")); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}

// TestSecretOfStranger: whoever made the file first does not get the credentials of
// root, unless the directory is theirs alone; and nothing is asked before that.
func TestSecretOfStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root gives files to others")
	}
	const alice, bob = 65534, 65533
	for _, c := range []struct {
		what       string
		dirOf, of  int
		mode       fs.FileMode
		have       string
		want       int
		isPrepared bool // the file is there
	}{
		{"their file in their directory", alice, alice, 0o755, "", alice, true},
		{"their file in a directory closed to others", alice, alice, 0o700, "", alice, true},
		{"a file in a directory as /tmp", 0, alice, 0o777 | fs.ModeSticky, "", -1, true},
		{"credentials in a directory as /tmp", 0, alice, 0o777 | fs.ModeSticky, "contexts: [{name: mine}]\n", -1, true},
		{"their file where everybody writes", alice, alice, 0o777, "", -1, true},
		{"their file where a group writes", alice, alice, 0o775, "", -1, true},
		{"their file in the directory of another", bob, alice, 0o755, "", -1, true},
		{"their file in root's directory", 0, alice, 0o755, "", -1, true},
		{"root's file in a directory as /tmp", 0, 0, 0o777 | fs.ModeSticky, "", 0, true},
		{"root's file in their directory", alice, 0, 0o755, "", 0, true},
		{"a new file in a directory as /tmp", 0, 0, 0o777 | fs.ModeSticky, "", 0, false},
		{"a new file in their directory", alice, 0, 0o755, "", 0, false},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "dev.kubeconfig")
		if c.isPrepared {
			must(errors.Join(os.WriteFile(path, []byte(c.have), 0o600), os.Chown(path, c.of, c.of)))
		}
		must(errors.Join(os.Chown(dir, c.dirOf, c.dirOf), os.Chmod(dir, c.mode)))
		var asked bytes.Buffer
		err := saveSecret(&environment{stdin: strings.NewReader(""), stderr: &asked}, path, []byte("contexts: []\n"), c.have != "")
		if c.want >= 0 {
			if err != nil || ownerOf(path) != c.want {
				t.Errorf("%s: it belongs to %d, want %d, %v", c.what, ownerOf(path), c.want, err)
			}
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), "write "+path+": it belongs to user 65534") || fault.HintOf(err) == "" || asked.Len() > 0 {
			t.Errorf("%s: %v (%s), asked %q", c.what, err, fault.HintOf(err), &asked)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != c.have || ownerOf(path) != alice {
			t.Errorf("%s: it has %q and belongs to %d, %v", c.what, b, ownerOf(path), err)
		}
		if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) != 0 {
			t.Errorf("%s: left behind: %v %v", c.what, left, err)
		}
	}
}

// TestSecretFileIsExchanged: after the look, what is behind the path may become
// anything. The credentials stay in the directory that was looked at.
func TestSecretFileIsExchanged(t *testing.T) {
	base := t.TempDir()
	home, moved, other := filepath.Join(base, "home"), filepath.Join(base, "moved"), filepath.Join(base, "other")
	path := filepath.Join(home, "config")
	elsewhere := filepath.Join(other, "config")
	owner := os.Geteuid()
	begin := func() *secretFile {
		t.Helper()
		must(errors.Join(os.RemoveAll(home), os.RemoveAll(moved), os.RemoveAll(other), os.Mkdir(home, 0o755), os.Mkdir(other, 0o755),
			os.WriteFile(path, []byte("contexts: []\n"), 0o600), os.WriteFile(elsewhere, []byte("contexts: [{name: root}]\n"), 0o600)))
		if owner == 0 {
			must(errors.Join(os.Chown(home, 65534, 65534), os.Chown(path, 65534, 65534)))
		}
		f, err := openSecretFile(path)
		must(err)
		t.Cleanup(func() { _ = f.dir.Close() })
		return f
	}
	untouched := func(what string) {
		t.Helper()
		if b, err := os.ReadFile(elsewhere); err != nil || string(b) != "contexts: [{name: root}]\n" || ownerOf(elsewhere) != owner {
			t.Errorf("%s: the other file has %q of %d, %v", what, b, ownerOf(elsewhere), err)
		}
		if list, err := os.ReadDir(other); err != nil || len(list) != 1 {
			t.Errorf("%s: the other directory has %v %v", what, list, err)
		}
	}

	f := begin()
	must(errors.Join(os.Rename(home, moved), os.Symlink("other", home)))
	b, err := f.join(&environment{stdin: strings.NewReader("")}, []byte("contexts: []\n"), false)
	must(err)
	must(f.write(b))
	untouched("the directory became a link")
	if ownerOf(filepath.Join(moved, "config")) == 0 && owner == 0 {
		t.Error("the file changed its owner")
	}

	f = begin()
	must(errors.Join(os.Remove(path), os.Symlink("../other/config", path)))
	if b, err := f.join(&environment{stdin: strings.NewReader("")}, []byte("contexts: []\n"), true); err == nil || b != nil {
		t.Errorf("the file became a link, and what it leads to is read: %s", b)
	}
	must(f.write([]byte("new")))
	untouched("the file became a link")

	f = begin()
	inside := filepath.Join(home, "inside")
	must(errors.Join(os.WriteFile(inside, []byte("contexts: []\n"), 0o600), os.Rename(inside, path)))
	if _, err := f.join(&environment{stdin: strings.NewReader("")}, []byte("contexts: []\n"), true); err == nil || !strings.Contains(err.Error(), "replaced by something else") {
		t.Errorf("another file: %v", err)
	}

	f = begin()
	must(os.Symlink("../other/config", filepath.Join(home, ".config.new")))
	must(f.write([]byte("new")))
	untouched("the temporary file was a link")
}

// TestJoinWithUnreadable: a file that cannot be read is not one that is not there:
// what is in it would be lost.
func TestJoinWithUnreadable(t *testing.T) {
	dir := t.TempDir()
	loop, pipe, secret := filepath.Join(dir, "loop"), filepath.Join(dir, "pipe"), filepath.Join(dir, "config")
	must(os.Symlink("loop", loop))
	must(unix.Mkfifo(pipe, 0o600))
	must(os.WriteFile(secret, []byte("contexts: [{name: mine}]\n"), 0o600))
	refused := func(path, why string) {
		t.Helper()
		for _, merge := range []bool{false, true} {
			b, err := joinWithFile(&environment{stdin: strings.NewReader(""), stderr: &bytes.Buffer{}}, path, []byte("contexts: []\n"), merge)
			if want := "write " + path + ": " + why; err == nil || err.Error() != want || b != nil {
				t.Errorf("%s %v, want %s", b, err, want)
			}
		}
	}
	refused(loop, "too many levels of symbolic links")
	refused(pipe, "it is not a regular file")
	refused(dir, "it is a directory")
	letIn(dir)
	if !asNobody(t, dir, func() { refused(secret, "permission denied") }) {
		must(os.Chmod(secret, 0))
		if os.Geteuid() != 0 {
			refused(secret, "permission denied")
		}
	}
	b, err := joinWithFile(&environment{}, filepath.Join(dir, "none"), []byte("new"), true)
	if string(b) != "new" || err != nil {
		t.Errorf("a new file: %s %v", b, err)
	}
}

// TestReplaceIsAsked: what would be lost is named, and replaced only for a yes.
func TestReplaceIsAsked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	for have, what := range map[string]string{
		"contexts: [{name: mine}, {name: other}]\n": "mine, other",
		"notes of mine\n": "something else",
	} {
		must(os.WriteFile(path, []byte(have), 0o600))
		for typed, ok := range map[string]bool{"yes\n": true, "y\n": false, "\n": false, "\x04": false} {
			keyboard, tty := newTerminal(t)
			_, err := keyboard.WriteString(typed)
			must(err)
			var asked bytes.Buffer
			b, err := joinWithFile(&environment{stdin: tty, stderr: &asked}, path, []byte("contexts: []\n"), false)
			if ok != (err == nil) || ok != (string(b) == "contexts: []\n") || asked.String() != path+" holds "+what+". Type yes to replace it: " {
				t.Errorf("%q typed: %q, %q, %v", typed, asked.String(), b, err)
			}
			if !ok && !strings.Contains(err.Error(), "not confirmed; nothing was changed") {
				t.Errorf("%q typed: %v", typed, err)
			}
		}
	}
}
