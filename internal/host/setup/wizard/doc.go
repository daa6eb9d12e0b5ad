// Package wizard sets up a Proxmox VE host for the agent, or takes that back: it
// has the host looked at, finds out what is wanted from an earlier run, the flags
// and the person at the terminal, shows the steps that setup plans, and takes them.
//
// It must not decide what a host needs, which is setup's, and it knows nothing of a
// running agent. What it did it records on the host, so that a second run finishes
// what was interrupted.
package wizard
