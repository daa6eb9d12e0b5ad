package rules

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Amounts are what nodes have to give and pods ask for.
type Amounts struct{ MilliCPU, Memory, Pods int64 }

// Plus adds two of them up.
func (a Amounts) Plus(b Amounts) Amounts {
	return Amounts{a.MilliCPU + b.MilliCPU, a.Memory + b.Memory, a.Pods + b.Pods}
}

// AmountsOf reads a list of resources. What is no quantity is nothing: the server
// refuses it.
func AmountsOf(list map[string]any) Amounts {
	read := func(key string) resource.Quantity {
		text, ok := list[key].(string)
		if !ok {
			return resource.Quantity{}
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return resource.Quantity{}
		}
		return q
	}
	cpu, memory, pods := read("cpu"), read("memory"), read("pods")
	return Amounts{cpu.MilliValue(), memory.Value(), pods.Value()}
}

// RequestsOf is what a pod asks of its node: for all containers together, or for the
// greediest that runs before them, if that is more.
// Source: kubernetes v1.36, k8s.io/component-helpers/resource, PodRequests.
func RequestsOf(pod map[string]any) Amounts {
	var sum, before, most Amounts
	for _, e := range ListAt(pod, "spec", "containers") {
		c, _ := e.(map[string]any)
		sum = sum.Plus(AmountsOf(MapAt(c, "resources", "requests")))
	}
	for _, e := range ListAt(pod, "spec", "initContainers") {
		c, _ := e.(map[string]any)
		need := AmountsOf(MapAt(c, "resources", "requests"))
		if TextAt(c, "restartPolicy") == "Always" { // it goes on beside the others
			before = before.Plus(need)
			need = Amounts{}
		}
		need = need.Plus(before)
		most.MilliCPU, most.Memory = max(most.MilliCPU, need.MilliCPU), max(most.Memory, need.Memory)
	}
	sum = sum.Plus(before)
	sum.MilliCPU, sum.Memory = max(sum.MilliCPU, most.MilliCPU), max(sum.Memory, most.Memory)
	sum = sum.Plus(AmountsOf(MapAt(pod, "spec", "overhead")))
	sum.Pods = 1
	return sum
}

// LackFor returns in the scheduler's text what a node with so much in use lacks for a
// pod, and whether it would if it were empty.
// Source: kubernetes v1.36, pkg/scheduler/framework/plugins/noderesources/fit.go.
func (n *Node) LackFor(need, used Amounts) (lacks []string, never bool) {
	has := n.Allocatable
	if used.Pods+need.Pods > has.Pods {
		lacks = append(lacks, "Too many pods")
	}
	if need.MilliCPU > 0 && used.MilliCPU+need.MilliCPU > has.MilliCPU {
		lacks = append(lacks, "Insufficient cpu")
		never = never || need.MilliCPU > has.MilliCPU
	}
	if need.Memory > 0 && used.Memory+need.Memory > has.Memory {
		lacks = append(lacks, "Insufficient memory")
		never = never || need.Memory > has.Memory
	}
	return lacks, never
}

// HasRoom reports whether a node with so much in use has room for a pod. For a critical one others
// would make room.
func (n *Node) HasRoom(need, used Amounts, critical bool) bool {
	lacks, never := n.LackFor(need, used)
	return len(lacks) == 0 || critical && !never
}

// Reject is why the kubelet of a node with so much in use does not take a pod, "" if it does.
// Source: kubernetes v1.36, pkg/kubelet/lifecycle/predicate.go, and kubelet.go, rejectPod.
func (n *Node) Reject(need, used Amounts) (reason, message string) {
	for _, r := range []struct {
		name            string
		need, used, has int64
	}{
		{"pods", need.Pods, used.Pods, n.Allocatable.Pods},
		{"cpu", need.MilliCPU, used.MilliCPU, n.Allocatable.MilliCPU},
		{"memory", need.Memory, used.Memory, n.Allocatable.Memory},
	} {
		if r.need > 0 && r.used+r.need > r.has {
			return "OutOf" + r.name, fmt.Sprintf("Pod was rejected: Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", r.name, r.need, r.used, r.has)
		}
	}
	return "", ""
}

// Verdict collects why a pod is on no node.
type Verdict struct {
	nodes    int
	reasons  map[string]int
	hopeless int // nodes that would not take it if others made room
}

// Refuse notes why a node does not take the pod, and whether that would be so if
// other pods made room.
func (v *Verdict) Refuse(hopeless bool, reasons ...string) {
	if v.reasons == nil {
		v.reasons = map[string]int{}
	}
	v.nodes++
	for _, r := range reasons {
		v.reasons[r]++
	}
	if hopeless {
		v.hopeless++
	}
}

// String is the message of the pod's condition. No pod ever makes room for another
// here.
// Source: kubernetes v1.36, pkg/scheduler/framework/types.go, FitError.
func (v *Verdict) String() string {
	if v.nodes == 0 {
		return "no nodes available to schedule pods"
	}
	room := map[string]int{}
	if v.hopeless > 0 {
		room["Preemption is not helpful for scheduling"] = v.hopeless
	}
	if rest := v.nodes - v.hopeless; rest > 0 {
		room["No preemption victims found for incoming pod"] = rest
	}
	return listReasons(v.nodes, v.reasons) + " no new claims to deallocate, preemption: " + listReasons(v.nodes, room)
}

func listReasons(nodes int, reasons map[string]int) string {
	var all []string
	for why, n := range reasons {
		all = append(all, fmt.Sprintf("%d %s", n, why))
	}
	slices.Sort(all)
	return fmt.Sprintf("0/%d nodes are available: %s.", nodes, strings.Join(all, ", "))
}
