// Package usage asks Proxmox VE what of hosts and VMs is in use, with the two lists
// that its own pages show: /cluster/resources, whose statistics are ten seconds old at
// most, and the history of each host, in which alone the pressure on it is.
//
// It must not know the inventory: it is named the hosts and the VMs. It changes nothing.
package usage
