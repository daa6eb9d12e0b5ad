package components

import (
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

// RemovedAPIs are the deprecated APIs in use that a version of Kubernetes does not have. It is unknown
// where they are not seen.
func RemovedAPIs(in string, o cluster.Observed) cluster.Seen[[]cluster.DeprecatedAPI] {
	if !o.Deprecated.Known {
		return o.Deprecated
	}
	return cluster.Saw(slices.DeleteFunc(slices.Clone(o.Deprecated.Value), func(api cluster.DeprecatedAPI) bool { return !lacks(in, api) }))
}

// KeptAPIs are the deprecated APIs in use that a version of Kubernetes has still.
func KeptAPIs(in string, o cluster.Observed) cluster.Seen[[]cluster.DeprecatedAPI] {
	removed := RemovedAPIs(in, o)
	if !removed.Known {
		return removed
	}
	return cluster.Saw(slices.DeleteFunc(slices.Clone(o.Deprecated.Value), func(api cluster.DeprecatedAPI) bool { return slices.Contains(removed.Value, api) }))
}

// mostNamed is how many APIs are named to people.
const mostNamed = 5

// DescribeRemoved is which APIs a hop takes away of which something is in use, or in a release of Helm, to follow other words; "" : none.
func DescribeRemoved(hop cluster.Hop, o cluster.Observed) string {
	return describeRequested(hop.To, o) + describeReleased(hop, o)
}

// describeRequested is which APIs in use a version of Kubernetes does not have.
func describeRequested(in string, o cluster.Observed) string {
	removed := RemovedAPIs(in, o)
	if !removed.Known {
		return "; which APIs clients use that it does not have is not known" + text.Colon(removed.Why)
	}
	var names []string
	for _, api := range removed.Value {
		names = append(names, nameAPI(api))
	}
	if len(names) == 0 {
		return ""
	}
	return "; clients use APIs that it does not have: " + text.JoinSome(names, mostNamed, ", ")
}

// describeReleased is which releases of Helm, whoever made them, have in their manifests what a hop takes away: Helm cannot upgrade
// such a release any more. What the version before it does not have either is not of this hop.
func describeReleased(hop cluster.Hop, o cluster.Observed) string {
	if !o.ReleaseAPIs.Known {
		if !o.Deprecated.Known && o.ReleaseAPIs.Why == o.Deprecated.Why {
			return "" // for one reason, which is named
		}
		return "; which releases of Helm have APIs that it does not is not known" + text.Colon(o.ReleaseAPIs.Why)
	}
	var have, unread []string
	for _, r := range o.ReleaseAPIs.Value {
		switch {
		case r.Unread != "":
			unread = append(unread, r.Release.String()+" ("+r.Unread+")")
		case lacks(hop.To, r.API) && !lacks(hop.From, r.API):
			have = append(have, r.Release.String()+" ("+nameAPI(r.API)+", which "+r.API.Removed+" removes)")
		}
	}
	var words string
	if len(have) > 0 {
		words = "; Helm cannot upgrade releases any more whose manifests have what it does not: " + text.JoinSome(have, mostNamed, ", ")
	}
	if len(unread) > 0 {
		words += "; what is in these releases of Helm is not known: " + text.JoinSome(unread, mostNamed, ", ")
	}
	return words
}

// lacks reports whether a version of Kubernetes does not have a deprecated API.
func lacks(version string, api cluster.DeprecatedAPI) bool {
	minors, named := ladder.MinorsApart(api.Removed+".0", version)
	return named && minors >= 0
}

// nameAPI is an API for people: policy/v1beta1 poddisruptionbudgets.
func nameAPI(api cluster.DeprecatedAPI) string {
	return strings.TrimPrefix(api.Group+"/", "/") + api.Version + " " + api.Resource
}
