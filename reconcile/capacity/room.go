package capacity

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/text"
)

// leastFree is how much of a thin storage must be free for one VM more, in percent of
// its size: what is promised there is written some day, and a thin storage without
// room stops every VM on it.
const leastFree = 10

// room is what is left of one host's memory, or of one storage. Bytes.
type room struct {
	known    bool
	limit    int64 // that may be promised
	promised int64
	vms      int  // that it is promised to
	used     bool // more is in use than was seen to be promised
}

// take promises so much to one VM more.
func (r *room) take(bytes int64) {
	r.promised += bytes
	r.vms++
}

// lacks reports whether so much more cannot be promised.
func (r *room) lacks(bytes int64) bool { return r.known && r.promised+bytes > r.limit }

// String is how much is promised, and to how many.
func (r *room) String() string {
	switch {
	case r.used:
		return text.GiB(r.promised) + " are in use or promised"
	case r.vms == 1:
		return text.GiB(r.promised) + " are promised to 1 VM"
	case r.vms > 1:
		return fmt.Sprintf("%s are promised to %d VMs", text.GiB(r.promised), r.vms)
	}
	return "nothing is promised"
}
