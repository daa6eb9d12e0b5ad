package system

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// process is one process of a machine.
type process struct {
	pid, parent int32
	threads     int32
	args        string
	memory      uint64  // resident, bytes
	load        float64 // share of a core that it takes on average
	since       time.Time
}

// What services run and take. The memory of the first two, of the shims and of apid
// is recorded; the others are what such processes take on small clusters.
var programs = map[string]struct {
	args    string
	memory  uint64
	threads int32
	load    float64
}{
	"containerd": {"/bin/containerd --address /system/run/containerd/containerd.sock --state /system/run/containerd --root /system/var/lib/containerd", 42098688, 7, 0.001},
	"cri":        {"/bin/containerd --address /run/containerd/containerd.sock --config /etc/cri/containerd.toml", 78643200, 12, 0.008},
	"apid":       {"/usr/bin/apid", 39321600, 9, 0.002},
	"trustd":     {"/usr/bin/trustd", 31457280, 8, 0.001},
	"etcd":       {"/usr/local/bin/etcd", 94371840, 11, 0.02},
	"kubelet":    {"/usr/local/bin/kubelet --config=/etc/kubernetes/kubelet.yaml", 104857600, 14, 0.03},

	"kube-apiserver":          {"/usr/local/bin/kube-apiserver", 335544320, 12, 0.04},
	"kube-controller-manager": {"/usr/local/bin/kube-controller-manager", 73400320, 9, 0.01},
	"kube-scheduler":          {"/usr/local/bin/kube-scheduler", 52428800, 9, 0.004},
	"kube-proxy":              {"/usr/local/bin/kube-proxy", 47185920, 8, 0.001},
	"kube-flannel":            {"/opt/bin/flanneld", 36700160, 9, 0.001},
	"coredns":                 {"/coredns", 41943040, 9, 0.002},
}

const (
	initMemory  = 108724224
	shimMemory  = 17059840
	otherMemory = 33554432 // of a program that is not known here
)

// pidOf finds the process id in the message of a service that runs.
var pidOf = pattern.New(`\bPID (\d+)`)

// servicePID is the process id of a service that runs; 0: it is part of init.
func servicePID(s *machineapi.ServiceInfo) int32 {
	events := s.GetEvents().GetEvents()
	for i := len(events) - 1; i >= 0; i-- {
		if m := pidOf.FindStringSubmatch(events[i].GetMsg()); m != nil {
			pid, err := strconv.ParseInt(m[1], 10, 32)
			if err != nil {
				return 0
			}
			return int32(pid)
		}
	}
	return 0
}

// runningSince is when a service came to run.
func runningSince(s *machineapi.ServiceInfo) time.Time {
	var since time.Time
	for _, e := range s.GetEvents().GetEvents() {
		if e.GetState() == "Running" && strings.Contains(e.GetMsg(), "PID") {
			since = e.GetTs().AsTime()
		}
	}
	return since
}

// processes lists what runs: init, the services of the machine's stage and the
// containers of its pods, each container below its shim.
func (s Snapshot) processes() []process {
	all := []process{{pid: 1, threads: 10, args: "/sbin/init", memory: initMemory, load: 0.004, since: s.Booted}}
	for _, service := range s.Services {
		pid := servicePID(service)
		if service.GetState() != "Running" || pid == 0 {
			continue
		}
		p := process{pid: pid, parent: 1, threads: 8, args: "/usr/bin/" + service.GetId(), memory: otherMemory, load: 0.001, since: runningSince(service)}
		if known, ok := programs[service.GetId()]; ok {
			p.args, p.memory, p.threads, p.load = known.args, known.memory, known.threads, known.load
		}
		if id := service.GetId(); id != "containerd" && id != "cri" {
			all = append(all, shimOf("system", id, pid-20, s.Booted))
			p.parent = pid - 20
		}
		all = append(all, p)
	}
	for i, pod := range s.Pods {
		shim := podPID(i, -1)
		all = append(all, shimOf("k8s.io", sandboxID(pod), shim, s.Booted))
		for j, c := range pod.Containers {
			p := process{pid: podPID(i, j+1), parent: shim, threads: 8, args: "/" + c.Name, memory: otherMemory, load: 0.001, since: s.Booted}
			if known, ok := programs[c.Name]; ok {
				p.args, p.memory, p.threads, p.load = known.args, known.memory, known.threads, known.load
			}
			all = append(all, p)
		}
	}
	return all
}

// podPID is the process id of a container of a pod: 0 its sandbox, -1 its shim.
func podPID(pod, container int) int32 { return int32(2000 + pod*20 + container + 1) }

func shimOf(namespace, id string, pid int32, since time.Time) process {
	return process{pid: pid, parent: 1, threads: 11, memory: shimMemory, since: since,
		args: fmt.Sprintf("/bin/containerd-shim-runc-v2 -namespace %s -id %s -address /run/containerd/containerd.sock", namespace, id)}
}

// Processes lists what runs.
func (s *Service) Processes(context.Context, *emptypb.Empty) (*machineapi.ProcessesResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	answer := &machineapi.Process{}
	for _, p := range now.processes() {
		binary, _, _ := strings.Cut(p.args, " ")
		answer.Processes = append(answer.Processes, &machineapi.ProcessInfo{
			Pid: p.pid, Ppid: p.parent, State: "S", Threads: p.threads, CpuTime: hundredths(now.cpuTime(p)),
			VirtualMemory: p.memory + 1269<<20, ResidentMemory: p.memory,
			Command: path.Base(binary), Executable: binary, Args: p.args,
		})
	}
	return &machineapi.ProcessesResponse{Messages: []*machineapi.Process{answer}}, nil
}

// cpuTime is what a process has taken of the cores, in seconds.
func (s Snapshot) cpuTime(p process) float64 {
	return max(s.Now.Sub(p.since).Seconds(), 0) * p.load
}

// hundredths rounds as the kernel counts.
func hundredths(seconds float64) float64 { return float64(int64(seconds*100)) / 100 }
