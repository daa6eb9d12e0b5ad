package retention

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func at(t *testing.T, s string) time.Time {
	t.Helper()
	moment, err := time.Parse(time.DateTime, s)
	if err != nil {
		t.Fatal(err)
	}
	return moment
}

// TestGenerations: of scheduled snapshots the newest of each of four quarters of a day,
// seven days and four weeks are kept.
func TestGenerations(t *testing.T) {
	var all []Snapshot
	begin := at(t, "2026-09-01 00:10:00")
	for n := range 4 * 90 { // the last one is of 2026-11-29 18:10, a Sunday
		when := begin.Add(time.Duration(n) * 6 * time.Hour)
		all = append(all, Snapshot{when.Format("01-02T15"), Scheduled, when, Verified})
	}
	var got []string
	for _, v := range Judge(all, ever) {
		if !v.Prune {
			got = append(got, v.Name+" "+v.Why)
		}
	}
	want := []string{
		"11-29T18 6-hourly, daily, weekly, newest verified", "11-29T12 6-hourly", "11-29T06 6-hourly", "11-29T00 6-hourly",
		"11-28T18 daily", "11-27T18 daily", "11-26T18 daily", "11-25T18 daily", "11-24T18 daily", "11-23T18 daily",
		"11-22T18 weekly", "11-15T18 weekly", "11-08T18 weekly",
	}
	if !slices.Equal(got, want) {
		t.Errorf("kept\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestKinds: three are kept of each kind that is taken before something is done, manual
// and damaged ones are left to people, and nothing goes before something newer is verified.
func TestKinds(t *testing.T) {
	for _, c := range []struct {
		what string
		all  string // with the newest first: kind and state
		want string // + kept, - pruned
	}{
		{"before an upgrade", "before-upgrade:verified before-upgrade:verified before-upgrade:verified before-upgrade:verified", "+++-"},
		{"each kind counts for itself", "before-upgrade:verified before-removal:verified before-upgrade:verified before-removal:verified before-upgrade:verified before-removal:verified before-upgrade:verified", "++++++-"},
		{"manual ones", "manual:verified manual:verified manual:unverified manual:damaged manual:verified", "+++++"},
		{"none is verified", "before-upgrade:unverified before-upgrade:unverified before-upgrade:unverified before-upgrade:unverified", "++++"},
		{"only the oldest is verified", "before-upgrade:unverified before-upgrade:unverified before-upgrade:unverified before-upgrade:verified", "++++"},
		{"one in between is", "before-upgrade:unverified before-upgrade:unverified before-upgrade:unverified before-upgrade:unverified before-upgrade:verified before-upgrade:verified", "+++++-"},
		{"a damaged one counts for nothing", "before-upgrade:damaged before-upgrade:verified before-upgrade:verified before-upgrade:verified before-upgrade:verified", "++++-"},
		{"within six hours", "scheduled:verified scheduled:verified scheduled:verified", "+--"},
		{"within six hours, and the newest was not read", "scheduled:unverified scheduled:verified scheduled:verified", "++-"},
		{"nothing", "", ""},
	} {
		var all []Snapshot
		for n, s := range strings.Fields(c.all) {
			kind, state, _ := strings.Cut(s, ":")
			all = append(all, Snapshot{fmt.Sprint("s", n), Kind(kind), at(t, "2026-11-27 11:00:00").Add(-time.Duration(n) * time.Minute), State(state)})
		}
		got := ""
		for _, v := range Judge(all, ever) {
			if v.Prune != (v.Why == "") {
				t.Errorf("%s: %+v", c.what, v)
			}
			got += map[bool]string{true: "-", false: "+"}[v.Prune]
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// TestReasons: each is kept for every reason there is, and for want of a newer one only
// without another.
func TestReasons(t *testing.T) {
	now := at(t, "2026-11-27 11:00:00")
	for i, want := range []string{"6-hourly, daily, weekly", "no newer one is verified", "newest verified", ""} {
		all := []Snapshot{{"a", Scheduled, now, Unverified}, {"b", Scheduled, now.Add(-1), Unverified}, {"c", Scheduled, now.Add(-2), Verified}, {"d", Scheduled, now.Add(-3), Verified}}
		if v := Judge(all, ever)[i]; v.Why != want || v.Prune != (want == "") {
			t.Errorf("%s: %+v, want %q", v.Name, v, want)
		}
	}
}

// drawSnapshots draws some of a cluster, taken at whole minutes of two months, from a
// moment on.
func drawSnapshots(t *rapid.T, label string, from time.Time, states []State) []Snapshot {
	minutes := rapid.SliceOfNDistinct(rapid.IntRange(0, 60*24*60), 0, 80, rapid.ID).Draw(t, label)
	var all []Snapshot
	for _, n := range minutes {
		when := from.Add(time.Duration(n) * time.Minute)
		all = append(all, Snapshot{
			Name: when.Format(time.RFC3339), At: when,
			Kind:  rapid.SampledFrom(Kinds).Draw(t, "kind"),
			State: rapid.SampledFrom(states).Draw(t, "state"),
		})
	}
	return all
}

var begin = time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)

// ever is when all have been taken.
var ever = begin.AddDate(100, 0, 0)

func kept(all []Snapshot) (out []Snapshot) {
	for _, v := range Judge(all, ever) {
		if !v.Prune {
			out = append(out, v.Snapshot)
		}
	}
	return out
}

// TestFutureCountsForNothing: snapshots with a date that has not come yet take the place of none, and none is removed for them.
func TestFutureCountsForNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawSnapshots(t, "minutes", begin, []State{Verified, Unverified, Damaged})
		now := begin.Add(time.Duration(rapid.IntRange(0, 60*24*90).Draw(t, "now")) * time.Minute)
		var past []Snapshot
		for _, s := range all {
			if !s.At.After(now) {
				past = append(past, s)
			}
		}
		want := Judge(past, now)
		var got []Verdict
		for _, v := range Judge(all, now) {
			switch {
			case !v.At.After(now):
				got = append(got, v)
			case v.Prune || v.Why != "dated in the future":
				t.Fatalf("%+v, of a time to come", v)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v, and without those of the future %v", got, want)
		}
	})
}

// TestJudgeHolds: what holds of every set of snapshots.
func TestJudgeHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawSnapshots(t, "minutes", begin, []State{Verified, Verified, Unverified, Damaged})
		verdicts := Judge(all, ever)
		if len(verdicts) != len(all) {
			t.Fatalf("%d verdicts on %d snapshots", len(verdicts), len(all))
		}
		counts, seen := map[Kind]int{}, false
		for i, v := range verdicts {
			if i > 0 && v.At.After(verdicts[i-1].At) {
				t.Fatalf("%s is newer than the one before it", v.Name)
			}
			if v.Prune && !seen {
				t.Fatalf("%s would be removed, and nothing newer is verified", v.Name)
			}
			if v.Prune && (v.Kind == Manual || v.State == Damaged) {
				t.Fatalf("%+v would be removed: it is for people", v)
			}
			seen = seen || v.State == Verified
			if seen && !v.Prune && v.State != Damaged {
				counts[v.Kind]++ // from the newest verified one on
			}
		}
		// One more: the newest verified one itself, for which there may be no place.
		for kind, most := range map[Kind]int{Scheduled: 4 + 7 + 4 + 1, BeforeUpgrade: 3 + 1, BeforeRemoval: 3 + 1} {
			if counts[kind] > most {
				t.Fatalf("%d of kind %s are kept", counts[kind], kind)
			}
		}
		shuffled := rapid.Permutation(all).Draw(t, "order")
		if !slices.Equal(verdicts, Judge(shuffled, ever)) {
			t.Fatal("another order has another answer")
		}
		if again := kept(kept(all)); !slices.Equal(again, kept(all)) {
			t.Fatalf("what was kept is removed the next time: %v", again)
		}
	})
}

// TestJudgeIsMonotone: to remove after each snapshot leaves what to remove at the end
// leaves: nothing that is needed later is removed early, nothing that was removed is
// missed.
func TestJudgeIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		states := []State{Verified, Verified, Verified, Unverified}
		old := drawSnapshots(t, "old", begin, states)
		later := drawSnapshots(t, "later", begin.Add(61*day), states)
		atOnce, inTurns := kept(slices.Concat(old, later)), kept(slices.Concat(kept(old), later))
		if !slices.Equal(atOnce, inTurns) {
			t.Fatalf("at once %v, in turns %v", atOnce, inTurns)
		}
		var removed []string
		for _, v := range Judge(old, ever) {
			if v.Prune {
				removed = append(removed, v.Name)
			}
		}
		for _, s := range atOnce {
			if slices.Contains(removed, s.Name) {
				t.Fatalf("%s is needed again", s.Name)
			}
		}
	})
}

// TestNextDue: intervals, what was missed, and clocks.
func TestNextDue(t *testing.T) {
	now := at(t, "2026-11-27 07:00:00")
	offset := offsetOf("id", 6*time.Hour)
	if due := NextDue(time.Time{}, now, 6*time.Hour, "id"); !due.Equal(now) {
		t.Errorf("the first one: %s", due)
	}
	if due := NextDue(now.Add(-40*day), now, 6*time.Hour, "id"); due.After(now) {
		t.Errorf("after a long pause: %s", due)
	}
	if due := NextDue(now.Add(-time.Hour), now, 0, "id"); !due.Equal(now) {
		t.Errorf("without an interval: %s", due)
	}
	first := NextDue(now, now, 6*time.Hour, "id")
	if !first.After(now) || first.Sub(now) > 6*time.Hour || first.Add(-offset).Hour()%6 != 0 || first.Add(-offset).Minute() != 0 {
		t.Errorf("the next one: %s, with an offset of %s", first, offset)
	}
	if due := NextDue(now.Add(400*day), now, 6*time.Hour, "id"); !due.Equal(first) {
		t.Errorf("the last one is of the future: %s, want %s", due, first)
	}
	offsets := map[time.Duration]bool{}
	for n := range 100 {
		offsets[offsetOf(fmt.Sprint("cluster ", n), 6*time.Hour).Truncate(time.Hour)] = true
	}
	if len(offsets) != 6 {
		t.Errorf("a hundred clusters are due in %v", slices.Sorted(maps.Keys(offsets)))
	}
}

// TestNextDueHolds: a due time is after the last one and at most one interval after it,
// and whoever takes one at each due time takes one in each quarter of a day.
func TestNextDueHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.String().Draw(t, "id")
		every := time.Duration(rapid.IntRange(1, 48).Draw(t, "hours")) * time.Hour
		last := begin.Add(time.Duration(rapid.IntRange(0, 1e7).Draw(t, "seconds")) * time.Second)
		due := NextDue(last, last, every, id)
		if !due.After(last) || due.Sub(last) > every {
			t.Fatalf("%s after %s, every %s", due, last, every)
		}
		if next := NextDue(due, due, every, id); next.Sub(due) != every {
			t.Fatalf("%s after %s", next, due)
		}
	})
}
