package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/outbox"
	"github.com/talos-agent/talos-agent/internal/daemon/reservations"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
)

// Reservations are where a DHCP server finds the addresses of nodes; *reservations.Directory is one.
type Reservations interface {
	// Set makes what is there of a cluster its reservations; whole has the others of it removed.
	Set(cluster string, all []reservations.Reservation, whole bool) error
}

// checkReservations is how often it is looked whether the reservations are still there, which
// somebody may have removed.
const checkReservations = 10 * time.Minute

// reserved is what a DHCP server is to know of a cluster.
type reserved struct {
	cluster string
	all     []reservations.Reservation
	refused string    // why the first one is not written that the host does not allow; "": all are
	hint    string    // what to do about that
	more    int       // that are not written either
	whole   bool      // nothing else is to be there
	ended   bool      // the cluster is not managed any more
	checked time.Time // it is news again with another one
}

func isSameReserved(a, b reserved) bool {
	return a.whole == b.whole && a.ended == b.ended && a.refused == b.refused && a.hint == b.hint && a.more == b.more && a.checked.Equal(b.checked) && slices.Equal(a.all, b.all)
}

// startReservations starts to write reservations, beside the loops of the clusters: a disk that is
// slow or full delays none of them.
func (a *Agent) startReservations() {
	if a.c.Reservations == nil {
		return
	}
	a.reserved = outbox.New(outbox.Config[reserved]{
		Send: func(_ context.Context, r reserved) error { return r.set(a.c.Reservations) },
		Same: isSameReserved,
		OnAttempt: func(name string, r reserved, err error) {
			a.c.OnReserved(name, err)
			if err == nil && r.ended {
				a.reserved.Remove(name)
			}
		},
	})
}

// set makes what is there of a cluster what it is to be. What is refused fails after all the rest is done.
func (r reserved) set(where Reservations) error {
	if err := where.Set(r.cluster, r.all, r.whole); err != nil || r.refused == "" {
		return err
	}
	why := r.refused
	if r.more > 0 {
		why += fmt.Sprintf("; nor are %d more of the cluster", r.more)
	}
	return fault.WithHint(errors.New(why), r.hint)
}

// add takes the reservation of a node. One that the host does not allow is not written, and the file that the
// node has stays: it was allowed when it was written, and a node that runs needs it.
func (r *reserved) add(one reservations.Reservation, p cluster.Policy) {
	if err := bounds.OfReservation(one.Node, one.MAC, p); err != nil {
		one.MAC = ""
		if r.refused == "" {
			r.refused, r.hint = err.Error(), fault.HintOf(err)
		} else {
			r.more++
		}
	}
	r.all = append(r.all, one)
}

// reserve takes what a DHCP server is to know of a cluster since its last pass. Before the first VM
// of a new node is started this is called with it: a VM is started by a later pass than the one that
// makes it.
func (m *managedCluster) reserve(now time.Time) {
	if m.agent.reserved == nil {
		return
	}
	d, o, err := m.InForce()
	if err != nil {
		return // nothing is known of it yet, and what is there stays
	}
	p := m.agent.c.Policy()
	if len(bounds.BlockUnknown(m.name, p)) > 0 || len(bounds.Violations(d, p)) > 0 {
		return // nor does anything else come of more than the host allows, such as the address of a router
	}
	r := reserved{cluster: m.name, whole: o.Orphans.Known, checked: now.Truncate(checkReservations)}
	for _, n := range d.AllNodes() { // one that is being removed renews its lease until it is deleted
		if d.Spec.Network.ModeOf(n) == cluster.AddressReserved {
			runs := o.Facts.Settled[n.Name] != "" && o.VMs[n.Name].Presence != cluster.Absent // its next machine gets what the inventory has
			one := reservations.Reservation{Node: n.Name, MAC: n.MAC, IP: n.IP, Kept: runs}
			if _, listed := d.Spec.Node(n.Name); !listed && d.Spec.Network.Mode == cluster.AddressDiscovered {
				one.MAC = "" // whether it had a reservation is not known any more: what there is stays
			}
			r.add(one, p)
		}
	}
	m.agent.reserved.Put(m.name, r)
}

// unreserve has the reservations of a cluster removed that is not managed any more.
func (a *Agent) unreserve(name string) {
	if a.reserved != nil {
		a.reserved.Put(name, reserved{cluster: name, whole: true, ended: true})
	}
}
