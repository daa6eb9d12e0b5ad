package rules

import "fmt"

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
