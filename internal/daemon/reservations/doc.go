// Package reservations keeps the addresses of nodes where a DHCP server of the host finds them: one
// file for each node in the directory that dnsmasq's dhcp-hostsdir names.
//
// It answers which files are there, and makes them what they should be, for one cluster at a time. It
// does not know where nodes come from, and talks to no DHCP server. Nothing in the files is secret.
package reservations
