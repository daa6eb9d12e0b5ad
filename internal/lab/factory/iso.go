package factory

import "encoding/binary"

// The layout of the media: sixteen sectors that belong to the system, the primary volume descriptor, the end of
// the descriptors, and one sector that holds anything. Source: ECMA-119, which ISO 9660 is.
const (
	isoSector     = 2048
	isoDescriptor = 16 * isoSector
	isoData       = 18 * isoSector
	isoFileBytes  = 19 * isoSector
)

// buildMedium makes an installation medium: an ISO 9660 image whose last sector states what it is. The same
// version and schematic give the same bytes, signed or not.
func buildMedium(platform, version, schematic string, signed bool) []byte {
	img := make([]byte, isoFileBytes)
	primary, end := img[isoDescriptor:], img[isoDescriptor+isoSector:]
	primary[0], primary[6] = 1, 1
	copy(primary[1:], "CD001")
	copy(primary[40:72], "TALOS                           ")
	// Numbers are written in both byte orders.
	binary.LittleEndian.PutUint32(primary[80:], isoFileBytes/isoSector)
	binary.BigEndian.PutUint32(primary[84:], isoFileBytes/isoSector)
	binary.LittleEndian.PutUint16(primary[128:], isoSector)
	binary.BigEndian.PutUint16(primary[130:], isoSector)
	end[0], end[6] = 255, 1
	copy(end[1:], "CD001")
	copy(img[isoData:], labelImage("installation medium", platform, version, schematic, signed))
	return img
}
