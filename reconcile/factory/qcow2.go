package factory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The bounds of what can be a Talos disk image. The nocloud image has a virtual
// size of 1246 MiB.
const (
	leastVirtual = 100 << 20
	mostVirtual  = 64 << 30
	mostBytes    = 8 << 30  // of the file
	mostL2       = 64 << 20 // bytes of all L2 tables together
)

// The incompatible features of a qcow2 header, by bit. Source: QEMU,
// docs/interop/qcow2.txt.
const (
	featureDirty       = 1 << 0
	featureCorrupt     = 1 << 1
	featureDataFile    = 1 << 2
	featureCompression = 1 << 3
	featureExtendedL2  = 1 << 4
)

// errNoImage: a file does not begin like a qcow2 image.
var errNoImage = errors.New("it is not a qcow2 image")

// checkImage checks whether a file of so many bytes can be a whole Talos disk
// image in the format qcow2: the header is sound, everything it and its tables
// point at lies inside the file, and nothing points outside of it. A backing
// file or an external data file would make Proxmox VE read other files of the
// host, so an image with one is refused.
func checkImage(r io.ReaderAt, size int64) error {
	h, err := readHeader(r, size)
	if err != nil {
		return err
	}
	l2 := make([]byte, h.cluster)
	for i := range h.l1Entries {
		var entry [8]byte
		if _, err := r.ReadAt(entry[:], h.l1+int64(i)*8); err != nil {
			return fmt.Errorf("read its L1 table: %w", err)
		}
		table := offsetOf(binary.BigEndian.Uint64(entry[:]))
		if table == 0 {
			continue
		}
		if table%h.cluster != 0 || table > size-h.cluster {
			return errors.New("it is cut off or damaged: an L2 table lies outside of the file")
		}
		if err := h.checkL2(r, table, l2, size); err != nil {
			return err
		}
	}
	return nil
}

// header is what of a qcow2 header is needed to walk the tables.
type header struct {
	cluster   int64 // bytes
	bits      uint  // log2 of cluster
	l1        int64 // offset of the L1 table
	l1Entries int   // that map the image
	entry     int   // bytes of an L2 entry
}

func readHeader(r io.ReaderAt, size int64) (header, error) {
	var b [104]byte
	n, err := r.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return header{}, fmt.Errorf("read its header: %w", err)
	}
	be := binary.BigEndian
	if n < 72 || be.Uint32(b[0:]) != 0x514649fb { // "QFI\xfb"
		return header{}, errNoImage
	}
	version, bits, virtual := be.Uint32(b[4:]), be.Uint32(b[20:]), be.Uint64(b[24:])
	h := header{bits: uint(bits), entry: 8}
	switch {
	case version != 2 && version != 3:
		return header{}, fmt.Errorf("it is a qcow2 image of unknown version %d", version)
	case be.Uint64(b[8:]) != 0:
		return header{}, errors.New("it is a qcow2 image with a backing file, which would read other files of the host")
	case bits < 9 || bits > 21:
		return header{}, fmt.Errorf("its clusters have 2^%d bytes", bits)
	case virtual < leastVirtual || virtual > mostVirtual:
		return header{}, fmt.Errorf("its virtual size is %d bytes, which no Talos image has", virtual)
	case be.Uint32(b[32:]) != 0:
		return header{}, errors.New("it is encrypted")
	case be.Uint32(b[60:]) != 0:
		return header{}, errors.New("it carries snapshots, which no Talos image has")
	}
	h.cluster = 1 << bits
	if version == 3 {
		if n < 104 {
			return header{}, errors.New("it is cut off in its header")
		}
		features := be.Uint64(b[72:])
		switch {
		case features&featureDataFile != 0:
			return header{}, errors.New("it is a qcow2 image with an external data file, which would read other files of the host")
		case features&(featureDirty|featureCorrupt) != 0:
			return header{}, errors.New("it is marked as damaged")
		case features&^(featureCompression|featureExtendedL2) != 0:
			return header{}, fmt.Errorf("it needs unknown features (%#x)", features)
		case features&featureExtendedL2 != 0:
			h.entry = 16
		}
		if length := be.Uint32(b[100:]); length < 104 || int64(length) > h.cluster {
			return header{}, fmt.Errorf("its header has %d bytes", length)
		}
	}
	perL2 := uint64(h.cluster) / uint64(h.entry) * uint64(h.cluster) // virtual bytes one L2 table maps
	want := (virtual + perL2 - 1) / perL2
	if want*uint64(h.cluster) > mostL2 {
		return header{}, fmt.Errorf("its clusters of %d bytes are too small for its size", h.cluster)
	}
	have, refcounts := uint64(be.Uint32(b[36:])), uint64(be.Uint32(b[56:]))
	switch {
	case have < want:
		return header{}, fmt.Errorf("its L1 table has %d entries instead of %d", have, want)
	case !isInside(be.Uint64(b[40:]), have*8, h.cluster, size):
		return header{}, errors.New("it is cut off or damaged: its L1 table lies outside of the file")
	case refcounts == 0 || !isInside(be.Uint64(b[48:]), refcounts<<bits, h.cluster, size):
		return header{}, errors.New("it is cut off or damaged: its refcount table lies outside of the file")
	}
	h.l1, h.l1Entries = int64(be.Uint64(b[40:])), int(want)
	return h, nil
}

// isInside reports whether a table of so many bytes begins at a cluster after the
// header and ends in the file.
func isInside(offset, bytes uint64, cluster, size int64) bool {
	return offset >= uint64(cluster) && offset%uint64(cluster) == 0 &&
		offset < uint64(size) && bytes <= uint64(size)-offset
}

// offsetOf takes the offset from an entry of an L1 table or an uncompressed
// entry of an L2 table: bits 9 to 55.
func offsetOf(entry uint64) int64 { return int64(entry & 0x00fffffffffffe00) }

// checkL2 looks at every entry of an L2 table. The last cluster of a file need
// not be whole.
func (h header) checkL2(r io.ReaderAt, table int64, buf []byte, size int64) error {
	if n, err := r.ReadAt(buf, table); n < len(buf) {
		return fmt.Errorf("read an L2 table: %w", err)
	}
	for at := 0; at+8 <= len(buf); at += h.entry {
		entry := binary.BigEndian.Uint64(buf[at:])
		data := offsetOf(entry)
		if entry&(1<<62) != 0 { // compressed: the offset has fewer bits and is not aligned
			data = int64(entry & (1<<(70-h.bits) - 1))
		} else if data%h.cluster != 0 {
			return errors.New("it is damaged: a cluster is not aligned")
		}
		if data >= size {
			return errors.New("it is cut off or damaged: data lie outside of the file")
		}
	}
	return nil
}
