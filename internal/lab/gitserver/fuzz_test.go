package gitserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func FuzzUploadPack(f *testing.F) {
	w, err := world.New(world.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(w.Close)
	r, err := openRepo(w, "fuzz", "", "")
	if err != nil {
		f.Fatal(err)
	}
	head, err := r.Commit("main", content("a", "1"), "base")
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("0032want "+head+"\n00000009done\n"), true)
	f.Add([]byte("003ewant "+head+" ofs-delta\n00000032have "+head+"\n00000009done\n"), false)
	f.Add([]byte("0000"), true)
	f.Fuzz(func(t *testing.T, in []byte, stateless bool) {
		var bad *badRequestError
		err := r.uploadPack(bytes.NewReader(in), io.Discard, stateless)
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("%q: %v", in, err)
		}
	})
}

func FuzzReceivePack(f *testing.F) {
	w, err := world.New(world.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(w.Close)
	zero := strings.Repeat("0", 40)
	line := zero + " " + strings.Repeat("1", 40) + " refs/heads/main\x00report-status side-band-64k"
	f.Add(fmt.Appendf(nil, "%04x%s0000", len(line)+4, line))
	f.Add([]byte("0000"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := openRepo(w, "fuzz", "", "")
		if err != nil {
			t.Fatal(err)
		}
		var bad *badRequestError
		err = r.receivePack(bytes.NewReader(in), io.Discard)
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("%q: %v", in, err)
		}
		if head, err := r.Head("main"); err == nil {
			t.Errorf("%q moved main to %s", in, head)
		}
	})
}
