package api

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// TestALargeFileBesideTheInventory: a repository may hold large files, as long as
// nothing of the inventory reads them. What does read one sees that it is too large,
// never a smaller one.
func TestALargeFileBesideTheInventory(t *testing.T) {
	_, c, _ := serve(t)
	files := fstest.MapFS{"inventory/dev/cluster.yaml": {Data: []byte("x")}, "docs/photo.jpg": {Data: make([]byte, 5<<20)}}
	if f, err := c.ForecastDir(t.Context(), "dev", files); err != nil || f.Cluster != "x" {
		t.Errorf("%+v, %v", f, err)
	}

	var b bytes.Buffer
	if err := WriteTar(&b, files); err != nil {
		t.Fatal(err)
	}
	sent, err := readTar(&b)
	if err != nil {
		t.Fatal(err)
	}
	if photo, err := fs.ReadFile(sent, "docs/photo.jpg"); err != nil || len(photo) <= maxFile {
		t.Errorf("a file of 5 MiB reads as one of %d bytes, %v", len(photo), err)
	}
}

// TestTooMuchToPlan: what is too much is refused with the hint, by who sends it and
// by who gets it.
func TestTooMuchToPlan(t *testing.T) {
	_, c, _ := serve(t)
	many, big := fstest.MapFS{}, fstest.MapFS{}
	for i := range maxEntries + 1 {
		many[fmt.Sprintf("%d", i)] = &fstest.MapFile{}
	}
	for i := range maxTree>>20 + 1 {
		big[fmt.Sprintf("%d", i)] = &fstest.MapFile{Data: make([]byte, 1<<20)}
	}
	refused := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(fault.HintOf(err), "an empty directory") {
			t.Errorf("%v [%s], want %q", err, fault.HintOf(err), want)
		}
	}
	for want, files := range map[string]fstest.MapFS{"more than 10000 files": many, "more than 20 MiB": big} {
		_, err := c.ForecastDir(t.Context(), "dev", files)
		refused(err, want)
		_, err = readTar(http.MaxBytesReader(nil, io.NopCloser(everything(t, files)), maxTree))
		refused(err, want)
	}
}

// everything is a tar of files that heeds no cap.
func everything(t *testing.T, files fstest.MapFS) io.Reader {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for name, f := range files {
		if err := tw.WriteHeader(&tar.Header{Name: name, Size: int64(len(f.Data)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(f.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}
