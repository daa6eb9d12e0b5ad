package talos

import (
	"context"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/talos/installer"
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
	images, minor := f.imagesFor(d, n)
	if len(images) == 0 {
		return nil
	}
	return f.act(ctx, "pull images on", n, func(ctx context.Context) error {
		return f.askOwn(ctx, d, n, func(l *link, _ keys) error { return f.pullImages(ctx, n, l, images, minor, progress) })
	})
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
	pulled := map[image]time.Time{}
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if w := f.watchers[n.Name]; w != nil {
			if w.pulled == nil {
				w.pulled = map[image]time.Time{}
			}
			for _, i := range images {
				w.pulled[i] = pulled[i]
			}
		}
	}()
	for _, i := range images {
		progress(cluster.Progress{Waits: "pulls " + sanitize(i.ref)})
		if err := pullImage(ctx, l.grpc, i, minor); err != nil {
			return explainPull(i, n, err)
		}
		pulled[i] = time.Now()
	}
	return nil
}

// PullInstaller has a node's machine pull an installer, to where InstallTalos or UpgradeTalos finds it, and
// shows it as pulled until the machine boots again: what is kept in memory is lost with that.
func (f *Fleet) PullInstaller(ctx context.Context, d cluster.Desired, n cluster.Node, image string, progress func(cluster.Progress)) error {
	return f.act(ctx, "pull the installer on", n, func(ctx context.Context) error {
		return f.askOwn(ctx, d, n, func(l *link, _ keys) error {
			boot, err := l.bootID(ctx)
			if err == nil {
				err = installer.Pull(ctx, l.grpc, image, f.minorOf(n) >= imagesSince, report(progress))
			}
			if err != nil {
				return worded{err}
			}
			f.noteInstaller(n, boot, image)
			return nil
		})
	})
}

// minorOf is the minor version of Talos that a node's machine was seen to run.
func (f *Fleet) minorOf(n cluster.Node) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.watchers[n.Name]; w != nil {
		return parseMinor(w.machine.Talos)
	}
	return 0
}

// report shows a word of progress.
func report(progress func(cluster.Progress)) func(string) {
	return func(word string) {
		if progress != nil {
			progress(cluster.Progress{Waits: word})
		}
	}
}
