// Package setup answers what a Proxmox VE host needs before the agent can work
// on it: which privileges its token has, and which steps lead from the host as
// it was found to one that is ready, or back.
//
// It is pure: it is given what was seen and what is wanted, and describes what to do.
// It must not know how a step is carried out, nor read a file, a clock or an
// environment; keys and their public halves are handed to it.
package setup
