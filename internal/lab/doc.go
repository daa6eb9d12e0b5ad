// Package lab is a make-believe host with everything around it: Proxmox VE,
// Talos machines, the Kubernetes they run, an Image Factory, a chart
// repository, an OCI registry, a git server and a forge. Every face speaks the
// real protocol, so that the agent's own clients are under test and the agent
// has no idea that it is in a lab.
//
// A lab lives on a network in memory, where it may run in virtual time, or on
// loopback, where nodes get addresses 127.x.y.z with Talos at :50000 and
// Kubernetes at :6443 as in life. It must never know how the agent thinks: it
// plays the systems, keeps the record of what was asked of them, and says when
// a law was broken.
package lab
