package database

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// The format of a file of bbolt. Source: go.etcd.io/bbolt 1.5.0, internal/common. All
// numbers are little-endian on the processors that Talos runs on; ids of pages count
// from 0.
//
//	page            id u64, flags u16, count u16, overflow u32, then elements
//	meta            magic, version, page size, flags u32; root page, sequence, free list, pages, transaction u64; FNV-1a of these
//	branch element  position u32, size of the key u32, page u64
//	leaf element    flags u32, position u32, size of the key u32, size of the value u32
//	bucket          page of its root u64, sequence u64; with page 0 the root follows
//
// A position counts from the begin of its element.
const (
	magic    = 0xED0CDAED
	format   = 2
	metaSize = 64

	headerSize  = 16 // of a page
	elementSize = 16
	bucketSize  = 16

	isBranch = 0x01
	isLeaf   = 0x02
	isMeta   = 0x04
	isFree   = 0x10

	isBucket = 0x01 // of a leaf element

	noFreeList = ^uint64(0) // etcd does not store it
)

// Bounds of what is read.
const (
	mostPage   = 64 << 20 // bytes; etcd refuses values of more than some MiB
	mostBranch = 1 << 20  // bytes of a branch, of which one is held for each level; etcd's keys are short
	mostDepth  = 64       // of a tree; one of 2^30 pages is 10 deep
	leastPage  = 1 << 9   // bytes of the size of a page
	mostSize   = 1 << 16
)

// damagedError is what contradicts the format.
type damagedError struct{ what string }

func (e *damagedError) Error() string { return e.what }

func damaged(format string, args ...any) error { return &damagedError{fmt.Sprintf(format, args...)} }

// IsDamaged reports whether an error of Read is about the bytes, and not about how to
// read them.
func IsDamaged(err error) bool {
	_, is := errors.AsType[*damagedError](err)
	return is
}

// pages are those of a file.
type pages struct {
	r        io.ReaderAt
	pageSize int64
	root     uint64   // the page with the list of buckets
	free     uint64   // the page with the free list
	count    uint64   // pages in use or free; the file has them all
	seen     []uint64 // a bit for each page that was read
	stop     func() error

	transaction uint64 // that was ended last
}

// openPages reads the meta pages: of two that are whole the newer one counts. One that is
// not is of a transaction that was not ended.
func openPages(r io.ReaderAt, size int64) (*pages, error) {
	first, err := readMeta(r, 0, size)
	if err != nil {
		return nil, err
	}
	newest := first
	// The second is one page after the first, which may have lost how long a page is.
	for at := int64(leastPage); at <= mostSize; at *= 2 {
		if first != nil && at != first.pageSize {
			continue
		}
		second, err := readMeta(r, at, size)
		if err != nil {
			return nil, err
		}
		if second != nil && second.pageSize == at && (newest == nil || second.transaction > newest.transaction) {
			newest = second
		}
	}
	if newest == nil {
		return nil, damaged("it is no database of etcd: neither of its meta pages is whole")
	}
	if most := size / newest.pageSize; newest.count > uint64(most) {
		return nil, damaged("it is truncated: it has %d pages, and %d belong to it", most, newest.count)
	}
	newest.seen = make([]uint64, newest.count/64+1)
	newest.seen[0] = 0b11 // the meta pages
	return newest, nil
}

// readMeta reads the meta page at an offset; nil without one that is whole.
func readMeta(r io.ReaderAt, at, size int64) (*pages, error) {
	b := make([]byte, headerSize+metaSize)
	if at+int64(len(b)) > size {
		return nil, nil
	}
	if n, err := r.ReadAt(b, at); n < len(b) {
		return nil, err
	}
	meta := b[headerSize:]
	u32 := func(n int) uint32 { return binary.LittleEndian.Uint32(meta[n:]) }
	u64 := func(n int) uint64 { return binary.LittleEndian.Uint64(meta[n:]) }
	sum := fnv.New64a()
	_, _ = sum.Write(meta[:metaSize-8])
	pageSize := int64(u32(8))
	switch {
	case page(b).flags() != isMeta, u32(0) != magic, u32(4) != format, u64(metaSize-8) != sum.Sum64():
		return nil, nil
	case pageSize < leastPage, pageSize > mostSize, pageSize&(pageSize-1) != 0:
		return nil, nil
	}
	return &pages{r: r, pageSize: pageSize, root: u64(16), free: u64(32), count: u64(40), transaction: u64(48)}, nil
}

// take reads a page with what belongs to it, which nothing has read before.
func (p *pages) take(id uint64) (page, error) {
	if err := p.stop(); err != nil {
		return nil, err
	}
	if id >= p.count {
		return nil, damaged("page %d does not exist", id)
	}
	header := make([]byte, headerSize)
	if err := p.read(header, id); err != nil {
		return nil, err
	}
	more := uint64(page(header).overflow())
	switch {
	case page(header).id() != id:
		return nil, damaged("page %d calls itself %d", id, page(header).id())
	case id+more >= p.count:
		return nil, damaged("page %d ends behind the last one", id)
	case (more+1)*uint64(p.pageSize) > mostPage, page(header).flags() == isBranch && (more+1)*uint64(p.pageSize) > mostBranch:
		return nil, damaged("page %d is too large: %d MiB", id, (more+1)*uint64(p.pageSize)>>20)
	}
	for n := id; n <= id+more; n++ {
		if p.isSeen(n) {
			return nil, damaged("page %d belongs to two places", n)
		}
		p.seen[n/64] |= 1 << (n % 64)
	}
	b := make([]byte, int64(more+1)*p.pageSize)
	return b, p.read(b, id)
}

func (p *pages) isSeen(id uint64) bool { return p.seen[id/64]&(1<<(id%64)) != 0 }

// read fills b from the begin of a page.
func (p *pages) read(b []byte, id uint64) error {
	n, err := p.r.ReadAt(b, int64(id)*p.pageSize)
	if n == len(b) {
		return nil
	}
	return err
}

// page is a page with what belongs to it, or one inside a value.
type page []byte

func (p page) id() uint64       { return binary.LittleEndian.Uint64(p) }
func (p page) flags() uint16    { return binary.LittleEndian.Uint16(p[8:]) }
func (p page) count() int       { return int(binary.LittleEndian.Uint16(p[10:])) }
func (p page) overflow() uint32 { return binary.LittleEndian.Uint32(p[12:]) }

// element is what a page has of one key: a child of a branch, a value of a leaf.
type element struct {
	key, value []byte
	child      uint64
	flags      uint32
	end        int64 // in the page, of key and value
}

// element reads the element with a number that the page has. Keys and values lie behind
// from, which is the end of the element before: no byte belongs to two of them.
func (p page) element(n int, from int64) (element, error) {
	at := int64(headerSize + n*elementSize)
	if headerSize+int64(p.count())*elementSize > int64(len(p)) {
		return element{}, damaged("page %d has no room for its %d elements", p.id(), p.count())
	}
	u32 := func(n int64) int64 { return int64(binary.LittleEndian.Uint32(p[at+n:])) }
	var out element
	var begin, key, value int64
	if p.flags() == isBranch {
		begin, key, out.child = at+u32(0), u32(4), binary.LittleEndian.Uint64(p[at+8:])
	} else {
		out.flags = uint32(u32(0))
		begin, key, value = at+u32(4), u32(8), u32(12)
	}
	out.end = begin + key + value
	switch {
	case out.end > int64(len(p)):
		return element{}, damaged("element %d of page %d ends behind the page", n, p.id())
	case begin < from:
		return element{}, damaged("element %d of page %d lies in another one", n, p.id())
	}
	out.key, out.value = p[begin:begin+key], p[begin+key:out.end]
	return out, nil
}

// checkFree checks the free list, where there is one, once all that is used was seen: a
// page that is used and free would be overwritten.
func (p *pages) checkFree() error {
	if p.free == noFreeList {
		return nil
	}
	list, err := p.take(p.free)
	if err != nil {
		return err
	}
	if list.flags() != isFree {
		return damaged("page %d is not the free list", p.free)
	}
	ids := list[headerSize:]
	count := uint64(list.count())
	if count == 0xFFFF {
		count, ids = binary.LittleEndian.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return damaged("page %d has no room for %d free pages", p.free, count)
	}
	for ; count > 0; count, ids = count-1, ids[8:] {
		id := binary.LittleEndian.Uint64(ids)
		if id >= p.count {
			return damaged("page %d does not exist, and is free", id)
		}
		if p.isSeen(id) {
			return damaged("page %d is used and free, or free twice", id)
		}
		p.seen[id/64] |= 1 << (id % 64)
	}
	return nil
}

// walk calls visit with every element of the leaves below a page, in the order of keys.
// Those are at least low, and less than high; nil means no bound.
func (p *pages) walk(id uint64, low, high []byte, depth int, visit func(element) error) error {
	b, err := p.take(id)
	if err != nil {
		return err
	}
	return p.walkPage(b, low, high, depth, visit)
}

func (p *pages) walkPage(b page, low, high []byte, depth int, visit func(element) error) error {
	if f := b.flags(); f != isBranch && f != isLeaf {
		return damaged("page %d is neither a branch nor a leaf", b.id())
	}
	if depth > mostDepth {
		return damaged("page %d is too deep", b.id())
	}
	count := b.count()
	if count == 0 && b.flags() == isBranch {
		return damaged("branch %d has no children", b.id())
	}
	var next element
	var err error
	if count > 0 {
		if next, err = b.element(0, headerSize+int64(count)*elementSize); err != nil {
			return err
		}
	}
	for n := range count {
		e := next
		end := high
		if n+1 < count {
			if next, err = b.element(n+1, e.end); err != nil {
				return err
			}
			end = next.key
		}
		if bytes.Compare(e.key, low) < 0 || end != nil && bytes.Compare(e.key, end) >= 0 {
			return damaged("the keys of page %d are out of order", b.id())
		}
		if b.flags() == isBranch {
			err = p.walk(e.child, e.key, end, depth+1, visit)
		} else {
			err = visit(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
