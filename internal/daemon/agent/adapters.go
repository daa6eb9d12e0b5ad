package agent

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/daemon/snapshots"
	"github.com/talos-agent/talos-agent/reconcile"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/kube"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
	"github.com/talos-agent/talos-agent/reconcile/talos"
)

// inOrder lets one observer see what the one before it found.
type inOrder []reconcile.Observer

func (obs inOrder) Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed) {
	for _, ob := range obs {
		ob.Observe(ctx, d, o)
	}
}

// Forget implements reconcile.Forgetter.
func (obs inOrder) Forget(clusterID string) {
	for _, ob := range obs {
		if f, ok := ob.(reconcile.Forgetter); ok {
			f.Forget(clusterID)
		}
	}
}

// vms gives the Proxmox VE client the shape the executor wants.
type vms struct{ c *proxmox.Client }

func (v vms) Create(ctx context.Context, d cluster.Desired, n cluster.Node, host string, image cluster.Image, p reconcile.Progress) error {
	return v.c.Create(ctx, d, n, host, image, p)
}

func (v vms) Start(ctx context.Context, d cluster.Desired, n cluster.Node, p reconcile.Progress) error {
	return v.c.Start(ctx, d, n, p)
}

func (v vms) Delete(ctx context.Context, d cluster.Desired, vm cluster.VM, p reconcile.Progress) error {
	return v.c.Delete(ctx, d, vm, p)
}

func (v vms) Change(ctx context.Context, d cluster.Desired, n cluster.Node, host string, fields []cluster.VMField, p reconcile.Progress) error {
	return v.c.Change(ctx, d, n, host, fields, p)
}

func (v vms) Resume(ctx context.Context, d cluster.Desired, n cluster.Node, p reconcile.Progress) error {
	return v.c.Resume(ctx, d, n, p)
}

func (v vms) Reset(ctx context.Context, d cluster.Desired, n cluster.Node, p reconcile.Progress) error {
	return v.c.Reset(ctx, d, n, p)
}

func (v vms) ShutDown(ctx context.Context, d cluster.Desired, n cluster.Node, p reconcile.Progress) error {
	return v.c.ShutDown(ctx, d, n, p)
}

func (v vms) SetAvailability(ctx context.Context, d cluster.Desired, vm cluster.VM, want availability.State, p reconcile.Progress) error {
	return v.c.SetAvailability(ctx, d, vm, want, p)
}

func (v vms) SetApart(ctx context.Context, d cluster.Desired, vmids []int, p reconcile.Progress) error {
	return v.c.SetApart(ctx, d, vmids, p)
}

// nodes gives the Kubernetes client the shape the executor wants.
type nodes struct{ c *kube.Cluster }

func (n nodes) Drain(ctx context.Context, d cluster.Desired, node cluster.Node, turn string, how cluster.Drain, p reconcile.Progress) error {
	return n.c.Drain(ctx, d, node, turn, how, p)
}

func (n nodes) ListLostPods(ctx context.Context, d cluster.Desired, node string) ([]string, error) {
	return n.c.ListLostPods(ctx, d, node)
}

func (n nodes) CheckDrained(ctx context.Context, d cluster.Desired, node cluster.Node, stay bool) error {
	return n.c.CheckDrained(ctx, d, node, stay)
}

func (n nodes) DeleteNode(ctx context.Context, d cluster.Desired, node cluster.Node, p reconcile.Progress) error {
	return n.c.DeleteNode(ctx, d, node, p)
}

func (n nodes) Uncordon(ctx context.Context, d cluster.Desired, node cluster.Node) error {
	return n.c.Uncordon(ctx, d, node)
}

func (n nodes) Label(ctx context.Context, d cluster.Desired, node cluster.Node, left []string) error {
	return n.c.Label(ctx, d, node, left)
}

// machines gives the Talos client the shape the executor wants.
type machines struct{ *talos.Fleet }

func (m machines) PullImages(ctx context.Context, d cluster.Desired, n cluster.Node, p reconcile.Progress) error {
	return m.Fleet.PullImages(ctx, d, n, p)
}

func (m machines) PullInstaller(ctx context.Context, d cluster.Desired, n cluster.Node, image string, p reconcile.Progress) error {
	return m.Fleet.PullInstaller(ctx, d, n, image, p)
}

func (m machines) InstallTalos(ctx context.Context, d cluster.Desired, n cluster.Node, image, boot string, p reconcile.Progress) error {
	return m.Fleet.InstallTalos(ctx, d, n, image, boot, p)
}

func (m machines) UpgradeTalos(ctx context.Context, d cluster.Desired, n cluster.Node, image, boot string, p reconcile.Progress) error {
	return m.Fleet.UpgradeTalos(ctx, d, n, image, boot, p)
}

func (m machines) RollBackTalos(ctx context.Context, d cluster.Desired, n cluster.Node, boot string, p reconcile.Progress) error {
	return m.Fleet.RollBackTalos(ctx, d, n, boot, p)
}

func (m machines) Reboot(ctx context.Context, d cluster.Desired, n cluster.Node, boot string, p reconcile.Progress) error {
	return m.Fleet.Reboot(ctx, d, n, boot, p)
}

// images brings the image from the factory over the host's cache to its
// storages.
type images struct {
	factory *factory.Factory
	pve     *proxmox.Client
}

func (i *images) Cached(d cluster.Desired, facts cluster.Facts) cluster.Seen[bool] {
	if d.Image.Name == "" {
		return cluster.Seen[bool]{}
	}
	return cluster.Saw(i.factory.Cached(d.Image, facts.Images[d.Image.Name]))
}

func (i *images) Register(ctx context.Context, s cluster.Schematic) error {
	_, err := i.factory.Schematic(ctx, s)
	return err
}

func (i *images) CheckInstallers(ctx context.Context, d cluster.Desired, refs []string) error {
	asked := d.Repository()
	for _, ref := range refs {
		err := i.factory.CheckInstaller(ctx, ref, asked.Spec.Mirrors)
		if errors.Is(err, factory.ErrUnknownSchematic) {
			// The id comes from the journal, and this factory never received it.
			if err = i.Register(ctx, asked.Spec.Schematic); err == nil {
				err = i.factory.CheckInstaller(ctx, ref, asked.Spec.Mirrors)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (i *images) Installers() map[string]cluster.InstallerSeen { return i.factory.Installers() }

func (i *images) Download(ctx context.Context, d cluster.Desired, p reconcile.Progress) (cluster.ImagePin, error) {
	progress := func(done, total int64) { p(cluster.Progress{Done: done, Total: total, Unit: "bytes"}) }
	pin, err := i.factory.Download(ctx, d.Image, progress)
	if errors.Is(err, factory.ErrUnknownSchematic) {
		// The id comes from the journal, and this factory never received it.
		id, regErr := i.factory.Schematic(ctx, d.Spec.Schematic)
		if regErr != nil {
			return cluster.ImagePin{}, regErr
		}
		if id != d.Image.Schematic {
			return cluster.ImagePin{}, fmt.Errorf("%w; it gives %s for what the inventory asks", err, id)
		}
		pin, err = i.factory.Download(ctx, d.Image, progress)
	}
	return pin, err
}

func (i *images) Upload(ctx context.Context, host, datastore string, img cluster.Image, p reconcile.Progress) error {
	f, size, err := i.factory.Open(img)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return i.pve.Upload(ctx, host, datastore, img.Name, size, f, p)
}

// keeper gives the snapshots of a cluster the shape the executor wants.
type keeper struct{ *snapshots.Keeper }

// newKeeper returns the snapshots of a cluster, which its machines send. onRead is called when more is
// known of those that were there.
func newKeeper(archive *snapshots.Archive, name string, fleet *talos.Fleet, onRead func()) keeper {
	return keeper{archive.Keep(name, snapshots.Source{
		Stream: func(ctx context.Context, d cluster.Desired, take func(context.Context, snapshots.Sender, io.Reader) error) error {
			return fleet.StreamSnapshot(ctx, d, func(ctx context.Context, from talos.Sender, stream io.Reader) error {
				return take(ctx, snapshots.Sender{Node: from.Node.Name, Etcd: from.Etcd}, stream)
			})
		},
		Identify: func(d cluster.Desired) (snapshots.Identity, error) {
			b, err := machineconfig.OpenBundle(d.Bundle, d.Spec.Versions.Contract)
			if err != nil {
				return snapshots.Identity{}, err
			}
			return snapshots.Identity{ClusterID: b.ClusterID(), EncryptionKeys: b.EncryptionKeys()}, nil
		},
	}, onRead)}
}

// Take implements reconcile.Snapshots.
func (k keeper) Take(ctx context.Context, d cluster.Desired, kind retention.Kind, p reconcile.Progress) error {
	return k.Keeper.Take(ctx, d, kind, p)
}
