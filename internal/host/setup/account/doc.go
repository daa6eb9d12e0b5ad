// Package account answers which account in Proxmox VE a program that runs in a cluster
// needs, with its least privileges, and which steps lead from the host as it was
// found to one that has it, or back.
//
// Each cluster has accounts of its own, so that one cluster's secret opens nothing of
// another's pool, and what is deleted with a cluster is one user.
//
// It is pure: it is given what was seen. It must not know how a step is carried out,
// nor where a secret goes.
package account
