// Package pvesh stands in for the command pvesh on a simulated host: the same
// arguments, output and exit codes, asked of the lab's Proxmox VE over its API.
//
// The real one runs the API's own code as root@pam; this one logs in as root@pam
// with a password that a file beside it holds.
package pvesh
