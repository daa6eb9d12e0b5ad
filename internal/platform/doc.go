// Package platform is what of files differs between the systems that the command
// runs on: flags of an open, owners, locks, free space, durable writes.
//
// It knows none of our rooms. The daemon runs on Linux only; what it alone needs of
// Linux is in the rooms that need it.
package platform
