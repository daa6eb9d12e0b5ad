package config

import (
	"cmp"
	"path/filepath"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// Snapshots is how snapshots of etcd are taken and kept.
type Snapshots struct {
	Disabled   bool
	Directory  string
	Every      time.Duration
	Recipients []secrets.Recipient // those of this host's keys, which open them here, and others
}

// Bounds of the time between two scheduled snapshots: each is a copy of all of etcd, and what
// came after the last one is lost with a cluster.
const (
	defaultSnapshots = 6 * time.Hour
	leastSnapshots   = 10 * time.Minute
	mostSnapshots    = 7 * 24 * time.Hour
)

func (l *loader) loadSnapshots() {
	const field = "snapshots"
	f := l.file.Snapshots
	l.out.Snapshots = Snapshots{Disabled: f.Disabled, Directory: filepath.Clean(cmp.Or(f.Directory, filepath.Join(l.out.StateDir, "snapshots"))), Every: cmp.Or(f.Every, defaultSnapshots)}
	if every := l.out.Snapshots.Every; every < leastSnapshots || every > mostSnapshots {
		l.Wrong(field+".every", "write 10m or more, and 168h or less; `disabled: true` takes none", "%s is out of bounds", every)
	}
	if f.Directory != "" && isBelow(l.out.CacheDir, l.out.Snapshots.Directory) {
		l.Wrong(field+".directory", "choose another place", "lies in cache_dir, which may be deleted")
	}
	var own []string
	if l.out.Identities != nil {
		own = l.out.Identities.Recipients()
	}
	seen := map[string]bool{}
	add := func(public, at string) {
		r, err := secrets.ParseRecipient(public)
		switch {
		case err != nil:
			l.Wrong(at, fault.HintOf(err), "%s", err)
		case !seen[r.String()]:
			seen[r.String()] = true
			l.out.Snapshots.Recipients = append(l.out.Snapshots.Recipients, r)
		case at != "age_key_file":
			l.Warn(at, "remove it", "is listed twice, or is a key of this host, which opens them anyway")
		}
	}
	for _, public := range own {
		add(public, "age_key_file")
	}
	for i, public := range f.Recipients {
		add(public, yamlschema.Element(field+".recipients", i))
	}
}
