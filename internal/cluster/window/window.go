// Package window answers when nodes that run may be taken down: whether it may be now, and when next.
//
// The package is pure: it is handed the time, and knows no clock, no node and no file.
package window

import (
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the same window on a host without time zones
)

// Window is when nodes that run may be taken down: on some days of the week, from one
// time of the day to another, which is on the next day if it is not later. The zero value
// is always.
type Window struct {
	Days     []time.Weekday // on which it opens; empty: every day
	From, To int            // in minutes after midnight
	Zone     *time.Location // nil: there is no window
}

// days are the names of the days of the week in files, from Sunday on as in package time.
var days = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// New makes a window of what a file has: names of days ("mon"), times ("22:30") and
// a time zone of the IANA database ("Europe/Berlin"), UTC where that is empty.
func New(on []string, from, to, zone string) (Window, error) {
	var w Window
	for _, d := range on {
		i := slices.Index(days, d)
		if i < 0 {
			return Window{}, fmt.Errorf("%q is not a day of the week", d)
		}
		w.Days = append(w.Days, time.Weekday(i))
	}
	for _, t := range []struct {
		text string
		to   *int
	}{{from, &w.From}, {to, &w.To}} {
		at, err := time.Parse("15:04", t.text)
		if err != nil {
			return Window{}, fmt.Errorf("%q is not a time of the day", t.text)
		}
		*t.to = at.Hour()*60 + at.Minute()
	}
	if w.From == w.To {
		return Window{}, fmt.Errorf("it ends when it opens, at %s", from)
	}
	at, err := FindZone(zone)
	if err != nil {
		return Window{}, err
	}
	w.Zone = at
	return w, nil
}

// FindZone returns the time zone of a name in the IANA database; "" is UTC.
func FindZone(name string) (*time.Location, error) {
	at, err := time.LoadLocation(name)
	if err != nil || name == "Local" { // Local is of the host, and another one elsewhere
		return nil, fmt.Errorf("time zone %q is not known", name)
	}
	return at, nil
}

// KeptOpen returns a window that is always open, where there is one: what is done only in a window
// may be done at any time then.
func (w Window) KeptOpen() Window {
	if w.Zone == nil {
		return w
	}
	return Window{Zone: time.UTC} // from midnight to midnight, every day
}

// String prints the window as people read it: "sat sun 22:00-05:00 Europe/Berlin".
func (w Window) String() string {
	if w.Zone == nil {
		return "always"
	}
	var words []string
	for _, d := range w.Days {
		words = append(words, days[d])
	}
	clock := func(m int) string { return fmt.Sprintf("%02d:%02d", m/60, m%60) }
	return strings.Join(append(words, clock(w.From)+"-"+clock(w.To), w.Zone.String()), " ")
}

// on returns the window that opens on the day of t, and whether one does. Its ends are
// times of the clock, so that a night in which the clock is changed makes it longer or
// shorter.
func (w Window) on(t time.Time) (opens, closes time.Time, ok bool) {
	if len(w.Days) > 0 && !slices.Contains(w.Days, t.Weekday()) {
		return opens, closes, false
	}
	y, m, d := t.Date()
	opens = time.Date(y, m, d, 0, w.From, 0, 0, w.Zone)
	if w.To <= w.From {
		d++
	}
	return opens, time.Date(y, m, d, 0, w.To, 0, 0, w.Zone), true
}

// IsOpen reports whether t is in the window.
func (w Window) IsOpen(t time.Time) bool {
	if w.Zone == nil {
		return true
	}
	t = t.In(w.Zone)
	for _, day := range []time.Time{t, t.AddDate(0, 0, -1)} {
		if opens, closes, ok := w.on(day); ok && !t.Before(opens) && t.Before(closes) {
			return true
		}
	}
	return false
}

// Opens returns when the window opens next: t itself when it is open.
func (w Window) Opens(t time.Time) time.Time {
	if w.IsOpen(t) {
		return t
	}
	local := t.In(w.Zone)
	for i := range 8 { // today's may have been
		if opens, closes, ok := w.on(local.AddDate(0, 0, i)); ok && opens.After(t) && closes.After(opens) {
			return opens
		}
	}
	return t.AddDate(0, 0, 7) // the only one of the week is in an hour that the clock leaves out
}

// OpensWith returns when this window and another are open together, and false when that
// is not within a year.
func (w Window) OpensWith(other Window, t time.Time) (time.Time, bool) {
	for end := t.AddDate(1, 0, 0); t.Before(end); {
		next := w.Opens(t)
		if next = other.Opens(next); w.IsOpen(next) && other.IsOpen(next) {
			return next, true
		}
		t = next
	}
	return time.Time{}, false
}
