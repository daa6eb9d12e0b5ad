package kube

import (
	"maps"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/talos-agent/talos-agent/internal/lab/kube/events"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/kube/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const (
	// nodeGrace is how long the controllers wait for a silent kubelet before they call its node lost.
	nodeGrace = 40 * time.Second

	// labelsLeave is when the labels of a node are off that its config has no more (recorded: after 5 to 6 s).
	labelsLeave = 5500 * time.Millisecond
)

// kubelet is the kubelet of one node while it runs.
type kubelet struct {
	c     *Clusters
	ca    string
	k     world.Kubelet
	ready func(bool)

	// Guarded by Clusters.mu.
	stopped    bool
	started    bool      // its image is there
	cl         *cluster  // where it registered; nil: nowhere yet
	connecting bool      // the network's pod is on the node
	network    bool      // the network is up
	since      time.Time // when it registered
	silent     time.Time // when it was stopped
	reported   time.Time // the last report in the Node object
}

// RunKubelet implements world.Kubernetes. The node registers once the
// kubelet's image is pulled and an API of its cluster answers. A Node object
// that is deleted while its kubelet runs stays away until the kubelet is
// started again, as in life. A call of ready that began before stop may end
// after it.
func (c *Clusters) RunKubelet(ca string, k world.Kubelet, ready func(bool)) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return func() {}
	}
	kl := &kubelet{c: c, ca: ca, k: k, ready: ready}
	c.kubelets = append(c.kubelets, kl)
	pull := c.pullImages("kubelet/"+kl.machine()+"/"+k.Kubernetes, c.world.Latency.ImagePull)
	c.scheduleAfter(pull, func() {
		if kl.stopped {
			return
		}
		c.world.Spend("kubelet", k.Node, pull, "node/"+k.Node)
		kl.started = true
		kl.registerNode()
	})
	return kl.stopRunning
}

// machine names the disk that keeps what the node pulled.
func (k *kubelet) machine() string { return k.ca + "/" + k.k.Node + "/" + strconv.Itoa(k.k.VMID) }

func (k *kubelet) stopRunning() {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	if k.stopped {
		return
	}
	k.stopped, k.silent = true, time.Now()
	k.c.kubelets = slices.DeleteFunc(k.c.kubelets, func(other *kubelet) bool { return other == k })
	if cl := k.cl; cl != nil {
		cl.scheduleAfter(nodeGrace, func() {
			if k.isCurrent() {
				cl.loseNode(k.k.Node)
			}
		})
	}
}

// isCurrent reports whether no other kubelet registered for the node since.
func (k *kubelet) isCurrent() bool { return k.cl != nil && k.cl.kubelets[k.k.Node] == k }

// isAlive reports whether it runs and is the node's.
func (k *kubelet) isAlive() bool { return k != nil && !k.stopped && k.isCurrent() }

// judgeSkew notes every kubelet that is newer than a kube-apiserver, which Kubernetes does not support: when one of either starts.
func (cl *cluster) judgeSkew() {
	for _, k := range cl.kubelets {
		for _, a := range cl.up {
			if k.isAlive() && rules.IsNewer(k.k.Kubernetes, a.cp.Kubernetes) {
				cl.c.world.Violate("skew", "%s runs kubelet %s, and %s kube-apiserver %s", k.k.Node, k.k.Kubernetes, a.cp.Node, a.cp.Kubernetes)
			}
		}
	}
}

// registerNode makes the Node object, or takes it over after a restart. It does so once more where its
// API stores in another etcd, and none of the one before is left.
func (k *kubelet) registerNode() {
	cl := k.c.clusterUp(k.ca)
	if k.stopped || !k.started || cl == nil || k.cl == cl {
		return
	}
	if k.cl != nil {
		if len(k.cl.apis) > 0 {
			return
		}
		delete(k.cl.kubelets, k.k.Node)
		k.connecting = false
	}
	before := cl.kubelets[k.k.Node]
	k.cl, k.since = cl, time.Now()
	cl.kubelets[k.k.Node] = k
	// Containers, and the network they made, survive a kubelet, not a boot.
	again := before != nil && k.k.BootID != "" && before.k.BootID == k.k.BootID && cl.store.getObject(resNodes, objectKey("", k.k.Node)) != nil
	k.network = again && before.network
	key := objectKey("", k.k.Node)
	var found map[string]any // the Node as it was found
	fresh := cl.store.getObject(resNodes, key) == nil
	if !fresh {
		found = cl.store.getObject(resNodes, key).body
	} else {
		cl.store.createObject(resNodes, rules.NewNode(k.k.Node, cl.freePodCIDR()))
	}
	cl.store.updateObject(resNodes, key, func(o map[string]any) bool {
		rules.WriteAs(rules.Kubelet, o, func() {
			system.DescribeNode(o, k.k, k.network)
			k.reported = time.Now()
			if fresh {
				rules.RegisterTaints(o, k.k.NodeTaints())
			}
		})
		// Talos compares with its config, and looks at the Node when that changes or the
		// machine boots: then it takes its own cordon back. What somebody edits meanwhile stays (recorded).
		if !again || !maps.Equal(before.k.NodeLabels(), k.k.NodeLabels()) || !slices.Equal(before.k.NodeTaints(), k.k.NodeTaints()) {
			rules.WriteAs(rules.Talos, o, func() {
				system.ApplyConfig(o, k.k)
				if !again {
					rules.Uncordon(o)
				}
			})
		}
		return true
	})
	if now := cl.store.getObject(resNodes, key); now != nil {
		cl.record(events.StartKubelet(found, now.body)...)
	}
	cl.judgeSkew()
	cl.scheduleAfter(labelsLeave, func() { cl.dropLabels(k.k.Node) })
	k.c.world.Report(k.k.Node, "registered with Kubernetes")
	if n := cl.nodes[k.k.Node]; again && k.network && n != nil && !n.ready {
		k.c.world.Report(k.k.Node, "is Ready") // it was lost, or the kubelet before never came to it
	}
	for _, p := range cl.boundTo(k.k.Node) {
		if again {
			cl.setPodReady(p, true)
			cl.dirty[ref{resPods, p.key}] = true
		} else {
			cl.stopPod(p)
		}
	}
	cl.mirrorPods(k.k.Node)
	cl.unused = true
	if k.network {
		k.c.queueCallback(func() { k.ready(true) })
	}
	k.c.wakeLoop()
}

// dropLabels has Talos take off the labels that its config has no more.
func (cl *cluster) dropLabels(node string) {
	if k := cl.kubelets[node]; k.isAlive() {
		cl.store.updateObject(resNodes, objectKey("", node), func(o map[string]any) (dropped bool) {
			rules.WriteAs(rules.Talos, o, func() { dropped = rules.DropLabels(o, k.k.NodeLabels()) })
			return dropped
		})
	}
}

// findKubelet returns the address of a node's kubelet, and whether it runs.
func (cl *cluster) findKubelet(node string) (address string, runs bool, err error) {
	o := cl.store.getObject(resNodes, objectKey("", node))
	if o == nil {
		return "", false, apierrors.NewNotFound(resNodes.gr(), node)
	}
	cl.c.mu.Lock()
	defer cl.c.mu.Unlock()
	return rules.NodeAddress(o.body, "InternalIP"), cl.kubelets[node].isAlive(), nil
}

// SetPressure makes a node short of something, DiskPressure for example, or no longer. What runs there stays. It reports whether there is such a node.
func (c *Clusters) SetPressure(node, condition string, on bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.clusters, func(cl *cluster) bool { return cl.store.getObject(resNodes, objectKey("", node)) != nil })
	n := slices.IndexFunc(rules.Pressures, func(p rules.Pressure) bool { return p.Condition == condition })
	if i < 0 || n < 0 {
		return false
	}
	p := rules.Pressures[n]
	c.clusters[i].store.updateObject(resNodes, objectKey("", node), func(o map[string]any) bool {
		rules.SetPressure(o, p, on)
		return true
	})
	c.wakeLoop()
	return true
}

// connectNetwork brings the node's network up: its images are pulled, then the network's pods are ready, and a little later the node is.
func (k *kubelet) connectNetwork() {
	if k.connecting {
		return
	}
	k.connecting = true
	c, node := k.c, k.k.Node
	pull, settle := c.pullImages("cni/"+k.machine(), c.world.Latency.CNIPull), c.world.Latency.Ready
	k.cl.scheduleAfter(pull, func() {
		if !k.isAlive() {
			return
		}
		c.world.Spend("cni", node, pull, "addon/"+k.cl.findNetwork(), "kubelet/"+node, "node/"+node, "api/"+k.cl.first)
		k.network = true
		for _, p := range k.cl.podsOf(node) {
			k.cl.dirty[ref{resPods, p.key}] = true
		}
		k.cl.scheduleAfter(settle, func() {
			if !k.isAlive() || k.cl.store.getObject(resNodes, objectKey("", node)) == nil {
				return
			}
			c.world.Spend("ready", node, settle, "cni/"+node)
			k.cl.changeNode(node, system.ReadyNode)
			c.world.Report(node, "is Ready")
			c.queueCallback(func() { k.ready(true) })
		})
	})
}

// loseNode calls a node lost whose kubelet is silent.
func (cl *cluster) loseNode(node string) {
	cl.changeNode(node, system.LoseNode)
	for _, p := range cl.podsOf(node) {
		if o := cl.store.getObject(resPods, p.key); p.running && p.ready && o != nil {
			cl.record(events.LosePod(o.body))
		}
		cl.setPodReady(p, false)
	}
	cl.c.world.Report(node, "is lost: its kubelet stopped posting node status")
}

// freePodCIDR returns the next part of each pod network, "" when there is none
// left. (In life a node without one stays NotReady; here big clusters on small
// networks just go on.)
func (cl *cluster) freePodCIDR() (free string) {
	free, cl.ranges = rules.NextRange(cl.podCIDRs, cl.ranges, cl.restored)
	return free
}
