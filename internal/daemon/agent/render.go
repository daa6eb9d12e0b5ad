package agent

import (
	"context"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/rendering"
)

// Render implements api.Cluster.
func (m *managedCluster) Render(node string, showSecrets bool) (cluster.Rendering, error) {
	d, o, err := m.InForce()
	if err != nil {
		return cluster.Rendering{}, err
	}
	if err := m.checkNode(d, node); err != nil {
		return cluster.Rendering{}, err
	}
	runs := func(name string) bool { return o.Machines[name].Reach == cluster.Configured }
	return rendering.Render(d, runs, rendering.Options{Node: node, ShowSecrets: showSecrets})
}

// checkNode refuses a node that the inventory does not have; "" is all of them.
func (m *managedCluster) checkNode(d cluster.Desired, node string) error {
	var names []string
	for _, n := range d.Repository().Spec.Nodes {
		names = append(names, n.Name)
		if n.Name == node {
			return nil
		}
	}
	if node == "" {
		return nil
	}
	return m.unknownNode(node, names)
}

// keepComparison is how long a comparison answers those who may only look: each asks for
// every VM and every machine of the cluster.
const keepComparison = 10 * time.Second

// The bounds of what is asked for a comparison.
const (
	compareWithin = time.Minute
	compareAtOnce = 8 // machines and releases
)

// comparison is the last comparison of a cluster for those who may only look.
type comparison struct {
	turn chan struct{} // holds a token while one is made
	at   time.Time
	of   cluster.Difference
}

// Diff implements api.Cluster.
func (m *managedCluster) Diff(ctx context.Context, node string, fresh bool) (cluster.Difference, error) {
	d, _, err := m.InForce()
	if err == nil {
		err = m.checkNode(d, node)
	}
	if err != nil {
		return cluster.Difference{}, err
	}
	select { // one at a time
	case m.compared.turn <- struct{}{}:
		defer func() { <-m.compared.turn }()
	case <-ctx.Done():
		return cluster.Difference{}, ctx.Err()
	}
	if fresh {
		return m.compare(ctx, node)
	}
	if m.compared.at.IsZero() || time.Since(m.compared.at) > keepComparison {
		of, err := m.compare(ctx, "")
		if err != nil {
			return cluster.Difference{}, err
		}
		m.compared.at, m.compared.of = time.Now(), of
	}
	if node == "" {
		return m.compared.of, nil
	}
	return rendering.OfNode(m.compared.of, node), nil
}

// compare asks for what is compared, and compares it. Nothing of it is kept that is secret.
func (m *managedCluster) compare(ctx context.Context, node string) (cluster.Difference, error) {
	ctx, cancel := context.WithTimeout(ctx, compareWithin)
	defer cancel()
	defer context.AfterFunc(m.agent.ctx, cancel)()
	d, o, err := m.LookNow(ctx)
	if err != nil {
		return cluster.Difference{}, err
	}
	asked := rendering.Asked{Configs: map[string]cluster.Seen[cluster.Secret]{}, Releases: map[string]cluster.Seen[cluster.Installed]{}}
	var all asking
	for _, n := range d.Spec.Nodes {
		if (node == "" || node == n.Name) && rendering.HasMachine(o.VMs[n.Name]) {
			ask(&all, asked.Configs, n.Name, func() (cluster.Secret, error) { return m.fleet.RunningConfig(ctx, d, n) })
		}
	}
	for _, a := range d.Repository().Spec.Addons {
		if node == "" && o.IsOurs(a) {
			ask(&all, asked.Releases, a.Name, func() (cluster.Installed, error) { return m.helm.Installed(ctx, d, a) })
		}
	}
	all.finish()
	return rendering.Compare(d, o, asked, node)
}

// asking are questions that are asked side by side.
type asking struct {
	mu        sync.Mutex // of the answers
	questions []func()
}

// ask adds a question, whose answer is put under a name.
func ask[T any](all *asking, into map[string]cluster.Seen[T], name string, question func() (T, error)) {
	all.questions = append(all.questions, func() {
		seen, err := question()
		all.mu.Lock()
		defer all.mu.Unlock()
		if into[name] = cluster.Saw(seen); err != nil {
			into[name] = cluster.Unseen[T](text.OneLine(err.Error()))
		}
	})
}

// finish asks all of them, some at a time.
func (a *asking) finish() {
	var wg sync.WaitGroup
	slots := make(chan struct{}, compareAtOnce)
	for _, question := range a.questions {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			question()
		})
	}
	wg.Wait()
}
