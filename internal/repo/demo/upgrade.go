package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// What the third story begins with, and where it leads.
const (
	exampleVersions = "talos_version: v1.13.9\nkubernetes_version: v1.36.1\nconfig_contract: v1.13\n"
	oldVersions     = "talos_version: v1.12.11\nkubernetes_version: v1.35.10\nconfig_contract: v1.12\n"
	oldTalos        = "talos_version: v1.12.11"
	newTalos        = "talos_version: v1.14.1"
	oldKubernetes   = "kubernetes_version: v1.35.10"
	newKubernetes   = "kubernetes_version: v1.36.1"
)

// upgrade is the story of a cluster that gets another Talos, over the version in between, and then another Kubernetes.
func (d *demo) upgrade(ctx context.Context) error {
	if err := d.play(ctx, []chapter{
		{"git push: an inventory of three control planes and three workers", d.bringUpOld},
		{"git push: Talos two minor versions on, and the next Kubernetes", d.upgradeBoth},
	}); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	d.print("done in %s", time.Since(d.began).Round(100*time.Millisecond))
	return nil
}

// bringUpOld pushes a cluster of older versions.
func (d *demo) bringUpOld(ctx context.Context) error {
	if err := d.edit("cluster.yaml", exampleVersions, oldVersions); err != nil {
		return err
	}
	if err := d.write("nodes.yaml", fmt.Sprintf(nodes, d.network())); err != nil {
		return err
	}
	return d.push(ctx, "bring up the lab cluster")
}

// upgradeBoth has every node go over the version in between, one node at a time, and then every component of
// Kubernetes, one after the other.
func (d *demo) upgradeBoth(ctx context.Context) error {
	if err := d.edit("cluster.yaml", oldTalos, newTalos); err != nil {
		return err
	}
	if err := d.edit("cluster.yaml", oldKubernetes, newKubernetes); err != nil {
		return err
	}
	boots := d.bootIDs()
	if err := d.push(ctx, "talos v1.14.1 and kubernetes v1.36.1"); err != nil {
		return err
	}
	return d.wantVersions(ctx, boots, "v1.14.1", "v1.36.1")
}

// bootIDs are the boots of all machines, by node.
func (d *demo) bootIDs() map[string]string {
	out := map[string]string{}
	for _, m := range d.host.Talos.Machines() {
		out[m.Node] = m.BootID
	}
	return out
}

// wantVersions wants every machine to run a Talos since another boot, and its node a Kubernetes.
func (d *demo) wantVersions(ctx context.Context, boots map[string]string, version, kubernetes string) error {
	var names []string
	for _, m := range d.host.Talos.Machines() {
		if m.Talos != version || m.BootID == boots[m.Node] {
			return fmt.Errorf("%s runs Talos %s, in boot %s", m.Node, m.Talos, m.BootID)
		}
		names = append(names, m.Node)
	}
	slices.Sort(names)
	s, err := d.client.Status(ctx, Cluster)
	if err != nil {
		return err
	}
	if out := slices.IndexFunc(s.Nodes, func(n cluster.NodeStatus) bool {
		return n.Talos != version || n.Kubernetes != kubernetes || n.Phase != cluster.PhaseReady
	}); out >= 0 {
		return fmt.Errorf("%s is %s with Talos %s and Kubernetes %s", s.Nodes[out].Name, s.Nodes[out].Phase, s.Nodes[out].Talos, s.Nodes[out].Kubernetes)
	}
	d.print("on Talos %s and Kubernetes %s: %v", version, kubernetes, names)
	return nil
}
