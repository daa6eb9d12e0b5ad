package cluster

import (
	"net/netip"
	"testing"
)

// TestIsOnlyPlane: the only control plane is one, and neither one of several nor a worker beside it is.
func TestIsOnlyPlane(t *testing.T) {
	cp, other, worker := Node{Name: "cp-1", Role: ControlPlane}, Node{Name: "cp-2", Role: ControlPlane}, Node{Name: "wk-1", Role: Worker}
	for _, c := range []struct {
		nodes []Node
		n     Node
		want  bool
	}{
		{[]Node{cp, worker}, cp, true},
		{[]Node{cp, worker}, worker, false},
		{[]Node{cp, other, worker}, cp, false},
	} {
		if got := (Spec{Nodes: c.nodes}).IsOnlyPlane(c.n); got != c.want {
			t.Errorf("%s of %d nodes: %v, want %v", c.n.Name, len(c.nodes), got, c.want)
		}
	}
}

// TestModeOf: in a cluster whose nodes may be without an address, those that have one come by it as the gateway has it.
func TestModeOf(t *testing.T) {
	gateway := netip.MustParseAddr("10.0.0.1")
	for _, c := range []struct {
		mode    AddressMode
		gateway netip.Addr
		leased  bool
		want    AddressMode
	}{
		{AddressStatic, gateway, false, AddressStatic}, {AddressReserved, gateway, false, AddressReserved}, {AddressReserved, netip.Addr{}, false, AddressReserved},
		{AddressDiscovered, gateway, false, AddressStatic}, {AddressDiscovered, netip.Addr{}, false, AddressReserved},
		{AddressDiscovered, gateway, true, AddressDiscovered}, {AddressDiscovered, netip.Addr{}, true, AddressDiscovered},
	} {
		if got := (Network{Mode: c.mode, Gateway: c.gateway}).ModeOf(Node{Leased: c.leased}); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	if got := (Node{}).Address() + (Node{IP: gateway}).Address(); got != "10.0.0.1" {
		t.Errorf("%q", got)
	}
}

// TestOwnVIP: the address of a load balancer is none of the cluster's own.
func TestOwnVIP(t *testing.T) {
	ip := netip.MustParseAddr("10.0.0.5")
	for by, want := range map[VIPHolder]netip.Addr{"": ip, VIPByTalos: ip, VIPByKubeVIP: ip, VIPByExternal: {}} {
		if got := (Network{VIP: ip, VIPBy: by}).OwnVIP(); got != want {
			t.Errorf("%q: %v", by, got)
		}
	}
}
