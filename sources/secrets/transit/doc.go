// Package transit opens data keys of SOPS files with the transit engine of Vault or
// OpenBao. The host's config names the server and the keys that are asked of it: what a
// file names beside them is not asked.
//
// It must not know what a data key opens, and keeps nothing outside of memory.
package transit
