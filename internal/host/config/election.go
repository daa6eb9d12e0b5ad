package config

import (
	"strings"
	"time"
)

// Election is how this agent agrees with others on who acts. Without a pool it is the only one.
type Election struct {
	Pool  string
	Lease time.Duration
}

// How long a lease may be: a request to Proxmox VE has a third of it.
const (
	leastLease   = 15 * time.Second
	defaultLease = 30 * time.Second
	// MostLease is how long one may be, on whatever host.
	MostLease = time.Minute
)

// loadElection fills in how the agents of a cluster of Proxmox VE agree on who acts.
func (l *loader) loadElection() {
	e := l.file.LeaderElection
	if e.Pool == "" {
		if e.Lease != 0 {
			l.Wrong("leader_election.lease", "name the pool in which the agents agree, or remove it", "is set without a pool")
		}
		return
	}
	switch {
	case strings.Count(e.Pool, "/") > 1:
		l.Wrong("leader_election.pool", "write a name such as talos-agent-leader, or one in one other pool: ops/talos-agent-leader", "lies in two others, so that Proxmox VE makes no pool in it")
	case e.Pool == l.out.Policy.Pool:
		l.Wrong("leader_election.pool", "make a pool for this alone, such as talos-agent-leader", "is the pool of the policy: VMs are there")
	}
	if e.Lease == 0 {
		e.Lease = defaultLease
	}
	if e.Lease < leastLease || e.Lease > MostLease {
		l.Wrong("leader_election.lease", "write a time from 15s to 1m", "is %s", e.Lease)
	}
	l.out.Election = Election(e)
}
