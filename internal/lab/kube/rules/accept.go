package rules

import (
	"cmp"
	"mime"
	"slices"
	"strconv"
	"strings"
)

// Rendering is how a client wants to see objects.
type Rendering int

const (
	AsIs          Rendering = iota
	AsTable                 // columns for people
	AsMetadata              // metadata only
	AsGroupsKinds           // aggregated discovery
)

// NegotiateRendering finds the first answer the client accepts that we can give. It
// returns false if there is none.
func NegotiateRendering(accept string, offer ...Rendering) (Rendering, bool) {
	if strings.TrimSpace(accept) == "" {
		return AsIs, true
	}
	type clause struct {
		media  string
		params map[string]string
		q      float64
	}
	var clauses []clause
	for part := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		c := clause{media: media, params: params, q: 1}
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			c.q = q
		}
		clauses = append(clauses, c)
	}
	slices.SortStableFunc(clauses, func(a, b clause) int { return cmp.Compare(b.q, a.q) })
	for _, c := range clauses {
		if c.q == 0 || c.media != "application/json" && c.media != "application/*" && c.media != "*/*" {
			continue
		}
		want := AsIs
		switch c.params["as"] + "." + c.params["v"] + "." + c.params["g"] {
		case "..":
		case "Table.v1.meta.k8s.io":
			want = AsTable
		case "PartialObjectMetadata.v1.meta.k8s.io", "PartialObjectMetadataList.v1.meta.k8s.io":
			want = AsMetadata
		case "APIGroupDiscoveryList.v2.apidiscovery.k8s.io":
			want = AsGroupsKinds
		default:
			continue
		}
		if want == AsIs || slices.Contains(offer, want) {
			return want, true
		}
	}
	return AsIs, false
}
