package kube

import (
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/talos-agent/talos-agent/internal/lab/kube/containers"
	"github.com/talos-agent/talos-agent/internal/lab/kube/events"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/kube/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// establish is how long a custom resource is not served yet after its
// definition was made.
const establish = time.Second

// fillStore fills an empty store with what Kubernetes puts into a new cluster.
func (cl *cluster) fillStore(cp world.ControlPlane) {
	if cl.filled {
		return
	}
	cl.filled = true
	cl.cni, cl.caPEM = cp.CNI, string(cp.CACert)
	cl.podCIDRs = cp.PodCIDR
	cl.store.services = rules.FirstRange(cp.ServiceCIDR)
	for _, o := range system.NewCluster(cp) {
		cl.addObject(findBuiltin(o.Group, o.Resource), o)
	}
}

// deploy makes what Talos deploys, as far as it is missing, and lists it: the machine of a control plane does when it starts,
// and when its config has it render something else.
func (cl *cluster) deploy(cp world.ControlPlane) {
	key := objectKey("kube-system", system.Inventory)
	listed := map[string]any{}
	if o := cl.store.getObject(resConfigMaps, key); o != nil {
		listed = rules.MapAt(o.body, "data")
	}
	missing, listed := system.Deploy(cp, listed, func(o system.Object) bool {
		return cl.store.getObject(findBuiltin(o.Group, o.Resource), objectKey(o.Namespace, o.Name)) != nil
	})
	for _, o := range missing {
		cl.addObject(findBuiltin(o.Group, o.Resource), o)
	}
	cl.store.updateObject(resConfigMaps, key, func(o map[string]any) bool { return system.SetData(o, listed) })
}

// addObject makes an object the way a client would, defaults and all, if a snapshot did not bring it.
func (cl *cluster) addObject(res *resource, o system.Object) {
	if cl.store.getObject(res, objectKey(o.Namespace, o.Name)) != nil {
		return
	}
	meta := rules.EnsureMap(o.Body, "metadata")
	meta["name"] = o.Name
	o.Body["apiVersion"], o.Body["kind"] = res.apiVersion(), res.kind
	if _, err := cl.store.insertObject(res, &request{namespace: o.Namespace, version: res.storage, agent: o.Manager}, o.Body); err != nil {
		cl.c.world.Log.Error("lab cannot fill its cluster", "resource", res.name, "name", o.Name, "err", err)
	}
}

// mirrorPods keeps the pods that stand for a control plane's static pods.
func (cl *cluster) mirrorPods(node string) {
	k := cl.kubelets[node]
	o := cl.store.getObject(resNodes, objectKey("", node))
	if len(cl.up) == 0 || !k.isAlive() || !k.k.Control || o == nil {
		return
	}
	i := slices.IndexFunc(cl.up, func(a *apiserver) bool { return a.cp.Node == node })
	pods := cl.static[node]
	if pods == nil && i >= 0 {
		pods = system.StaticPods(cl.up[i].cp.Kubernetes)
	}
	for _, p := range pods {
		key := objectKey("kube-system", p.Name+"-"+node)
		if had := cl.store.getObject(resPods, key); had != nil && !system.IsOf(had.body, p) {
			cl.forceAway(cl.pods[key])
		}
		if (i >= 0 || p.PullError != "") && cl.store.getObject(resPods, key) == nil {
			pod := system.StaticPod(o.body, node, p, cl.store.nextUnique()[:32])
			cl.store.createObject(resPods, pod)
			absent := func(string) bool { return false }
			if p.PullError != "" {
				cl.record(events.FailPull(pod, containers.All(pod)[0], p.PullError)...)
			} else {
				cl.record(events.Start(pod, containers.All(pod), absent, cl.c.world.Latency.ImagePull)...)
			}
		}
		cl.store.updateStatus(resPods, key, func(o map[string]any) bool {
			containers.Mirror(o, k.k.Address.String(), i >= 0, p.PullError)
			return true
		})
	}
}

// resync is when a kubelet tries again to show the static pod that it runs, when no API took it.
// The pod in Kubernetes shows the one from before meanwhile (recorded: up to 100 s).
const resync = 90 * time.Second

// RunStaticPods implements world.Kubernetes.
func (c *Clusters) RunStaticPods(ca, etcd, node string, pods []world.StaticPod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return
	}
	cl := c.clusterOf(ca, etcd)
	cl.manifests[node]++
	number := cl.manifests[node]
	if cl.static[node] == nil {
		cl.static[node] = pods
		cl.mirrorPods(node)
		return
	}
	var see func()
	see = func() {
		switch {
		case cl.manifests[node] != number: // there is a later one
		case len(cl.up) == 0:
			c.scheduleAfter(resync, see)
		default:
			cl.static[node] = pods
			cl.mirrorPods(node)
		}
	}
	c.scheduleAfter(c.world.Latency.Manifest+time.Second, see) // its kube-apiserver is down by then
}

// tendNamespace gives a namespace what every namespace has, or empties one
// that is to go.
func (cl *cluster) tendNamespace(key string) {
	o := cl.store.getObject(resNamespaces, key)
	if o == nil {
		return
	}
	_, ns := splitKey(key)
	if rules.TextAt(o.body, "status", "phase") != "Terminating" {
		cl.store.createObject(resServiceAccounts, system.DefaultAccount(ns))
		cl.store.createObject(resConfigMaps, system.RootCA(ns, cl.caPEM))
		return
	}
	left := 0
	for _, res := range cl.store.listResources() {
		if !res.namespaced {
			continue
		}
		objects, _ := cl.store.listObjects(res, ns)
		for _, o := range objects {
			cl.dropObject(res, objectKey(ns, rules.TextAt(o.body, "metadata", "name")))
		}
		objects, _ = cl.store.listObjects(res, ns)
		left += len(objects)
	}
	if left == 0 {
		cl.store.removeObject(resNamespaces, key)
	}
}

// tendClaim binds a volume claim to a volume made for it, and removes the
// volume with the claim.
func (cl *cluster) tendClaim(key string) {
	o := cl.store.getObject(resClaims, key)
	ns, name := splitKey(key)
	if o == nil {
		volumes, _ := cl.store.listObjects(resVolumes, "")
		for _, v := range volumes {
			if rules.TextAt(v.body, "spec", "claimRef", "namespace") == ns && rules.TextAt(v.body, "spec", "claimRef", "name") == name {
				cl.dropObject(resVolumes, objectKey("", rules.TextAt(v.body, "metadata", "name")))
			}
		}
		return
	}
	if rules.TextAt(o.body, "status", "phase") == "Bound" {
		return
	}
	volume := "pvc-" + rules.TextAt(o.body, "metadata", "uid")
	size := rules.MapAt(o.body, "spec", "resources", "requests")
	modes := rules.ListAt(o.body, "spec", "accessModes")
	cl.store.createObject(resVolumes, system.Volume(o.body, ns, name, volume, csiDriver))
	cl.store.updateObject(resClaims, key, func(o map[string]any) bool {
		rules.EnsureMap(o, "spec")["volumeName"] = volume
		o["status"] = map[string]any{"phase": "Bound", "capacity": size, "accessModes": modes}
		return true
	})
}

// tendDefinition serves a custom resource a moment after its definition was
// made, and takes it away with everything of its kind.
func (cl *cluster) tendDefinition(key string) {
	r := ref{resCRDs, key}
	o := cl.store.getObject(resCRDs, key)
	if o == nil {
		return
	}
	res := customResource(o)
	if rules.ValueAt(o.body, "metadata", "deletionTimestamp") != nil {
		objects, _ := cl.store.listObjects(res, "")
		for _, o := range objects {
			cl.dropObject(res, objectKey(rules.TextAt(o.body, "metadata", "namespace"), rules.TextAt(o.body, "metadata", "name")))
		}
		if objects, _ = cl.store.listObjects(res, ""); len(objects) == 0 {
			cl.store.unserveResource(res.gr())
			cl.store.removeObject(resCRDs, key)
		}
		return
	}
	if cl.store.findResource(res.gr()) != nil {
		cl.store.serveResource(res)
		cl.acceptDefinition(r)
		return
	}
	if cl.planned[r] {
		return
	}
	cl.planned[r] = true
	cl.scheduleAfter(establish, func() {
		delete(cl.planned, r)
		if o := cl.store.getObject(resCRDs, key); o != nil && rules.ValueAt(o.body, "metadata", "deletionTimestamp") == nil {
			cl.store.serveResource(customResource(o))
			cl.acceptDefinition(r)
		}
	})
}

// acceptDefinition reports in a definition's status that it is served.
func (cl *cluster) acceptDefinition(r ref) {
	o := cl.store.getObject(r.res, r.key)
	conditions := rules.ListAt(o.body, "status", "conditions")
	conditions = rules.SetCondition(conditions, string(apiextensionsv1.NamesAccepted), "True", "NoConflicts", "no conflicts found")
	conditions = rules.SetCondition(conditions, string(apiextensionsv1.Established), "True", "InitialNamesAccepted", "the initial names have been accepted")
	cl.setStatus(r, map[string]any{
		"conditions": conditions, "acceptedNames": rules.ValueAt(o.body, "spec", "names"), "storedVersions": []any{customResource(o).storage},
	})
}
