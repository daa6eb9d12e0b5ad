//go:build !race

package main

// thinner is by how much fewer crash points and seeds are run than otherwise.
const thinner = 1
