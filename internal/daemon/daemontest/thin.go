//go:build !race

package daemontest

// Thinner is by how much fewer crash points and seeds are run than otherwise.
const Thinner = 1
