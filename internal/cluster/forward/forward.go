// Package forward holds what ports of a host lead to the nodes of a cluster, as values.
//
// It is pure: it must not know who makes them lead there.
package forward

import "fmt"

// The protocols.
const (
	TCP = "tcp"
	UDP = "udp"
)

// Forward is a port of the host that leads to nodes.
type Forward struct {
	Port     int    // of the host
	Protocol string // TCP or UDP
	To       int    // the port of the nodes
	// ControlPlanes: it leads to the control planes, and else to the workers.
	ControlPlanes bool
}

// String is the port of the host as people write it: 443/tcp.
func (f Forward) String() string { return fmt.Sprintf("%d/%s", f.Port, f.Protocol) }
