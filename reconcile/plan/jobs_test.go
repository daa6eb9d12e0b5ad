package plan

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

// setJob sets how the Job of a gate is seen that is wanted now, whichever that is, and adds the gate where it is not there.
func (w *world) setJob(name, state string) {
	if w.jobs == nil {
		w.jobs = map[string]string{}
	}
	if _, there := w.jobs[name]; !there {
		w.d.Spec.Gates = append(w.d.Spec.Gates, cluster.Gate{Name: name, Job: cluster.GateJob{Namespace: "default", Prefix: name, Manifest: "{}", Within: 10 * time.Minute}})
	}
	w.jobs[name] = state
}

// seeJobs fills in the Jobs of gates. Their names follow from the state of the cluster.
func (w *world) seeJobs() {
	if len(w.jobs)+len(w.left) == 0 {
		return
	}
	seen := map[cluster.ObjectName]cluster.Job{}
	for _, job := range w.left {
		seen[job.ObjectName] = job
	}
	w.o.Jobs = cluster.Saw(seen)
	wanted := upgrade.JobsToSee(w.d, w.o)
	i := 0
	for _, g := range w.d.Spec.Gates {
		if g.Job.Manifest == "" {
			continue
		}
		state := w.jobs[g.Name]
		if i++; state == "unseen" || state == "unknown" {
			w.o.Jobs = cluster.Seen[map[cluster.ObjectName]cluster.Job]{Why: map[string]string{"unknown": "no kube-apiserver answers"}[state]}
		} else if i <= len(wanted) && state != "absent" {
			seen[wanted[i-1]] = w.makeJob(wanted[i-1], g.Name, w.d.Revision, state)
		}
	}
}

// makeJob is a Job in a state.
func (w *world) makeJob(name cluster.ObjectName, gate string, revision cluster.Revision, state string) cluster.Job {
	ago := func(d time.Duration) time.Time { return w.o.Now.Add(-d) }
	job := cluster.Job{ObjectName: name, UID: "uid", Ours: true, Gate: gate, Revision: revision, Began: ago(2 * time.Minute)}
	switch state {
	case "runs":
	case "stuck":
		job.Why = "ImagePullBackOff"
	case "failed":
		job.Failed, job.Why = ago(time.Minute), "BackoffLimitExceeded: no such host: db"
	case "complete":
		job.Complete = ago(time.Hour)
	case "old":
		job.Complete = ago(time.Hour + time.Duration(len(w.d.Spec.Gates))*10*time.Minute)
	case "foreign":
		job.Ours = false
	case "deleting":
		job.Deleting = true
	default:
		panic("a Job cannot be " + state)
	}
	return job
}
