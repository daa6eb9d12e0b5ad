package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// What is made durable, and looked at once more, right before an action does what cannot be taken
// back.

// noteBegun makes durable which fields of its node an action begins to change, before it does, so
// that what it has done is taken for no edit later.
func (r *Reconciler) noteBegun(d cluster.Desired, i action.Info) error {
	n, ok := d.Spec.Node(i.Node)
	if facts := r.c.Journal.Facts(); !ok || drift.Begin(d, facts, n, i.Fields, i.Meanwhile) == facts.Settled[n.Name] {
		return nil
	}
	return r.c.Journal.Update(func(f *cluster.Facts) { f.Settled[n.Name] = drift.Begin(d, *f, n, i.Fields, i.Meanwhile) })
}

// pinConfig remembers which keys the cluster is built with and what its configs are made
// from, before the first of them leaves the host.
func (r *Reconciler) pinConfig(d cluster.Desired) error {
	facts := r.c.Journal.Facts()
	_, known := facts.Intent(cluster.IntendConfig)
	switch {
	case facts.Fingerprint != "" && facts.Fingerprint != d.Fingerprint:
		return errors.New("the cluster was built with other keys")
	case facts.Fingerprint != "" && known:
		return nil
	}
	return r.c.Journal.Update(func(f *cluster.Facts) {
		f.Fingerprint = d.Fingerprint
		if _, known := f.Intent(cluster.IntendConfig); !known {
			f.Intend(configIntent(d))
		}
	})
}

// intendBootstrap makes the choice of the founding node durable before the one call. A
// node that was chosen stays chosen.
func (r *Reconciler) intendBootstrap(n cluster.Node) error {
	if in, ok := r.c.Journal.Facts().Intent(cluster.IntendBootstrap); ok {
		if in.Node != n.Name || in.UUID != n.UUID || in.Done {
			return fmt.Errorf("bootstrap was intended for %s before", in.Node)
		}
		return nil
	}
	return r.c.Journal.Update(func(f *cluster.Facts) {
		f.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, Node: n.Name, UUID: n.UUID, At: time.Now().UTC()})
	})
}

// watchNode keeps the budget of a node's role spent for a while after a change that may
// have cut it off, or restarted its kube-apiserver. How the node does is observed meanwhile.
func watchNode(ctx context.Context, p Progress) error {
	p(cluster.Progress{Waits: "is watched for a minute, in which no other node like it is changed"})
	return retry.Sleep(ctx, action.WatchedFor)
}

// beginWatch does what comes before a change of a control plane that may isolate it, or restart its
// kube-apiserver: the quorum is looked at once more, unless the node has no vote; and which node is
// watched is noted, for the agent may end before the minute does. It is noted once, before the
// change: by an agent that ends meanwhile the node is watched for less than a whole minute after it.
func (r *Reconciler) beginWatch(ctx context.Context, d cluster.Desired, n cluster.Node, voteless, ofPair bool) error {
	if n.Role != cluster.ControlPlane {
		return nil
	}
	if err := r.checkQuorum(ctx, d, n, voteless, ofPair); err != nil {
		return err
	}
	return r.c.Journal.Update(func(f *cluster.Facts) {
		f.Intend(cluster.Intent{Kind: cluster.IntendWatch, Node: n.Name, At: time.Now().UTC()})
	})
}

// beginMove does what comes before a VM is given another network, which may isolate its node: a control plane is watched, and of a
// worker it is noted, so that no more than may be unavailable are moved within a minute where the agent ends meanwhile.
func (r *Reconciler) beginMove(ctx context.Context, d cluster.Desired, a action.ChangeVM) error {
	if a.Node.Role == cluster.ControlPlane {
		return r.beginWatch(ctx, d, a.Node, a.Voteless, false)
	}
	return r.c.Journal.Update(func(f *cluster.Facts) {
		now := time.Now().UTC()
		maps.DeleteFunc(f.Moved, func(_ string, at time.Time) bool { return now.Sub(at) >= action.WatchedFor })
		f.Moved[a.Node.Name] = now
	})
}

// checkQuorum looks once more whether etcd has the quorum that a change of a control plane takes, unless that has no vote.
func (r *Reconciler) checkQuorum(ctx context.Context, d cluster.Desired, n cluster.Node, voteless, ofPair bool) error {
	if n.Role != cluster.ControlPlane || voteless {
		return nil
	}
	return r.checkEtcd(ctx, d, n, "changed", ofPair, false)
}

// changeConfig gives a running machine its config, and watches what that does to a control plane. Where
// nothing that runs changes there is nothing to watch, nor where another control plane has shown that its images work.
func (r *Reconciler) changeConfig(ctx context.Context, d cluster.Desired, a action.ChangeConfig, p Progress) error {
	if a.Idle {
		return r.giveConfig(ctx, d.Repository(), a)
	}
	if a.Pulls {
		if err := r.c.Machines.PullImages(ctx, d.Repository(), a.Node, p); err != nil {
			return err
		}
	}
	begin := r.beginWatch
	if a.Proven {
		begin = r.checkQuorum
	}
	if err := begin(ctx, d, a.Node, a.Voteless, a.OfPair); err != nil {
		return err
	}
	if err := r.noteCanary(a); err != nil {
		return err
	}
	if err := r.giveConfig(ctx, d.Repository(), a); err != nil || a.Node.Role != cluster.ControlPlane || a.Proven {
		return err
	}
	return watchNode(ctx, p)
}

// noteCanary makes durable which node has its config first, before it gets it.
func (r *Reconciler) noteCanary(a action.ChangeConfig) error {
	if !a.First {
		return nil
	}
	return r.c.Journal.Update(func(f *cluster.Facts) {
		f.Intend(cluster.Intent{Kind: cluster.IntendCanary, Node: a.Node.Name, Target: a.Target, At: time.Now().UTC()})
	})
}

// beginRestart does what comes before a machine goes down: it gets its new config, if
// there is one, from the next boot on, with its images, unless it does not work anyway; its etcd gives up leadership, unless it has left, so that the others do
// not wait for an election; whether its node is drained still, and the quorum, are looked at
// once more, because all that takes its time; and what it is taken down for is noted, so
// that it is once.
func (r *Reconciler) beginRestart(ctx context.Context, d cluster.Desired, a action.RebootNode, p Progress) error {
	n, restart := a.Node, a.Restart
	if a.Config.Digest != "" {
		if a.Pulls {
			if err := r.c.Machines.PullImages(ctx, d.Repository(), n, p); err != nil {
				return err
			}
		}
		if err := r.c.Machines.Change(ctx, d.Repository(), n, a.Config, true); err != nil {
			return err
		}
	}
	if n.Role == cluster.ControlPlane && len(d.Spec.ControlPlanes()) > 1 && !slices.Contains(a.Fields, drift.FieldEtcd) {
		if err := r.forfeit(ctx, d, n); err != nil {
			return err
		}
	}
	if !a.Undrained {
		if err := r.c.Nodes.CheckDrained(ctx, d, n, len(d.Spec.Nodes) == 1); err != nil {
			return err
		}
	}
	if n.Role == cluster.ControlPlane {
		if err := r.checkEtcd(ctx, d, n, "taken down", false, a.Into != ""); err != nil {
			return err
		}
	}
	return r.c.Journal.Update(func(f *cluster.Facts) {
		restart.At = time.Now().UTC()
		if was := f.Restarts[n.Name]; drift.SameParts(was.Target, restart.Target) {
			restart.Reset = was.Reset // it had its one
		}
		f.Restarts[n.Name] = restart
	})
}

// withdrawRestart takes back what beginRestart has noted of a node where the reboot ended with an
// error that Talos refused it: the node was not taken down for that, whatever took it down, so that
// it may be once. It returns that error.
func (r *Reconciler) withdrawRestart(n cluster.Node, before cluster.Facts, err error) error {
	if !errors.Is(err, cluster.ErrSequenceRefused) {
		return err
	}
	return r.restoreRestart(n, before, err)
}

// restoreRestart takes back what beginRestart has noted of a node, because of an error, which it
// returns.
func (r *Reconciler) restoreRestart(n cluster.Node, before cluster.Facts, err error) error {
	failed := r.c.Journal.Update(func(f *cluster.Facts) {
		delete(f.Restarts, n.Name)
		if was, ok := before.Restarts[n.Name]; ok {
			f.Restarts[n.Name] = was
		}
	})
	if failed != nil {
		return fmt.Errorf("%w; the journal has it as done: %w", err, failed)
	}
	return err
}
