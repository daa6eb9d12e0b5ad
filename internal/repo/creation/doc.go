// Package creation makes a repository to start from, or a cluster more in one:
// what the flags, the host's config, Proxmox VE and a person at the terminal provide
// becomes the files of scaffold and the secrets of sealed, all written or none,
// and checked as validation does.
//
// It must not know how it is printed, nor who asks the person: both are given.
package creation
