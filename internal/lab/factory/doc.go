// Package factory simulates an Image Factory: which schematics and Talos versions
// there are, and the disk images they give. It speaks the protocol of the real
// one, over the world's network and with the world's latencies, faults and
// certificates, and keeps what was downloaded for tests to read.
//
// It must not know who asks, nor any other service of the lab: what Proxmox VE
// must recognise (a disk image) it makes known to the world.
//
// Its calls are those of system "factory" of [world.Call]; the operation is the
// method and the route, for example "GET /image/{schematic}/{version}/{path}". An
// image that is sent whole is the span "download/<image file>".
package factory
