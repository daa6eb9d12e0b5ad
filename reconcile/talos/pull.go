package talos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// PullImages has a node's machine pull the images that its config in d names and the one that
// it runs does not: it stops a kubelet before it asks for the image of the next one, and
// takes a config that names one which no registry has (recorded: 1.13.9). Those that are there
// are not pulled again. It can be called again.
func (f *Fleet) PullImages(ctx context.Context, d cluster.Desired, n cluster.Node, progress func(cluster.Progress)) error {
	if progress == nil {
		progress = func(cluster.Progress) {}
	}
	ctx, leave, err := f.enter(ctx)
	if err != nil {
		return fmt.Errorf("pull images on %s: %w", n.Name, err)
	}
	defer leave()
	k, err := parseKeys(d.Access.Talos)
	if err == nil && k.none() {
		err = errors.New("there are no keys to ask it with")
	}
	if err == nil {
		err = f.lookOwn(ctx, n, k, func(l *link) error { return f.pullImages(ctx, d, n, l, progress) })
	}
	if err != nil {
		return fmt.Errorf("pull images on %s (%s): %w", n.Name, n.IP, err)
	}
	return nil
}

func (f *Fleet) pullImages(ctx context.Context, d cluster.Desired, n cluster.Node, l *link, progress func(cluster.Progress)) error {
	f.mu.Lock()
	w := f.watchers[n.Name]
	if w == nil {
		f.mu.Unlock()
		return errors.New("it is not known")
	}
	images, minor := newImages(w.machine.Summary, d.Configs[n.Name].Summary), parseMinor(w.machine.Talos)
	f.mu.Unlock()
	for _, i := range images {
		progress(cluster.Progress{Waits: "pulls " + sanitize(i.ref)})
		if err := pullImage(ctx, l.grpc, i, minor); err != nil {
			return explainPull(i, n, err)
		}
		f.mu.Lock()
		if w.pulled == nil {
			w.pulled = map[image]time.Time{}
		}
		w.pulled[i] = time.Now()
		f.mu.Unlock()
	}
	return nil
}
