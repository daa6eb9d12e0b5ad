package talos

import (
	"context"
	"errors"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// PullImages has a node's machine pull the images that its config in d names and the one that
// it runs does not: it stops a kubelet before it asks for the image of the next one, and
// takes a config that names one which no registry has (recorded: 1.13.9). Those that are there
// are not pulled again, so that it can be called again right before the config is given: Talos
// removes images that nothing uses, after an hour (READ: 1.13, 1.14). Where it fails the machine
// counts as lacking them.
func (f *Fleet) PullImages(ctx context.Context, d cluster.Desired, n cluster.Node, progress func(cluster.Progress)) error {
	if progress == nil {
		progress = func(cluster.Progress) {}
	}
	ctx, leave, err := f.enter(ctx)
	if err != nil {
		return fmt.Errorf("pull images on %s: %w", n.Name, err)
	}
	defer leave()
	images, minor := f.imagesFor(d, n)
	if len(images) == 0 {
		return nil
	}
	k, err := parseKeys(d.Access.Talos)
	if err == nil && k.none() {
		err = errors.New("there are no keys to ask it with")
	}
	if err == nil {
		err = f.lookOwn(ctx, n, k, func(l *link) error { return f.pullImages(ctx, n, l, images, minor, progress) })
	}
	if err != nil {
		return fmt.Errorf("pull images on %s (%s): %w", n.Name, n.IP, err)
	}
	return nil
}

// imagesFor lists what a node's machine needs for its config in d, and which Talos it runs.
func (f *Fleet) imagesFor(d cluster.Desired, n cluster.Node) (images []image, minor int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.watchers[n.Name]; w != nil {
		return newImages(w.machine.Summary, d.Configs[n.Name].Summary), parseMinor(w.machine.Talos)
	}
	return nil, 0
}

func (f *Fleet) pullImages(ctx context.Context, n cluster.Node, l *link, images []image, minor int, progress func(cluster.Progress)) error {
	pulled := map[image]bool{}
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if w := f.watchers[n.Name]; w != nil {
			w.pulled = pulled
		}
	}()
	for _, i := range images {
		progress(cluster.Progress{Waits: "pulls " + sanitize(i.ref)})
		if err := pullImage(ctx, l.grpc, i, minor); err != nil {
			return explainPull(i, n, err)
		}
		pulled[i] = true
	}
	return nil
}
