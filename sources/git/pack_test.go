package git

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-git/v5/plumbing"

	"github.com/talos-agent/talos-agent/internal/worker"
	"github.com/talos-agent/talos-agent/internal/worker/workertest"
)

// packObject is one object of a pack made by hand.
type packObject struct {
	kind   plumbing.ObjectType
	data   []byte // unpacked, or the delta
	length int64  // declared; the length of data when zero
	back   int    // for a delta: how many objects back its base is
}

func makePack(objects ...packObject) []byte {
	return makePackCount(uint32(len(objects)), objects...)
}

func makePackCount(count uint32, objects ...packObject) []byte {
	b := bytes.NewBuffer([]byte("PACK\x00\x00\x00\x02"))
	_ = binary.Write(b, binary.BigEndian, count)
	offsets := make([]int, len(objects))
	for i, o := range objects {
		offsets[i] = b.Len()
		n := o.length
		if n == 0 {
			n = int64(len(o.data))
		}
		c := byte(o.kind)<<4 | byte(n&15)
		for n >>= 4; n > 0; n >>= 7 {
			b.WriteByte(c | 0x80)
			c = byte(n & 0x7f)
		}
		b.WriteByte(c)
		if o.kind == plumbing.OFSDeltaObject {
			d := offsets[i] - offsets[i-o.back]
			enc := []byte{byte(d & 0x7f)}
			for d >>= 7; d > 0; d >>= 7 {
				d--
				enc = append([]byte{byte(d&0x7f) | 0x80}, enc...)
			}
			b.Write(enc)
		}
		z := zlib.NewWriter(b)
		_, _ = z.Write(o.data)
		_ = z.Close()
	}
	sum := sha1.Sum(b.Bytes())
	b.Write(sum[:])
	return b.Bytes()
}

// delta makes a delta that copies the base, of the given size, times over.
func delta(base int, times int) []byte {
	size := func(n int) (out []byte) {
		for ; n >= 0x80; n >>= 7 {
			out = append(out, byte(n)|0x80)
		}
		return append(out, byte(n))
	}
	out := append(size(base), size(base*times)...)
	for range times {
		// Copy from offset 0, three bytes of size.
		out = append(out, 0x80|0x10|0x20|0x40, byte(base), byte(base>>8), byte(base>>16))
	}
	return out
}

var packLimits = Limits{Pack: 1 << 20, Objects: 50, Object: 1 << 20, Unpacked: 8 << 20}

func TestPackLimits(t *testing.T) {
	blob := packObject{kind: plumbing.BlobObject, data: bytes.Repeat([]byte{0}, 256<<10)}
	for name, tc := range map[string]struct {
		pack  []byte
		words string // of the error; none when it is to be accepted
	}{
		"plain":              {makePack(blob), ""},
		"delta":              {makePack(blob, packObject{kind: plumbing.OFSDeltaObject, data: delta(256<<10, 4), back: 1}), ""},
		"empty":              {makePack(), ""},
		"long":               {make([]byte, 1<<20+1), "more than 1 MiB"},
		"many objects":       {makePackCount(51, blob), "51 objects, the limit is 50"},
		"absurd count":       {makePackCount(1<<32-1, blob), "4294967295 objects"},
		"large object":       {makePack(packObject{kind: plumbing.BlobObject, data: make([]byte, 1<<20+1)}), "unpacks to more than 1 MiB"},
		"large claim":        {makePack(packObject{kind: plumbing.BlobObject, data: []byte{1}, length: 1 << 40}), "unpacks to more than 1 MiB"},
		"large delta":        {makePack(blob, packObject{kind: plumbing.OFSDeltaObject, data: delta(256<<10, 5), back: 1}), "unpacks to more than 1 MiB"},
		"chain of deltas":    {makePack(blob, packObject{kind: plumbing.OFSDeltaObject, data: delta(256<<10, 4), back: 1}, packObject{kind: plumbing.OFSDeltaObject, data: delta(1<<20, 4), back: 1}), "unpacks to more than 1 MiB"},
		"many deltas":        {makePack(append([]packObject{blob}, fan(8)...)...), "unpack to more than 8 MiB"},
		"more than declared": {makePack(packObject{kind: plumbing.BlobObject, data: make([]byte, 2000), length: 10}), "exceeds declared size"},
		"less than declared": {makePack(packObject{kind: plumbing.BlobObject, data: make([]byte, 10), length: 2000}), "discarded 10, expected 2000"},
		"base not there":     {makePack(packObject{kind: plumbing.OFSDeltaObject, data: delta(1, 1), back: 0}), "delta"},
		"bad checksum":       {append(makePack(blob)[:200], make([]byte, 30)...), "pack"},
		"cut short":          {makePack(blob)[:100], "pack"},
		"not a pack":         {[]byte("<html>"), "signature"},
		"nothing":            {nil, "empty packfile"},
	} {
		t.Run(name, func(t *testing.T) {
			fs := memfs.New()
			err := importPack(t.Context(), workertest.Run, fs, bytes.NewReader(tc.pack), packLimits)
			files := 0
			if infos, rerr := fs.ReadDir(packDir); rerr == nil {
				files = len(infos)
			}
			if tc.words == "" {
				check(t, err)
				if files != 2 {
					t.Errorf("%d files, want a pack and its index", files)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("error %v, want one that contains %q", err, tc.words)
			}
			if files != 0 {
				t.Errorf("%d files left behind", files)
			}
		})
	}
}

// fan makes n deltas of one base, each 1 MiB unpacked.
func fan(n int) []packObject {
	out := make([]packObject, n)
	for i := range out {
		out[i] = packObject{kind: plumbing.OFSDeltaObject, data: delta(256<<10, 4), back: i + 1}
	}
	return out
}

func TestPackIsDroppedWhenTheContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	pack := makePack(packObject{kind: plumbing.BlobObject, data: []byte("x")})
	cancel()
	fs := memfs.New()
	if err := importPack(ctx, workertest.Run, fs, bytes.NewReader(pack), packLimits); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want cancelled", err)
	}
}

func TestBombsFromARealServer(t *testing.T) {
	o := newOrigin(t)
	o.run("config", "uploadpack.allowFilter", "false")
	o.commitTree(treeEntry("100644", "zeros", o.object("blob", make([]byte, 3<<20))))
	h := serveHTTP(t, o, false)
	_, err := open(t, Config{URL: h.url(), Dir: t.TempDir(), Limits: Limits{Object: 2 << 20}, Worker: worker.Run}).Head(t.Context())
	wantKind(t, err, ErrLimit, "unpacks to more than 2 MiB", "repository of its own")

	// Below the limit of a pack but above that of a file: the rest is readable.
	s := open(t, Config{URL: h.url(), Dir: t.TempDir(), Worker: worker.Run})
	fsys, err := s.Tree(t.Context(), head(t, s))
	check(t, err)
	_, err = fsys.Open("zeros")
	wantKind(t, err, ErrLimit, "zeros", "3145728 bytes, the limit for one file is 1048576")
}

func FuzzPack(f *testing.F) {
	blob := packObject{kind: plumbing.BlobObject, data: []byte("hello")}
	f.Add(makePack())
	f.Add(makePack(blob))
	f.Add(makePack(blob, packObject{kind: plumbing.OFSDeltaObject, data: delta(5, 3), back: 1}))
	f.Add(makePack(packObject{kind: plumbing.TreeObject, data: treeEntry("100644", "a", strings.Repeat("ab", 20))}, packObject{kind: plumbing.CommitObject, data: []byte("tree x\n\n")}))
	f.Add(makePackCount(1<<31, blob))
	f.Fuzz(func(t *testing.T, pack []byte) {
		// The checksum is the first thing a fuzzer breaks; a server can make it.
		if len(pack) > 20 {
			sum := sha1.Sum(pack[:len(pack)-20])
			pack = append(pack[:len(pack)-20:len(pack)-20], sum[:]...)
		}
		fs := memfs.New()
		b, err := newBare(fs, "main")
		check(t, err)
		if b.add(t.Context(), workertest.Run, bytes.NewReader(pack), Limits{Pack: 1 << 20, Objects: 1000, Object: 1 << 20, Unpacked: 4 << 20}) != nil {
			return
		}
		// What was accepted can be asked for without harm.
		iter, err := b.sto.IterEncodedObjects(plumbing.AnyObject)
		if err != nil {
			return
		}
		_ = iter.ForEach(func(o plumbing.EncodedObject) error {
			_, _ = b.commit(o.Hash())
			_, _ = b.tree(o.Hash())
			got, err := b.bytes(plumbing.BlobObject, o.Hash(), 1<<20)
			if err == nil && plumbing.ComputeHash(plumbing.BlobObject, got) != o.Hash() {
				t.Errorf("object %s has other contents", o.Hash())
			}
			return nil
		})
	})
}

func FuzzRefs(f *testing.F) {
	line := strings.Repeat("1", 40) + " refs/heads/main\x00multi_ack ofs-delta object-format=sha1\n"
	f.Add([]byte("001e# service=git-upload-pack\n0000" + "006d" + line + "0000"))
	f.Add([]byte("0000"))
	f.Add([]byte("0030ERR access denied or repository not exported"))
	f.Add([]byte("0035shallow " + strings.Repeat("1", 40) + "0000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		refs, err := decodeRefs(bytes.NewReader(b))
		if (refs == nil) != (err != nil) {
			t.Errorf("refs %v with error %v", refs, err)
		}
	})
}

// FuzzTree reads a hostile tree object the way a commit's files are read.
func FuzzTree(f *testing.F) {
	id := strings.Repeat("ab", 20)
	f.Add(treeEntry("100644", "a", id))
	f.Add(append(treeEntry("40000", "..", id), treeEntry("120000", "x", id)...))
	f.Add([]byte("100644 a\x00short"))
	f.Fuzz(func(t *testing.T, body []byte) {
		b, err := newBare(memfs.New(), "main")
		check(t, err)
		o := b.sto.NewEncodedObject()
		o.SetType(plumbing.TreeObject)
		w := must(o.Writer())
		_ = must(w.Write(body))
		check(t, w.Close())
		h := must(b.sto.SetEncodedObject(o))
		s := &Store{objects: &b.objects}
		fsys := newTree(s, h, time.Unix(1, 0), Limits{}.withDefaults())
		entries, err := fsys.(*files).ReadDir(".")
		if err != nil {
			return
		}
		for _, e := range entries {
			if checkName(e.Name()) != nil {
				t.Errorf("lists the odd name %q", e.Name())
			}
			if f, err := fsys.Open(e.Name()); err == nil {
				_, _ = io.ReadAll(f)
				check(t, f.Close())
			}
		}
	})
}
