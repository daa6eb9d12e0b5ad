package etcddb

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Contents is what an etcd holds.
type Contents struct {
	Registry world.Registry
	Members  []Member
	// Index and Term are where its log stands, as its status shows them.
	Index, Term uint64
	// Version is that of the whole, of a minor: 3.6.0.
	Version string
}

// Member is a member of an etcd, as its database names it.
// Source: etcd v3.6.5, membership.Member.
type Member struct {
	ID         uint64   `json:"id"`
	PeerURLs   []string `json:"peerURLs"`
	Learner    bool     `json:"isLearner,omitempty"`
	Name       string   `json:"name,omitempty"`
	ClientURLs []string `json:"clientURLs,omitempty"`
}

// pageSize is that of the machines of the lab, wherever the lab runs.
const pageSize = 4096

// The buckets of etcd.
// Source: etcd v3.6.5, storage/schema: AllBuckets.
const (
	keyBucket     = "key"
	metaBucket    = "meta"
	membersBucket = "members"
	clusterBucket = "cluster"
)

var emptyBuckets = []string{"lease", "alarm", "members_removed", "auth", "authUsers", "authRoles"}

// compacted is the key in which the kube-apiservers agree on what they compact. It stands for a
// change that left nothing else.
// Source: kubernetes v1.36, storage/etcd3: compactRevKey.
const compacted = "compact_rev_key"

// Encode returns the database file.
func Encode(c Contents) ([]byte, error) {
	dir, err := os.MkdirTemp("", "lab-etcd-")
	if err != nil {
		return nil, fmt.Errorf("make a database of etcd: %w", err)
	}
	file, err := encodeIn(dir, c)
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return nil, fmt.Errorf("make a database of etcd: %w", err)
	}
	return file, nil
}

// encodeIn makes the file in a directory of its own. It is thrown away, so nothing is synced.
func encodeIn(dir string, c Contents) (file []byte, err error) {
	db, err := bbolt.Open(filepath.Join(dir, "db"), 0o600, &bbolt.Options{PageSize: pageSize, NoSync: true, NoGrowSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.Update(func(tx *bbolt.Tx) error { return fill(tx, c) }); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = db.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(&b)
		return err
	})
	return b.Bytes(), err
}

func fill(tx *bbolt.Tx, c Contents) error {
	for _, name := range emptyBuckets {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	members, state := map[string][]byte{}, confState{}
	for _, m := range c.Members {
		value, err := json.Marshal(m)
		if err != nil {
			return err
		}
		members[strconv.FormatUint(m.ID, 16)] = value
		if m.Learner {
			state.Learners = append(state.Learners, m.ID)
		} else {
			state.Voters = append(state.Voters, m.ID)
		}
	}
	conf, err := json.Marshal(state)
	if err != nil {
		return err
	}
	meta := map[string][]byte{
		"consistent_index": binary.BigEndian.AppendUint64(nil, c.Index), "term": binary.BigEndian.AppendUint64(nil, c.Term), "confState": conf,
	}
	if storage := storageOf(c.Version); storage != "" {
		meta["storageVersion"] = []byte(storage)
	}
	for bucket, values := range map[string]map[string][]byte{
		membersBucket: members,
		clusterBucket: {"clusterVersion": []byte(c.Version), "downgrade": []byte(`{"target-version":"","enabled":false}`)},
		metaBucket:    meta,
	} {
		if err := putAll(tx, bucket, values); err != nil {
			return err
		}
	}
	return fillKeys(tx, c.Registry)
}

func putAll(tx *bbolt.Tx, bucket string, values map[string][]byte) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return err
	}
	for key, value := range values {
		if err := b.Put([]byte(key), value); err != nil {
			return err
		}
	}
	return nil
}

// confState is raft's own list of the members.
// Source: raft v3.6.0, raftpb.ConfState.
type confState struct {
	Voters    []uint64 `json:"voters,omitempty"`
	Learners  []uint64 `json:"learners,omitempty"`
	AutoLeave bool     `json:"auto_leave"`
}

// fillKeys writes the keys by their revisions, as etcd does.
func fillKeys(tx *bbolt.Tx, r world.Registry) error {
	b, err := tx.CreateBucketIfNotExists([]byte(keyBucket))
	if err != nil {
		return err
	}
	b.FillPercent = 0.9 // what comes later has a higher key: etcd v3.6.5, backend.UnsafeSeqPut
	keys := slices.SortedFunc(slices.Values(r.Keys), func(a, b world.RegistryKey) int { return cmp.Compare(a.Revision, b.Revision) })
	if last := len(keys) - 1; last < 0 || keys[last].Revision < r.Revision {
		keys = append(keys, world.RegistryKey{Key: compacted, Value: []byte(strconv.FormatUint(r.Revision, 10)), Revision: r.Revision})
	}
	for _, k := range keys {
		if err := b.Put(encodeRevision(k), encodeKey(k)); err != nil {
			return err
		}
	}
	return nil
}

// tombstone marks the revision in which a key was deleted.
// Source: etcd v3.6.5, mvcc/revision.go.
const tombstone = 't'

func encodeRevision(k world.RegistryKey) []byte {
	rev := binary.BigEndian.AppendUint64(nil, k.Revision)
	rev = append(rev, '_')
	rev = binary.BigEndian.AppendUint64(rev, 0) // the lab changes one key at a time
	if k.Value == nil {
		rev = append(rev, tombstone)
	}
	return rev
}

// The fields of a key with its value.
// Source: etcd v3.6.5, api/mvccpb/kv.proto.
const (
	fieldKey protowire.Number = iota + 1
	fieldCreated
	fieldModified
	fieldVersion
	fieldValue
)

func encodeKey(k world.RegistryKey) (b []byte) {
	text := func(field protowire.Number, value []byte) {
		b = protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
	}
	number := func(field protowire.Number, value uint64) {
		b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), value)
	}
	text(fieldKey, []byte(k.Key))
	if k.Value == nil {
		return b
	}
	number(fieldCreated, k.Revision)
	number(fieldModified, k.Revision)
	number(fieldVersion, 1)
	text(fieldValue, k.Value)
	return b
}

// Seal makes a snapshot of a database file: the file, and its SHA-256.
func Seal(file []byte) []byte {
	sum := sha256.Sum256(file)
	return append(slices.Clip(file), sum[:]...)
}

// chunk is how much of a snapshot Talos sends at once (recorded).
const chunk = 1024

// Send sends a snapshot as Talos does, and as a fault lets it. Where etcd dies in the middle, Talos
// prints that and ends the stream as if it were whole: EndStream is that.
// Source: talos v1.14.0, EtcdSnapshot; pkg/chunker/stream.
func Send(snapshot []byte, fault world.Fault, send func([]byte) error) (err error) {
	at := fault.Bytes
	if at < 0 {
		at += len(snapshot)
	}
	at = max(0, min(at, len(snapshot)))
	switch fault.Kind {
	case world.BreakStream:
		snapshot, err = snapshot[:at], world.ErrBroken
	case world.EndStream:
		snapshot = snapshot[:at]
	case world.FlipBit:
		if at < len(snapshot) {
			snapshot[at] ^= 1
		}
	}
	for part := range slices.Chunk(snapshot, chunk) {
		if err := send(part); err != nil {
			return err
		}
	}
	return err
}
