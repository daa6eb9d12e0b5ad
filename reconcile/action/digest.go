package action

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// DigestOf identifies the steps of a forecast by what they do. Their sentences are no part of it:
// to reword one must not ask for another approval.
func DigestOf(f cluster.Forecast) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n", f.Cluster, f.Revision, cluster.DescribeHops(f.Hops)) // the steps are those of the first
	for _, s := range f.Steps {
		fmt.Fprintf(h, "%d %q %q %q\n", s.Round, s.Action, s.Subject, s.Change)
	}
	return hex.EncodeToString(h.Sum(nil))
}
