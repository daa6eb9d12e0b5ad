package retention

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// Kind is what a snapshot was taken for.
type Kind string

// The kinds there are. One that is not here is of another version of the agent, and its
// snapshots are not managed.
const (
	Scheduled     Kind = "scheduled"
	Manual        Kind = "manual"         // somebody asked for it
	BeforeUpgrade Kind = "before-upgrade" // of Talos or Kubernetes
	BeforeRemoval Kind = "before-removal" // of a control plane
)

// Kinds lists them all.
var Kinds = []Kind{Scheduled, Manual, BeforeUpgrade, BeforeRemoval}

// State is what is known of the content of a snapshot.
type State string

const (
	Unverified State = "unverified" // it was not read, or there is no key that opens it
	Verified   State = "verified"   // it was read to its end, and is whole
	Damaged    State = "damaged"    // it was read, and is not what was written
)

// Snapshot is one snapshot of a cluster.
type Snapshot struct {
	Name  string // unique among those of the cluster
	Kind  Kind
	At    time.Time // when it was taken
	State State
}

// Verdict is what becomes of a snapshot.
type Verdict struct {
	Snapshot
	Prune bool   // it may be removed
	Why   string // it is kept: in a few words
}

// How many are kept.
const (
	mostBefore = 3 // of each kind that is taken before something is done
	day        = 24 * time.Hour
)

// period is one generation of scheduled snapshots: the newest one of each of so many
// periods is kept, counting those that have any. So time alone makes nothing old: while
// none are taken, none are removed.
type period struct {
	name string
	most int
	of   func(time.Time) int64 // the number of the period that a moment is in, in UTC
}

// periods are the generations, grandfather last.
var periods = []period{
	{"6-hourly", 4, func(t time.Time) int64 { return t.Unix() / int64((6 * time.Hour).Seconds()) }},
	{"daily", 7, numberDay},
	{"weekly", 4, func(t time.Time) int64 { return (numberDay(t) + 3) / 7 }}, // 1970 began on a Thursday, and weeks on Mondays
}

func numberDay(t time.Time) int64 { return t.Unix() / int64(day.Seconds()) }

// Judge decides on the snapshots of one cluster, and returns them with the newest first.
// It is the same for every order, and once a snapshot may be removed, no newer one changes that.
//
//   - The newest one that is verified is kept, and so is all that no verified one is newer than.
//   - Of scheduled ones the generations are kept, of others the newest three of their kind.
//   - Manual ones are for people to remove, and so are damaged ones, which count for nothing.
//   - Nor does one that is dated in the future, as when the clock was wrong: it would take the place of those
//     that are taken now. It is kept until that time has come.
func Judge(all []Snapshot, now time.Time) []Verdict {
	out := make([]Verdict, 0, len(all))
	for _, s := range all {
		out = append(out, Verdict{Snapshot: s})
	}
	slices.SortFunc(out, func(a, b Verdict) int {
		return cmp.Or(b.At.Compare(a.At), strings.Compare(b.Name, a.Name))
	})
	filled := make([]int, len(periods))                         // how many of each generation are
	last := slices.Repeat([]int64{math.MinInt64}, len(periods)) // and which period was filled last
	perKind := make(map[Kind]int)                               // kept
	verified := slices.IndexFunc(out, func(v Verdict) bool { return v.State == Verified && !v.At.After(now) })
	for i := range out {
		v := &out[i]
		var why []string
		switch {
		case v.At.After(now):
			why = append(why, "dated in the future")
		case v.State == Damaged:
			why = append(why, "damaged")
		case v.Kind == Manual:
			why = append(why, "manual")
		case v.Kind == Scheduled:
			for n, p := range periods {
				if number := p.of(v.At); filled[n] < p.most && number != last[n] {
					filled[n], last[n] = filled[n]+1, number
					why = append(why, p.name)
				}
			}
		case perKind[v.Kind] < mostBefore:
			perKind[v.Kind]++
			why = append(why, "newest of its kind")
		}
		if i == verified {
			why = append(why, "newest verified")
		} else if len(why) == 0 && (verified < 0 || i < verified) {
			why = append(why, "no newer one is verified")
		}
		v.Why, v.Prune = strings.Join(why, ", "), len(why) == 0
	}
	return out
}
