//go:build !race

package main

// thinned is which part of the crash points is run: every one.
func thinned() int { return 1 }
