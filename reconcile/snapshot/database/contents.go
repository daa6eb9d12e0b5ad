package database

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Contents is what a database holds, without its keys and values.
type Contents struct {
	Size     int64  `json:"size"`     // bytes
	Revision int64  `json:"revision"` // of the newest change
	Keys     int64  `json:"keys"`     // that exist at that revision; -1: too many to count
	Hash     string `json:"hash"`     // as `etcdutl snapshot status` prints it, of all that is in it
	Index    uint64 `json:"index"`    // of raft, that was applied last
	Term     uint64 `json:"term"`     // of raft
	Version  string `json:"version"`  // of the cluster: 3.6.0
	// Members are those of etcd, by their ids. A restore replaces them.
	Members []Member `json:"members"`
}

// Member is one of etcd.
type Member struct {
	ID       string   `json:"id"` // hexadecimal
	Name     string   `json:"name"`
	PeerURLs []string `json:"peerURLs"`
	Learner  bool     `json:"learner,omitempty"`
}

// mostKeys bounds the memory that counting takes: 48 bytes each. A large cluster of
// Kubernetes has a million.
const mostKeys = 1 << 22

// Buckets of etcd, and keys in them. Source: etcd 3.6.5, server/storage/schema.
const (
	keyBucket     = "key"
	metaBucket    = "meta"
	memberBucket  = "members"
	clusterBucket = "cluster"
)

// Read reads the database in the first size bytes of r, and checks that its pages are
// those of one tree. Errors are IsDamaged, of r, or of the context.
func Read(ctx context.Context, r io.ReaderAt, size int64) (Contents, error) {
	return readCounting(ctx, r, size, mostKeys)
}

// readCounting is Read, and counts at most so many keys.
func readCounting(ctx context.Context, r io.ReaderAt, size int64, most int) (Contents, error) {
	p, err := openPages(r, size)
	if err != nil {
		return Contents{}, err
	}
	p.stop = func() error { return context.Cause(ctx) }
	found := reader{pages: p, most: most, sum: crc32.New(crc32.MakeTable(crc32.Castagnoli)), live: map[[16]byte]struct{}{}, buckets: map[string]bool{}}
	if err := p.walk(p.root, nil, nil, 0, found.readBucket); err != nil {
		return Contents{}, err
	}
	if err := p.checkFree(); err != nil {
		return Contents{}, err
	}
	for _, name := range []string{keyBucket, metaBucket} {
		if !found.buckets[name] {
			return Contents{}, damaged("it is no database of etcd: it has no bucket %q", name)
		}
	}
	c := found.contents
	c.Size, c.Hash = size, fmt.Sprintf("%x", found.sum.Sum32())
	if c.Keys = int64(len(found.live)); found.full {
		c.Keys = -1
	}
	return c, nil
}

// reader collects what is in the buckets.
type reader struct {
	pages    *pages
	sum      hash.Hash32
	live     map[[16]byte]struct{} // hashes of the keys that exist
	most     int                   // of them
	full     bool                  // there are more
	buckets  map[string]bool
	contents Contents
}

// readBucket reads one bucket.
func (r *reader) readBucket(e element) error {
	name := string(e.key)
	if e.flags&isBucket == 0 || len(e.value) < bucketSize {
		return damaged("%q is no bucket", name)
	}
	r.buckets[name] = true
	_, _ = r.sum.Write(e.key)
	visit := func(e element) error {
		if e.flags != 0 {
			return damaged("bucket %q has a bucket in it", name)
		}
		_, _ = r.sum.Write(e.key)
		_, _ = r.sum.Write(e.value)
		return r.readValue(name, e.key, e.value)
	}
	if root := binary.LittleEndian.Uint64(e.value); root != 0 {
		return r.pages.walk(root, nil, nil, 0, visit)
	}
	inline := page(e.value[bucketSize:])
	if len(inline) < headerSize || inline.flags() != isLeaf {
		return damaged("bucket %q has no page", name)
	}
	return r.pages.walkPage(inline, nil, nil, 0, visit)
}

// readValue reads what is of interest in one value of a bucket.
func (r *reader) readValue(bucket string, key, value []byte) error {
	switch {
	case bucket == keyBucket:
		return r.readRevision(key, value)
	case bucket == metaBucket && string(key) == "consistent_index":
		return readNumber(&r.contents.Index, key, value)
	case bucket == metaBucket && string(key) == "term":
		return readNumber(&r.contents.Term, key, value)
	case bucket == clusterBucket && string(key) == "clusterVersion":
		r.contents.Version = strings.ToValidUTF8(string(value), "?") // as JSON has it
	case bucket == memberBucket:
		return r.readMember(key, value)
	}
	return nil
}

func readNumber(to *uint64, key, value []byte) error {
	if len(value) != 8 {
		return damaged("%q has %d bytes", key, len(value))
	}
	*to = binary.BigEndian.Uint64(value)
	return nil
}

// readMember reads a member, which etcd stores as JSON.
func (r *reader) readMember(key, value []byte) error {
	var m struct {
		ID       uint64   `json:"id"`
		PeerURLs []string `json:"peerURLs"`
		Name     string   `json:"name"`
		Learner  bool     `json:"isLearner"`
	}
	if err := json.Unmarshal(value, &m); err != nil {
		return damaged("member %q of etcd cannot be read: %v", key, err)
	}
	r.contents.Members = append(r.contents.Members, Member{fmt.Sprintf("%x", m.ID), m.Name, m.PeerURLs, m.Learner})
	return nil
}

// readRevision reads a change of a key. The key of the bucket is the main revision, '_',
// and the sub revision, each of eight bytes, and 't' where the change is a deletion.
func (r *reader) readRevision(revision, value []byte) error {
	deleted := len(revision) == 18 && revision[17] == 't'
	if len(revision) != 17 && !deleted || revision[8] != '_' {
		return damaged("%x is no revision", revision)
	}
	r.contents.Revision = int64(binary.BigEndian.Uint64(revision))
	key, err := keyOf(value)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(key)
	id := [16]byte(sum[:])
	switch _, known := r.live[id]; {
	case deleted:
		delete(r.live, id)
	case known:
	case len(r.live) >= r.most:
		r.full = true
	default:
		r.live[id] = struct{}{}
	}
	return nil
}

// keyOf is the key of a KeyValue of etcd: field 1 of the message. All of the message is
// looked at, so that one that etcd could not read is found.
func keyOf(message []byte) ([]byte, error) {
	var key []byte
	for rest := message; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil, damaged("a value of etcd cannot be read: %v", protowire.ParseError(n))
		}
		rest = rest[n:]
		if n = protowire.ConsumeFieldValue(number, kind, rest); n < 0 {
			return nil, damaged("a value of etcd cannot be read: %v", protowire.ParseError(n))
		}
		if number == 1 {
			if kind != protowire.BytesType {
				return nil, damaged("a value of etcd has no key")
			}
			key, _ = protowire.ConsumeBytes(rest)
		}
		rest = rest[n:]
	}
	return key, nil
}
