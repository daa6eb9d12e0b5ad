package upgrade

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

// Jobs of gates. How far they are stands in Kubernetes alone: the name of a Job follows from the commit, from what the hop
// leads to and from what all nodes have by then, so that one that was started is found by whoever looks, and another
// is wanted as soon as a node has come further.

const (
	// jobFresh is for how long a Job that has succeeded counts: what comes before the next step may take its time. So may the
	// Jobs of the other gates, which run one after the other.
	jobFresh = time.Hour
	// jobLate is how much longer than its deadline one may be under way: Kubernetes ends it.
	jobLate = 5 * time.Minute
	// jobStalls is after what time one that has failed is a reason to call somebody.
	jobStalls = time.Minute
)

// JobsToSee are the Jobs of gates that are wanted before the next step of an upgrade; none where no gate is asked for, or it is
// not known what all nodes have.
func JobsToSee(d cluster.Desired, o cluster.Observed) (out []cluster.ObjectName) {
	asked := d.Repository()
	state, silent := stateOf(d, o)
	if !AsksGates(d, o) || silent != "" {
		return nil
	}
	for _, g := range asked.Spec.Gates {
		if g.Job.Manifest != "" {
			out = append(out, nameJob(g, state))
		}
	}
	return out
}

// stateOf identifies what the nodes of a cluster have, of what the hop that they make changes; silent is a node of which that
// is not known, or that does not fit the hop: an agent that has just started may take another one for it. One that others do not wait
// for is left out: it may come and go.
func stateOf(d cluster.Desired, o cluster.Observed) (state, silent string) {
	asked := d.Repository()
	despite := o.Facts.UpgradeOrder(drift.Attempt(d, o.Facts)).Despite
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q\n", drift.Attempt(d, o.Facts), asked.Spec.Versions.Talos, asked.Spec.Versions.Kubernetes, asked.Schematic)
	for _, n := range d.Spec.Nodes {
		if slices.Contains(despite, n.Name) {
			continue
		}
		mach := o.Machines[n.Name]
		switch has := (cluster.Versions{Talos: mach.Talos, Kubernetes: o.Nodes.Value[n.Name].Kubelet}); {
		case mach.Reach != cluster.Configured || !o.Nodes.Known || !fitsWay(asked, has):
			return "", n.Name
		case !asked.IsHop(cluster.HopKubernetes):
			fmt.Fprintf(h, "%q %q %q\n", n.Name, mach.Talos, mach.Schematic)
		case mach.Summary.Images == cluster.Images{}:
			return "", n.Name
		default:
			fmt.Fprintf(h, "%q %q\n", n.Name, mach.Summary.Images)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), ""
}

// fitsWay reports whether a node that runs some versions can be on the way that a cluster is on: it has what the hop begins with,
// or newer, and without a hop what all are to have.
func fitsWay(asked cluster.Desired, has cluster.Versions) bool {
	want := asked.Spec.Versions
	switch {
	case has.Talos == "" || has.Kubernetes == "":
		return false
	case len(asked.Hops) == 0:
		return has.Talos == want.Talos && has.Kubernetes == want.Kubernetes
	case asked.Hops[0].Kind == cluster.HopTalos:
		return !ladder.IsOlder(has.Talos, asked.Hops[0].From)
	}
	return !ladder.IsOlder(has.Kubernetes, asked.Hops[0].From)
}

// nameJob is the name of the Job of a gate in a state of the cluster. Another manifest is in another commit, unless a directory is the
// source.
func nameJob(g cluster.Gate, state string) cluster.ObjectName {
	sum := sha256.Sum256([]byte(g.Name + "\n" + state + "\n" + g.Job.Manifest))
	return cluster.ObjectName{Namespace: g.Job.Namespace, Name: g.Job.Prefix + "-" + hex.EncodeToString(sum[:])[:10]}
}

// AwaitedJob is the Job of a gate that keeps a node from being upgraded.
type AwaitedJob struct {
	Gate  cluster.Gate
	Name  cluster.ObjectName
	Start bool        // it is to be started
	Old   cluster.Job // that has succeeded too long ago, and is to be deleted before that; the zero value: none
	Wait  cluster.Wait
}

// FindAwaitedJob is the first Job of the gates of a cluster that has not succeeded for what comes next; false: all have. One
// is to be started only where it is known that there is none.
func FindAwaitedJob(d cluster.Desired, o cluster.Observed) (AwaitedJob, bool) {
	state, silent := stateOf(d, o)
	for _, g := range d.Repository().Spec.Gates {
		if g.Job.Manifest == "" || o.Gates[g.Name].Value {
			continue
		}
		a := AwaitedJob{Gate: g, Name: nameJob(g, state), Wait: cluster.Wait{Reason: cluster.WaitingForGate, About: g.Name, Hint: "versions that are set back pass it"}}
		job, there := o.Jobs.Value[a.Name]
		why := ""
		switch {
		case !AsksGates(d, o):
			why = "its Job is looked for when no node is out of service"
		case silent != "":
			why = fmt.Sprintf("which Job it waits for is not known, because what %s runs is not", silent)
		case !o.Jobs.Known && o.Jobs.Why == "":
			why = "its Job was not looked for yet"
		case !o.Jobs.Known:
			why = "how its Job stands is not known: " + o.Jobs.Why
		case !there:
			a.Start, why = true, fmt.Sprintf("its Job %s runs before that", a.Name)
		default:
			if why = a.judge(job, o.Now, freshFor(d)); why == "" {
				continue
			}
		}
		a.Wait.Message = fmt.Sprintf("waits to be upgraded until the gate %s holds: %s", g.Name, why)
		return a, true
	}
	return AwaitedJob{}, false
}

// freshFor is for how long a Job of a cluster that has succeeded counts.
func freshFor(d cluster.Desired) time.Duration {
	fresh := jobFresh
	for _, g := range d.Repository().Spec.Gates {
		fresh += g.Job.Within
	}
	return fresh
}

// judge is why a Job that is there does not let the next node be upgraded, "" : it does.
func (a *AwaitedJob) judge(job cluster.Job, now time.Time, fresh time.Duration) string {
	logs := fmt.Sprintf("`kubectl logs -n %s job/%s`", job.Namespace, job.Name)
	remove := fmt.Sprintf("`kubectl delete job -n %s %s`", job.Namespace, job.Name)
	switch {
	case !job.Ours:
		a.Wait.Hint = "rename or delete it: " + remove
		return fmt.Sprintf("whether it holds is not known, because there is a Job %s that the agent has not made", job.ObjectName)
	case job.Deleting:
		a.Wait.Within, a.Wait.Hint = jobLate, fmt.Sprintf("its pods have to end first: `kubectl get pods -n %s -l job-name=%s`", job.Namespace, job.Name)
		return fmt.Sprintf("its Job %s is being deleted, and is started again then", job.ObjectName)
	case !job.Failed.IsZero():
		a.Wait.Within, a.Wait.Began = jobStalls, job.Failed
		a.Wait.Hint = fmt.Sprintf("%s shows why; a commit that changes the cluster's files has a fresh one started, and so has %s; versions that are set back pass it", logs, remove)
		return fmt.Sprintf("its Job %s has failed%s", job.ObjectName, text.Colon(job.Why))
	case !job.Complete.IsZero() && now.Sub(job.Complete) < fresh:
		return ""
	case !job.Complete.IsZero():
		a.Old = job
		return fmt.Sprintf("its Job %s has succeeded more than %s ago, and runs once more", job.ObjectName, text.Duration(fresh))
	}
	a.Wait.Within, a.Wait.Began, a.Wait.Hint = a.Gate.Job.Within+jobLate, job.Began, fmt.Sprintf("%s shows how far it is; versions that are set back pass it", logs)
	return fmt.Sprintf("its Job %s runs%s", job.ObjectName, text.Colon(job.Why))
}

// LeftJobs are the Jobs of the agent that are no longer needed, in the order of their names: those of other commits, and of this one
// where the cluster has come further, or has arrived. What has failed for this commit stays until the next push: people have to read it.
func LeftJobs(d cluster.Desired, o cluster.Observed) (out []cluster.Job) {
	asked, wanted := d.Repository(), JobsToSee(d, o)
	_, silent := stateOf(d, o)
	arrived := silent == "" && len(asked.Hops) == 0 && !IsUnderWay(d, o)
	for _, job := range o.Jobs.Value {
		isOver := arrived || len(wanted) > 0 && !slices.Contains(wanted, job.ObjectName)
		if job.Ours && !job.Deleting && (job.Revision != drift.Attempt(d, o.Facts) || job.Failed.IsZero() && isOver) {
			out = append(out, job)
		}
	}
	slices.SortFunc(out, func(a, b cluster.Job) int { return cmp.Compare(a.String(), b.String()) })
	return out
}
