// Package network is what a machine config makes of a machine's one link: its addresses, its
// alias and the virtual address it may carry.
//
// It must not know the machine: it is handed the link's name and hardware address.
package network
