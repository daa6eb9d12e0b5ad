package cluster

import (
	"maps"
	"slices"
	"time"
)

// Ownership states who manages an addon once it is installed.
type Ownership string

// The two kinds of ownership of an addon.
const (
	Managed       Ownership = "managed"
	BootstrapOnly Ownership = "bootstrap-only" // installed if absent, never touched again
)

// Addon is one Helm release a cluster should have.
type Addon struct {
	Name       string
	Namespace  string
	Chart      Chart
	Values     Secret // merged values as JSON
	DependsOn  []string
	Ownership  Ownership
	ReadyAfter time.Duration // how long becoming ready may take before it is a problem
	RollBack   bool          // an upgrade that does not become ready is rolled back
	File       string        // where it is written, for messages
	// Asks is what the addon asks of its namespace.
	Asks NamespaceMeta
}

// NamespaceMeta are labels and annotations of a namespace.
type NamespaceMeta struct{ Labels, Annotations map[string]string }

// Equal reports whether both are the same.
func (m NamespaceMeta) Equal(other NamespaceMeta) bool {
	return maps.Equal(m.Labels, other.Labels) && maps.Equal(m.Annotations, other.Annotations)
}

// IsZero reports whether there are none.
func (m NamespaceMeta) IsZero() bool { return len(m.Labels)+len(m.Annotations) == 0 }

// SharedNamespace reports whether a namespace belongs to Kubernetes, so that no
// addon decides on it.
func SharedNamespace(name string) bool {
	return slices.Contains([]string{"default", "kube-node-lease", "kube-public", "kube-system"}, name)
}

// Chart states where a chart comes from: exactly one of Repository, OCI and
// Path is set.
type Chart struct {
	Repository string // https://charts.example.org
	OCI        string // oci://host/repo
	Path       string // directory in the repository
	Name       string
	Version    string
	// Digest is the pinned hash: hex sha256 of the archive for Repository,
	// "sha256:<hex>" of the manifest for OCI, empty when the inventory pins
	// nothing.
	Digest string
	// Files holds the chart itself when it comes from Path, by path below it.
	Files map[string][]byte
}

// Ref names a chart at a version, for people and as the key of pins and
// caches.
func (c Chart) Ref() string {
	switch {
	case c.OCI != "":
		return c.OCI + ":" + c.Version
	case c.Repository != "":
		return c.Repository + "/" + c.Name + "-" + c.Version
	default:
		return c.Path
	}
}
