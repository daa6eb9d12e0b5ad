package etcddb_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/talos-agent/talos-agent/internal/lab/talos/etcddb"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// sample is an etcd with so many keys, one of them deleted.
func sample(keys int) etcddb.Contents {
	c := etcddb.Contents{Index: 354, Term: 9, Version: "3.6.0", Members: []etcddb.Member{
		{ID: 1756531196421557976, Name: "cp2", PeerURLs: []string{"https://10.5.0.12:2380"}, ClientURLs: []string{"https://10.5.0.12:2379"}},
		{ID: 4257347142033593523, PeerURLs: []string{"https://10.5.0.13:2380"}, Learner: true},
	}}
	for i := range keys {
		k := world.RegistryKey{Key: fmt.Sprintf("/registry/configmaps/default/c%d", i), Value: bytes.Repeat([]byte{'x'}, i%700), Revision: uint64(i + 5)}
		if i == 3 {
			k.Value = nil
		}
		c.Registry.Keys = append(c.Registry.Keys, k)
		c.Registry.Revision = k.Revision
	}
	return c
}

// openFile opens a database as whoever restores it does.
func openFile(t *testing.T, file []byte, read func(*bbolt.Tx)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.View(func(tx *bbolt.Tx) error { read(tx); return nil }); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// TestFileIsADatabase: bbolt opens it and finds nothing wrong, and its buckets are etcd's.
func TestFileIsADatabase(t *testing.T) {
	for _, keys := range []int{0, 1, 30, 3000} {
		file, err := etcddb.Encode(sample(keys))
		if err != nil {
			t.Fatal(err)
		}
		if len(file)%4096 != 0 {
			t.Errorf("%d keys: %d bytes are no whole pages", keys, len(file))
		}
		openFile(t, etcddb.Seal(file), func(tx *bbolt.Tx) {
			for err := range tx.Check() {
				t.Errorf("%d keys: %v", keys, err)
			}
			if tx.Size() != int64(len(file)) {
				t.Errorf("%d keys: bbolt finds %d bytes of %d", keys, tx.Size(), len(file))
			}
			var names []string
			if err := tx.ForEach(func(name []byte, _ *bbolt.Bucket) error { names = append(names, string(name)); return nil }); err != nil {
				t.Error(err)
			}
			if want := []string{"alarm", "auth", "authRoles", "authUsers", "cluster", "key", "lease", "members", "members_removed", "meta"}; !slices.Equal(names, want) {
				t.Errorf("buckets %v", names)
			}
			meta := tx.Bucket([]byte("meta"))
			if index := binary.BigEndian.Uint64(meta.Get([]byte("consistent_index"))); index != 354 {
				t.Errorf("index %d", index)
			}
			if state := string(meta.Get([]byte("confState"))); state != `{"voters":[1756531196421557976],"learners":[4257347142033593523],"auto_leave":false}` {
				t.Errorf("state %s", state)
			}
			if m := string(tx.Bucket([]byte("members")).Get([]byte("186073d10f994ed8"))); m != `{"id":1756531196421557976,"peerURLs":["https://10.5.0.12:2380"],"name":"cp2","clientURLs":["https://10.5.0.12:2379"]}` {
				t.Errorf("member %s", m)
			}
			if n := tx.Bucket([]byte("key")).Stats().KeyN; n != max(keys, 1) {
				t.Errorf("%d revisions of %d", n, keys)
			}
		})
	}
}

// TestDecodeReadsWhatEncodeWrote, with the hash behind it or without.
func TestDecodeReadsWhatEncodeWrote(t *testing.T) {
	for _, keys := range []int{1, 30, 3000} {
		want := sample(keys)
		file, err := etcddb.Encode(want)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range [][]byte{file, etcddb.Seal(file)} {
			got, err := etcddb.Decode(file)
			if err != nil || !reflect.DeepEqual(want, got) {
				t.Errorf("%d keys: %v, %d of them are read", keys, err, len(got.Registry.Keys))
			}
		}
	}
}

// TestDecodeKnowsWhatIsBad: no file makes it panic, and one that ends too early is known as that.
func TestDecodeKnowsWhatIsBad(t *testing.T) {
	file, err := etcddb.Encode(sample(60))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file []byte
		want error
	}{
		{nil, etcddb.ErrNoDatabase},
		{[]byte("this is no snapshot"), etcddb.ErrNoDatabase},
		{make([]byte, 1<<16), etcddb.ErrNoDatabase},
		{file[:len(file)/2], etcddb.ErrTruncated},
		{file[:len(file)-1], etcddb.ErrTruncated},
		{file, nil},
	} {
		if _, err := etcddb.Decode(c.file); !errors.Is(err, c.want) {
			t.Errorf("%d bytes: %v, want %v", len(c.file), err, c.want)
		}
	}
	for at := range len(file) {
		if at%61 != 0 && (at%4096 > 80 || at > 4*4096) {
			continue
		}
		bad := slices.Clone(file)
		bad[at] ^= 0x40
		_, _ = etcddb.Decode(bad) // it returns; what, depends on the byte
	}
}

// TestSendCutsAsTalosDoes: chunks of 1,024 bytes, the last of 32, which are the SHA-256 of those
// before.
func TestSendCutsAsTalosDoes(t *testing.T) {
	file, err := etcddb.Encode(sample(30))
	if err != nil {
		t.Fatal(err)
	}
	var parts [][]byte
	if err := etcddb.Send(etcddb.Seal(file), world.Fault{}, func(part []byte) error { parts = append(parts, part); return nil }); err != nil {
		t.Fatal(err)
	}
	last := parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] {
		if len(part) != 1024 {
			t.Errorf("a chunk of %d bytes", len(part))
		}
	}
	if sum := sha256.Sum256(file); !bytes.Equal(last, sum[:]) || !bytes.Equal(slices.Concat(parts[:len(parts)-1]...), file) {
		t.Errorf("the last chunk, of %d bytes, is not the hash of the rest", len(last))
	}
	if size := len(file) + len(last); size%512 != 32 {
		t.Errorf("%d bytes", size)
	}
}
