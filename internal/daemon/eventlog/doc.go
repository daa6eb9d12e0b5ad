// Package eventlog keeps what was reported, for people: the events of the log and
// the runs of each cluster, in memory and on disk, so that they survive a restart.
//
// Nothing is decided by it and nothing waits for it: a file that is lost, torn or
// full costs history only. It knows neither the loops that report nor the socket
// that shows what is kept.
package eventlog
