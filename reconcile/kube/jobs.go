package kube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/text"
)

// mostWords is how much is shown of what a container leaves when it ends, in characters.
const mostWords = 200

// How many Jobs are held in memory at once, and pods of one, and how many are listed at all: an object has up to 1.5 MB, and
// whoever may write in one namespace makes them.
const (
	pageOfJobs = 20
	mostJobs   = 1000
)

// The marks of a Job that the agent has made for a gate. Without all of them it is somebody else's.
const (
	labelGate = "talos-agent.dev/gate"
	// annotationJob has the namespace and name that it was made with: a copy of it is no Job of the agent's.
	annotationJob      = "talos-agent.dev/gate-job"
	annotationRevision = "talos-agent.dev/revision"
)

// SeeJobs returns the Jobs of those names that there are, and all that the agent has made for gates; one that is not in it is not
// there. It is unknown without a reason where none is wanted and none can be left.
func (k *Cluster) SeeJobs(ctx context.Context, d cluster.Desired, wanted []cluster.ObjectName) cluster.Seen[map[cluster.ObjectName]cluster.Job] {
	type seen = cluster.Seen[map[cluster.ObjectName]cluster.Job]
	hasJob := slices.ContainsFunc(d.Repository().Spec.Gates, func(g cluster.Gate) bool { return g.Job.Manifest != "" })
	k.mu.Lock()
	_, ready := k.best()
	left := k.jobs
	k.mu.Unlock()
	if mayBeLeft := left.some || hasJob && !left.listed; len(wanted) == 0 && !(mayBeLeft && ready) {
		return seen{}
	}
	ctx, leave, err := k.enter(ctx)
	if err != nil {
		return seen{Why: err.Error()}
	}
	defer leave()
	c := &changer{k: k, access: d.Access.Kube}
	jobs, err := c.listJobs(ctx, wanted)
	if err != nil {
		return seen{Why: kubeapi.Reason(err)}
	}
	isOurs := func(name cluster.ObjectName) bool { return jobs[name].Ours }
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.jobs.starts == left.starts {
		k.jobs.listed, k.jobs.some = true, false
		for name := range jobs {
			k.jobs.some = k.jobs.some || isOurs(name)
		}
	}
	return cluster.Saw(jobs)
}

// listJobs lists those Jobs. One that is wanted is asked for by its name: it may be there without our marks.
func (c *changer) listJobs(ctx context.Context, wanted []cluster.ObjectName) (map[cluster.ObjectName]cluster.Job, error) {
	out := map[cluster.ObjectName]cluster.Job{}
	err := c.ask(ctx, func(ctx context.Context, set kubernetes.Interface) error {
		clear(out)
		for more := ""; ; {
			list, err := set.BatchV1().Jobs("").List(ctx, metav1.ListOptions{LabelSelector: labelGate, Limit: pageOfJobs, Continue: more})
			if err != nil {
				return err
			}
			for i := range list.Items {
				job := readJob(&list.Items[i])
				out[job.ObjectName] = job
			}
			if len(out) > mostJobs {
				return fmt.Errorf("more than %d Jobs have the label %s: delete those that the agent has not made", mostJobs, labelGate)
			}
			if more = list.Continue; more == "" {
				return nil
			}
		}
	})
	for _, name := range wanted {
		if err != nil {
			return nil, err
		}
		err = c.ask(ctx, func(ctx context.Context, set kubernetes.Interface) error {
			found, err := set.BatchV1().Jobs(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				delete(out, name)
				return nil
			}
			if err != nil {
				return err
			}
			job := readJob(found)
			if job.Complete.IsZero() {
				pods, err := set.CoreV1().Pods(name.Namespace).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name.Name, Limit: pageOfJobs})
				if err != nil {
					return err
				}
				job.Why = joinWords(job.Why, describePods(pods.Items, !job.Failed.IsZero()))
			}
			out[name] = job
			return nil
		})
	}
	return out, err
}

// readJob reads what is kept of a Job.
func readJob(job *batchv1.Job) cluster.Job {
	out := cluster.Job{ObjectName: cluster.ObjectName{Namespace: job.Namespace, Name: job.Name}, UID: string(job.UID), Gate: job.Labels[labelGate],
		Revision: cluster.Revision(job.Annotations[annotationRevision]), Deleting: job.DeletionTimestamp != nil, Began: job.CreationTimestamp.Time}
	out.Ours = out.Gate != "" && out.Revision != "" && job.Annotations[annotationJob] == out.String()
	for _, c := range job.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			out.Complete = c.LastTransitionTime.Time
		case c.Type == batchv1.JobFailed:
			out.Failed, out.Why = c.LastTransitionTime.Time, joinWords(c.Reason, text.Cut(text.OneLine(c.Message), mostWords))
		}
	}
	return out
}

// describePods is what the pods of a Job show of why it does not succeed: the newest of which something is known.
func describePods(pods []corev1.Pod, failed bool) string {
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for _, p := range pods {
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			ended := s.State.Terminated
			if ended == nil {
				ended = s.LastTerminationState.Terminated
			}
			if ended != nil && ended.ExitCode != 0 {
				return fmt.Sprintf("pod %s, container %s ended with code %d%s", p.Name, s.Name, ended.ExitCode, text.Colon(text.Cut(text.OneLine(ended.Message), mostWords)))
			}
			if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
				return fmt.Sprintf("pod %s, container %s waits: %s", p.Name, s.Name, joinWords(w.Reason, text.Cut(text.OneLine(w.Message), mostWords)))
			}
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && !failed {
				return fmt.Sprintf("pod %s has no node: %s", p.Name, text.Cut(text.OneLine(c.Message), mostWords))
			}
		}
	}
	if failed && len(pods) == 0 {
		return "no pod of it is left, and no log"
	}
	return ""
}

// joinWords joins those of two texts that are not empty.
func joinWords(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ": " + b
}

// StartJob makes the Job of a gate. One of that name that was made for the same commit is what was asked for: the answer to an earlier
// request was lost.
func (k *Cluster) StartJob(ctx context.Context, d cluster.Desired, g cluster.Gate, name cluster.ObjectName, revision cluster.Revision) error {
	ctx, leave, err := k.enter(ctx)
	if err != nil {
		return fmt.Errorf("start job %s: %w", name, err)
	}
	defer leave()
	k.mu.Lock()
	k.jobs.some, k.jobs.starts = true, k.jobs.starts+1
	k.mu.Unlock()
	body, err := writeJob(g, name, revision)
	if err != nil {
		return fmt.Errorf("start job %s: %w", name, err)
	}
	c := &changer{k: k, access: d.Access.Kube}
	err = c.insist(ctx, func(ctx context.Context, set kubernetes.Interface) error {
		return set.BatchV1().RESTClient().Post().Namespace(name.Namespace).Resource("jobs").Param("fieldValidation", metav1.FieldValidationStrict).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	})
	switch {
	case apierrors.IsAlreadyExists(err):
		if err = c.checkStarted(ctx, name, revision); err != nil {
			return fmt.Errorf("start job %s: %w", name, err)
		}
	case apierrors.IsNotFound(err):
		return &fault.Error{Op: "start job " + name.String(), Err: kubeError(err), Hint: "create the namespace, or name another one in the manifest of the gate " + g.Name}
	case isFinal(err) && !errors.Is(err, errClosed):
		return &fault.Error{Op: "start job " + name.String(), Err: kubeError(err), Hint: "correct the manifest of the gate " + g.Name + ", and push"}
	case err != nil:
		return fmt.Errorf("start job %s: %w", name, err)
	}
	return nil
}

// checkStarted returns an error unless a Job is there that was made for a gate and a commit, and is not on its way to be deleted.
func (c *changer) checkStarted(ctx context.Context, name cluster.ObjectName, revision cluster.Revision) error {
	return c.insist(ctx, func(ctx context.Context, set kubernetes.Interface) error {
		found, err := set.BatchV1().Jobs(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		switch job := readJob(found); {
		case !job.Ours || job.Revision != revision:
			return errors.New("there is one of that name that the agent has not made")
		case job.Deleting:
			return errors.New("the one before it is being deleted")
		}
		return nil
	})
}

// writeJob is the manifest of a gate with the name of one Job and the marks of the agent.
func writeJob(g cluster.Gate, name cluster.ObjectName, revision cluster.Revision) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader([]byte(g.Job.Manifest)))
	decoder.UseNumber()
	var job map[string]any
	if err := decoder.Decode(&job); err != nil {
		return nil, fmt.Errorf("read its manifest: %w", err)
	}
	metadata := mapIn(job, "metadata")
	metadata["name"], metadata["namespace"] = name.Name, name.Namespace
	mapIn(metadata, "labels")[labelGate] = g.Name
	annotations := mapIn(metadata, "annotations")
	annotations[annotationJob], annotations[annotationRevision] = name.String(), string(revision)
	return json.Marshal(job)
}

// mapIn is the map at a key, which is made where it is not there.
func mapIn(m map[string]any, key string) map[string]any {
	inner, ok := m[key].(map[string]any)
	if !ok {
		inner = map[string]any{}
		m[key] = inner
	}
	return inner
}

// DeleteJob deletes a Job that was seen to be the agent's, with its pods. Another one that has its name by now stays.
func (k *Cluster) DeleteJob(ctx context.Context, d cluster.Desired, job cluster.Job) error {
	ctx, leave, err := k.enter(ctx)
	if err != nil {
		return fmt.Errorf("delete job %s: %w", job.ObjectName, err)
	}
	defer leave()
	if !job.Ours || job.UID == "" {
		return fmt.Errorf("delete job %s: the agent has not made it", job.ObjectName)
	}
	c := &changer{k: k, access: d.Access.Kube}
	background := metav1.DeletePropagationBackground
	err = c.insist(ctx, func(ctx context.Context, set kubernetes.Interface) error {
		return set.BatchV1().Jobs(job.Namespace).Delete(ctx, job.Name, metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: metav1.NewUIDPreconditions(job.UID)})
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete job %s: %w", job.ObjectName, kubeError(err))
	}
	return nil
}
