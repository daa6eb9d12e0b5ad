// Package talos sees and changes the Talos machines of one cluster: who answers
// at a node's address, in which stage it is, what its services do, who is a
// member of etcd; it gives machines their first config and founds etcd; and it
// changes machines that run: their config, their boot, who leads etcd.
//
// For every node it answers one question first: how far does the API at its
// address let us? Nothing answers; a machine in maintenance mode waits for its
// first config; a machine answers with the certificates of our cluster;
// somebody answers who is not the machine we made. What cannot be seen is
// unknown, with the reason, and nothing secret is ever sent on unknown.
//
// One connection per machine is held open, with watches on what changes, so
// that looking at a quiet cluster costs no call. Every connection is dialled
// and its TLS handshake done here, before gRPC sees it; gRPC never dials. So
// the certificate that was looked at, the identity that was read and whatever
// is sent belong to one and the same connection.
//
// Every change proves on the same connection that the machine is ours (SMBIOS
// UUID, and MAC in maintenance mode), can be interrupted anywhere, and finds
// out by looking what became of an answer that was lost. Who can pretend to
// have our UUID and our MAC at our address can still get a config: that the
// bridge is not open to such machines is for the network to see to.
//
// The package speaks to Talos 1.8 to 1.14. It must not know what the planner
// decides, how configs are rendered, how virtual machines are made, or that
// there is such a thing as a lab.
package talos
