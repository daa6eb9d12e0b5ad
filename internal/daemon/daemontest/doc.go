// Package daemontest runs the whole agent, with its real clients and its real
// wiring, against the lab, in virtual time and in one process. The world, not the
// agent, reports whether a rule was broken.
//
// It is for tests only, and no program imports it.
package daemontest
