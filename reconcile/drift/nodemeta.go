package drift

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// RepositoryNode is a node as the repository has it, whatever its cluster runs.
func RepositoryNode(d cluster.Desired, n cluster.Node) cluster.Node {
	if asked, ok := d.Repository().Spec.Node(n.Name); ok {
		return asked
	}
	return n
}

// OfMeta are labels, taints and annotations of a Node object that are not those of the
// inventory.
func OfMeta(edits []cluster.MetaEdit) []Drift {
	var out []Drift
	for _, e := range edits {
		out = append(out, Drift{Field: e.Field(), Want: quoteValue(e.Want), Have: quoteValue(e.Have), How: InPlace, By: describeSetter(e), Since: e.By.At})
	}
	return out
}

// maxShown bounds what is shown of the value of an annotation, in bytes.
const maxShown = 64

// quoteValue is a value for people, "" where there is none. Of a long one its beginning is
// shown, and what differs in another that begins so.
func quoteValue(value *string) string {
	if value == nil {
		return ""
	}
	short := strings.TrimPrefix(*value, ":") // a taint may have no value
	if len(short) <= maxShown {
		return strconv.Quote(short)
	}
	end := maxShown
	for end > 0 && !utf8.RuneStart(short[end]) {
		end--
	}
	return fmt.Sprintf("%s... (%d bytes, sha256 %.4x)", strconv.Quote(short[:end]), len(short), sha256.Sum256([]byte(short)))
}

// describeSetter is who has set what an edit changes, "" where that is not known.
func describeSetter(e cluster.MetaEdit) string {
	if e.By.Manager == "" {
		return ""
	}
	out := "set by " + e.By.Manager
	if e.Kind == cluster.MetaTaint {
		out = "taints last " + out
	}
	if !e.By.At.IsZero() {
		out += ", " + text.Moment(e.By.At)
	}
	return out
}

// DescribeEdits is what changes, for people.
func DescribeEdits(edits []cluster.MetaEdit) string {
	var words []string
	for _, dr := range OfMeta(edits) {
		word := fmt.Sprintf("%s from %s to %s", dr.Field, cmp.Or(dr.Have, "none"), dr.Wants())
		if dr.By != "" {
			word += " (" + dr.By + ")"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}
