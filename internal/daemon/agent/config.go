package agent

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/clock"
	"github.com/talos-agent/talos-agent/internal/daemon/eventlog"
	"github.com/talos-agent/talos-agent/internal/daemon/reporting"
	"github.com/talos-agent/talos-agent/internal/daemon/snapshots"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/helm"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/reconcile/leases"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/forge"
)

// Config is everything an agent is made of, resolved: files are read, and the
// adapters' own configs are filled in.
type Config struct {
	Owner    string
	Clusters []string // empty: all in the repository
	Interval time.Duration
	Policy   func() cluster.Policy
	Files    journal.Files // of the journal
	Known    []string      // clusters that have a journal already
	CacheDir string
	Dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	Log      *slog.Logger
	// Neighbour is the MAC of the machine that has an address on one of this host's
	// networks, "" when it is not known; nil: it never is.
	Neighbour func(netip.Addr) string
	// Addresses looks for the addresses of machines on this host's networks, for nodes that get theirs by DHCP. ask is
	// a network in which some are not found, invalid where all are, and allowed which of it may be asked.
	// nil: they are not looked for.
	Addresses func(ctx context.Context, ask netip.Prefix, allowed func(netip.Addr) bool) leases.Seen
	// InPlace is true when another user than the daemon's looks in its place.
	InPlace bool

	Sources sources.Config
	Store   io.Closer // of Sources.Store; nil: it is not the agent's to close
	Proxmox proxmox.Config
	Factory factory.Config
	Charts  helm.Config // API, OnChange, CacheDir and Log are filled per cluster
	Forge   *forge.Config
	Notify  []reporting.Target
	Sent    *reporting.SentNotices
	Host    string // its name
	// Snapshots are those of etcd; nil: none are taken. The agent closes it.
	Snapshots *snapshots.Archive

	// Reservations are where a DHCP server of the host finds the addresses of nodes; nil: they are
	// not written. OnReserved is called with how each attempt to write those of a cluster ended.
	Reservations Reservations
	OnReserved   func(name string, err error)
	// Forwards are where it is written which ports of the host lead to nodes; nil: nowhere. OnForwarded
	// is called with how each attempt to write those of a cluster ended.
	Forwards    Forwards
	OnForwarded func(name string, err error)

	// Directory is the directory that is the repository, and is watched; "": none.
	// Pushed has an element when something was pushed; nil: nothing reports that.
	Directory string
	Pushed    <-chan struct{}

	// Prepare, when set, has a hand in every snapshot before it is used: a
	// rehearsal puts throw-away keys and stand-ins for charts into it.
	Prepare func(cluster.Snapshot) (cluster.Snapshot, error)
	// OnStatus is called after every pass of any cluster, OnPass with how long it
	// took, and OnAction when an action ended; they must not block.
	OnStatus func(cluster.Status)
	OnPass   func(name string, took time.Duration)
	OnAction func(name string, o cluster.Outcome)
	// OnForgotten is called with the name of a cluster that is not managed any more,
	// because it has left the repository and nothing of it is left.
	OnForgotten func(name string)
	// OnNotified is called with how each attempt to notify a target ended.
	OnNotified func(target string, err error)
	// OnUnreachable is called with somebody outside to whom it could not be reported
	// how a cluster stands, and with nil when it could be again.
	OnUnreachable func(who string, err error)
	// Earlier are the clocks of an agent before this one; nil: there was none.
	Earlier func(cluster string) clock.Clocks
	// Runs keeps what was done, for people; nil: in memory, for as long as the agent
	// lives. Pulse beats whenever a status may have changed; nil: nobody watches.
	Runs  *eventlog.Runs
	Pulse *history.Pulse
}

// setDefaults fills in what may be left out.
func (c *Config) setDefaults() {
	if c.Earlier == nil {
		c.Earlier = func(string) clock.Clocks { return clock.Clocks{} }
	}
	if c.Runs == nil {
		c.Runs = eventlog.NewRuns(nil, history.DefaultKeep, c.Log)
	}
	if c.Pulse == nil {
		c.Pulse = &history.Pulse{}
	}
	if c.OnStatus == nil {
		c.OnStatus = func(cluster.Status) {}
	}
	if c.OnPass == nil {
		c.OnPass = func(string, time.Duration) {}
	}
	if c.OnAction == nil {
		c.OnAction = func(string, cluster.Outcome) {}
	}
	if c.OnForgotten == nil {
		c.OnForgotten = func(string) {}
	}
	if c.OnNotified == nil {
		c.OnNotified = func(string, error) {}
	}
	if c.OnReserved == nil {
		c.OnReserved = func(string, error) {}
	}
	if c.OnForwarded == nil {
		c.OnForwarded = func(string, error) {}
	}
	if c.OnUnreachable == nil {
		c.OnUnreachable = func(string, error) {}
	}
}
