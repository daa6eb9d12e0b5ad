package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/gate"
	"github.com/talos-agent/talos-agent/internal/gate/trial"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
)

// mostObjects bounds what a gate of the inventory is about: all of them are held in memory.
const mostObjects = 5000

// mostObjectBytes bounds them as well: one object has up to 1.5 MB.
const mostObjectBytes = 16 << 20

// pageOfObjects is how many are asked for at once.
const pageOfObjects = 500

// CheckGates returns which conditions of the inventory hold, by the names of their gates. One is unknown where its objects cannot be read
// as a whole, or do not have what its condition asks for.
func (k *Cluster) CheckGates(ctx context.Context, d cluster.Desired, o cluster.Observed) map[string]cluster.Seen[bool] {
	gates := d.Repository().Spec.Gates
	out := make(map[string]cluster.Seen[bool], len(gates))
	ctx, leave, err := k.enter(ctx)
	if err != nil {
		for _, g := range gates {
			out[g.Name] = cluster.Unseen[bool](err.Error())
		}
		return out
	}
	defer leave()
	c := &changer{k: k, access: d.Access.Kube}
	request := requestOf(d, o)
	tooMuch := ""
	for _, g := range gates {
		if g.Job.Manifest != "" {
			continue
		}
		if tooMuch != "" { // each would take its time of a worker, in every pass
			out[g.Name] = cluster.Unseen[bool]("it was not looked at, because the gate " + tooMuch + " takes too much")
			continue
		}
		request.Condition, request.Now = g.Condition, time.Now()
		holds, err := c.checkInTime(ctx, g, request)
		if out[g.Name] = cluster.Saw(holds); err != nil {
			out[g.Name] = cluster.Unseen[bool](kubeapi.Reason(err))
		}
		if trial.TookTooMuch(err) {
			tooMuch = g.Name
		}
	}
	return out
}

// requestOf is what all gates of a cluster are evaluated with.
func requestOf(d cluster.Desired, o cluster.Observed) (r trial.Request) {
	status, err := json.Marshal(statusOf(d, o))
	if r.Status = status; err != nil {
		r.Status, r.NoStatus = nil, err.Error()
	}
	return r
}

// checkInTime is checkGate, with half of the time that is left: the gates after one that waits for an answer are looked
// at as well.
func (c *changer) checkInTime(ctx context.Context, g cluster.Gate, r trial.Request) (bool, error) {
	if end, bounded := ctx.Deadline(); bounded {
		within := time.Until(end) / 2
		late := fmt.Errorf("it was not looked at to its end in %v", within.Round(100*time.Millisecond))
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, within, late)
		defer cancel()
	}
	holds, err := c.checkGate(ctx, g, r)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return holds, err
}

// checkGate reports whether one gate holds.
func (c *changer) checkGate(ctx context.Context, g cluster.Gate, r trial.Request) (bool, error) {
	if g.Objects.Kind != "" {
		err := c.ask(ctx, func(ctx context.Context, set kubernetes.Interface) (err error) {
			r.Objects, err = listObjects(ctx, set, g.Objects)
			return err
		})
		if err != nil {
			return false, err
		}
	}
	return trial.Evaluate(ctx, c.k.worker, r)
}

// listObjects lists the objects that a selector is for, each as JSON.
func listObjects(ctx context.Context, set kubernetes.Interface, s cluster.ObjectSelector) ([][]byte, error) {
	path, err := findResource(ctx, set, s)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	left := int64(mostObjectBytes)
	for more := ""; ; {
		request := set.CoreV1().RESTClient().Get().AbsPath(path).Param("limit", fmt.Sprint(pageOfObjects))
		for key, value := range map[string]string{"labelSelector": s.Labels, "continue": more} {
			if value != "" {
				request = request.Param(key, value)
			}
		}
		if s.Name != "" {
			request = request.Param("fieldSelector", fields.OneTermEqualSelector("metadata.name", s.Name).String())
		}
		body, err := readAnswer(ctx, request, left)
		if err != nil {
			return nil, err
		}
		var page struct {
			Metadata metav1.ListMeta   `json:"metadata"`
			Items    []json.RawMessage `json:"items"`
		}
		if left -= int64(len(body)); left < 0 {
			return nil, fmt.Errorf("those of %s have more than %d MiB: write a namespace, a name or labels", s.Kind, mostObjectBytes>>20)
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, fmt.Errorf("read the list of %s: %w", s.Kind, err)
		}
		for _, item := range page.Items {
			out = append(out, item)
		}
		if len(out) > mostObjects {
			return nil, fmt.Errorf("there are more than %d of %s: write a namespace, a name or labels", mostObjects, s.Kind)
		}
		if more = page.Metadata.Continue; more == "" {
			return out, nil
		}
	}
}

// readAnswer reads what a request is answered with, of which no more than one byte above most.
func readAnswer(ctx context.Context, request *rest.Request, most int64) (body []byte, err error) {
	stream, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	return io.ReadAll(io.LimitReader(stream, most+1))
}

// findResource is the path under which the objects of a selector are listed.
func findResource(ctx context.Context, set kubernetes.Interface, s cluster.ObjectSelector) (string, error) {
	base := "/apis/"
	if !strings.Contains(s.APIVersion, "/") {
		base = "/api/"
	}
	body, err := readAnswer(ctx, set.CoreV1().RESTClient().Get().AbsPath(base+s.APIVersion), mostObjectBytes)
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("which objects %s has: the cluster has no such API: install what brings it, or correct api_version of the gate", s.APIVersion)
	case err != nil:
		return "", fmt.Errorf("which objects %s has: %w", s.APIVersion, kubeError(err))
	}
	var known metav1.APIResourceList
	if err := json.Unmarshal(body, &known); err != nil {
		return "", fmt.Errorf("which objects %s has: %w", s.APIVersion, err)
	}
	i := slices.IndexFunc(known.APIResources, func(r metav1.APIResource) bool { return r.Kind == s.Kind && !strings.Contains(r.Name, "/") })
	switch {
	case i < 0:
		return "", fmt.Errorf("the cluster has no %s in %s: install what brings it, or correct kind or api_version of the gate", s.Kind, s.APIVersion)
	case s.Namespace != "" && known.APIResources[i].Namespaced:
		return base + s.APIVersion + "/namespaces/" + url.PathEscape(s.Namespace) + "/" + known.APIResources[i].Name, nil
	}
	return base + s.APIVersion + "/" + known.APIResources[i].Name, nil
}

// statusOf is what a condition may ask of the cluster besides its objects. What is not known is not there: a condition
// that asks for it is not known, either.
func statusOf(d cluster.Desired, o cluster.Observed) map[string]any {
	status := map[string]any{}
	if o.Nodes.Known {
		nodes := map[string]any{}
		for _, n := range d.Spec.Nodes {
			kn := o.Nodes.Value[n.Name]
			node := map[string]any{"role": string(n.Role), "ready": kn.Ready, "cordoned": kn.Cordoned}
			for key, version := range map[string]string{"talos": o.Machines[n.Name].Talos, "kubernetes": kn.Kubelet} {
				if version != "" {
					node[key] = version
				}
			}
			nodes[n.Name] = node
		}
		status[gate.StatusNodes] = nodes
	}
	if o.Releases.Known {
		addons := map[string]any{}
		for _, a := range d.Spec.Addons {
			rel := o.Releases.Value[a.Name]
			addons[a.Name] = map[string]any{"status": rel.Status, "ready": rel.Ready}
		}
		status[gate.StatusAddons] = addons
	}
	if o.Members.Known {
		status[gate.StatusEtcd] = map[string]any{"members": int64(len(o.Members.Value))}
	}
	return status
}
