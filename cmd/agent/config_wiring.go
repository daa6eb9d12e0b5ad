package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/reporting"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/helm"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// wiring gives every room its part of the settings. It opens the copy of the
// repository in the cache, which the agent closes.
func (s settings) wiring(files stateFiles, log *slog.Logger) (wiring, error) {
	known, err := journals(files.dir)
	if err != nil {
		return wiring{}, err
	}
	repository := s.repository
	repository.Log = log
	var store interface {
		sources.Store
		closer
	}
	if s.directory() != "" {
		store, err = git.OpenDir(repository)
	} else {
		repository.Dir = filepath.Join(s.cacheDir, "repository")
		store, err = git.Open(repository)
	}
	if err != nil {
		return wiring{}, fmt.Errorf("open the repository: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return wiring{}, errors.Join(fmt.Errorf("ask for this host's name: %w", err), store.Close())
	}
	pve := s.proxmox
	pve.Log = log
	return wiring{
		owner: s.owner, clusters: s.clusters, interval: s.interval, known: known,
		policy: func() cluster.Policy { return *s.policyNow.Load() },
		files:  files, cacheDir: s.cacheDir, log: log, store: store,
		sources: sources.Config{
			Store: store, Path: s.folder, Clusters: s.clusters,
			Decrypt: func(ctx context.Context, name string, file []byte) ([]byte, error) {
				return secrets.Decrypt(ctx, name, file, s.identities)
			},
			Inventory: inventory.Options{Owner: s.owner, Pool: s.policy.Pool, ImageDatastore: s.imageDatastore, Mirrors: s.registries},
		},
		proxmox: pve,
		factory: factory.Config{URL: s.factory, CacheDir: filepath.Join(s.cacheDir, "images"), CA: s.ca, Log: log},
		charts:  helm.Config{Mirrors: s.charts, CA: s.ca},
		forge:   s.forge,
		notify:  s.targets(), sent: reporting.OpenSentNotices(files, s.targets(), log), host: host,
	}, nil
}

// journals lists the clusters that have a journal in the state directory: they
// are looked after before the repository can be read.
func journals(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the journals: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && e.Type().IsRegular() {
			names = append(names, name)
		}
	}
	return names, nil
}

// targets are who is notified of what.
func (s settings) targets() (out []reporting.Target) {
	for _, n := range s.notifications {
		out = append(out, reporting.Target{Name: n.name, To: n.to, Clusters: n.clusters, On: n.on})
	}
	return out
}
