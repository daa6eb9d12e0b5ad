package system

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// container is one container, or the sandbox of a pod.
type container struct {
	info   *machineapi.ContainerInfo
	memory uint64
	load   float64
}

var errNoCRI = status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix /run/containerd/containerd.sock: connect: no such file or directory"`)

// containers lists what runs in a namespace of containerd. The containerd of the system
// runs apid, trustd and extensions without an image (recorded); etcd and the kubelet
// run in the other one, which only the API of the CRI shows, and that knows pods.
func (s Snapshot) containers(namespace string, driver common.ContainerDriver) ([]container, error) {
	switch {
	case namespace == "":
		return nil, status.Error(codes.InvalidArgument, "namespace can't be empty")
	case driver == common.ContainerDriver_CRI && namespace != constants.K8sContainerdNamespace:
		return nil, errors.New("CRI inspector is supported only for K8s namespace")
	case driver != common.ContainerDriver_CRI && driver != common.ContainerDriver_CONTAINERD:
		return nil, status.Errorf(codes.InvalidArgument, "unsupported driver %q", driver)
	case namespace == constants.SystemContainerdNamespace:
		return s.systemContainers(), nil
	case !s.CRI:
		return nil, errNoCRI
	case namespace == constants.K8sContainerdNamespace:
		return s.podContainers(), nil
	}
	return nil, nil
}

func (s Snapshot) systemContainers() (list []container) {
	for _, service := range s.Services {
		id, pid := service.GetId(), servicePID(service)
		if service.GetState() != "Running" || pid == 0 || id == "containerd" || id == "cri" || id == "etcd" || id == "kubelet" {
			continue
		}
		c := container{memory: programs[id].memory, load: programs[id].load, info: &machineapi.ContainerInfo{
			Namespace: constants.SystemContainerdNamespace, Id: id, InternalId: id, Name: id, PodId: id, Pid: uint32(pid), Status: "RUNNING",
		}}
		if c.memory == 0 {
			c.memory = otherMemory
		}
		list = append(list, c)
	}
	return list
}

func (s Snapshot) podContainers() (list []container) {
	for i, pod := range s.Pods {
		name := pod.Namespace + "/" + pod.Name
		list = append(list, container{info: &machineapi.ContainerInfo{
			Namespace: constants.K8sContainerdNamespace, Id: name, InternalId: sandboxID(pod), Name: name, PodId: name, Uid: pod.UID,
			Image: pauseImage, Pid: uint32(podPID(i, 0)), Status: "SANDBOX_READY",
		}})
		for j, c := range pod.Containers {
			id := hashText(pod.UID + "/" + c.Name)
			list = append(list, container{memory: max(programs[c.Name].memory, otherMemory), load: programs[c.Name].load, info: &machineapi.ContainerInfo{
				Namespace: constants.K8sContainerdNamespace, Id: fmt.Sprintf("%s:%s:%s", name, c.Name, id[:12]), InternalId: id, Name: c.Name, PodId: name,
				Image: c.Image, Pid: uint32(podPID(i, j+1)), Status: "CONTAINER_RUNNING",
			}})
		}
	}
	return list
}

func sandboxID(pod world.Pod) string { return hashText(pod.UID) }

func hashText(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Containers lists the containers of a namespace.
func (s *Service) Containers(_ context.Context, in *machineapi.ContainersRequest) (*machineapi.ContainersResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	list, err := now.containers(in.GetNamespace(), in.GetDriver())
	if err != nil {
		return nil, err
	}
	answer := &machineapi.Container{}
	for _, c := range list {
		answer.Containers = append(answer.Containers, c.info)
	}
	return &machineapi.ContainersResponse{Messages: []*machineapi.Container{answer}}, nil
}

// Stats are the memory and the time of the containers of a namespace.
func (s *Service) Stats(_ context.Context, in *machineapi.StatsRequest) (*machineapi.StatsResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	list, err := now.containers(in.GetNamespace(), in.GetDriver())
	if err != nil {
		return nil, err
	}
	answer := &machineapi.Stats{}
	for _, c := range list {
		answer.Stats = append(answer.Stats, &machineapi.Stat{
			Namespace: in.GetNamespace(), Id: c.info.GetId(), PodId: c.info.GetPodId(), Name: c.info.GetName(),
			MemoryUsage: c.memory, CpuUsage: uint64(c.load * now.uptime() * 1e9),
		})
	}
	return &machineapi.StatsResponse{Messages: []*machineapi.Stats{answer}}, nil
}
