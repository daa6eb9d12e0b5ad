package database

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"
)

// write makes a database with bbolt, as Tx.WriteTo, and so etcd's Snapshot, has it.
func write(t testing.TB, o bbolt.Options, changes ...func(*bbolt.Tx) error) []byte {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, &o)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, change := range changes {
		if err := db.Update(change); err != nil {
			t.Fatal(err)
		}
	}
	err = db.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(&out)
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// likeEtcd are the options of etcd's backend.
var likeEtcd = bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, NoSync: true, NoGrowSync: true}

var names = []string{"alarm", "auth", "cluster", "key", "lease", "members", "members_removed", "meta", "test"}

// put puts a change of a key.
func put(tx *bbolt.Tx, main, sub int64, key, value string) error {
	b := tx.Bucket([]byte("key"))
	message := protowire.AppendTag(nil, 1, protowire.BytesType)
	message = protowire.AppendString(message, key)
	if value == "" {
		return b.Put(append(revision(main, sub), 't'), message)
	}
	for n, number := range []int64{main, main, 1} {
		message = protowire.AppendVarint(protowire.AppendTag(message, protowire.Number(n+2), protowire.VarintType), uint64(number))
	}
	message = protowire.AppendString(protowire.AppendTag(message, 5, protowire.BytesType), value)
	return b.Put(revision(main, sub), message)
}

func revision(main, sub int64) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(main))
	return binary.BigEndian.AppendUint64(append(b, '_'), uint64(sub))
}

// begin makes the buckets of a new etcd.
func begin(tx *bbolt.Tx) error {
	for _, name := range names {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	meta, members := tx.Bucket([]byte("meta")), tx.Bucket([]byte("members"))
	return errors.Join(
		meta.Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, 4711)),
		meta.Put([]byte("term"), binary.BigEndian.AppendUint64(nil, 3)),
		tx.Bucket([]byte("cluster")).Put([]byte("clusterVersion"), []byte("3.6.0")),
		tx.Bucket([]byte("cluster")).Put([]byte("downgrade"), []byte(`{"enabled":false}`)),
		meta.Put([]byte("storageVersion"), []byte("3.6.0")),
		tx.Bucket([]byte("test")).Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, 1)), // names of other buckets
		tx.Bucket([]byte("members_removed")).Put([]byte("term"), []byte("removed")),
		meta.Put([]byte("clusterVersion"), []byte("2.0.0")),
		members.Put([]byte("8e9e05c52164694d"), []byte(`{"id":10276657743932975437,"peerURLs":["https://10.0.0.11:2380"],"name":"dev-cp-1","clientURLs":["https://10.0.0.11:2379"]}`)),
		members.Put([]byte("91bc3c398fb3c146"), []byte(`{"id":10501334649042878790,"peerURLs":["https://10.0.0.12:2380"],"name":"dev-cp-2","isLearner":true}`)),
	)
}

// read reads all of b.
func read(b []byte) (Contents, error) {
	return Read(context.Background(), bytes.NewReader(b), int64(len(b)))
}

// asBboltHasIt counts as `etcdutl snapshot status` does.
func asBboltHasIt(t testing.TB, b []byte) (hash string, keys int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	sum, live := crc32.New(crc32.MakeTable(crc32.Castagnoli)), map[string]bool{}
	err = db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			return err
		}
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			_, _ = sum.Write(name)
			return b.ForEach(func(k, v []byte) error {
				_, _ = sum.Write(k)
				_, _ = sum.Write(v)
				if string(name) == "key" {
					_, _, n := protowire.ConsumeTag(v)
					key, _ := protowire.ConsumeBytes(v[n:])
					if live[string(key)] = true; len(k) == 18 {
						delete(live, string(key))
					}
				}
				return nil
			})
		})
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sum.Sum32()), len(live)
}

// fill puts some changes of keys, and deletes some.
func fill(from, to int64, size int) func(*bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		for n := from; n < to; n++ {
			key, value := fmt.Sprintf("/registry/configmaps/default/c%d", n%1000), strings.Repeat("v", size)
			if n%7 == 3 {
				value = ""
			}
			if err := put(tx, n, 0, key, value); err != nil {
				return err
			}
		}
		return nil
	}
}

// large is a database of some levels, with a value that spans pages.
func large(t testing.TB) []byte {
	return write(t, likeEtcd, begin, fill(2, 5000, 300), func(tx *bbolt.Tx) error {
		return put(tx, 5000, 0, "/registry/secrets/default/large", strings.Repeat("x", 1<<20))
	}, func(tx *bbolt.Tx) error { // as compaction does
		c := tx.Bucket([]byte("key")).Cursor()
		for k, _ := c.First(); k != nil && bytes.Compare(k, revision(900, 0)) < 0; k, _ = c.Next() {
			if err := c.Delete(); err != nil {
				return err
			}
		}
		return nil
	}, fill(5001, 5400, 3000))
}

// TestRead: what is read is what bbolt reads.
func TestRead(t *testing.T) {
	b := large(t)
	got, err := read(b)
	if err != nil {
		t.Fatal(err)
	}
	hash, keys := asBboltHasIt(t, b)
	want := Contents{Size: int64(len(b)), Revision: 5399, Keys: int64(keys), Hash: hash, Index: 4711, Term: 3, Version: "3.6.0", Members: []Member{
		{ID: "8e9e05c52164694d", Name: "dev-cp-1", PeerURLs: []string{"https://10.0.0.11:2380"}},
		{ID: "91bc3c398fb3c146", Name: "dev-cp-2", PeerURLs: []string{"https://10.0.0.12:2380"}, Learner: true},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestReadAnything: whatever was put, deleted and compacted, with whatever size of pages
// and with a free list or without, what is read is what bbolt reads.
func TestReadAnything(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		o := likeEtcd
		o.PageSize = rapid.SampledFrom([]int{1024, 4096, 16384}).Draw(r, "page size")
		o.NoFreelistSync = rapid.Bool().Draw(r, "no free list")
		changes := []func(*bbolt.Tx) error{begin}
		next := int64(2)
		for range rapid.IntRange(0, 4).Draw(r, "transactions") {
			n, size := int64(rapid.IntRange(1, 300).Draw(r, "changes")), rapid.IntRange(1, 5000).Draw(r, "size")
			changes = append(changes, fill(next, next+n, size))
			next += n
		}
		b := write(t, o, changes...)
		got, err := read(b)
		if err != nil {
			r.Fatal(err)
		}
		hash, keys := asBboltHasIt(t, b)
		if got.Hash != hash || got.Keys != int64(keys) || got.Revision != max(0, next-1) && next > 2 {
			r.Fatalf("%+v, and bbolt has the hash %s and %d keys", got, hash, keys)
		}
	})
}

// TestTruncated: no part of a database is one.
func TestTruncated(t *testing.T) {
	b := write(t, likeEtcd, begin, fill(2, 300, 100))
	for size := 0; size < len(b); size += 256 {
		if _, err := read(b[:size]); !IsDamaged(err) {
			t.Fatalf("%d of %d bytes: %v", size, len(b), err)
		}
	}
}

// seal writes the checksum of a meta page that was changed.
func seal(b []byte, at int) {
	sum := fnv.New64a()
	_, _ = sum.Write(b[at+headerSize : at+headerSize+metaSize-8])
	binary.LittleEndian.PutUint64(b[at+headerSize+metaSize-8:], sum.Sum64())
}

// TestDamaged: what contradicts the format is named.
func TestDamaged(t *testing.T) {
	whole := write(t, bbolt.Options{PageSize: 4096, NoSync: true}, begin, fill(2, 2000, 300), fill(2000, 2100, 300))
	if _, err := read(whole); err != nil {
		t.Fatal(err)
	}
	p, err := openPages(bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		t.Fatal(err)
	}
	of := func(flags uint16) int { // the last page of a kind that is in use
		p, err := openPages(bytes.NewReader(whole), int64(len(whole)))
		if err != nil {
			t.Fatal(err)
		}
		p.stop = func() error { return nil }
		if err := p.walk(p.root, nil, nil, 0, func(e element) error {
			if root := binary.LittleEndian.Uint64(e.value); root != 0 {
				return p.walk(root, nil, nil, 0, func(element) error { return nil })
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for id := p.count - 1; id > 1; id-- {
			if at := int(id) * 4096; p.isSeen(id) && page(whole[at:]).flags() == flags && id != p.root {
				return at
			}
		}
		t.Fatalf("there is no page with flags %d", flags)
		return 0
	}
	leaf, branch, root, free := of(isLeaf), of(isBranch), int(p.root)*4096, int(p.free)*4096
	u32 := binary.LittleEndian.PutUint32
	both := func(change func(meta []byte)) func([]byte) { // of the meta pages
		return func(b []byte) {
			for _, at := range []int{0, 4096} {
				change(b[at+headerSize:])
				seal(b, at)
			}
		}
	}
	for _, c := range []struct {
		what   string
		change func(b []byte)
		want   string
	}{
		{"no meta page", func(b []byte) { b[headerSize]++; b[4096+headerSize]++ }, "neither of its meta pages"},
		{"a page of no size", both(func(b []byte) { u32(b[8:], 0) }), "neither of its meta pages"},
		{"another magic", both(func(b []byte) { b[0]++ }), "neither of its meta pages"},
		{"another format", both(func(b []byte) { b[4]++ }), "neither of its meta pages"},
		{"pages of no power of two", both(func(b []byte) { u32(b[8:], 4096-512) }), "neither of its meta pages"},
		{"pages that are too large", both(func(b []byte) { u32(b[8:], 1<<17) }), "neither of its meta pages"},
		{"no checksum", func(b []byte) { b[headerSize+metaSize-1]++; b[4096+headerSize+metaSize-1]++ }, "neither of its meta pages"},
		{"meta pages of another kind", func(b []byte) { b[8], b[4096+8] = isLeaf, isLeaf }, "neither of its meta pages"},
		{"more pages than there are", both(func(b []byte) { u32(b[40:], 1<<30) }), "it is truncated"},
		{"another id", func(b []byte) { b[leaf]++ }, "calls itself"},
		{"no kind", func(b []byte) { b[leaf+8] = isMeta }, "neither a branch nor a leaf"},
		{"too much behind it", func(b []byte) { u32(b[leaf+12:], 1<<31) }, "ends behind the last one"},
		{"what belongs to another", func(b []byte) { u32(b[root+12:], 1) }, "belongs to two places"},
		{"a key of another page", func(b []byte) { u32(b[leaf+headerSize+4:], 5000) }, "ends behind the page"},
		{"a value without end", func(b []byte) { u32(b[leaf+headerSize+12:], 1<<32-1) }, "ends behind the page"},
		{"more elements than there is room", func(b []byte) { binary.LittleEndian.PutUint16(b[leaf+10:], 65535) }, "has no room for its 65535 elements"},
		{"two elements in one place", func(b []byte) {
			u32(b[leaf+headerSize+elementSize+4:], binary.LittleEndian.Uint32(b[leaf+headerSize+4:])-elementSize)
		}, "lies in another one"},
		{"a branch without children", func(b []byte) { binary.LittleEndian.PutUint16(b[branch+10:], 0) }, "has no children"},
		{"a child that is its parent", func(b []byte) {
			binary.LittleEndian.PutUint64(b[branch+headerSize+8:], uint64(branch/4096))
		}, "belongs to two places"},
		{"a child that does not exist", func(b []byte) { u32(b[branch+headerSize+8:], 1<<31) }, "does not exist"},
		{"keys out of order", func(b []byte) {
			at := leaf + headerSize + int(binary.LittleEndian.Uint32(b[leaf+headerSize+4:]))
			b[at] = 0xFF
		}, "out of order"},
		{"keys that belong to the page before", func(b []byte) {
			at := leaf + headerSize + int(binary.LittleEndian.Uint32(b[leaf+headerSize+4:]))
			b[at+6], b[at+7] = 0, 0
		}, "out of order"},
		{"a bucket that is none", func(b []byte) { b[root+headerSize] = 0 }, "is no bucket"},
		{"a bucket that is too short", func(b []byte) { u32(b[root+headerSize+12:], bucketSize-1) }, "is no bucket"},
		{"a bucket that has no room for its page", func(b []byte) { u32(b[root+headerSize+12:], bucketSize+headerSize-1) }, "has no page"},
		{"a bucket with a branch in it", func(b []byte) {
			key := root + headerSize + int(binary.LittleEndian.Uint32(b[root+headerSize+4:]))
			b[key+len("alarm")+bucketSize+8] = isBranch
		}, "has no page"},
		{"a bucket within one", func(b []byte) { b[leaf+headerSize] = 1 }, "has a bucket in it"},
		{"a free list that is none", func(b []byte) { b[free+8] = isLeaf }, "is not the free list"},
		{"a longer free list", func(b []byte) { binary.LittleEndian.PutUint16(b[free+10:], 60000) }, "has no room for"},
		{"a page that is used and free", func(b []byte) { binary.LittleEndian.PutUint64(b[free+headerSize:], p.root) }, "is used and free"},
		{"a free page that does not exist", func(b []byte) { u32(b[free+headerSize+4:], 1) }, "and is free"},
	} {
		b := bytes.Clone(whole)
		c.change(b)
		if _, err := read(b); !IsDamaged(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

// TestOneMetaPage: one that is not whole is what a process leaves that ends while it
// writes; the other one counts.
func TestOneMetaPage(t *testing.T) {
	whole := write(t, likeEtcd, begin, fill(2, 300, 100))
	want, err := read(whole)
	if err != nil {
		t.Fatal(err)
	}
	for at := range 2 {
		b := bytes.Clone(whole)
		b[at*os.Getpagesize()+headerSize]++
		if got, err := read(b); err != nil || !cmp.Equal(got, want) {
			t.Errorf("without meta page %d: %+v, %v", at, got, err)
		}
	}
}

// TestNoDatabaseOfEtcd: others use bbolt too, and other things have a file of this name.
func TestNoDatabaseOfEtcd(t *testing.T) {
	put := func(bucket, key string, value []byte) func(*bbolt.Tx) error {
		return func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucket)).Put([]byte(key), value) }
	}
	for want, b := range map[string][]byte{
		"neither of its meta pages": []byte(strings.Repeat("not a database ", 1000)),
		`no bucket "key"`: write(t, likeEtcd, func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucket([]byte("meta"))
			return err
		}),
		`"consistent_index" has 3 bytes`: write(t, likeEtcd, begin, put("meta", "consistent_index", []byte("abc"))),
		"cannot be read: ":               write(t, likeEtcd, begin, put("members", "8e9e05c52164694d", []byte("{"))),
		"0078 is no revision":            write(t, likeEtcd, begin, put("key", string(append(revision(2, 0), 'x')), nil)),
		"2d0000000000000000 is no":       write(t, likeEtcd, begin, put("key", strings.Replace(string(revision(2, 0)), "_", "-", 1), nil)),
		"a value of etcd has no key":     write(t, likeEtcd, begin, put("key", string(revision(2, 0)), []byte{0x08, 1})),
		"value of etcd cannot be read: ": write(t, likeEtcd, begin, put("key", string(revision(2, 0)), []byte{0x80})),
		"6162 is no revision":            write(t, likeEtcd, begin, put("key", "ab", nil)),
		"a value of etcd cannot be read": write(t, likeEtcd, begin, put("key", string(revision(2, 0)), []byte{0x0A, 0x7F})),
		`bucket "key" has a bucket in it`: write(t, likeEtcd, begin, func(tx *bbolt.Tx) error {
			_, err := tx.Bucket([]byte("key")).CreateBucket([]byte("inner"))
			return err
		}),
	} {
		if _, err := read(b); !IsDamaged(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestErrorsOfTheReader: that a disk fails is no damage of the bytes, and the end of the
// context ends reading.
func TestErrorsOfTheReader(t *testing.T) {
	b := large(t)
	broken := errors.New("input/output error")
	for _, at := range []int64{0, int64(os.Getpagesize()), int64(len(b) / 2)} {
		if _, err := Read(t.Context(), failing{bytes.NewReader(b), at, broken}, int64(len(b))); !errors.Is(err, broken) || IsDamaged(err) {
			t.Errorf("from %d on: %v", at, err)
		}
	}
	for _, at := range []int64{0, int64(os.Getpagesize())} { // of a meta page alone
		if _, err := Read(t.Context(), failingAt{bytes.NewReader(b), at, broken}, int64(len(b))); !errors.Is(err, broken) {
			t.Errorf("at %d: %v", at, err)
		}
	}
	if _, err := Read(t.Context(), endingEarly{bytes.NewReader(b)}, int64(len(b))); err != nil {
		t.Errorf("the end of the file comes with its last bytes: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrClosedPipe)
	if _, err := Read(ctx, bytes.NewReader(b), int64(len(b))); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// failing fails to read from an offset on.
type failing struct {
	io.ReaderAt
	from int64
	err  error
}

func (f failing) ReadAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) > f.from {
		return 0, f.err
	}
	return f.ReaderAt.ReadAt(b, at)
}

// failingAt fails to read at one offset.
type failingAt struct {
	io.ReaderAt
	at  int64
	err error
}

func (f failingAt) ReadAt(b []byte, at int64) (int, error) {
	if at == f.at {
		return 0, f.err
	}
	return f.ReaderAt.ReadAt(b, at)
}

// endingEarly reports the end with the last bytes, as an io.ReaderAt may.
type endingEarly struct{ *bytes.Reader }

func (e endingEarly) ReadAt(b []byte, at int64) (int, error) {
	n, err := e.Reader.ReadAt(b, at)
	if at+int64(n) == e.Size() {
		err = io.EOF
	}
	return n, err
}

// TestNewestMetaPage: the newer one counts, wherever it is, and nothing that only looks
// like one.
func TestNewestMetaPage(t *testing.T) {
	whole := write(t, bbolt.Options{PageSize: 4096, NoSync: true, NoFreelistSync: true}, begin, fill(2, 300, 100))
	for _, c := range []struct {
		bad     int // the meta page with a root that does not exist
		newer   int
		damaged bool
	}{{0, 0, true}, {0, 1, false}, {1, 0, false}, {1, 1, true}} {
		b := bytes.Clone(whole)
		binary.LittleEndian.PutUint64(b[c.bad*4096+headerSize+16:], 1<<40)
		binary.LittleEndian.PutUint64(b[c.newer*4096+headerSize+48:], 1000)
		seal(b, 0)
		seal(b, 4096)
		if _, err := read(b); IsDamaged(err) != c.damaged || err != nil && !c.damaged {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, at := range []int{512, 1024, 2048, 8192, 16384} {
		for _, size := range []int{at, 4096} {
			b := bytes.Clone(whole)
			b = append(b, make([]byte, 32<<10)...) // where nothing lies that is in use
			at := at
			if at > 4096 {
				at = len(whole) // what lies there is in use
			}
			copy(b[at:], b[:headerSize+metaSize])
			binary.LittleEndian.PutUint64(b[at+headerSize+16:], 1<<40)
			binary.LittleEndian.PutUint64(b[at+headerSize+48:], 1000)
			binary.LittleEndian.PutUint32(b[at+headerSize+8:], uint32(size))
			seal(b, at)
			if _, err := read(b); err != nil {
				t.Errorf("one at %d with pages of %d: %v", at, size, err)
			}
			b[headerSize]++ // then it is looked for, and must be where it belongs
			if _, err := read(b); err != nil && size != at {
				t.Errorf("one at %d with pages of %d, and the first is lost: %v", at, size, err)
			}
		}
	}
}

// sparse is a file with nothing but zeros behind its begin.
type sparse []byte

func (s sparse) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	if at < int64(len(s)) {
		copy(b, s[at:])
	}
	return len(b), nil
}

// TestBounds: what a page may take of memory, and a tree of the stack, is bounded before it
// is taken.
func TestBounds(t *testing.T) {
	const pageSize, count = 4096, 1 << 20
	file := func(pages ...func(id uint64, p []byte)) sparse {
		b := make([]byte, (2+len(pages))*pageSize)
		meta := b[headerSize:]
		b[8] = isMeta
		for n, v := range []uint32{magic, format, pageSize} {
			binary.LittleEndian.PutUint32(meta[n*4:], v)
		}
		for n, v := range []uint64{2, 0, noFreeList, count, 1} { // from the root on
			binary.LittleEndian.PutUint64(meta[16+n*8:], v)
		}
		seal(b, 0)
		for n, write := range pages {
			p := b[(2+n)*pageSize:][:pageSize]
			binary.LittleEndian.PutUint64(p, uint64(2+n))
			write(uint64(2+n), p)
		}
		return b
	}
	of := func(flags, overflow int) func(uint64, []byte) {
		return func(_ uint64, p []byte) {
			p[8] = byte(flags)
			binary.LittleEndian.PutUint32(p[12:], uint32(overflow))
		}
	}
	branch := func(id uint64, p []byte) { // with one child, the next page
		p[8], p[10] = isBranch, 1
		binary.LittleEndian.PutUint32(p[headerSize:], elementSize)
		binary.LittleEndian.PutUint64(p[headerSize+8:], id+1)
	}
	deep := func(n int) (pages []func(uint64, []byte)) {
		for range n {
			pages = append(pages, branch)
		}
		return append(pages, of(isLeaf, 0))
	}
	for _, c := range []struct {
		what string
		file sparse
		want string
	}{
		{"a leaf of 64 MiB", file(of(isLeaf, mostPage/pageSize-1)), "no bucket"},
		{"a larger leaf", file(of(isLeaf, mostPage/pageSize)), "page 2 is too large"},
		{"a branch of 1 MiB", file(of(isBranch, mostBranch/pageSize-1)), "has no children"},
		{"a larger branch", file(of(isBranch, mostBranch/pageSize)), "page 2 is too large"},
		{"a deep tree", file(deep(mostDepth)...), "no bucket"},
		{"a deeper tree", file(deep(mostDepth + 1)...), "is too deep"},
	} {
		if _, err := Read(t.Context(), c.file, count*pageSize); !IsDamaged(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

// TestKeysThatAreCounted: more than a bound are not counted; one that is changed is no
// other one.
func TestKeysThatAreCounted(t *testing.T) {
	b := write(t, likeEtcd, begin, func(tx *bbolt.Tx) error {
		return errors.Join(put(tx, 2, 0, "a", "1"), put(tx, 3, 0, "b", "1"), put(tx, 4, 0, "c", "1"), put(tx, 5, 0, "a", "2"), put(tx, 6, 0, "b", ""), put(tx, 7, 0, "d", "1"))
	})
	for most, want := range map[int]int64{2: -1, 3: 3, 4: 3} {
		if c, err := readCounting(t.Context(), bytes.NewReader(b), int64(len(b)), most); err != nil || c.Keys != want {
			t.Errorf("at most %d: %d, %v; want %d", most, c.Keys, err, want)
		}
	}
}

// FuzzRead: whatever bytes of a database are changed, the end is an answer. A change is an
// offset of two bytes and a byte to put there; the checksums of meta pages are made right,
// or nothing behind them would be reached.
func FuzzRead(f *testing.F) {
	small := bbolt.Options{PageSize: 1024, NoSync: true}
	files := [][]byte{write(f, small, begin, fill(2, 60, 20))}
	small.NoFreelistSync = true
	files = append(files, write(f, small, begin, fill(2, 9, 2000), fill(9, 30, 1)))
	f.Add(true, []byte{0, headerSize + 16, 4, 8, 8, isBranch})
	f.Add(false, []byte{4, headerSize + 40, 3, 12, 10, 2, 12, 12, 1})
	f.Fuzz(func(t *testing.T, first bool, changes []byte) {
		b := bytes.Clone(files[1])
		if first {
			b = bytes.Clone(files[0])
		}
		for ; len(changes) >= 3; changes = changes[3:] {
			b[int(binary.BigEndian.Uint16(changes))%len(b)] = changes[2]
		}
		seal(b, 0)
		seal(b, 1024)
		if _, err := read(b); err != nil && !IsDamaged(err) {
			t.Error(err)
		}
	})
}
