// Package archive works with etcd snapshots in a folder for a person at a terminal, with
// or without a daemon on this machine: it verifies, lists, opens, adds and prunes.
//
// It must not know clusters that run: what it knows of a snapshot is in its file.
package archive
