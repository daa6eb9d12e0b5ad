package talos

import (
	"errors"
	"net/netip"
	"slices"
	"time"
)

// How a machine finds the control planes of its cluster.

// endpoint is the address of the Kubernetes API in the config of a node.
type endpoint struct {
	ca   string
	addr netip.Addr
}

// awaitEndpoint waits, once in a boot, until an API answers at the endpoint.
func (b *boot) awaitEndpoint() {
	var e *endpoint
	if !b.reached && !b.m.dark && b.set.endpoint.IsValid() {
		e = &endpoint{b.set.kubeCA, b.set.endpoint}
	}
	b.endpoint.SetWanted(b, e, func(e endpoint, answers func(bool)) func() {
		return b.f.kubernetes.AwaitEndpoint(e.ca, e.addr, func() { answers(true) })
	}, func(bool) {
		b.reached = true
		b.reopenAPI()
	})
}

// lacksEndpoint reports whether the endpoint of this boot's config is a virtual
// address that has not answered yet. An address of a machine itself needs no one to
// hold it.
func (b *boot) lacksEndpoint() bool {
	if b.reached || b.f.kubernetes == nil || b.set == nil || !b.set.endpoint.IsValid() {
		return false
	}
	for _, m := range b.f.machines {
		if m.boot != nil && m.boot.address.Addr() == b.set.endpoint {
			return false
		}
	}
	return true
}

// findsEtcd reports whether the machine knows an address at which a member of an etcd answers:
// the endpoint itself, which may be the virtual address of a member, or any that the API behind
// the endpoint lists, which stay known until the next boot. A discovery service, where the
// config names one, knows them all.
// Source: talos v1.13.9, etcd.GetEndpoints and the controllers that write k8s.Endpoint
// (StaticEndpoint, k8s.Endpoint, cluster.Endpoint); a member has the virtual address before its
// API runs (operator.VIP), and a certificate of etcd for it (secrets.EtcdController).
func (b *boot) findsEtcd(e *etcd) bool {
	at := b.set.endpoint
	if !at.IsValid() || b.set.discovers || b.reached {
		return true
	}
	return slices.ContainsFunc(e.members, func(m *member) bool {
		return m.isUp() && !m.learner && (m.on.address.Addr() == at || m.isHealthy() && m.on.set.vip == at)
	})
}

// reachEtcd is the etcd that answers this machine when it asks the control
// planes of its cluster. A machine whose own etcd is a second one for the same
// cluster gets now one, now the other (recorded).
func (b *boot) reachEtcd() (*etcd, error) {
	if b.seeksPlanes() {
		return nil, errors.New("no controlplane endpoints discovered yet")
	}
	var own *etcd
	if m := b.localMember(); m != nil && !m.learner {
		own = m.of
	}
	var lost *etcd
	var all []*etcd
	for _, e := range b.f.etcds {
		switch {
		case e.ca != b.set.etcdCA || !slices.ContainsFunc(e.members, (*member).isUp) || !b.findsEtcd(e):
		case !e.hasQuorum():
			lost = e
		case e.canServe() || e == own:
			all = append(all, e)
		}
	}
	switch {
	case len(all) == 0 && lost != nil:
		return nil, b.missLeader(lost, listDelay)
	case len(all) == 0:
		return nil, errHang
	case all[0] == own:
		return own, nil
	}
	b.queries++
	return all[b.queries%len(all)], nil
}

// discovery is for how long after a boot a machine may not know the control planes yet.
const discovery = 6 * time.Second

// seeksPlanes reports whether the machine has not found the control planes of its cluster
// since it booted. In the recordings it was so on about every second boot; here it is on each
// second one that is asked in time.
func (b *boot) seeksPlanes() bool {
	if b.resumed.IsZero() || time.Since(b.resumed) > b.f.world.Scale(discovery) {
		return false
	}
	if !b.sought {
		b.sought = true
		b.f.searches++
		b.seeks = b.f.searches%2 == 1
	}
	return b.seeks
}
