package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// newRigBesideANewer starts the daemon for all clusters of a repository, dev, which
// is Ready, and on a state directory that has a newer agent's records of the cluster
// old. It returns their file.
func newRigBesideANewer(t *testing.T) (r *rig, records string) {
	t.Helper()
	r = newRig(t, lab.Config{})
	delete(r.config, "clusters")
	r.config["repository"].(map[string]any)["interval"] = "5s"
	r.write()
	must(os.MkdirAll(filepath.Join(r.dir, "state"), 0o700))
	records = filepath.Join(r.dir, "state", "old.json")
	line := `{"version":999}`
	must(os.WriteFile(records, fmt.Appendf(nil, "%s\n%x\n", line, sha256.Sum256([]byte(line))), 0o600))
	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	return r, records
}

// TestOneClusterThatCannotBeLookedAfter: the records of one cluster are those of
// a newer agent, as after a downgrade. The daemon runs all the same, tells it
// once, looks after the others, and takes the cluster up when that is mended.
func TestOneClusterThatCannotBeLookedAfter(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r, records := newRigBesideANewer(t)

	const why = "read journal old.json: a newer agent wrote it"
	r.run(exitStalled, do("status"), "nothing is done about this cluster: "+why, "install that version of talos-agent again")
	r.run(exitFailed, do("suspend", "old"), why)
	if n := strings.Count(r.log.String(), why); n != 1 {
		t.Errorf("told %d times: %s", n, r.log)
	}

	must(os.Remove(records))
	files := map[string][]byte{}
	for name, text := range r.inventory(0) {
		files[strings.Replace(name, "/dev/", "/old/", 1)] = text
	}
	r.push(files)
	r.until("the cluster is looked after", func() bool { return !r.try("status", "old").has(why) })
	if s := r.status(); s.Condition != cluster.Ready {
		t.Errorf("the other cluster is %s", s.Condition)
	}
}

// TestARefusedClusterIsTriedAgain: a cluster that cannot be looked after, and of
// which the repository knows nothing, is tried again when its status says so, also
// while the repository cannot be read: nobody may take it for a loop that hangs.
// When its records are taken away it is gone.
func TestARefusedClusterIsTriedAgain(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r, records := newRigBesideANewer(t)
	triedAgain := func() {
		t.Helper()
		first := r.statusOf("old").NextPass
		r.until("the refused cluster is tried again", func() bool { return r.statusOf("old").NextPass.After(first) })
	}
	triedAgain()
	// Whoever waits is shown all of them in the end, and told by the code.
	r.run(exitStalled, do("status", "--wait", "1s"), "old  Stalled", "dev  Ready")
	r.lab.World.Inject(world.Fault{System: "git", Kind: world.Answer, Status: 503, Text: "down"})
	r.until("the repository cannot be read", func() bool { return r.log.has("cannot read the clusters of the repository") })
	triedAgain()
	r.lab.World.Heal()
	triedAgain()

	must(os.Remove(records))
	r.until("the cluster is gone", func() bool { return r.try("status", "old").has("no such cluster") })
	if left, err := os.ReadDir(filepath.Join(r.dir, "state")); err != nil || slices.ContainsFunc(left, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "old") }) {
		t.Errorf("records of a cluster that is gone: %v %v", left, err)
	}
}

// TestARepositoryThatIsEmptyYet: an agent that runs before anything is pushed
// says so where people look, and in its log once, however often it tries. What
// is pushed then is taken up when somebody asks for it.
func TestARepositoryThatIsEmptyYet(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	delete(r.config, "clusters")
	r.write()
	r.start()

	const why = "cannot read the clusters of the repository: "
	r.until("status says why there is no cluster", func() bool { return r.try("status").has("problem " + why) })
	r.run(exitReconciling, do("status"), "push a first commit to main", "no cluster yet", "talos-agent doctor")
	r.run(exitOK, do("reconcile"), "no cluster is known yet; the repository is fetched now", "`talos-agent status`")
	for range 3 {
		tried := r.tried()
		r.run(exitFailed, do("reconcile", "dev"), `no such cluster: "dev"`, "-> the repository is fetched now")
		r.until("the repository is asked again", func() bool { return r.tried() > tried })
	}
	if n := strings.Count(r.log.String(), why); n != 1 {
		t.Errorf("told %d times: %s", n, r.log)
	}

	commit := r.push(r.inventory(0))
	r.try("reconcile", "dev")
	r.untilReady(commit)
	if a := r.try("status"); a.has("problem") {
		t.Errorf("the trouble is over: %v", a)
	}
}

// TestARepositoryWithoutClusters: an agent that looks into the wrong folder says
// so, where people look and in its log.
func TestARepositoryWithoutClusters(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	delete(r.config, "clusters")
	r.config["repository"].(map[string]any)["path"] = "clusters"
	r.write()
	r.push(r.inventory(0))
	r.start()

	const why = "cannot read the clusters of the repository: clusters: there is no such folder"
	r.until("status says why there is no cluster", func() bool { return r.try("status").has("problem " + why) })
	r.run(exitReconciling, do("status"), "check the path of the repository in the host's config", "no cluster yet")
	r.until("the log says why there is no cluster", func() bool { return strings.Count(r.log.String(), why) == 1 })

	files := map[string][]byte{}
	for name, text := range r.inventory(0) {
		files[strings.Replace(name, "inventory/", "clusters/", 1)] = text
	}
	commit := r.push(files)
	r.until("the cluster is looked after", func() bool { r.try("reconcile", "dev"); return !r.try("status", "dev").has("no such cluster") })
	r.untilReady(commit)
}

// tried counts what the daemon asked of the repository's server.
func (r *rig) tried() int {
	n := 0
	for _, c := range r.calls(func(c world.CallRecord) bool { return c.System == "git" }) {
		n += c
	}
	return n
}
