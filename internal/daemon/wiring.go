package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/daemon/forwards"
	"github.com/talos-agent/talos-agent/internal/daemon/reporting"
	"github.com/talos-agent/talos-agent/internal/daemon/reservations"
	"github.com/talos-agent/talos-agent/internal/daemon/sandbox"
	"github.com/talos-agent/talos-agent/internal/daemon/snapshots"
	"github.com/talos-agent/talos-agent/internal/host/addresses"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/platform"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/helm"
	"github.com/talos-agent/talos-agent/reconcile/leases"
	"github.com/talos-agent/talos-agent/reconcile/snapshot"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
	"github.com/talos-agent/talos-agent/sources/secrets/transit"
)

// wireAgent gives every room its part of the settings. It opens the copy of the
// repository in the cache, which the agent closes.
func wireAgent(s config.Settings, files state.Dir, version string, log *slog.Logger) (agent.Config, error) {
	known, err := files.Journals()
	if err != nil {
		return agent.Config{}, err
	}
	repository := s.Repository
	repository.Log = log
	var store interface {
		sources.Store
		io.Closer
	}
	if s.Directory() != "" {
		store, err = git.OpenDir(repository)
	} else {
		repository.Dir = filepath.Join(s.CacheDir, "repository")
		store, err = git.Open(repository)
	}
	if err != nil {
		return agent.Config{}, fmt.Errorf("open the repository: %w", err)
	}
	identities, err := wireKeys(s)
	if err != nil {
		return agent.Config{}, errors.Join(err, store.Close())
	}
	host, err := os.Hostname()
	if err != nil {
		return agent.Config{}, errors.Join(fmt.Errorf("ask for this host's name: %w", err), store.Close())
	}
	pve := s.Proxmox
	pve.Log = log
	// Proxmox VE calls a host what stands before the first dot of its name.
	pve.Host, _, _ = strings.Cut(host, ".")
	options := inventory.Options{Owner: s.Owner, Pool: s.Policy.Pool, ImageDatastore: s.ImageDatastore, Mirrors: s.Registries}
	c := agent.Config{
		Owner: s.Owner, Clusters: s.Clusters, Interval: s.Interval, Known: known,
		Policy: func() cluster.Policy {
			p := *s.PolicyNow.Load()
			p.Taken = probe.FindTaken()
			return p
		},
		Files: files, CacheDir: s.CacheDir, Log: log, Store: store,
		Sources: sources.Config{
			Store: store, Path: s.Folder, Clusters: s.Clusters,
			Decrypt: func(ctx context.Context, name string, file []byte) ([]byte, error) {
				return secrets.Decrypt(ctx, name, file, identities)
			},
			Inventory: options, Inspect: sandbox.New(sandbox.Config{Inventory: options}).Inspect,
		},
		Proxmox: pve,
		Factory: factory.Config{URL: s.Factory, CacheDir: filepath.Join(s.CacheDir, "images"), CA: s.CA, Log: log},
		Charts:  helm.Config{Mirrors: s.Charts, CA: s.CA},
		Forge:   s.Forge,
		Notify:  targets(s), Sent: reporting.OpenSentNotices(files, targets(s), log), Host: host,
		Neighbour: probe.FindMAC, Addresses: lookForAddresses(addresses.New(s.Leases...)), Snapshots: wireSnapshots(s, version, log),
	}
	if s.Reservations != "" {
		c.Reservations = reservations.New(s.Reservations, s.Owner)
	}
	if s.Forwards != "" {
		c.Forwards = forwards.New(s.Forwards, s.Owner)
	}
	return c, nil
}

// wireKeys returns what opens secrets files.
func wireKeys(s config.Settings) (*secrets.Identities, error) {
	if s.Vault == nil {
		return s.Identities, nil
	}
	vault, err := transit.New(*s.Vault)
	if err != nil {
		return nil, fmt.Errorf("vault: %w", err)
	}
	return s.Identities.With(vault), nil
}

// lookForAddresses looks with a finder, and has the machines asked of a network in which some are not found.
func lookForAddresses(f *addresses.Finder) func(context.Context, netip.Prefix, func(netip.Addr) bool) leases.Seen {
	return func(ctx context.Context, ask netip.Prefix, allowed func(netip.Addr) bool) leases.Seen {
		f.Ask(ctx, ask, allowed, time.Now())
		found, err := f.Find()
		seen := leases.Seen{Addresses: found, Where: f.Where()}
		if err != nil {
			seen.Unread = text.OneLine(err.Error())
		}
		return seen
	}
}

// wireSnapshots returns where snapshots of etcd are kept; nil: none are taken. The folder is
// opened when it is needed: a storage that is not there must not keep the agent from starting.
func wireSnapshots(s config.Settings, version string, log *slog.Logger) *snapshots.Archive {
	if s.Snapshots.Disabled {
		return nil
	}
	c := snapshots.Config{Keys: s.Identities, Every: s.Snapshots.Every, Agent: version, Log: log,
		Open: func() (snapshots.Folder, error) { return snapshot.OpenFolder(s.Snapshots.Directory) },
		Free: func() (int64, error) { return platform.FreeSpace(s.Snapshots.Directory) }}
	for _, r := range s.Snapshots.Recipients {
		c.Recipients = append(c.Recipients, r)
	}
	return snapshots.New(c)
}

// targets are who is notified of what.
func targets(s config.Settings) (out []reporting.Target) {
	for _, n := range s.Notifications {
		out = append(out, reporting.Target(n))
	}
	return out
}
