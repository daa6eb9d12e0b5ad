package plan

import (
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// waitForVIP reports a VIP at which no kube-apiserver of the cluster answers, while one
// does on a control plane's own address. Talos elects the holder through etcd and
// moves the address within a minute when a control plane is lost.
func (m *planner) waitForVIP() {
	if !lacksVIP(m.o) {
		return
	}
	addr, v := m.d.Spec.Network.VIP, m.o.VIP.Value
	message := fmt.Sprintf("no kube-apiserver answers at the VIP %s, though one does on a control plane's own address", addr)
	hint := fmt.Sprintf("`talosctl get addresses` on the control planes shows whether one has %s; a patch that names another link, or that removes the VIP, keeps Talos from taking it", addr)
	if v.MAC != "" {
		i := slices.IndexFunc(m.d.Spec.Nodes, func(n cluster.Node) bool { return n.MAC == v.MAC })
		if i >= 0 {
			message += fmt.Sprintf("; %s has the address", m.d.Spec.Nodes[i].Name)
			hint = fmt.Sprintf("see why the kube-apiserver of %s does not answer there", m.d.Spec.Nodes[i].Name)
		} else {
			message += fmt.Sprintf("; a machine with MAC %s has the address, and it is no node of this cluster", v.MAC)
			hint = fmt.Sprintf("take %s from that machine, or give the cluster another vip", addr)
		}
	}
	m.wait(cluster.Wait{Subject: m.d.Spec.Name, Reason: cluster.VIPNotServed, About: v.MAC, Message: message + colon(v.Why), Within: vipWithin, Hint: hint})
}

// lacksVIP reports whether the cluster is seen to have a VIP that does not lead to it.
func lacksVIP(o cluster.Observed) bool { return o.VIP.Known && !o.VIP.Value.Served }

// waitForSilent waits for a node at whose address nothing answers, or blames the VIP: a
// worker's Talos answers only once it got its certificate through it.
func (m *planner) waitForSilent(n cluster.Node, w cluster.Wait) {
	if n.Role == cluster.Worker && lacksVIP(m.o) {
		w.Reason, w.Hint = cluster.VIPNotServed, "it goes on when the VIP answers: what the cluster waits for shows who has the address"
		w.Message = fmt.Sprintf("nothing answers at %s:50000: Talos on a worker that has its config waits for a certificate, which it gets through the VIP %s", n.IP, m.d.Spec.Network.VIP)
	}
	m.wait(w)
}
