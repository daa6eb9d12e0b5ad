package api

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"testing/fstest"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// The caps of a tree that is sent to be planned. They are the repository's.
const (
	maxFile    = 1 << 20  // bytes of one file that are taken for its content
	maxEntries = 10_000   // files
	maxTree    = 20 << 20 // bytes of the whole tar
)

// WriteTar writes the regular files of a tree. Folders called .git are left out,
// and nothing but regular files is read. Of a file beyond the cap it writes as much
// as shows that it is: such a file may lie in a repository, as long as no inventory
// reads it. A tree beyond the other caps is an error with a hint.
func WriteTar(w io.Writer, files fs.FS) error {
	room := &limited{Writer: w, left: maxTree}
	tw := tar.NewWriter(room)
	entries := 0
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && d.Name() == ".git":
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		if entries++; entries > maxEntries {
			return tooMuch("more than %d files", maxEntries)
		}
		data, err := readSome(files, name)
		if err != nil {
			return err
		}
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err = tw.Write(data)
		return err
	})
	if err == nil {
		err = tw.Close()
	}
	if tooMuch := (*Error)(nil); errors.As(err, &tooMuch) {
		return tooMuch
	}
	if err != nil {
		return fmt.Errorf("pack the directory: %w", err)
	}
	return nil
}

// readSome reads a file, and not much of one that is too large.
func readSome(files fs.FS, name string) ([]byte, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// tooMuch is why a tree is not sent, or not taken.
func tooMuch(format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Reason: cluster.RequestInvalid, Message: "the directory holds " + fmt.Sprintf(format, args...) + ", too much to be planned",
		Hint: "copy the folders that the inventory needs into an empty directory, by the same paths, and have that planned"}
}

// limited writes up to a number of bytes, and fails beyond.
type limited struct {
	io.Writer
	left int
}

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, tooMuch("more than %d MiB", maxTree>>20)
	}
	return l.Writer.Write(p)
}

// readTar reads a tar of regular files into memory, within the caps. Of a file
// beyond its cap it takes as much as shows that.
func readTar(r io.Reader) (fs.FS, error) {
	files := fstest.MapFS{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, explainUnread(err)
		}
		name := path.Clean(h.Name)
		switch {
		case h.Typeflag != tar.TypeReg || !fs.ValidPath(name) || name == ".":
			return nil, &Error{Status: http.StatusBadRequest, Reason: cluster.RequestInvalid, Message: fmt.Sprintf("the directory that was sent holds %q, which is not a regular file inside it", h.Name)}
		case len(files) >= maxEntries:
			return nil, tooMuch("more than %d files", maxEntries)
		}
		var b bytes.Buffer
		if _, err := io.Copy(&b, io.LimitReader(tr, maxFile+1)); err != nil {
			return nil, explainUnread(err)
		}
		files[name] = &fstest.MapFile{Data: b.Bytes(), Mode: 0o400}
	}
}

// explainUnread is why a tar cannot be read to its end.
func explainUnread(err error) *Error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooMuch("more than %d MiB", maxTree>>20)
	}
	return &Error{Status: http.StatusBadRequest, Reason: cluster.RequestInvalid, Message: "read the directory that was sent: " + err.Error()}
}
