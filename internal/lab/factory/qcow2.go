package factory

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// imageBytes is the virtual size of Talos' nocloud disk image: 1246 MiB.
const imageBytes = 1246 << 20

// The layout of the images: six clusters of 32 KiB, one for each structure and
// one for the only sectors that hold anything.
const (
	qcowClusterBits = 15
	qcowCluster     = 1 << qcowClusterBits

	qcowRefcountTable = 1 * qcowCluster
	qcowRefcountBlock = 2 * qcowCluster
	qcowL1            = 3 * qcowCluster
	qcowL2            = 4 * qcowCluster
	qcowData          = 5 * qcowCluster
	qcowFileBytes     = 6 * qcowCluster

	// qcowCopied marks a cluster whose reference count is one.
	qcowCopied = 1 << 63
)

// buildImage makes a sparse qcow2 image (version 3) whose first sectors state
// what it is. The same version and schematic give the same bytes, signed or not.
func buildImage(platform, version, schematic string, signed bool) []byte {
	img := make([]byte, qcowFileBytes)
	be := binary.BigEndian

	// An L2 table of n entries maps n clusters.
	perL2 := uint64(qcowCluster/8) << qcowClusterBits
	l1Entries := (imageBytes + perL2 - 1) / perL2

	copy(img, "QFI\xfb")
	be.PutUint32(img[4:], 3) // version
	be.PutUint32(img[20:], qcowClusterBits)
	be.PutUint64(img[24:], imageBytes)
	be.PutUint32(img[36:], uint32(l1Entries))
	be.PutUint64(img[40:], qcowL1)
	be.PutUint64(img[48:], qcowRefcountTable)
	be.PutUint32(img[56:], 1)    // clusters of the refcount table
	be.PutUint32(img[96:], 4)    // refcounts of 1<<4 bits
	be.PutUint32(img[100:], 104) // length of the header; no extensions follow

	be.PutUint64(img[qcowRefcountTable:], qcowRefcountBlock)
	for i := range qcowFileBytes / qcowCluster {
		be.PutUint16(img[qcowRefcountBlock+2*i:], 1)
	}
	be.PutUint64(img[qcowL1:], qcowL2|qcowCopied)
	be.PutUint64(img[qcowL2:], qcowData|qcowCopied)

	copy(img[qcowData:], labelImage("disk image", platform, version, schematic, signed))
	return img
}

// labelImage states what an image is, in the only bytes of it that hold anything.
func labelImage(what, platform, version, schematic string, signed bool) []byte {
	var label bytes.Buffer
	fmt.Fprintf(&label, "simulated Talos %s\nplatform %s\nversion %s\nschematic %s\n", what, platform, version, schematic)
	if signed {
		label.WriteString("signed for Secure Boot\n")
	}
	return label.Bytes()
}
