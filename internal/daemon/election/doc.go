// Package election has one of several agents act: each agent of a Proxmox VE cluster takes part, one leads, and the others stand by.
//
// Leading goes by terms, which are numbered, and of which the newest counts. To make one is atomic: of two agents that make the same one,
// one does. A leader writes into its term again and again, and acts for a bounded time after it began the last write that was taken. Whoever
// makes the next term removes those before it, so that nothing is written into them any more, and then waits for longer than that before
// it acts, unless the leader of the last one has noted that it has stopped. So two never act at once, as long as their clocks run about as
// fast as each other: they are not compared, and no time is read from another host.
//
// That a leader goes on is a write, because a host without quorum still answers what it knew.
package election
