package contexts

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// checkAuthorities fails where an entry would replace one of the same name that is
// of another cluster. A name is no proof: whoever has several hosts may call a
// cluster of each dev.
func checkAuthorities(have, written *yaml.Node) error {
	var names []string
	for _, key := range lists {
		a, b := lookup(have, key), lookup(written, key)
		if a == nil || b == nil || a.Kind != b.Kind {
			continue // nothing is replaced, or not as entries
		}
		for _, e := range entries(b) {
			if !slices.Contains(names, e.name) && isOfAnother(have, written, key, e.name) {
				names = append(names, e.name)
			}
		}
	}
	switch len(names) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%s belongs to another cluster there: rename or remove it, or name another file", names[0])
	default:
		return fmt.Errorf("%s belong to another cluster there: rename or remove them, or name another file", strings.Join(names, ", "))
	}
}

// isOfAnother reports whether what has this name in a file is of a cluster with
// another authority than in written.
func isOfAnother(have, written *yaml.Node, key, name string) bool {
	ours := authorities(written, key, name)
	return slices.ContainsFunc(authorities(have, key, name), func(a string) bool { return !slices.Contains(ours, a) })
}

// authorities are those of the clusters that an entry is for. Where it is for none,
// as what kubectl leaves of a deleted cluster, nothing is lost with it.
func authorities(root *yaml.Node, key, name string) []string {
	var out []string
	for _, e := range entries(lookup(root, key)) {
		if e.name != name {
			continue
		}
		switch {
		case e.key != nil: // talosctl's, whose contexts are the clusters
			out = append(out, readAuthority(e.value, "ca")...)
		case key == "clusters":
			out = append(out, readAuthority(lookup(e.value, "cluster"), "certificate-authority-data")...)
		case key == "contexts":
			out = append(out, authorities(root, "clusters", valueOf(e.value, "context", "cluster"))...)
		}
	}
	if key == "users" {
		for _, e := range entries(lookup(root, "contexts")) {
			if e.key == nil && valueOf(e.value, "context", "user") == name {
				out = append(out, authorities(root, "clusters", valueOf(e.value, "context", "cluster"))...)
			}
		}
	}
	return out
}

// readAuthority is the authority of one cluster, "" where none is in the file, as
// with a path of one; and none at all where the cluster is empty.
func readAuthority(n *yaml.Node, key string) []string {
	if n == nil || len(n.Content) == 0 {
		return nil
	}
	return []string{strings.NewReplacer(" ", "", "\n", "").Replace(valueOf(n, key))} // base64, which may be folded
}

// valueOf follows keys to a scalar, "" where there is none.
func valueOf(n *yaml.Node, keys ...string) string {
	for _, key := range keys {
		n = lookup(n, key)
	}
	if n == nil {
		return ""
	}
	return n.Value
}
