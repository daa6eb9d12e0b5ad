package kube_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// evictions are the recordings of evictions, and of what becomes of a Node, on a cluster of Talos
// v1.13.9 with Kubernetes v1.36, and what is replayed of them.
var evictions = []struct {
	name, file string
	keep       func(seq int) bool
	given      []givenConfig
}{
	// The other lines are of Talos.
	{"H2", "exchanges-H2-drift-node-object.jsonl", func(seq int) bool {
		return slices.Contains([]int{1, 3, 7, 12, 19, 25, 26, 27, 28, 29, 30, 31, 32, 35, 37}, seq)
	}, []givenConfig{
		{1.055, map[string]string{"zone": "k", "tier": "gold"}, nil},
		{17.128, map[string]string{"zone": "k", "tier": "gold"}, []string{"dedicated=db:NoSchedule"}},
		{33.182, map[string]string{"zone": "k", "tier": "gold"}, []string{"dedicated=db:NoSchedule"}}, // the kubelet starts again
		{82.331, nil, nil},
	}},
	{"N2", "exchanges-N2-evictions.jsonl", func(int) bool { return true }, nil},
	// What follows is a shutdown of the machine, which Talos answers.
	{"N3", "exchanges-N3-lab-shutdown-with-budget.jsonl", func(seq int) bool { return seq <= 8 }, nil},
	// The other lines are of Talos, or of Nodes, of which the recording keeps a few fields.
	{"N1", "exchanges-N1-node-side.jsonl", func(seq int) bool { return slices.Contains([]int{1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 14}, seq) }, nil},
}

// givenConfig is when the worker is given which labels and taints by its machine config.
type givenConfig struct {
	at     float64
	labels map[string]string
	taints []string
}

// otherEvictions are the recorded exchanges the lab answers otherwise.
var otherEvictions = map[string]string{
	"N2/13": "of a pod with two budgets Kubernetes looks again at one of them alone when it becomes ready",
	"N2/24": "the recorded program ended at once and its pod stayed for a moment; the lab's pods run until they are removed",
	"N2/25": "the recorded program ignored SIGTERM, which none of the lab's does",
	"N2/26": "the recorded program ignored SIGTERM, which none of the lab's does",
	"N3/4":  "the cluster's own pods ran on no recorded worker",
	"N1/6":  "the cluster's own pods ran on no recorded worker",
}

// TestRecordedEvictions makes the recorded calls of pods, budgets and Nodes at their times.
func TestRecordedEvictions(t *testing.T) {
	dir := golden.Recordings(t, "talos", "recorded")
	all, agree := 0, 0
	for _, r := range evictions {
		calls := readCalls(t, filepath.Join(dir, r.file), r.keep)
		if len(calls) == 0 {
			t.Fatalf("%s: nothing to replay", r.file)
		}
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, world.Config{Latency: world.Latencies{Call: 1, ImagePull: time.Second, Pods: time.Second}}) // their image was there
				differs := l.replayCalls(calls, r.given)
				for _, c := range calls {
					key := fmt.Sprintf("%s/%d", r.name, c.Seq)
					diff, why := differs[c.Seq], otherEvictions[key]
					switch {
					case diff == "" && why != "":
						t.Errorf("%s agrees, although it is listed: %s", key, why)
					case diff == "":
						agree++
					case why != "":
						t.Logf("%s %s differs: %s", key, c.Method, why)
					default:
						t.Errorf("%s %s %s\n(-real +lab)\n%s", key, c.Method, c.Note, diff)
					}
				}
				all += len(calls)
			})
		})
	}
	t.Logf("%d of %d recorded exchanges agree", agree, all)
	golden.CheckShown(t, "Kubernetes 1.36 on Talos: evictions, and changes of a Node", agree, all)
}

// recordedCall is a call of the Kubernetes API in a recording of Talos.
type recordedCall struct {
	Seq      int            `json:"seq"`
	Method   string         `json:"method"`
	Request  map[string]any `json:"request"`
	Response struct {
		Status int `json:"status"`
		Body   any `json:"body"`
	} `json:"response"`
	At   float64 `json:"at"`
	Note string  `json:"note"`
	Poll *struct {
		FirstAt float64 `json:"first_at"`
		LastAt  float64 `json:"last_at"`
	} `json:"poll"`
}

func readCalls(t *testing.T, file string, keep func(seq int) bool) []recordedCall {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	var out []recordedCall
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c recordedCall
		must(t, json.Unmarshal(lines.Bytes(), &c))
		if keep(c.Seq) {
			out = append(out, c)
		}
	}
	must(t, lines.Err())
	return out
}

// replayCalls brings up the recorded cluster, makes the calls at their times, and returns how
// the answers differ.
func (l *lab) replayCalls(calls []recordedCall, given []givenConfig) map[int]string {
	l.t.Helper()
	up, ready := newReadiness(), newReadiness()
	l.kube.ServeAPI(l.id, "etcd-1", l.control("cp1", apiAddr), up.call)
	<-up.ch
	l.kube.RunKubelet(l.id, controlKubelet("cp1", apiAddr, 401), ready.call)
	worker := kubelet("w1", "10.0.0.21", 501)
	worker.BootID, worker.Talos, worker.Kubernetes = "1", "v1.13.9", "v1.36.2"
	stop := l.kube.RunKubelet(l.id, worker, ready.call)
	set := l.typed(apiAddr)
	for _, name := range []string{"cp1", "w1"} {
		eventually(l.t, name, 5*time.Minute, func() error { return nodeReady(set, name) })
	}
	if calls[0].Method != "HTTPS POST /api/v1/namespaces" {
		_, err := set.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}}, metav1.CreateOptions{})
		must(l.t, err)
	}
	time.Sleep(time.Minute)
	client, err := rest.HTTPClientFor(l.config(apiAddr))
	must(l.t, err)
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	var mu sync.Mutex
	var wg sync.WaitGroup
	differs, origin := map[int]string{}, time.Now()
	wg.Go(func() {
		for _, g := range given {
			time.Sleep(time.Until(origin.Add(time.Duration(g.at * float64(time.Second)))))
			stop()
			worker.Labels, worker.Taints = g.labels, g.taints
			stop = l.kube.RunKubelet(l.id, worker, ignore)
		}
	})
	for _, c := range calls {
		times := []float64{c.At}
		if strings.HasPrefix(c.Method, "HTTPS PATCH ") {
			times[0] += 0.002 // behind the polls of the same millisecond
		}
		if c.Poll != nil {
			times = []float64{c.Poll.FirstAt, c.Poll.LastAt}
		}
		for _, at := range times {
			wg.Go(func() {
				time.Sleep(time.Until(origin.Add(time.Duration(at * float64(time.Second)))))
				if diff := c.ask(l.t, client); diff != "" {
					mu.Lock()
					defer mu.Unlock()
					differs[c.Seq] = fmt.Sprintf("at %v: %s", at, diff)
				}
			})
		}
	}
	wg.Wait()
	return differs
}

// ask makes the call and returns how the answer differs.
func (c recordedCall) ask(t testing.TB, client *http.Client) string {
	words := strings.SplitN(c.Method, " ", 3)
	var body io.Reader
	if words[1] != http.MethodGet && words[1] != http.MethodDelete {
		data, err := json.Marshal(c.Request)
		must(t, err)
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequest(words[1], "https://"+apiAddr+":6443"+words[2], body)
	must(t, err)
	req.Header.Set("Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[words[1] == http.MethodPatch])
	resp, err := client.Do(req)
	must(t, err)
	data, err := io.ReadAll(resp.Body)
	must(t, err)
	must(t, resp.Body.Close())
	var got any
	must(t, json.Unmarshal(data, &got))
	if _, summedUp := c.Response.Body.(string); summedUp && resp.StatusCode < 300 {
		return cmp.Diff(c.Response.Status, resp.StatusCode)
	}
	// The first and the last call of a poll are compared with one recording.
	want := runtime.DeepCopyJSONValue(c.Response.Body)
	if node, ok := want.(map[string]any); ok && node["kubeletVersion"] != nil {
		delete(node, "containerRuntimeVersion")
		got = shortenNode(t, data)
	}
	if _, pods := c.Response.Body.([]any); pods || c.Response.Body == nil {
		got = shortenPods(t, data)
	}
	return cmp.Diff(c.Response.Status, resp.StatusCode) + cmp.Diff(scrubUnordered(want), scrubUnordered(got))
}

// scrubUnordered takes out what no two clusters share.
func scrubUnordered(v any) any {
	v = scrub(v)
	if m, ok := v.(map[string]any); ok {
		if md, ok := m["metadata"].(map[string]any); ok {
			delete(md, "uid") // it was cut from the recordings, as managedFields were
		}
		if items, ok := m["items"].([]any); ok {
			for _, item := range items {
				scrubUnordered(item)
			}
		}
	}
	return v
}

// shortenNode is a Node with the fields that the recordings have, but the version of containerd.
func shortenNode(t testing.TB, data []byte) any {
	var n corev1.Node
	must(t, json.Unmarshal(data, &n))
	annotations, labels := map[string]any{}, map[string]any{}
	for key, value := range n.Annotations {
		if strings.HasPrefix(key, "talos.dev/") {
			annotations[key] = value
		}
	}
	for key, value := range n.Labels {
		if !strings.HasPrefix(key, "beta.kubernetes.io/") {
			labels[key] = value
		}
	}
	short := map[string]any{
		"name": n.Name, "uid": "<uid>", "annotations": annotations, "labels": labels, "taints": nil, "unschedulable": nil,
		"kubeletVersion": n.Status.NodeInfo.KubeletVersion, "osImage": n.Status.NodeInfo.OSImage,
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			short["ready"] = string(c.Status) + " " + c.Reason
		}
	}
	if n.Spec.Unschedulable {
		short["unschedulable"] = true
	}
	var taints []any
	for _, x := range n.Spec.Taints {
		taint := map[string]any{"key": x.Key, "effect": string(x.Effect)}
		if x.TimeAdded != nil {
			taint["timeAdded"] = x.TimeAdded.Format(time.RFC3339)
		}
		taints = append(taints, taint)
	}
	if taints != nil {
		short["taints"] = taints
	}
	return short
}

// shortenPods is a pod, or a list of them, with the fields that the recordings have.
func shortenPods(t testing.TB, data []byte) any {
	var list corev1.PodList
	must(t, json.Unmarshal(data, &list))
	if list.Kind == "Pod" {
		list.Items = make([]corev1.Pod, 1)
		must(t, json.Unmarshal(data, &list.Items[0]))
	}
	var out []any
	for _, p := range list.Items {
		short := map[string]any{
			"annotations": map[string]any{}, "deleted": p.DeletionTimestamp != nil, "name": p.Name, "node": p.Spec.NodeName, "ns": p.Namespace,
			"phase": string(p.Status.Phase), "specImage": p.Spec.Containers[0].Image, "images": nil, "ready": nil, "restarts": nil,
		}
		if s := p.Status.ContainerStatuses; len(s) > 0 {
			short["images"], short["ready"], short["restarts"] = []any{s[0].Image}, s[0].Ready, float64(s[0].RestartCount)
		}
		out = append(out, short)
	}
	if out == nil {
		return nil
	}
	return out
}
