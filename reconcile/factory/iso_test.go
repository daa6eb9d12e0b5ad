package factory

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// testMedium is a file system of so many blocks, all of it there.
func testMedium(blocks int) []byte {
	iso := make([]byte, blocks*descriptorSize)
	d := iso[descriptor:]
	copy(d, descriptorMark)
	binary.LittleEndian.PutUint32(d[volumeBlocks:], uint32(blocks))
	binary.LittleEndian.PutUint16(d[blockBytes:], descriptorSize)
	return iso
}

func TestCheckISO(t *testing.T) {
	whole := testMedium(40)
	for name, c := range map[string]struct {
		iso  []byte
		want string
	}{
		"whole":                      {whole, ""},
		"with a partition behind it": {append(bytes.Clone(whole), make([]byte, 1<<20)...), ""},
		"nothing":                    {nil, "it is not an ISO image"},
		"an answer in words":         {[]byte("not found"), "it is not an ISO image"},
		"a disk image":               {append([]byte("QFI\xfb"), make([]byte, 1<<20)...), "it is not an ISO image"},
		"no descriptor":              {whole[:descriptor], "it is not an ISO image"},
		"half a descriptor":          {whole[:descriptor+100], "it is not an ISO image"},
		"a block less":               {whole[:len(whole)-descriptorSize], "it was interrupted: its file system has 81920 bytes, and it has 79872"},
		"a size of zero": {func() []byte {
			iso := testMedium(40)
			binary.LittleEndian.PutUint32(iso[descriptor+volumeBlocks:], 0)
			return iso
		}(), "it is damaged"},
	} {
		err := checkISO(bytes.NewReader(c.iso), int64(len(c.iso)))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestDownloadMedium: an installation medium is another file than the disk image of the same schematic, and what comes in its
// place is refused.
func TestDownloadMedium(t *testing.T) {
	inLab(t, func(b *bench) {
		disk := b.image("v1.13.9")
		medium := cluster.Spec{ISO: true}.NewImage(disk.Version, disk.Schematic)
		pin, err := b.f.Download(b.Context(), medium, nil)
		if err != nil || !b.f.Cached(medium, pin) || b.f.Cached(disk, pin) {
			t.Fatalf("%+v, %v", pin, err)
		}
		if known, ok := b.world.ImageOf(pin.SHA256); !ok || !known.Medium || known.Version != medium.Version {
			t.Errorf("it is %+v", known)
		}
	})
	inLab(t, func(b *bench) {
		medium := cluster.Spec{ISO: true}.NewImage("v1.13.9", b.image("v1.13.9").Schematic)
		var body string
		f := b.serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		for name, c := range map[string]struct{ body, words string }{
			"nothing":        {"", "it is empty"},
			"a login page":   {"<!DOCTYPE html>\n<html>\n" + strings.Repeat("x", 100_000), `it begins with "<!DOCTYPE html>`},
			"a short answer": {"not found", `it begins with "not found"`},
			"a disk image":   {"QFI\xfb" + strings.Repeat("\x00", 100_000), "the answer is not an image of Talos: it begins with"},
			"half a medium":  {string(testMedium(40)[:35*descriptorSize]), "what came is no whole Talos image: it was interrupted"},
		} {
			body = c.body
			_, err := f.Download(b.Context(), medium, nil)
			mustFail(t, err, true, c.words, "")
			if entries, err := os.ReadDir(f.dir); err != nil || len(entries) > 0 {
				t.Errorf("%s: the cache holds %v (%v)", name, entries, err)
			}
		}
	})
}
