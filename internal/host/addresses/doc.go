// Package addresses finds which addresses machines have on the networks of this host, by their MACs: in the lease
// files of DHCP servers, and in the kernel's table of neighbours.
//
// It needs no privilege, and unlike netlink no socket of its own kind. What it finds is a hint and no proof: a lease may
// have ended, and an address may be another machine's since.
package addresses
