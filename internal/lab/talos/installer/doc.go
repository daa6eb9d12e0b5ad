// Package installer is how a simulated Talos machine gets its first version from an installation medium, and
// another one: the two
// slots of its system disk, which images there are, what the program in such an image prints and
// how it ends, and the calls of both APIs that run it: the one of up to v1.12, which takes the
// machine down by itself, and LifecycleService, which v1.13 brought and which does not.
//
// What it answers comes from recordings of v1.13.9; what needs a disk is from the source of
// v1.13.9 and v1.14.1, as noted. It must not know the fleet, etcd or sequences: it is handed what it
// needs of a machine.
package installer
