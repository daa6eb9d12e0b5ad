package agent_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/kube"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const smokeImage = "registry.example.org/smoke:1"

// smokeJob is a Job that is a gate.
const smokeJob = `apiVersion: batch/v1
kind: Job
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
        - {name: smoke, image: "` + smokeImage + `"}
`

// inJobs plays a story over a cluster of one control plane and one worker that is Ready with some versions, and has a gate
// that is a Job.
func inJobs(t *testing.T, talos, kubernetes string, story func(s *sim, push func(what, from, to string))) {
	t.Helper()
	sz := size{ControlPlanes: 1, Workers: 1}
	files := sz.Files()
	changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\ngates: [{name: smoke, job: gates/smoke.yaml}]\n")
	files["inventory/dev/gates/smoke.yaml"] = []byte(smokeJob)
	inClusterOfFiles(t, sz, lab.Config{}, files, talos, kubernetes, func(s *sim, push func(what, from, to string), _ *turns) {
		story(s, push)
		s.CheckRules(sz)
	})
}

// jobs are the Jobs that there were in a cluster, seen whenever the agent makes a call.
type jobs struct {
	s    *sim
	mu   sync.Mutex
	seen map[string][]string // uids, by name
}

func (s *sim) watchJobs() *jobs {
	j := &jobs{s: s, seen: map[string][]string{}}
	s.Lab.World.OnCall(func(c world.CallRecord) {
		s.Witness(c)
		j.look()
	})
	return j
}

func (j *jobs) look() (now []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, job := range j.s.Lab.Kube.Objects("", schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, "") {
		name := job.GetName()
		now = append(now, name)
		if uid := string(job.GetUID()); !slices.Contains(j.seen[name], uid) {
			j.seen[name] = append(j.seen[name], uid)
		}
	}
	return now
}

// wantStarted checks how many Jobs there were so far, and that each was there once.
func (j *jobs) wantStarted(what string, want int) {
	j.s.T.Helper()
	j.look()
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, uids := range j.seen {
		if len(uids) != 1 {
			j.s.T.Errorf("%s: %s was started %d times", what, name, len(uids))
		}
	}
	if len(j.seen) != want {
		j.s.T.Errorf("%s: started %v, and %d are wanted", what, slices.Sorted(maps.Keys(j.seen)), want)
	}
}

// holdsForJob is a status in which an upgrade waits for a Job of which the message has some words.
func holdsForJob(words string) func(cluster.Status) bool {
	return func(st cluster.Status) bool {
		return slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool {
			return w.Reason == cluster.WaitingForGate && strings.Contains(w.Message, words)
		})
	}
}

// TestJobsOfUpgrades: the agent starts the Job of a gate before each node is upgraded, once; one that fails holds the upgrade and is
// notified, until a push has a fresh one started, or somebody has deleted it. None is left in the end.
func TestJobsOfUpgrades(t *testing.T) {
	t.Parallel()
	inJobs(t, "v1.13.8", "v1.35.10", func(s *sim, push func(what, from, to string)) {
		j, before := s.watchJobs(), len(s.Lab.World.Calls())
		s.Quiet(10 * time.Minute)
		j.wantStarted("without an upgrade", 0)

		s.Lab.Kube.SetExit(smokeImage, kube.Exit{Code: 1, Message: "no such host: db"})
		push("another talos", "talos_version: v1.13.8", "talos_version: v1.13.9")
		s.Until(time.Hour, "held", holdsForJob("has failed: BackoffLimitExceeded: Job has reached the specified backoff limit: pod smoke-"))
		s.Until(time.Hour, "stalled", func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && st.Reason == cluster.WaitingForGate && holdsForJob("ended with code 1: no such host: db")(st)
		})
		time.Sleep(3 * time.Hour)
		j.wantStarted("one that has failed", 1)
		first := j.look() // people have to read it
		if got := s.timesInstalled(before); len(first) != 1 || len(got) > 0 || len(s.cordoned()) > 0 {
			t.Errorf("jobs %v, and nodes that were upgraded all the same: %v, %v", first, got, s.cordoned())
		}

		pushComment(push, "a comment")
		name := ""
		s.Until(time.Hour, "held by another one", func(st cluster.Status) bool {
			if now := j.look(); len(now) == 1 && now[0] != first[0] { // and that of the commit before is deleted
				name = now[0]
			}
			return name != "" && holdsForJob("Job default/"+name+" has failed")(st)
		})
		j.wantStarted("another commit", 2)

		s.Lab.Kube.SetExit(smokeImage, kube.Exit{After: 3 * time.Minute})
		s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodDelete, "/apis/batch/v1/namespaces/default/jobs/"+name, `{"propagationPolicy":"Background"}`)
		s.Until(time.Hour, "it runs", holdsForJob("Job default/"+name+" runs"))
		if got := s.timesInstalled(before); len(got) > 0 {
			t.Errorf("nodes were upgraded while it runs: %v", got)
		}
		s.untilAppliedIn(3*time.Hour, "upgraded")
		s.wantTalos("v1.13.9")
		j.mu.Lock()
		if again := len(j.seen[name]); again != 2 {
			t.Errorf("%s was started %d times, and deleted once", name, again)
		}
		delete(j.seen, name)
		j.mu.Unlock()
		s.Until(time.Hour, "no job is left", func(cluster.Status) bool { return len(j.look()) == 0 })
		j.wantStarted("upgraded", 2) // the first that failed, and that of the worker
		s.Quiet(time.Hour)
	})
}

// TestJobsOfKubernetes: the same is so for each step of an upgrade of Kubernetes, whose nodes stay in service.
func TestJobsOfKubernetes(t *testing.T) {
	t.Parallel()
	inJobs(t, "v1.13.9", "v1.35.10", func(s *sim, push func(what, from, to string)) {
		s.Lab.Kube.SetExit(smokeImage, kube.Exit{After: time.Minute, Code: 1})
		j := s.watchJobs()
		push("another kubernetes", "kubernetes_version: v1.35.10", "kubernetes_version: v1.36.1")
		s.Until(time.Hour, "held", holdsForJob("has failed"))
		time.Sleep(2 * time.Hour)
		s.wantKubernetes("v1.35.10")
		j.wantStarted("held", 1)
		s.Lab.Kube.SetExit(smokeImage, kube.Exit{After: time.Minute})
		pushComment(push, "a comment")
		s.untilAppliedIn(4*time.Hour, "upgraded")
		s.wantKubernetes("v1.36.1")
		j.wantStarted("upgraded", 1+4+1) // the first, one for each component of the control plane, and that of the worker's kubelet
		s.Until(time.Hour, "no job is left", func(cluster.Status) bool { return len(j.look()) == 0 })
	})
}

// TestCrashAroundJobs kills the agent when it makes or deletes a Job, or loses that request or its answer: whatever comes next finds
// what there is, none is started twice for one turn, and none is left.
func TestCrashAroundJobs(t *testing.T) {
	t.Parallel()
	const makes, deletes = "POST /apis/batch/v1/namespaces/{namespace}/jobs", "DELETE /apis/batch/v1/namespaces/{namespace}/jobs/{name}"
	ways := map[string][2]string{"in one hop": {"v1.13.8", "v1.13.9"}, "in two hops": {"v1.12.11", "v1.14.1"}}
	for _, f := range []world.Fault{
		{Op: makes, Nth: 1, Kind: world.CrashBefore}, {Op: makes, Nth: 1, Kind: world.CrashAfter}, {Op: makes, Nth: 1, Kind: world.LoseRequest}, {Op: makes, Nth: 1, Kind: world.LoseReply},
		{Op: makes, Nth: 2, Kind: world.CrashBefore}, {Op: makes, Nth: 2, Kind: world.CrashAfter},
		{Op: deletes, Nth: 1, Kind: world.CrashBefore}, {Op: deletes, Nth: 1, Kind: world.CrashAfter}, {Op: deletes, Nth: 2, Kind: world.CrashAfter}, {Op: deletes, Nth: 2, Kind: world.LoseReply},
		{Op: makes, Nth: 3, Kind: world.CrashAfter}, {Op: makes, Nth: 4, Kind: world.CrashBefore}, {Op: deletes, Nth: 3, Kind: world.CrashAfter},
	} {
		way, verb, turns := "in one hop", strings.Fields(f.Op)[0], 2
		if f.Nth > 2 {
			way, turns = "in two hops", 4
		}
		t.Run(fmt.Sprintf("%s %d of %s %s", f.Kind, f.Nth, verb, way), func(t *testing.T) {
			t.Parallel()
			from, to := ways[way][0], ways[way][1]
			inJobs(t, from, "v1.35.3", func(s *sim, push func(what, from, to string)) {
				s.Lab.Kube.SetExit(smokeImage, kube.Exit{After: time.Minute})
				j := s.watchJobs()
				f.System = "kube"
				s.Lab.World.Inject(f)
				push("another talos", "talos_version: "+from, "talos_version: "+to)
				s.untilAppliedIn(4*time.Hour, "upgraded")
				s.wantTalos(to)
				s.Until(time.Hour, "no job is left", func(cluster.Status) bool { return len(j.look()) == 0 })
				j.wantStarted("upgraded", turns)
				if crashes := f.Kind == world.CrashBefore || f.Kind == world.CrashAfter; s.Lab.World.Struck() != 1 || crashes != (s.Deaths == 1) {
					t.Errorf("struck %d times, and the agent died %d times", s.Lab.World.Struck(), s.Deaths)
				}
			})
		})
	}
}
