package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/reporting"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/helm"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// wireSettings gives every room its part of the settings. It opens the copy of the
// repository in the cache, which the agent closes.
func wireSettings(s config.Settings, files state.Dir, log *slog.Logger) (wiring, error) {
	known, err := files.Journals()
	if err != nil {
		return wiring{}, err
	}
	repository := s.Repository
	repository.Log = log
	var store interface {
		sources.Store
		closer
	}
	if s.Directory() != "" {
		store, err = git.OpenDir(repository)
	} else {
		repository.Dir = filepath.Join(s.CacheDir, "repository")
		store, err = git.Open(repository)
	}
	if err != nil {
		return wiring{}, fmt.Errorf("open the repository: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return wiring{}, errors.Join(fmt.Errorf("ask for this host's name: %w", err), store.Close())
	}
	pve := s.Proxmox
	pve.Log = log
	return wiring{
		owner: s.Owner, clusters: s.Clusters, interval: s.Interval, known: known,
		policy: func() cluster.Policy { return *s.PolicyNow.Load() },
		files:  files, cacheDir: s.CacheDir, log: log, store: store,
		sources: sources.Config{
			Store: store, Path: s.Folder, Clusters: s.Clusters,
			Decrypt: func(ctx context.Context, name string, file []byte) ([]byte, error) {
				return secrets.Decrypt(ctx, name, file, s.Identities)
			},
			Inventory: inventory.Options{Owner: s.Owner, Pool: s.Policy.Pool, ImageDatastore: s.ImageDatastore, Mirrors: s.Registries},
		},
		proxmox: pve,
		factory: factory.Config{URL: s.Factory, CacheDir: filepath.Join(s.CacheDir, "images"), CA: s.CA, Log: log},
		charts:  helm.Config{Mirrors: s.Charts, CA: s.CA},
		forge:   s.Forge,
		notify:  targets(s), sent: reporting.OpenSentNotices(files, targets(s), log), host: host,
	}, nil
}

// targets are who is notified of what.
func targets(s config.Settings) (out []reporting.Target) {
	for _, n := range s.Notifications {
		out = append(out, reporting.Target(n))
	}
	return out
}
