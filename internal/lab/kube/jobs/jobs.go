// Package jobs is what the controller of Jobs does of one Job and its pods, without where these are kept.
package jobs

import (
	"cmp"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// How long the controller waits before it replaces a pod that failed: twice as long each time.
// Source: kubernetes v1.36, pkg/controller/job, DefaultJobPodFailureBackOff and MaxJobPodFailureBackOff.
const (
	firstBackoff = 10 * time.Second
	mostBackoff  = 10 * time.Minute
)

// Pods are how many pods a Job has of each kind.
type Pods struct {
	Active, Ready, Succeeded, Failed int64
	Terminating                      int64
	LastFailed                       time.Time // when the newest of those that failed ended
}

// Add adds a pod that is not being deleted; failed is when it has, the zero time where it has not.
func (p *Pods) Add(ready, finished bool, failed time.Time) {
	switch {
	case !failed.IsZero():
		p.Failed++
		if failed.After(p.LastFailed) {
			p.LastFailed = failed
		}
	case finished:
		p.Succeeded++
	default:
		p.Active++
	}
	if ready {
		p.Ready++
	}
}

// Step is what is to be done of a Job now.
type Step struct {
	Status map[string]any
	Make   int64         // so many pods
	Drop   bool          // those that are active
	Again  time.Duration // look once more after this long; 0: when something of it changes
	News   bool          // it has ended, or is suspended, with this step
}

// IsEnded reports whether a Job has come to its end: nothing that becomes of its pods changes it after that.
func IsEnded(job map[string]any) bool {
	for _, c := range rules.MapsAt(job, "status", "conditions") {
		if kind := rules.TextAt(c, "type"); rules.TextAt(c, "status") == "True" && (kind == "Complete" || kind == "Failed") {
			return true
		}
	}
	return false
}

// Judge returns what is to be done of a Job that has not come to its end, by how its pods stand.
func Judge(job map[string]any, p Pods, now time.Time) Step {
	spec, conditions := rules.MapAt(job, "spec"), rules.ListAt(job, "status", "conditions")
	status := map[string]any{
		"startTime": cmp.Or(rules.TextAt(job, "status", "startTime"), now.UTC().Format(time.RFC3339)),
		"ready":     p.Ready, "terminating": p.Terminating, "uncountedTerminatedPods": map[string]any{},
	}
	rules.SetNonZero(status, "active", p.Active)
	rules.SetNonZero(status, "succeeded", p.Succeeded)
	rules.SetNonZero(status, "failed", p.Failed)
	step := Step{Status: status}
	if rules.BoolAt(spec, "suspend") { // it has not begun
		delete(status, "startTime")
		status["conditions"] = rules.SetCondition(conditions, "Suspended", "True", "JobSuspended", "Job suspended")
		step.News = len(conditions) == 0
		return step
	}
	want := max(1, rules.NumberAt(spec, "completions"))
	reason, message, left := findEnd(job, p, now)
	switch {
	case p.Succeeded >= want:
		const reason, message = "CompletionsReached", "Reached expected number of succeeded pods"
		status["completionTime"] = now.UTC().Format(time.RFC3339)
		conditions = rules.SetCondition(conditions, "SuccessCriteriaMet", "True", reason, message)
		conditions = rules.SetCondition(conditions, "Complete", "True", reason, message)
		step.News = true
	case reason != "" && p.Active+p.Terminating > 0: // it has failed when its pods have ended
		conditions = rules.SetCondition(conditions, "FailureTarget", "True", reason, message)
		step.Drop = true
	case reason != "":
		conditions = rules.SetCondition(conditions, "FailureTarget", "True", reason, message)
		conditions = rules.SetCondition(conditions, "Failed", "True", reason, message)
		step.News = true
	default:
		step.Again = left
		if rest := p.LastFailed.Add(backoff(p.Failed)).Sub(now); p.Failed > 0 && rest > 0 {
			step.Again = rest
			break
		}
		step.Make = max(0, min(rules.NumberAt(spec, "parallelism"), want-p.Succeeded)-p.Active)
	}
	if len(conditions) > 0 {
		status["conditions"] = conditions
	}
	return step
}

// findEnd is why a Job has failed, "" while it has not, and how long it has left then.
func findEnd(job map[string]any, p Pods, now time.Time) (reason, message string, left time.Duration) {
	for _, c := range rules.MapsAt(job, "status", "conditions") {
		if rules.TextAt(c, "type") == "FailureTarget" {
			return rules.TextAt(c, "reason"), rules.TextAt(c, "message"), 0
		}
	}
	if p.Failed > rules.NumberAt(job, "spec", "backoffLimit") {
		return "BackoffLimitExceeded", "Job has reached the specified backoff limit", 0
	}
	within := time.Duration(rules.NumberAt(job, "spec", "activeDeadlineSeconds")) * time.Second
	began, err := time.Parse(time.RFC3339, rules.TextAt(job, "status", "startTime"))
	if within == 0 {
		return "", "", 0
	}
	if err != nil { // it begins now
		return "", "", within
	}
	if left = began.Add(within).Sub(now); left <= 0 {
		return "DeadlineExceeded", "Job was active longer than specified deadline", 0
	}
	return "", "", left
}

// backoff is the wait after so many pods that failed.
func backoff(failed int64) time.Duration {
	return min(firstBackoff<<min(max(failed-1, 0), 10), mostBackoff)
}
