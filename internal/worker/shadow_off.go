//go:build linux && !race

package worker

// shadow is how many bytes of address space a byte of the heap takes.
const shadow = 1
