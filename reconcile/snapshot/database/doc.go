// Package database reads what is in the database of an etcd snapshot: its revision, how
// many keys, which members.
//
// A snapshot may be damaged, or of somebody who has taken a member over. bbolt maps a
// file into memory and trusts its pages: a short file ends the process (SIGBUS), a page
// that points to itself never ends. Here every page is read through an io.ReaderAt, once,
// and every offset is checked before it is used: whatever the bytes are, the end is
// Contents or an error, after as much work as the file is long.
//
// It is pure: it must not know where the bytes are, nor how they are encrypted. Tests
// hold it against bbolt itself.
package database
