// Package tokens gives a program in a cluster its account in Proxmox VE, and the secret
// of its token to the cluster's secrets: account has the steps, this room carries
// them out and writes the repository's files.
//
// It must not know who is asked, nor how anything is printed.
package tokens
