package rules

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
