package validation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/reconcile/rendering"
)

// Render returns what the agent would give to a cluster of the repository in dir, to one
// node of it, or, without a name, to the only cluster. If that is not valid nothing is
// rendered, and the result has why.
func Render(ctx context.Context, dir string, c Config, node string, showSecrets bool, now time.Time) (cluster.Rendering, Result, error) {
	opened, err := Open(ctx, dir, c)
	if err != nil {
		return cluster.Rendering{}, Result{}, err
	}
	if c.Cluster, err = opened.chooseCluster(ctx); err != nil {
		return cluster.Rendering{}, Result{}, err
	}
	found, err := Validate(ctx, dir, c, now)
	if err != nil || !found.Valid {
		return cluster.Rendering{}, found, err
	}
	snap, problems, err := opened.Repository.Snapshot(ctx, opened.Tree, c.Cluster)
	if err == nil {
		err = problems.Err()
	}
	if err != nil {
		return cluster.Rendering{}, found, err
	}
	if err := checkNode(snap.Spec, node); err != nil {
		return cluster.Rendering{}, found, err
	}
	out, err := renderSnapshot(snap, opened.Decrypt != nil, rendering.Options{Node: node, ShowSecrets: showSecrets}, now)
	return out, found, err
}

// chooseCluster is the cluster that the config names, or the only one.
func (c *Checkout) chooseCluster(ctx context.Context) (string, error) {
	names, problems, err := c.ListClusters(ctx)
	switch {
	case err != nil:
		return "", err
	case len(names) == 1:
		return names[0], nil
	case len(names) == 0 && problems.HasErrors():
		return "", problems.Err()
	case len(names) == 0:
		return "", errors.New("there is no cluster in it")
	}
	return "", &fault.Usage{Err: fmt.Errorf("which cluster? there are %s", strings.Join(names, ", "))}
}

func checkNode(s cluster.Spec, node string) error {
	var names []string
	for _, n := range s.Nodes {
		if names = append(names, n.Name); n.Name == node {
			return nil
		}
	}
	if node == "" {
		return nil
	}
	return fault.WithHint(fmt.Errorf("cluster %s has no node %q", s.Name, node), "its nodes are "+strings.Join(names, ", "))
}

// renderSnapshot renders a cluster without asking anybody: what is not known here has a
// placeholder, and a note.
func renderSnapshot(snap cluster.Snapshot, keyed bool, o rendering.Options, now time.Time) (cluster.Rendering, error) {
	notes := []string{"the image's id is a placeholder: the image factory is not asked"}
	if snap.Bundle.IsZero() {
		bundle, err := machineconfig.PlaceholderBundle(snap.Spec.Versions.Contract, now)
		if err != nil {
			return cluster.Rendering{}, err
		}
		snap.Bundle, o.ThrowAway = bundle, true
		why := "there is no age key"
		if keyed {
			why = "the cluster has none yet"
		}
		notes = append(notes, "the secrets are throw-away ones: "+why)
	}
	var r machineconfig.Renderer
	configs, problems := r.Render(snap, machineconfig.PlaceholderSchematic)
	if err := problems.Err(); err != nil {
		return cluster.Rendering{}, err
	}
	d := cluster.Desired{Snapshot: snap, Schematic: machineconfig.PlaceholderSchematic, Configs: configs}
	out, err := rendering.Render(d, func(string) bool { return false }, o)
	out.Notes = append(out.Notes, notes...)
	return out, err
}
