package etcddb

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

var (
	// ErrNoDatabase means that a file does not begin as a database does.
	ErrNoDatabase = errors.New("invalid database")
	// ErrTruncated means that a file ends before its last page: who maps it into memory and reads
	// there is killed (SIGBUS).
	ErrTruncated = errors.New("the file ends before its last page")
)

// damage is an error of bbolt's own check of a file.
type damage string

func (d damage) Error() string {
	return "snapshot file integrity check failed. 1 errors found.\n" + string(d)
}

// Decode reads a database file, with or without the hash behind it, which is not looked at.
func Decode(file []byte) (c Contents, err error) {
	r, err := openFile(file)
	if err != nil {
		return c, err
	}
	buckets := map[string][]entry{}
	if err := r.walkPage(r.root, 0, func(e entry) error {
		if !e.bucket {
			return damage(fmt.Sprintf("key %q is in no bucket", e.key))
		}
		list, err := r.listBucket(e.value)
		buckets[string(e.key)] = list
		return err
	}); err != nil {
		return c, err
	}
	for _, e := range buckets[keyBucket] {
		k, err := decodeKey(e)
		if err != nil {
			return c, err
		}
		c.Registry.Revision = k.Revision
		c.Registry.Keys = append(c.Registry.Keys, k)
	}
	for _, e := range buckets[membersBucket] {
		var m Member
		if err := json.Unmarshal(e.value, &m); err != nil {
			return c, fmt.Errorf("member %s: %w", e.key, err)
		}
		c.Members = append(c.Members, m)
	}
	for _, e := range buckets[clusterBucket] {
		if string(e.key) == "clusterVersion" {
			c.Version = string(e.value)
		}
	}
	for _, e := range buckets[metaBucket] {
		switch name := string(e.key); {
		case name == "consistent_index" && len(e.value) == 8:
			c.Index = binary.BigEndian.Uint64(e.value)
		case name == "term" && len(e.value) == 8:
			c.Term = binary.BigEndian.Uint64(e.value)
		}
	}
	return c, nil
}

// decodeKey reads what is kept of one revision.
func decodeKey(e entry) (k world.RegistryKey, err error) {
	n := len(e.key)
	if n != 17 && n != 18 || e.key[8] != '_' {
		return k, fmt.Errorf("cannot parse revision key: %q err: invalid revision", e.key)
	}
	k.Revision = binary.BigEndian.Uint64(e.key)
	deleted := n == 18 && e.key[17] == tombstone
	if !deleted {
		k.Value = []byte{}
	}
	for b := e.value; len(b) > 0; {
		field, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return k, fmt.Errorf("cannot unmarshal value, key: %q err: %w", e.key, protowire.ParseError(tag))
		}
		b = b[tag:]
		size := protowire.ConsumeFieldValue(field, typ, b)
		if size < 0 {
			return k, fmt.Errorf("cannot unmarshal value, key: %q err: %w", e.key, protowire.ParseError(size))
		}
		if typ == protowire.BytesType {
			switch text, _ := protowire.ConsumeBytes(b); {
			case field == fieldKey:
				k.Key = string(text)
			case field == fieldValue && !deleted:
				k.Value = bytes.Clone(text)
			}
		}
		b = b[size:]
	}
	return k, nil
}

// Where things are in a page, and what it is.
// Source: bbolt v1.5.0, internal/common: page.go, meta.go, bucket.go.
const (
	pageHeader = 16 // number, flags, count, overflow
	element    = 16 // of a page with keys
	bucketSize = 16 // root, sequence

	isBranch = 0x01
	isLeaf   = 0x02
	isBucket = 0x01 // of an element

	metaSize  = 64
	metaMagic = 0xED0CDAED
	metaForm  = 2

	deepest = 64 // pages above each other; no tree that fits into a file is as deep
)

// reader reads the pages of a file.
type reader struct {
	file  []byte
	size  uint64 // of a page
	root  uint64 // the page that lists the buckets
	pages uint64 // how many there are to be
	seen  map[uint64]bool
}

// entry is a key of a page with its value.
type entry struct {
	key, value []byte
	bucket     bool
}

// openFile finds the newer of the two descriptions of a file that are whole.
func openFile(file []byte) (*reader, error) {
	var found *reader
	var newest uint64
	for _, at := range []int{0, pageSize} {
		if len(file) < at+pageHeader+metaSize {
			break
		}
		m := file[at+pageHeader : at+pageHeader+metaSize]
		sum := fnv.New64a()
		_, _ = sum.Write(m[:56]) // a hash takes everything
		le := binary.LittleEndian
		size, txid := uint64(le.Uint32(m[8:])), le.Uint64(m[48:])
		if le.Uint32(m) != metaMagic || le.Uint32(m[4:]) != metaForm || le.Uint64(m[56:]) != sum.Sum64() || size != pageSize {
			continue
		}
		if found == nil || txid > newest {
			found, newest = &reader{file: file, size: size, root: le.Uint64(m[16:]), pages: le.Uint64(m[40:]), seen: map[uint64]bool{}}, txid
		}
	}
	switch {
	case found == nil:
		return nil, ErrNoDatabase
	case uint64(len(file))/found.size < found.pages:
		return nil, ErrTruncated
	}
	return found, nil
}

// listBucket returns the keys of a bucket, which is a page of its own or, where it is small, one
// inside of its value.
func (r *reader) listBucket(value []byte) (list []entry, err error) {
	add := func(e entry) error { list = append(list, e); return nil }
	if len(value) < bucketSize {
		return nil, damage("a bucket ends too early")
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		err = r.walkPage(root, 0, add)
	} else {
		err = r.walk(value[bucketSize:], 0, add)
	}
	return list, err
}

// walkPage calls do for every key under a page, in their order.
func (r *reader) walkPage(number uint64, depth int, do func(entry) error) error {
	if number < 2 || number >= r.pages || r.seen[number] || depth > deepest {
		return damage(fmt.Sprintf("page %d: cannot be where it is", number))
	}
	r.seen[number] = true
	page := r.file[number*r.size:]
	if have := binary.LittleEndian.Uint64(page); have != number {
		return damage(fmt.Sprintf("page %d: self identifies as %d", number, have))
	}
	length := (uint64(binary.LittleEndian.Uint32(page[12:])) + 1) * r.size
	return r.walk(page[:min(length, uint64(len(page)))], depth, do)
}

func (r *reader) walk(page []byte, depth int, do func(entry) error) error {
	if len(page) < pageHeader {
		return damage("a page ends too early")
	}
	le := binary.LittleEndian
	flags, count := le.Uint16(page[8:]), int(le.Uint16(page[10:]))
	if flags != isBranch && flags != isLeaf || pageHeader+count*element > len(page) {
		return damage(fmt.Sprintf("page %d: unexpected type or count, flags %x", le.Uint64(page), flags))
	}
	for i := range count {
		at := pageHeader + i*element
		e := page[at : at+element]
		if flags == isBranch {
			if err := r.walkPage(le.Uint64(e[8:]), depth+1, do); err != nil {
				return err
			}
			continue
		}
		from := uint64(at) + uint64(le.Uint32(e[4:]))
		split := from + uint64(le.Uint32(e[8:]))
		to := split + uint64(le.Uint32(e[12:]))
		if to > uint64(len(page)) {
			return damage(fmt.Sprintf("page %d: key %d reaches beyond it", le.Uint64(page), i))
		}
		if err := do(entry{key: page[from:split], value: page[split:to], bucket: le.Uint32(e)&isBucket != 0}); err != nil {
			return err
		}
	}
	return nil
}
