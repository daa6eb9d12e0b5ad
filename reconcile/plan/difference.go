package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// How is what it takes to correct a drift.
type How string

// The ways to correct a drift, from the cheapest.
const (
	InPlace   How = "in place"
	NextStart How = "in place, for its next start"
	Reboot    How = "reboot"
	Replace   How = "replace"
	Refuse    How = "refuse"
)

// Drift is one field in which a node is not what the inventory has.
type Drift struct {
	Reason     cluster.Reason
	Field      string
	Want, Have string
	How        How
}

func (d Drift) have() string { return d.Field + " " + cmp.Or(d.Have, "none") }
func (d Drift) want() string { return cmp.Or(d.Want, "none") }

// digestText identifies some texts, in their order.
func digestText(texts []string) string {
	h := sha256.New()
	for _, t := range texts {
		fmt.Fprintf(h, "%q\n", t)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// gib is a size for people.
func gib(b int64) string {
	if b%(1<<30) == 0 {
		return fmt.Sprintf("%d GiB", b>>30)
	}
	return fmt.Sprintf("%.1f GiB", float64(b)/(1<<30))
}
