package kube

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/kube/events"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// record writes what components report into events. Nothing new is written into a
// namespace that is being deleted.
func (cl *cluster) record(reports ...events.Report) {
	cl.expireEvents()
	for _, r := range reports {
		ns := r.Namespace()
		space := cl.store.getObject(resNamespaces, objectKey("", ns))
		if space == nil || rules.TextAt(space.body, "status", "phase") == "Terminating" {
			continue
		}
		body := cl.recorder.Record(r)
		if body == nil {
			continue
		}
		meta := rules.MapAt(body, "metadata")
		key := objectKey(ns, rules.TextAt(meta, "name"))
		if cl.store.getObject(resEvents, key) != nil {
			cl.store.updateObject(resEvents, key, func(o map[string]any) bool {
				events.Repeat(o, body)
				return true
			})
			continue
		}
		// Names and addresses that are given out by turns stay those of a cluster without
		// events.
		id := fmt.Sprintf("%x", sha256.Sum256([]byte(cl.store.seed+"/events/"+key)))
		meta["uid"] = id[:8] + "-" + id[8:12] + "-4" + id[13:16] + "-8" + id[17:20] + "-" + id[20:32]
		meta["creationTimestamp"] = rules.FormatNow()
		body["apiVersion"], body["kind"] = resEvents.apiVersion(), resEvents.kind
		// errRaced: a client made one of this name in between.
		_, _ = cl.store.commitObject(resEvents, key, nil, body)
	}
}

// expireEvents removes the events whose time is over. A watch shows that no earlier than
// the next event, or the next reader.
func (cl *cluster) expireEvents() {
	now := time.Now()
	if now.Before(cl.expiring) {
		return
	}
	next := now.Add(events.Kept)
	all, _ := cl.store.listObjects(resEvents, "")
	for _, o := range all {
		switch at := events.Expires(o.body); {
		case !at.After(now):
			cl.store.removeObject(resEvents, objectKey(rules.TextAt(o.body, "metadata", "namespace"), rules.TextAt(o.body, "metadata", "name")))
		case at.Before(next):
			next = at
		}
	}
	cl.expiring = next
	if least := now.Add(events.Granularity); next.Before(least) {
		cl.expiring = least
	}
}

// refreshRead brings what somebody is about to read up to date: heartbeats and events.
func (c *Clusters) refreshRead(cl *cluster, res *resource, namespace, name string) {
	c.refreshBeats(cl, res, namespace, name)
	if res == resEvents {
		c.mu.Lock()
		defer c.mu.Unlock()
		cl.expireEvents()
	}
}

// changeNode lets edit change a Node, and reports whether it is ready now if that changed.
func (cl *cluster) changeNode(name string, edit func(o map[string]any)) {
	key := objectKey("", name)
	was := cl.store.getObject(resNodes, key)
	cl.store.updateObject(resNodes, key, func(o map[string]any) bool {
		edit(o)
		return true
	})
	if now := cl.store.getObject(resNodes, key); was != nil && now != nil {
		cl.record(events.ChangeNode(was.body, now.body)...)
	}
}
