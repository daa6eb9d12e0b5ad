package kube

import (
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// How often a kubelet renews its lease, and reports the status of its node when
// nothing has changed.
// Source: kubernetes v1.36, defaults of KubeletConfiguration, which Talos leaves as
// they are (recorded).
const (
	leaseRenewal  = 10 * time.Second
	leaseDuration = 40 * time.Second
	statusReport  = 5 * time.Minute

	leaseNamespace = "kube-node-lease"
)

// lastBeat is when the kubelet last did what it does every so often. Where the
// world's time runs fast, that is once in a second of this process.
func (k *kubelet) lastBeat(every time.Duration) time.Time {
	until := time.Now()
	if k.stopped {
		until = k.silent
	}
	return until.Add(-(until.Sub(k.since) % max(time.Second, k.c.world.Scale(every))))
}

// refreshBeats writes the heartbeats that somebody who reads a resource is about to
// see, of one node or ("") of all. Nothing wakes for them: they are only written when
// they are looked at.
func (c *Clusters) refreshBeats(cl *cluster, res *resource, namespace, name string) {
	if res != resNodes && (res != resLeases || namespace != "" && namespace != leaseNamespace) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	names := []string{name}
	if name == "" {
		names = slices.Sorted(maps.Keys(cl.kubelets))
	}
	for _, node := range names {
		k := cl.kubelets[node]
		switch {
		case k == nil:
		case res == resNodes:
			cl.reportStatus(k)
		default:
			cl.renewLease(k)
		}
	}
}

// reportStatus writes the time of the last report into the conditions of a node.
func (cl *cluster) reportStatus(k *kubelet) {
	beat := k.lastBeat(statusReport)
	if !beat.After(k.reported) {
		return
	}
	k.reported = beat
	cl.store.updateStatus(resNodes, objectKey("", k.k.Node), func(o map[string]any) bool {
		conditions := rules.MapsAt(o, "status", "conditions")
		for _, c := range conditions {
			c["lastHeartbeatTime"] = beat.UTC().Format(time.RFC3339)
		}
		return len(conditions) > 0
	})
}

// renewLease writes the lease of a node's kubelet.
func (cl *cluster) renewLease(k *kubelet) {
	node, key := cl.store.getObject(resNodes, objectKey("", k.k.Node)), objectKey(leaseNamespace, k.k.Node)
	if node == nil {
		return // collected with its owner
	}
	renewed := k.lastBeat(leaseRenewal).UTC().Format(metav1.RFC3339Micro)
	if cl.store.getObject(resLeases, key) == nil {
		cl.store.createObject(resLeases, map[string]any{
			"metadata": map[string]any{"name": k.k.Node, "namespace": leaseNamespace, "ownerReferences": []any{map[string]any{
				"apiVersion": resNodes.apiVersion(), "kind": resNodes.kind, "name": k.k.Node, "uid": rules.TextAt(node.body, "metadata", "uid"),
			}}},
			"spec": map[string]any{"holderIdentity": k.k.Node, "leaseDurationSeconds": int64(leaseDuration.Seconds()), "renewTime": renewed},
		})
		return
	}
	cl.store.updateObject(resLeases, key, func(o map[string]any) bool {
		spec := rules.EnsureMap(o, "spec")
		older := strings.Compare(rules.TextAt(spec, "renewTime"), renewed) < 0
		spec["holderIdentity"], spec["renewTime"] = k.k.Node, renewed
		return older
	})
}
