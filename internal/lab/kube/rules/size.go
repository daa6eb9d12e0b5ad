package rules

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// NodeSize is the status.capacity and status.allocatable of a node whose machine has
// so many processors and so much memory.
//
// The kernel keeps a part of the memory for itself, about a sixty-fourth and
// 20 MiB. Talos 1.13 reserves 50m of processor and 384 MiB of memory on workers,
// 512 MiB on control planes (recorded, systemReserved), and the kubelet evicts at
// 100 MiB left (kubernetes v1.36, default of evictionHard).
func NodeSize(cores int, memoryMiB int64, control bool) (capacity, allocatable map[string]any) {
	seen := memoryMiB - memoryMiB/64 - 20
	reserved := int64(384)
	if control {
		reserved = 512
	}
	capacity = map[string]any{
		"cpu": fmt.Sprint(cores), "memory": fmt.Sprintf("%dKi", seen<<10), "pods": "110", "ephemeral-storage": "40Gi",
		"hugepages-1Gi": "0", "hugepages-2Mi": "0",
	}
	allocatable = map[string]any{
		"cpu": fmt.Sprintf("%dm", cores*1000-50), "memory": fmt.Sprintf("%dKi", max(0, seen-reserved-100)<<10), "pods": "110",
		"ephemeral-storage": "40692Mi", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
	}
	return capacity, allocatable
}

// Pressure is a condition of a node that is short of something: what its kubelet
// reports without and with it, and the taint that keeps new pods away.
type Pressure struct {
	Condition, Taint string
	Reasons, Texts   [2]string
}

// Pressures are all of them.
// Source: kubernetes v1.36, pkg/kubelet/nodestatus/setters.go.
var Pressures = []Pressure{
	{"MemoryPressure", "node.kubernetes.io/memory-pressure", [2]string{"KubeletHasSufficientMemory", "KubeletHasInsufficientMemory"},
		[2]string{"kubelet has sufficient memory available", "kubelet has insufficient memory available"}},
	{"DiskPressure", "node.kubernetes.io/disk-pressure", [2]string{"KubeletHasNoDiskPressure", "KubeletHasDiskPressure"},
		[2]string{"kubelet has no disk pressure", "kubelet has disk pressure"}},
	{"PIDPressure", "node.kubernetes.io/pid-pressure", [2]string{"KubeletHasSufficientPID", "KubeletHasInsufficientPID"},
		[2]string{"kubelet has sufficient PID available", "kubelet has insufficient PID available"}},
}

// SetPressure writes into a Node object that it is short of something, or no longer.
func SetPressure(node map[string]any, p Pressure, on bool) {
	which, value := 0, "False"
	if on {
		which, value = 1, "True"
	}
	WriteAs(Controllers, node, func() {
		RemoveTaint(EnsureMap(node, "spec"), p.Taint)
		if on {
			NoteTaint(EnsureMap(node, "spec"), p.Taint, corev1.TaintEffectNoSchedule)
		}
	})
	status := EnsureMap(node, "status")
	status["conditions"] = SetCondition(ListAt(status, "conditions"), p.Condition, value, p.Reasons[which], p.Texts[which])
}
