package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	labkube "github.com/talos-agent/talos-agent/internal/lab/kube"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const (
	commit  = cluster.Revision("main@sha1:1111111111111111111111111111111111111111")
	another = cluster.Revision("main@sha1:2222222222222222222222222222222222222222")
)

// gateOf is a gate whose Job runs an image.
func gateOf(image, spec string) cluster.Gate {
	return cluster.Gate{Name: "smoke", Job: cluster.GateJob{Namespace: "default", Prefix: "smoke", Within: time.Minute,
		Manifest: `{"apiVersion":"batch/v1","kind":"Job","metadata":{"namespace":"default"},"spec":{"activeDeadlineSeconds":60,` + spec + `"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"` + image + `"}]}}}}`}}
}

func jobName(name string) cluster.ObjectName {
	return cluster.ObjectName{Namespace: "default", Name: name}
}

// seeJob looks at one Job.
func (b *drains) seeJob(name cluster.ObjectName) (cluster.Job, bool) {
	b.Helper()
	seen := b.cluster.SeeJobs(b.Context(), b.desired, []cluster.ObjectName{name})
	if !seen.Known {
		b.Fatalf("jobs are not known: %s", seen.Why)
	}
	job, there := seen.Value[name]
	return job, there
}

// TestJobsOfGates: a Job is made once, whatever becomes of the requests for it, is seen through to its end, with what its pods leave, and is
// deleted with them.
func TestJobsOfGates(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.kube.SetExit("bad:1", labkube.Exit{Code: 3, Message: "no such host:\n db"})
		b.kube.SetExit("hung:1", labkube.Exit{Hangs: true})
		b.kube.SetExit("slow:1", labkube.Exit{After: 20 * time.Second})
		for _, c := range []struct{ name, image, spec, runs, failed string }{
			{"good", "good:1", "", "", ""},
			{"slow", "slow:1", "", "", ""},
			{"bad", "bad:1", `"backoffLimit":0,`, "", "BackoffLimitExceeded: Job has reached the specified backoff limit: pod bad-"},
			{"twice", "bad:1", `"backoffLimit":1,`, "container c ended with code 3: no such host: db", "container c ended with code 3: no such host: db"},
			{"hung", "hung:1", "", "", "DeadlineExceeded: Job was active longer than specified deadline: no pod of it is left, and no log"},
			{"pulls", "mirror.invalid/a:1", "", "container c waits: ImagePullBackOff", "no pod of it is left"},
			{"big", "good:1", `"completions":2,`, "", ""},
		} {
			name := jobName(c.name)
			if _, there := b.seeJob(name); there {
				t.Fatalf("%s is there before it is made", c.name)
			}
			for range 2 { // the answer to the first may have been lost
				if err := b.cluster.StartJob(b.Context(), b.desired, gateOf(c.image, c.spec), name, commit); err != nil {
					t.Fatal(err)
				}
			}
			var job cluster.Job
			words := ""
			b.until(c.name+" ends", func() bool {
				var there bool
				job, there = b.seeJob(name)
				if !there || !job.Ours || job.Gate != "smoke" || job.Revision != commit || job.Deleting || job.Began.IsZero() {
					t.Fatalf("%s is %+v, %v", c.name, job, there)
				}
				if job.Failed.IsZero() && job.Why != "" {
					words = job.Why
				}
				return !job.Complete.IsZero() || !job.Failed.IsZero()
			})
			if job.Complete.IsZero() != (c.failed != "") || !strings.Contains(job.Why, c.failed) || !strings.Contains(words, c.runs) || c.runs == "" && words != "" {
				t.Errorf("%s ended as %+v, and showed %q", c.name, job, words)
			}
			if err := b.cluster.DeleteJob(b.Context(), b.desired, job); err != nil {
				t.Fatal(err)
			}
			b.until(c.name+" is deleted", func() bool {
				pods, err := b.set.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + c.name})
				_, there := b.seeJob(name)
				return err == nil && !there && len(pods.Items) == 0
			})
			if err := b.cluster.DeleteJob(b.Context(), b.desired, job); err != nil {
				t.Errorf("delete %s again: %v", c.name, err)
			}
		}
	})
}

// TestJobsOfOthers: what the agent has not made is no Job of a gate, a copy of one of its own included, and is never deleted.
func TestJobsOfOthers(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		theirs := func(name string, meta metav1.ObjectMeta) {
			t.Helper()
			meta.Name = name
			job := &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "good:1"}}}}}}
			if _, err := b.set.BatchV1().Jobs("default").Create(b.Context(), job, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		theirs("plain", metav1.ObjectMeta{})
		theirs("copy", metav1.ObjectMeta{Labels: map[string]string{labelGate: "smoke"}, Annotations: map[string]string{annotationJob: "default/smoke-1", annotationRevision: string(commit)}})
		for _, name := range []string{"plain", "copy"} {
			err := b.cluster.StartJob(b.Context(), b.desired, gateOf("good:1", ""), jobName(name), commit)
			if err == nil || !strings.Contains(err.Error(), "there is one of that name that the agent has not made") {
				t.Errorf("start %s: %v", name, err)
			}
			job, there := b.seeJob(jobName(name))
			if !there || job.Ours {
				t.Errorf("%s is %+v, %v", name, job, there)
			}
			if err := b.cluster.DeleteJob(b.Context(), b.desired, job); err == nil || !strings.Contains(err.Error(), "the agent has not made it") {
				t.Errorf("delete %s: %v", name, err)
			}
		}
		// One for another commit, and one that was made anew under its name.
		if err := b.cluster.StartJob(b.Context(), b.desired, gateOf("good:1", ""), jobName("own"), commit); err != nil {
			t.Fatal(err)
		}
		if err := b.cluster.StartJob(b.Context(), b.desired, gateOf("good:1", ""), jobName("own"), another); err == nil {
			t.Error("one for another commit was taken for it")
		}
		job, _ := b.seeJob(jobName("own"))
		job.UID = "another"
		if err := b.cluster.DeleteJob(b.Context(), b.desired, job); err != nil {
			t.Error(err)
		}
		if jobs, err := b.set.BatchV1().Jobs("default").List(b.Context(), metav1.ListOptions{}); err != nil || len(jobs.Items) != 3 {
			t.Errorf("%d jobs are left: %v", len(jobs.Items), err)
		}
		for i := range 2 * pageOfJobs { // all of them are listed, a part at a time
			theirs(fmt.Sprintf("z-%d", i), metav1.ObjectMeta{Labels: map[string]string{labelGate: "smoke"}})
		}
		if seen := b.cluster.SeeJobs(b.Context(), b.desired, []cluster.ObjectName{jobName("own")}); len(seen.Value) != 2*pageOfJobs+2 {
			t.Errorf("%d jobs are seen: %s", len(seen.Value), seen.Why)
		}
	})
}

// TestRefusedJobs: what Kubernetes refuses of a manifest is an error with what to do about it, and nothing is tried for a minute.
func TestRefusedJobs(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		nowhere := gateOf("good:1", "")
		for what, c := range map[string]struct {
			gate      cluster.Gate
			namespace string
			err, hint string
		}{
			"no namespace":  {nowhere, "nowhere", `namespaces "nowhere" not found`, "create the namespace"},
			"unknown field": {gateOf("good:1", `"backofLimit":1,`), "default", `unknown field "spec.backofLimit"`, "correct the manifest of the gate smoke"},
		} {
			began := time.Now()
			err := b.cluster.StartJob(b.Context(), b.desired, c.gate, cluster.ObjectName{Namespace: c.namespace, Name: "a"}, commit)
			if err == nil || !strings.Contains(err.Error(), c.err) || !strings.HasPrefix(fault.HintOf(err), c.hint) || time.Since(began) > silentFor/2 {
				t.Errorf("%s: %v (%s) after %v", what, err, fault.HintOf(err), time.Since(began))
			}
		}
	})
}

// TestUnseenJobs: a Job is not taken for absent because it cannot be asked for, or a list is empty; and where none can be left none is asked for.
func TestUnseenJobs(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		ask := func() (requests int) {
			if seen := b.cluster.SeeJobs(b.Context(), b.desired, nil); seen.Why != "" {
				t.Errorf("jobs: %s", seen.Why)
			}
			for call, n := range b.calls() {
				if strings.Contains(call, "jobs") {
					requests += n
				}
			}
			return requests
		}
		b.calls()
		if n := ask(); n != 0 {
			t.Errorf("%d requests without a gate", n)
		}
		b.desired.Spec.Gates = []cluster.Gate{gateOf("good:1", "")}
		if first, second := ask(), ask(); first != 1 || second != 0 {
			t.Errorf("%d and %d requests without a Job", first, second)
		}
		if err := b.cluster.StartJob(b.Context(), b.desired, gateOf("good:1", ""), jobName("a"), commit); err != nil {
			t.Fatal(err)
		}
		b.desired.Spec.Gates = nil // by then
		b.calls()
		if first, second := ask(), ask(); first != 1 || second != 1 {
			t.Errorf("%d and %d requests with a Job", first, second)
		}
		b.world.Inject(world.Fault{System: "kube", Op: "GET /apis/batch/v1/jobs", Kind: world.EmptyList, Times: 1})
		if _, there := b.seeJob(jobName("a")); !there {
			t.Error("it is absent in an empty list")
		}
		if n := b.world.Struck(); n != 1 {
			t.Errorf("%d lists were empty: %v", n, b.calls())
		}
		b.world.Inject(world.Fault{System: "kube", Kind: world.Answer, Status: http.StatusServiceUnavailable, Text: "overloaded"})
		if seen := b.cluster.SeeJobs(b.Context(), b.desired, []cluster.ObjectName{jobName("a")}); seen.Known || !strings.Contains(seen.Why, "overloaded") {
			t.Errorf("of an API that does not answer: %+v", seen)
		}
	})
}
