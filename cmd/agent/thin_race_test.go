//go:build race

package main

// thinned is which part of the crash points is run: the race detector costs ten
// times the time, and races are found in any of them.
func thinned() int { return 23 }
