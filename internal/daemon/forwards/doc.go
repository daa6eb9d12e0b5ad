// Package forwards writes which ports of the host lead to which nodes, in the language of
// nftables: one file a cluster, with a table of its own, which an administrator has
// loaded.
//
// It does not know where nodes come from, and it loads nothing: the agent has no right
// to change the firewall of its host.
package forwards
