package retention

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// NextDue is when the next scheduled snapshot of a cluster is due, after the one that was
// taken last; a moment that is not after now means at once. The zero time for last: there
// is none yet.
//
// Due times are every apart, and so far from the full hour as the cluster's id has it:
// the clusters of many hosts do not fill one storage at the same second, and a restart of
// the agent does not move them. One that was missed is taken as soon as it is possible,
// once, however many were missed. A last one in the future, from before the clock was set
// back, counts as of now: otherwise none would be taken until then.
func NextDue(last, now time.Time, every time.Duration, id string) time.Time {
	if last.IsZero() || every <= 0 {
		return now
	}
	if last.After(now) {
		last = now
	}
	offset := offsetOf(id, every)
	begun := last.Add(-offset).Truncate(every) // since the year 1, so that days and hours are whole ones
	return begun.Add(every + offset)
}

// offsetOf spreads ids evenly over an interval.
func offsetOf(id string, every time.Duration) time.Duration {
	sum := sha256.Sum256([]byte("snapshot " + id))
	return time.Duration(binary.BigEndian.Uint64(sum[:]) % uint64(every)).Truncate(time.Second)
}
