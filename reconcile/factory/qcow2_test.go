package factory

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// testImage is a small whole image: header, refcount table and block, L1 table,
// one L2 table, one cluster of data; clusters of 64 KiB, 1246 MiB in all.
func testImage() []byte {
	const cluster = 64 << 10
	img := make([]byte, 6*cluster)
	be := binary.BigEndian
	copy(img, "QFI\xfb")
	be.PutUint32(img[4:], 3)
	be.PutUint32(img[20:], 16)
	be.PutUint64(img[24:], 1246<<20)
	be.PutUint32(img[36:], 3)
	be.PutUint64(img[40:], 3*cluster)
	be.PutUint64(img[48:], 1*cluster)
	be.PutUint32(img[56:], 1)
	be.PutUint32(img[96:], 4)
	be.PutUint32(img[100:], 104)
	be.PutUint64(img[1*cluster:], 2*cluster)
	be.PutUint64(img[3*cluster:], 4*cluster|1<<63)
	be.PutUint64(img[4*cluster:], 5*cluster|1<<63)
	return img
}

func TestCheckImage(t *testing.T) {
	be := binary.BigEndian
	const cluster, l1, l2 = 64 << 10, 3 * 64 << 10, 4 * 64 << 10
	put32 := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { be.PutUint32(b[at:], v); return b }
	}
	put64 := func(at int, v uint64) func([]byte) []byte {
		return func(b []byte) []byte { be.PutUint64(b[at:], v); return b }
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	for name, c := range map[string]struct {
		change func([]byte) []byte
		want   string // "" : fine
	}{
		"whole":                    {cut(6 * cluster), ""},
		"last cluster not whole":   {cut(5*cluster + 512), ""},
		"version 2":                {put32(4, 2), ""},
		"compressed clusters":      {put64(l2, 1<<62|5*cluster+77), ""},
		"compression type":         {put64(72, featureCompression), ""},
		"extended L2":              {func(b []byte) []byte { return put32(36, 5)(put64(72, featureExtendedL2)(b)) }, ""},
		"nothing":                  {cut(0), "it is not a qcow2 image"},
		"a few bytes":              {cut(50), "it is not a qcow2 image"},
		"another magic":            {put32(0, 0x43443031), "it is not a qcow2 image"},
		"version 4":                {put32(4, 4), "unknown version 4"},
		"backing file":             {put64(8, 104), "with a backing file"},
		"external data":            {put64(72, featureDataFile), "with an external data file"},
		"dirty":                    {put64(72, featureDirty), "marked as damaged"},
		"corrupt":                  {put64(72, featureCorrupt), "marked as damaged"},
		"unknown feature":          {put64(72, 1<<40), "unknown features"},
		"encrypted":                {put32(32, 2), "it is encrypted"},
		"snapshots":                {put32(60, 1), "it carries snapshots"},
		"tiny clusters":            {put32(20, 8), "2^8 bytes"},
		"huge clusters":            {put32(20, 64), "2^64 bytes"},
		"clusters too small":       {func(b []byte) []byte { return put32(20, 9)(put64(24, 60<<30)(b)) }, "too small for its size"},
		"no size":                  {put64(24, 0), "virtual size is 0 bytes"},
		"absurd size":              {put64(24, 1<<62), "which no Talos image has"},
		"header too short":         {put32(100, 72), "its header has 72 bytes"},
		"header too long":          {put32(100, cluster+1), "its header has 65537 bytes"},
		"cut in the header":        {cut(80), "cut off in its header"},
		"L1 table too short":       {put32(36, 2), "2 entries instead of 3"},
		"L1 table cut off":         {cut(l1), "its L1 table lies outside"},
		"L1 table beyond":          {put64(40, 1<<40), "its L1 table lies outside"},
		"L1 table far beyond":      {put64(40, 1<<63), "its L1 table lies outside"},
		"L1 table not aligned":     {put64(40, l1+8), "its L1 table lies outside"},
		"L1 table in the header":   {put64(40, 0), "its L1 table lies outside"},
		"L1 table too long":        {put32(36, 1<<31), "its L1 table lies outside"},
		"no refcount table":        {put32(56, 0), "its refcount table lies outside"},
		"refcount table beyond":    {put64(48, 1<<40), "its refcount table lies outside"},
		"refcount table too long":  {put32(56, 1<<31), "its refcount table lies outside"},
		"L2 table beyond":          {put64(l1+8, 9*cluster|1<<63), "an L2 table lies outside"},
		"L2 table not aligned":     {put64(l1, 4*cluster+512), "an L2 table lies outside"},
		"L2 table cut off":         {cut(4*cluster + 100), "an L2 table lies outside"},
		"data beyond":              {put64(l2+8, 6*cluster|1<<63), "data lie outside"},
		"data cut off":             {cut(5 * cluster), "data lie outside"},
		"data not aligned":         {put64(l2, 5*cluster+512), "a cluster is not aligned"},
		"compressed data beyond":   {put64(l2, 1<<62|7*cluster), "data lie outside"},
		"extended L2 with too few": {put64(72, featureExtendedL2), "3 entries instead of 5"},
	} {
		img := c.change(testImage())
		err := checkImage(bytes.NewReader(img), int64(len(img)))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// The size may be a lie; what is read decides.
func TestCheckImageThatShrinks(t *testing.T) {
	img := testImage()
	for _, n := range []int{0, 71, 103, 1 << 10, 3 << 16, 3<<16 + 4, 4 << 16, 4<<16 + 100} {
		if err := checkImage(bytes.NewReader(img[:n]), int64(len(img))); err == nil {
			t.Errorf("%d bytes pass for %d", n, len(img))
		}
	}
}

func FuzzCheckImage(f *testing.F) {
	// The tables of a small image in its first clusters; the fuzzer need not
	// find its way through the zeros between them.
	whole := testImage()
	f.Add(whole[:104], whole[3<<16:3<<16+24], whole[4<<16:4<<16+64])
	f.Fuzz(func(t *testing.T, header, l1, l2 []byte) {
		img := testImage()
		copy(img[:1<<16], header)
		copy(img[3<<16:4<<16], l1)
		copy(img[4<<16:5<<16], l2)
		err := checkImage(bytes.NewReader(img), int64(len(img)))
		if err == nil && (binary.BigEndian.Uint64(img[8:]) != 0 || binary.BigEndian.Uint32(img[32:]) != 0) {
			t.Error("an image with a backing file or a key passes")
		}
		if err := checkImage(bytes.NewReader(header), int64(len(header))); err == nil && len(header) < 1<<10 {
			t.Error("a header passes for an image")
		}
	})
}
