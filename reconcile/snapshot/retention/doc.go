// Package retention decides which etcd snapshots of a cluster are kept, and when the next
// one is due.
//
// It is pure: snapshots come as values, and so does the time. It must not know where
// snapshots are stored, nor how one is verified.
package retention
