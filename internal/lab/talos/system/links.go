package system

import (
	"net"

	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
)

// NewLink is the network card of a machine.
func NewLink(name, mac string) *network.LinkStatus {
	r := network.NewLinkStatus(network.NamespaceName, name)
	s := r.TypedSpec()
	s.Index, s.Type, s.MTU, s.QueueDisc = 2, nethelpers.LinkEther, 1500, "pfifo_fast"
	s.Flags = nethelpers.LinkFlags(nethelpers.LinkUp | nethelpers.LinkBroadcast | nethelpers.LinkRunning | nethelpers.LinkMulticast | nethelpers.LinkLowerUp)
	s.OperationalState, s.LinkState, s.Port, s.Duplex = nethelpers.OperStateUp, true, nethelpers.Other, nethelpers.Unknown
	s.Driver, s.BusPath, s.VendorID = "virtio_net", "0000:06:12.0", "0x1af4"
	if address, err := net.ParseMAC(mac); err == nil {
		s.HardwareAddr, s.PermanentAddr = nethelpers.HardwareAddr(address), nethelpers.HardwareAddr(address)
	}
	s.BroadcastAddr = nethelpers.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	return r
}

// NewLoopback is the link every machine has besides its network card.
func NewLoopback() *network.LinkStatus {
	r := network.NewLinkStatus(network.NamespaceName, "lo")
	s := r.TypedSpec()
	s.Index, s.Type, s.MTU, s.QueueDisc = 1, nethelpers.LinkLoopbck, 65536, "noqueue"
	s.Flags = nethelpers.LinkFlags(nethelpers.LinkUp | nethelpers.LinkLoopback | nethelpers.LinkRunning | nethelpers.LinkLowerUp)
	s.OperationalState, s.LinkState, s.Port, s.Duplex = nethelpers.OperStateUnknown, true, nethelpers.Other, nethelpers.Unknown
	s.HardwareAddr, s.BroadcastAddr = make(nethelpers.HardwareAddr, 6), make(nethelpers.HardwareAddr, 6)
	return r
}
