// Package history is what has happened, for people: the events of the log, and
// the runs that statuses and ended actions add up to. It is pure: it reads no
// clock and no file, and nothing in it is ever asked by the loop, whose only
// memory is the journal.
package history
