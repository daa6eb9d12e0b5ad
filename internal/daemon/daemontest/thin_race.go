//go:build race

package daemontest

// Thinner is by how much fewer crash points and seeds are run than otherwise:
// the race detector costs ten times the time, and races are found in any of
// them.
const Thinner = 60
