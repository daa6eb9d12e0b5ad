// Package cluster holds the nouns of every other room: what should be (Spec,
// Snapshot, Desired), what was seen (Observed) and what is reported (Status,
// Step, Wait, Block), together with the few pure functions that belong to the
// nouns themselves, such as how an identity is derived.
//
// It knows no client library, no file format and no clock. Everything here is
// a plain value that may be copied, compared and printed; secrets are values
// that refuse to be printed.
package cluster
