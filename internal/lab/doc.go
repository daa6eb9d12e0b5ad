// Package lab is a simulated host with everything around it: Proxmox VE,
// Talos machines, the Kubernetes they run, an Image Factory, a chart
// repository, an OCI registry, a git server and a forge. Every service speaks the
// real protocol, so that the agent's own clients are under test and the agent
// has no idea that it is in a lab.
//
// A lab lives on a network in memory, where it may run in virtual time, or on
// loopback, where nodes get addresses 127.x.y.z with Talos at :50000 and
// Kubernetes at :6443 as in life. It must never know how the agent thinks: it
// simulates the systems, keeps the record of what was asked of them, and reports
// when a rule was broken.
package lab
