// Package state is the state directory on this host: one directory that only the
// agent may read and that one agent at a time works with. It writes small files
// whole and durably, and adds to files of lines.
//
// It must not know what the files mean: the journal is the reconciler's, events
// and reports are the daemon's.
package state
