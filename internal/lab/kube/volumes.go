package kube

import (
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/kube/events"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

const (
	// csiDriver is the driver of the volumes that claims get.
	csiDriver = "csi.lab.example"

	attachTime = 2 * time.Second
	detachTime = 3 * time.Second
	// forcedDetach is how long a volume stays attached to a node whose kubelet cannot
	// report that it is not in use any longer.
	// Source: kubernetes v1.36, attachdetach, maxWaitForUnmountDuration.
	forcedDetach = 6 * time.Minute
)

// claimsOf are the keys of the volume claims of a pod.
func claimsOf(pod map[string]any) []string {
	var out []string
	for _, v := range rules.MapsAt(pod, "spec", "volumes") {
		if name := rules.TextAt(v, "persistentVolumeClaim", "claimName"); name != "" {
			out = append(out, objectKey(rules.TextAt(pod, "metadata", "namespace"), name))
		}
	}
	return out
}

// volumeOf is the volume of a claim, "" if it has none.
func (cl *cluster) volumeOf(claim string) string {
	if o := cl.store.getObject(resClaims, claim); o != nil {
		return rules.TextAt(o.body, "spec", "volumeName")
	}
	return ""
}

// attachVolumes attaches the volumes of a pod to its node. It returns false while one
// is not attached: it takes its time, or is attached to another node still.
func (cl *cluster) attachVolumes(p *pod) bool {
	all := true
	for _, claim := range p.claims {
		volume := cl.volumeOf(claim)
		o := cl.store.getObject(resVolumes, objectKey("", volume))
		if o == nil {
			all = false
			continue
		}
		if rules.TextAt(o.body, "spec", "csi", "driver") != csiDriver {
			continue
		}
		var here, elsewhere *object
		for _, a := range cl.attachmentsOf(volume) {
			if rules.TextAt(a.body, "spec", "nodeName") == p.node {
				here = a
			} else {
				elsewhere = a
			}
		}
		switch {
		case here != nil: // on a machine that was destroyed since, it leads to nothing
			all = all && rules.BoolAt(here.body, "status", "attached") && rules.TextAt(here.body, "status", "attachmentMetadata", "machine") == cl.kubelets[p.node].k.Machine
		case elsewhere != nil && !slices.Contains(rules.ListAt(o.body, "spec", "accessModes"), any("ReadWriteMany")):
			all = false
			cl.reportContention(p, claim, volume, rules.TextAt(elsewhere.body, "spec", "nodeName"))
		default:
			all = false
			cl.attachVolume(p, volume)
		}
	}
	return all
}

// attachmentsOf are the attachments of a volume, or ("") of all, by the driver of
// claims.
func (cl *cluster) attachmentsOf(volume string) []*object {
	objects, _ := cl.store.listObjects(resAttachments, "")
	return slices.DeleteFunc(objects, func(o *object) bool {
		of := rules.TextAt(o.body, "spec", "source", "persistentVolumeName")
		return rules.TextAt(o.body, "spec", "attacher") != csiDriver || volume != "" && of != volume
	})
}

// reportContention reports, once, that a pod waits for a volume that another node has.
func (cl *cluster) reportContention(p *pod, claim, volume, node string) {
	o := cl.store.getObject(resPods, p.key)
	if p.contended || o == nil {
		return
	}
	p.contended = true
	var users []string
	for _, other := range cl.podsOf(node) {
		if slices.Contains(other.claims, claim) && !other.finished {
			_, name := splitKey(other.key)
			users = append(users, name)
		}
	}
	cl.record(events.FailAttach(o.body, volume, users))
}

func (cl *cluster) attachVolume(p *pod, volume string) {
	name, machine := "csi-"+cl.store.nextUnique(), cl.kubelets[p.node].k.Machine
	cl.store.createObject(resAttachments, map[string]any{
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"attacher": csiDriver, "nodeName": p.node, "source": map[string]any{"persistentVolumeName": volume}},
		"status":   map[string]any{"attached": false},
	})
	cl.scheduleAfter(attachTime, func() {
		cl.store.updateStatus(resAttachments, objectKey("", name), func(o map[string]any) bool {
			status := rules.EnsureMap(o, "status")
			status["attached"], status["attachmentMetadata"] = true, map[string]any{"machine": machine}
			return true
		})
		if o := cl.store.getObject(resPods, p.key); o != nil && cl.pods[p.key] == p {
			cl.record(events.Attach(o.body, volume))
		}
	})
}

// touchClaimants has the pods looked at again that have claims and do not run.
func (cl *cluster) touchClaimants() {
	for key, p := range cl.pods {
		if len(p.claims) > 0 && !p.running {
			cl.dirty[ref{resPods, key}] = true
		}
	}
}

// detachUnused detaches, after a while, the volumes that no pod of their node uses.
func (cl *cluster) detachUnused() {
	for _, a := range cl.attachmentsOf("") {
		key := objectKey("", rules.TextAt(a.body, "metadata", "name"))
		node := rules.TextAt(a.body, "spec", "nodeName")
		if cl.usesVolume(a) {
			continue
		}
		wait, n := detachTime, cl.nodes[node]
		if n == nil || !cl.kubelets[node].isAlive() && !n.IsOutOfService() {
			wait = forcedDetach
		}
		if was, ok := cl.detaching[key]; ok && was <= wait {
			continue
		}
		cl.detaching[key] = wait
		cl.scheduleAfter(wait, func() {
			if cl.detaching[key] != wait {
				return
			}
			delete(cl.detaching, key)
			if o := cl.store.getObject(resAttachments, key); o != nil && !cl.usesVolume(o) {
				cl.dropObject(resAttachments, key)
			}
		})
	}
}

// usesVolume reports whether a pod on the node of an attachment uses its volume.
func (cl *cluster) usesVolume(a *object) bool {
	n := cl.nodes[rules.TextAt(a.body, "spec", "nodeName")]
	if n == nil {
		return false
	}
	for _, p := range n.pods {
		if p.finished {
			continue
		}
		for _, claim := range p.claims {
			if cl.volumeOf(claim) == rules.TextAt(a.body, "spec", "source", "persistentVolumeName") {
				return true
			}
		}
	}
	return false
}
