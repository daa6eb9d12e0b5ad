package main

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources/forge"
)

// A commit is told to be a success only when the cluster is Ready and that very
// commit was applied.
func TestCommitStatusIsTrue(t *testing.T) {
	const head, before cluster.Revision = "main@sha1:2222222222222222222222222222222222222222", "main@sha1:1111111111111111111111111111111111111111"
	for _, c := range []struct {
		condition cluster.Condition
		revision  cluster.Revision
		applied   cluster.Revision
		want      forge.State // "": nothing is told
	}{
		{cluster.Ready, head, head, forge.StateSuccess},
		{cluster.Ready, head, before, ""},
		{cluster.Ready, head, "", ""},
		{cluster.Reconciling, head, head, forge.StatePending},
		{cluster.Suspended, head, head, forge.StatePending},
		{cluster.Stalled, head, before, forge.StateFailure},
		{cluster.Blind, head, head, forge.StateError},
		{cluster.Ready, "dir@sha256:00", "dir@sha256:00", ""},
	} {
		st, ok := commitStatus(cluster.Status{Cluster: "dev", Condition: c.condition, Revision: c.revision, Applied: c.applied})
		if ok != (c.want != "") || ok && (st.State != c.want || st.Commit != c.revision.Commit()) {
			t.Errorf("%s at %s, applied %s: %+v, %v", c.condition, c.revision, c.applied, st, ok)
		}
	}
}
