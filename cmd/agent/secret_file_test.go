package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/fault"
)

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
		must(os.Chown(file, owner, owner))
	}
	must(writeSecret(link, []byte("new")))
	if to, err := os.Readlink(link); err != nil || to != "files/config" {
		t.Errorf("the link: %s %v", to, err)
	}
	b, err := os.ReadFile(file)
	must(err)
	info, err := os.Lstat(file)
	must(err)
	if st := info.Sys().(*syscall.Stat_t); string(b) != "new" || info.Mode() != 0o600 || int(st.Uid) != owner {
		t.Errorf("%q %v of %d, want one of %d", b, info.Mode(), st.Uid, owner)
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
