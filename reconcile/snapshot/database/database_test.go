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

var names = []string{"alarm", "auth", "cluster", "key", "lease", "members", "members_removed", "meta"}

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
	for _, c := range []struct {
		what   string
		change func(b []byte)
		want   string
	}{
		{"no meta page", func(b []byte) { b[headerSize]++; b[4096+headerSize]++ }, "neither of its meta pages"},
		{"a page of no size", func(b []byte) {
			for _, at := range []int{0, 4096} {
				u32(b[at+headerSize+8:], 0)
				seal(b, at)
			}
		}, "neither of its meta pages"},
		{"more pages than there are", func(b []byte) {
			for _, at := range []int{0, 4096} {
				u32(b[at+headerSize+40:], 1<<30)
				seal(b, at)
			}
		}, "it is truncated"},
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
		{"a bucket that is none", func(b []byte) { b[root+headerSize] = 0 }, "is no bucket"},
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
