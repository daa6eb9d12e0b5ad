package snapshot

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// Suffix is what the names of snapshots end with.
const Suffix = ".etcd"

// stamp is a moment in a name: UTC, to the second.
const stamp = "20060102T150405Z"

// Name is what a snapshot is of, as the name of its file has it:
// dev-20261127T074500Z-scheduled.etcd. Names of a cluster and a kind sort by time.
type Name struct {
	Cluster string         `json:"cluster"`
	Kind    retention.Kind `json:"kind"`
	At      time.Time      `json:"at"` // when it was taken, to the second
}

// String is the name of the file.
func (n Name) String() string {
	return n.Cluster + "-" + n.At.UTC().Format(stamp) + "-" + string(n.Kind) + Suffix
}

// A cluster is called as the folder of its inventory: a DNS label.
var namePattern = pattern.New(`^([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)-([0-9]{8}T[0-9]{6}Z)-([a-z-]+)` + regexp.QuoteMeta(Suffix) + `$`)

// ParseName reads the name of a file; false for files of others.
func ParseName(file string) (Name, bool) {
	m := namePattern.FindStringSubmatch(file)
	if m == nil {
		return Name{}, false
	}
	at, err := time.Parse(stamp, m[2])
	n := Name{Cluster: m[1], Kind: retention.Kind(m[3]), At: at}
	return n, err == nil && slices.Contains(retention.Kinds, n.Kind)
}

// Files that are not complete are called so. Whatever has such a name while the lock of
// the directory is had was left by a process that ended.
const (
	partPrefix = ".talos-agent-"
	PartSuffix = ".part"
)

func isPart(file string) bool {
	return strings.HasPrefix(file, partPrefix) && strings.HasSuffix(file, PartSuffix)
}
