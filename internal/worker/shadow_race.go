//go:build linux && race

package worker

// shadow is how many bytes of address space a byte of the heap takes: the race detector
// keeps a copy of each word several times, and takes them 256 MiB at a time.
const shadow = 8
