package drift

import (
	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Attempt is the revision that what fails for a cluster counts for: the one with which its files became what they are, as far as that was
// seen. What was tried in vain is tried again at another one; a commit that changes other files of the repository is none.
func Attempt(d cluster.Desired, f cluster.Facts) cluster.Revision {
	return AttemptAt(d.Repository().Snapshot, f)
}

// AttemptAt is Attempt of a snapshot.
func AttemptAt(snap cluster.Snapshot, f cluster.Facts) cluster.Revision {
	if in, noted := f.Intent(cluster.SeenContent); noted && snap.Content != "" && in.Target == snap.Content {
		return in.Revision
	}
	return snap.Revision
}

// NoteContent notes in f with which revision the files of a cluster became what they are, unless that was noted, or what they are is unknown.
func NoteContent(f *cluster.Facts, d cluster.Desired) {
	snap := d.Repository().Snapshot
	if in, _ := f.Intent(cluster.SeenContent); snap.Content != "" && in.Target != snap.Content {
		f.Intend(cluster.Intent{Kind: cluster.SeenContent, Revision: snap.Revision, Target: snap.Content})
	}
}
