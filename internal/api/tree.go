package api

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"testing/fstest"
)

// The caps of a tree that is sent to be planned. They are the repository's.
const (
	maxFile    = 1 << 20
	maxEntries = 10_000
)

// WriteTar writes the regular files of a tree. Folders called .git are left out,
// and nothing but regular files is read.
func WriteTar(w io.Writer, files fs.FS) error {
	tw := tar.NewWriter(w)
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && d.Name() == ".git":
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err = tw.Write(data)
		return err
	})
	if err != nil {
		return fmt.Errorf("pack the directory: %w", err)
	}
	return tw.Close()
}

// readTar reads a tar of regular files into memory, within the caps.
func readTar(r io.Reader) (fs.FS, error) {
	files := fstest.MapFS{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, &Error{Status: 400, Message: "read the directory that was sent: " + err.Error()}
		}
		name := path.Clean(h.Name)
		switch {
		case h.Typeflag != tar.TypeReg || !fs.ValidPath(name) || name == ".":
			return nil, &Error{Status: 400, Message: fmt.Sprintf("the directory that was sent holds %q, which is not a regular file inside it", h.Name)}
		case h.Size > maxFile:
			return nil, &Error{Status: 400, Message: fmt.Sprintf("file %s has %d bytes; at most %d are read", name, h.Size, maxFile)}
		case len(files) >= maxEntries:
			return nil, &Error{Status: 400, Message: fmt.Sprintf("more than %d files were sent", maxEntries)}
		}
		var b bytes.Buffer
		if _, err := io.Copy(&b, io.LimitReader(tr, maxFile)); err != nil {
			return nil, &Error{Status: 400, Message: "read the directory that was sent: " + err.Error()}
		}
		files[name] = &fstest.MapFile{Data: b.Bytes(), Mode: 0o400}
	}
}
