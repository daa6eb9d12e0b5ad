package factory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Where an ISO 9660 file system describes itself. Source: ECMA-119, 8.4.
const (
	descriptor     = 32768 // the first one, of the whole volume
	descriptorSize = 2048
	volumeBlocks   = 80  // in the descriptor, little-endian
	blockBytes     = 128 // in the descriptor, little-endian
	descriptorMark = "\x01CD001"
)

// errNoISO: a file does not begin like an ISO image.
var errNoISO = errors.New("it is not an ISO image")

// checkISO checks whether a file of so many bytes can be a whole ISO image.
func checkISO(r io.ReaderAt, size int64) error {
	var d [descriptorSize]byte
	switch _, err := r.ReadAt(d[:], descriptor); {
	case errors.Is(err, io.EOF):
		return errNoISO
	case err != nil:
		return fmt.Errorf("read its volume descriptor: %w", err)
	case string(d[:len(descriptorMark)]) != descriptorMark:
		return errNoISO
	}
	need := int64(binary.LittleEndian.Uint32(d[volumeBlocks:])) * int64(binary.LittleEndian.Uint16(d[blockBytes:]))
	if need == 0 {
		return errors.New("it is damaged: its file system has no size")
	}
	if need > size {
		return fmt.Errorf("it was interrupted: its file system has %d bytes, and it has %d", need, size)
	}
	return nil
}

// checkWhole checks whether a file of so many bytes can be a whole image.
func checkWhole(img cluster.Image, r io.ReaderAt, size int64) error {
	if img.ISO {
		return checkISO(r, size)
	}
	return checkImage(r, size)
}

// markOf is what an image has at its beginning, and after how many bytes.
func markOf(img cluster.Image) (mark string, after int) {
	if img.ISO {
		return descriptorMark, descriptor
	}
	return "QFI\xfb", 0
}
