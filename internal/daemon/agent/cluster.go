package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

// What the socket asks of one cluster. What the reconciler does by itself comes
// with it.
var _ api.Cluster = (*managedCluster)(nil)

// ForecastDir implements api.Cluster.
func (m *managedCluster) ForecastDir(ctx context.Context, files fs.FS) (cluster.Forecast, error) {
	snap, problems, err := m.source.of(ctx, files)
	if err != nil {
		return cluster.Forecast{}, err
	}
	invalid := func(problems cluster.Problems) cluster.Forecast {
		return cluster.Forecast{Cluster: m.name, Revision: sentDirectory, Problems: problems, Blocked: []cluster.Block{{Subject: m.name, Reason: cluster.InventoryInvalid, Message: "the inventory is invalid"}}}
	}
	if problems.HasErrors() {
		return invalid(problems), nil
	}
	f, err := m.ForecastOf(ctx, snap)
	if errors.As(err, &problems) {
		return invalid(problems), nil
	}
	return f, err
}

// Accept implements api.Cluster.
func (m *managedCluster) Accept(revision cluster.Revision) error {
	if seen := m.Status().Revision; revision == "" || revision != seen {
		return cluster.WithReason(cluster.NothingToAccept, fault.WithHint(errors.New("the revision to accept is not the newest one seen, "+seen.Short()), "look at `talos-agent status "+m.name+"` and run accept again"))
	}
	return m.Reconciler.Accept(revision)
}

// peopleTTL is how long a kubeconfig or talosconfig for a person works. They
// are minted on demand, so that there is no reason to keep one for long.
const peopleTTL = 30 * 24 * time.Hour

// mintAccess mints credentials for a person.
func (m *managedCluster) mintAccess() (cluster.Desired, cluster.Access, error) {
	d, ok := m.Desired()
	if !ok || d.Bundle.IsZero() {
		return d, cluster.Access{}, cluster.WithReason(cluster.InventoryUnread, fault.WithHint(errors.New("the cluster's secrets have not been read"), "look at `talos-agent status "+m.name+"`"))
	}
	bundle, err := machineconfig.OpenBundle(d.Bundle, d.Spec.Versions.Contract)
	if err != nil {
		return d, cluster.Access{}, err
	}
	access, err := bundle.Credentials(time.Now(), peopleTTL)
	return d, access, err
}

// Kubeconfig implements api.Cluster.
func (m *managedCluster) Kubeconfig() ([]byte, error) {
	d, access, err := m.mintAccess()
	if err != nil {
		return nil, err
	}
	return machineconfig.Kubeconfig(d.Spec, access, d.Spec.Network.Endpoint)
}

// Talosconfig implements api.Cluster.
func (m *managedCluster) Talosconfig() ([]byte, error) {
	d, access, err := m.mintAccess()
	if err != nil {
		return nil, err
	}
	return machineconfig.Talosconfig(d.Spec, access)
}

// Console implements api.Cluster.
func (m *managedCluster) Console(ctx context.Context, node string, each func(text string) error) error {
	a := m.agent
	var names []string
	for _, n := range m.Status().Nodes {
		if names = append(names, n.Name); n.Name != node {
			continue
		}
		if n.Phase == cluster.PhaseAbsent { // Proxmox VE would refuse for want of a permission
			return fault.WithHint(fmt.Errorf("%s %w", node, api.ErrNoVM), "`talos-agent status "+m.name+"` shows what it waits for")
		}
		defer a.consoles.person(consoleKey{m.name, node})()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(a.ctx, cancel)()
		var clean text.Console
		return a.pve.Console(ctx, n.Host, n.VMID, func(piece []byte) error {
			if printed := clean.Clean(piece); printed != "" {
				return each(printed)
			}
			return nil
		})
	}
	return m.unknownNode(node, names)
}

// ForecastForget implements api.Cluster.
func (m *managedCluster) ForecastForget(node string) (cluster.Forecast, error) {
	f, err := m.Reconciler.ForecastForget(node)
	return f, m.explainNode(err, node)
}

// Forget implements api.Cluster.
func (m *managedCluster) Forget(node string, unfenced bool) error {
	return m.explainNode(m.Reconciler.Forget(node, unfenced), node)
}

// RollBack implements api.Cluster.
func (m *managedCluster) RollBack(node, by string) error {
	return m.explainNode(m.Reconciler.RollBack(node, by), node)
}

// CancelRollback implements api.Cluster.
func (m *managedCluster) CancelRollback(node, by string) error {
	return m.explainNode(m.Reconciler.CancelRollback(node, by), node)
}

// Upgrade implements api.Cluster.
func (m *managedCluster) Upgrade(order cluster.UpgradeOrder) error {
	err := m.Reconciler.Upgrade(order)
	for _, node := range order.Despite {
		isNode := func(n cluster.NodeStatus) bool { return n.Name == node }
		if errors.Is(err, reconcile.ErrUnknownNode) && !slices.ContainsFunc(m.Status().Nodes, isNode) {
			return m.explainNode(err, node)
		}
	}
	return err
}

// explainNode names the nodes there are where an error is that there is none of that name.
func (m *managedCluster) explainNode(err error, node string) error {
	if !errors.Is(err, reconcile.ErrUnknownNode) {
		return err
	}
	var names []string
	for _, n := range m.Status().Nodes {
		names = append(names, n.Name)
	}
	return m.unknownNode(node, names)
}

// unknownNode is the error for a node that is none of these.
func (m *managedCluster) unknownNode(node string, names []string) error {
	err := fmt.Errorf("%w: cluster %s has no node %q", api.ErrUnknownNode, m.name, node)
	if len(names) > 0 {
		return fault.WithHint(err, "its nodes are "+strings.Join(names, ", "))
	}
	return err
}
