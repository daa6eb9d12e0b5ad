package archive

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/snapshot"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// Place is a folder of snapshots, and what opens them.
type Place struct {
	Dir  string
	Keys snapshot.Keys // nil: none is known to be whole
	Args string        // how a command line names it, with a blank before each flag; "" : not at all
}

// FindPlace is the place that a command line names by a folder and files of age keys.
func FindPlace(dir string, ageKeys []string) (Place, error) {
	keys, err := readKeys(ageKeys)
	return Place{Dir: dir, Keys: keys}, err
}

// FindPlaceOfAgent is where the agent of this host keeps its snapshots, by its config. Without files of age keys the agent's
// own open them; one that only the daemon may see is none.
func FindPlaceOfAgent(configPath string, ageKeys []string) (Place, error) {
	s, problems := config.Load(configPath)
	if err := s.WithoutHidden(problems).Err(); err != nil {
		return Place{}, fault.WithHint(err, "name the folder with --dir where this host runs no agent; its config takes root to be read")
	}
	in, err := FindPlace(s.Snapshots.Directory, ageKeys)
	if err == nil && in.Keys == nil && s.Identities != nil {
		in.Keys = s.Identities
	}
	return in, err
}

// NamesCluster reports whether a word of a command line that may name a file or a cluster is the name of a cluster: of a word without
// a dot and a slash there is no file, or a directory is called so.
func NamesCluster(word string) bool {
	if strings.ContainsAny(word, `./\`) {
		return false
	}
	info, err := os.Stat(word)
	return err != nil || info.IsDir()
}

// VerifyAll reads all snapshots of a cluster to their end, and returns them as List does. Without a key, or without any snapshot, it
// is an error: nothing is verified then.
func VerifyAll(ctx context.Context, in Place, cluster string, now time.Time) (Listing, error) {
	if in.Keys == nil {
		return Listing{}, fault.WithHint(fmt.Errorf("there is no key that opens the snapshots in %s", in.Dir), "name a file with one: --age-key FILE")
	}
	l, err := List(ctx, in, cluster, now)
	if err == nil && (cluster == "" || len(l.Snapshots) == 0) {
		err = noneOf(ctx, in, cluster, now)
	}
	return l, err
}

// ListOf is List of one cluster, without any snapshot of which it is an error.
func ListOf(ctx context.Context, in Place, cluster string, now time.Time) (Listing, error) {
	l, err := List(ctx, in, cluster, now)
	if err == nil && len(l.Snapshots) == 0 {
		err = noneOf(ctx, in, cluster, now)
	}
	return l, err
}

// noneOf is that there is no snapshot of a cluster, with the clusters of which there are.
func noneOf(ctx context.Context, in Place, cluster string, now time.Time) error {
	in.Keys = nil // which are whole is not asked for
	l, err := List(ctx, in, "", now)
	if err != nil {
		return err
	}
	hint := "there are none of any cluster; `talos-agent snapshot now` has one taken"
	if len(l.Clusters) > 0 {
		var names []string
		for _, c := range l.Clusters {
			names = append(names, c.Cluster)
		}
		hint = "there are snapshots of " + text.JoinSome(names, 10, ", ")
	}
	return fault.Errorf(hint, "there is no snapshot of %s in %s", cluster, in.Dir)
}

// Get verifies the newest snapshot of a cluster that can be verified, and writes it to a new file as Open does. Damaged ones that
// are newer are passed over: skipped is how many.
func Get(ctx context.Context, in Place, cluster, out string, now time.Time) (r Report, skipped int, err error) {
	l, err := VerifyAll(ctx, in, cluster, now)
	if err != nil {
		return r, 0, err
	}
	for _, k := range l.Snapshots {
		if k.State == retention.Verified {
			r, err = extract(ctx, filepath.Join(in.Dir, k.File), out, in.Keys)
			return r, skipped, err
		}
		skipped++
	}
	return r, skipped, fault.WithHint(fmt.Errorf("no snapshot of %s in %s can be verified", cluster, in.Dir), "`talos-agent snapshot list"+in.Args+" "+cluster+"` shows what is wrong with each")
}
