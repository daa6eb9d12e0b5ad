// Package leases keeps which addresses nodes have that the inventory has none of: those that a DHCP server gave
// them.
//
// It chooses among addresses that were seen for a node's MAC, and remembers the one at which the node's own machine
// was proven. It looks nowhere itself, and decides nothing about nodes: an address that is not known leaves the
// machine unknown, and one at which another machine answers is none.
package leases
