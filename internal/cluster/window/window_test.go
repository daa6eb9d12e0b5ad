package window

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWindow(t *testing.T) {
	at := func(s string) time.Time {
		t.Helper()
		v, err := time.Parse("2006-01-02 15:04", s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		days           []string
		from, to, zone string
		now            string // UTC
		opens          string // UTC; as now when it is open
	}{
		{nil, "02:00", "05:00", "", "2026-11-23 02:00", "2026-11-23 02:00"},
		{nil, "02:00", "05:00", "", "2026-11-23 05:00", "2026-11-24 02:00"},
		{[]string{"sat", "sun"}, "02:00", "05:00", "Europe/Berlin", "2026-11-23 12:00", "2026-11-28 01:00"},
		{[]string{"mon"}, "02:00", "05:00", "", "2026-11-23 05:00", "2026-11-30 02:00"},
		// Over midnight it belongs to the day on which it opens.
		{[]string{"mon"}, "22:00", "03:00", "", "2026-11-24 02:59", "2026-11-24 02:59"},
		{[]string{"mon"}, "22:00", "03:00", "", "2026-11-23 02:59", "2026-11-23 22:00"},
		// Where the clock is changed its ends are still those of the clock.
		{nil, "01:00", "04:00", "Europe/Berlin", "2026-10-25 02:59", "2026-10-25 02:59"},
		{nil, "01:00", "04:00", "Europe/Berlin", "2026-10-25 03:00", "2026-10-26 00:00"},
		{nil, "01:00", "04:00", "Europe/Berlin", "2026-03-29 01:59", "2026-03-29 01:59"},
		{nil, "01:00", "04:00", "Europe/Berlin", "2026-03-29 02:00", "2026-03-29 23:00"},
		{nil, "02:15", "02:45", "Europe/Berlin", "2026-03-29 00:00", "2026-03-29 01:15"},
		{nil, "02:30", "03:00", "Europe/Berlin", "2026-03-29 00:00", "2026-03-30 00:30"},
	} {
		w, err := New(c.days, c.from, c.to, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.Opens(at(c.now)).UTC().Format("2006-01-02 15:04"); got != c.opens {
			t.Errorf("%s at %s: opens %s, want %s", w, c.now, got, c.opens)
		}
	}
	for days, open := range map[string]bool{"2026-11-23 23:00": true, "2026-11-24 01:00": true, "2026-11-24 23:00": false, "2026-11-23 01:00": false} {
		if w, err := New([]string{"mon"}, "22:00", "03:00", ""); err != nil || w.IsOpen(at(days)) != open {
			t.Errorf("%s at %s: open is %v, %v", w, days, !open, err)
		}
	}
	// It is not open where the clock leaves out its beginning, so that two never open together there.
	short, err := New([]string{"sun"}, "02:30", "03:00", "Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	if both, ok := (Window{From: 0, To: 24*60 - 1, Zone: time.UTC}).OpensWith(short, at("2026-03-28 12:00")); !ok || !both.Equal(at("2026-04-05 00:30")) {
		t.Errorf("%s opens with another at %s, %v", short, both, ok)
	}
	never, err := New([]string{"tue"}, "02:00", "05:00", "")
	if err != nil {
		t.Fatal(err)
	}
	if both, ok := (Window{Days: []time.Weekday{time.Monday}, From: 60, To: 120, Zone: time.UTC}).OpensWith(never, at("2026-11-23 00:00")); ok {
		t.Errorf("windows of other days are open together at %s", both)
	}
	for _, c := range [][4]string{{"fri", "02:00", "02:00", ""}, {"fri", "02:00", "24:00", ""}, {"friday", "02:00", "03:00", ""}, {"fri", "02:00", "03:00", "Mars/Olympus"}, {"fri", "02:00", "03:00", "Local"}} {
		if w, err := New([]string{c[0]}, c[1], c[2], c[3]); err == nil {
			t.Errorf("%v is a window: %s", c, w)
		}
	}
	if always := (Window{}); !always.IsOpen(time.Now()) || always.String() != "always" {
		t.Error("without a window it is closed")
	}
}

func anyWindow(t *rapid.T) Window {
	minute := rapid.IntRange(0, 24*60-1)
	w := Window{From: minute.Draw(t, "from"), To: minute.Draw(t, "to"), Zone: time.UTC}
	if w.From == w.To {
		w.To = (w.To + 1) % (24 * 60)
	}
	for _, d := range rapid.SliceOfDistinct(rapid.IntRange(0, 6), rapid.ID).Draw(t, "days") {
		w.Days = append(w.Days, time.Weekday(d))
	}
	zone := rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"}).Draw(t, "zone")
	w.Zone, _ = time.LoadLocation(zone)
	return w
}

// TestWindowOpens: a window opens when it is open and was not a moment before, and two
// are open together when both say so.
func TestWindowOpens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, other := anyWindow(t), anyWindow(t)
		now := time.Date(2026, 1, 1, 0, rapid.IntRange(0, 365*24*60).Draw(t, "now"), 0, 0, time.UTC)
		opens := w.Opens(now)
		if !opens.Equal(now) && (opens.Before(now) || !w.IsOpen(opens) || w.IsOpen(opens.Add(-time.Second)) && w.IsOpen(now)) {
			t.Fatalf("%s at %s opens at %s", w, now, opens)
		}
		if opens.Equal(now) != w.IsOpen(now) {
			t.Fatalf("%s at %s is open: %t", w, now, w.IsOpen(now))
		}
		for at := now; at.Before(opens); at = at.Add(opens.Sub(now)/50 + time.Minute) {
			if w.IsOpen(at) {
				t.Fatalf("%s is open at %s, before %s", w, at, opens)
			}
		}
		if both, ok := w.OpensWith(other, now); ok && (!w.IsOpen(both) || !other.IsOpen(both) || both.Before(opens)) {
			t.Fatalf("%s and %s at %s open together at %s", w, other, now, both)
		}
	})
}

// TestKeptOpen: a window that is kept open is one, and open at any time, together with any other when that is.
func TestKeptOpen(t *testing.T) {
	if (Window{}).KeptOpen().Zone != nil {
		t.Error("where there is no window one is made")
	}
	rapid.Check(t, func(t *rapid.T) {
		w := anyWindow(t).KeptOpen()
		now := time.Date(2026, 1, 1, 0, 0, rapid.IntRange(0, 365*24*3600).Draw(t, "now"), 0, time.UTC)
		if w.Zone == nil || !w.IsOpen(now) || !w.Opens(now).Equal(now) {
			t.Fatalf("%s at %s", w, now)
		}
		other := anyWindow(t)
		if at, ok := w.OpensWith(other, now); !ok || !at.Equal(other.Opens(now)) {
			t.Fatalf("with %s at %s: %s, %t", other, now, at, ok)
		}
	})
}
