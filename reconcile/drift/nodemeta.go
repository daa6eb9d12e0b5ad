package drift

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// RepositoryNode is a node as the repository has it, whatever its cluster runs.
func RepositoryNode(d cluster.Desired, n cluster.Node) cluster.Node {
	if asked, ok := d.Repository().Spec.Node(n.Name); ok {
		return asked
	}
	return n
}

// OfMeta are labels and taints of a Node object that are not those of the inventory.
func OfMeta(edits []cluster.MetaEdit) []Drift {
	var out []Drift
	for _, e := range edits {
		field := "label " + e.Key
		if e.Taint {
			field = "taint " + e.Key
		}
		out = append(out, Drift{Field: field, Want: quoteValue(e.Want), Have: quoteValue(e.Have), How: InPlace})
	}
	return out
}

// quoteValue is a value for people, "" where there is none.
func quoteValue(value *string) string {
	if value == nil {
		return ""
	}
	return strconv.Quote(strings.TrimPrefix(*value, ":")) // a taint may have no value
}

// DescribeEdits is what changes, for people.
func DescribeEdits(edits []cluster.MetaEdit) string {
	var words []string
	for _, dr := range OfMeta(edits) {
		words = append(words, fmt.Sprintf("%s to %s", strings.Replace(dr.Has(), dr.Field, dr.Field+" from", 1), dr.Wants()))
	}
	return strings.Join(words, ", ")
}
