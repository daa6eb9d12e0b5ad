package system

import (
	"context"
	"crypto/rand"
	"fmt"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// What services of Talos report while they start, and their processes. (Recorded of v1.13.9.)
const (
	EtcdWaits    = `Waiting for volumes /var/lib, ETCD to be mounted, service "cri" to be "up", time sync, network, etcd spec`
	CRIWaits     = `Waiting for volumes /var/lib, /var/lib/cni, /var/lib/containerd, /var/run, /var/run/lock to be mounted, network`
	TrustdWaits  = `Waiting for service "containerd" to be "up", time sync, network`
	KubeletWaits = `Waiting for volumes /var/lib, /var/lib/kubelet, /var/log, /var/log/audit, /var/log/containers, /var/log/pods, ` +
		`/var/lib/kubelet/seccomp, /var/lib/kubelet/seccomp/profiles, /var/log/audit/kube, /var/mnt to be mounted, ` +
		`service "cri" to be "up", time sync, network`
	ContainerdStarts = `Process Process(["/bin/containerd" "--address" "/system/run/containerd/containerd.sock" "--state" ` +
		`"/system/run/containerd" "--root" "/system/var/lib/containerd"]) started with PID 54`
	CRIProcess = `Process(["/bin/containerd" "--address" "/run/containerd/containerd.sock" "--config" "/etc/cri/containerd.toml"])`
	CRIStarts  = "Process " + CRIProcess + " started with PID 124"
)

// NewUUID makes a random UUID, for boots and the calls that take one down.
func NewUUID() string {
	var u [16]byte
	// crypto/rand.Read never fails: it crashes the program instead.
	_, _ = rand.Read(u[:])
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// ServiceRestart restarts the kubelet and the services of extensions.
func (s *Service) ServiceRestart(_ context.Context, in *machineapi.ServiceRestartRequest) (*machineapi.ServiceRestartResponse, error) {
	if err := s.Machine.OperateService(in.GetId(), "restart"); err != nil {
		return nil, err
	}
	return &machineapi.ServiceRestartResponse{Messages: []*machineapi.ServiceRestart{{Resp: fmt.Sprintf("Service %q restarted", in.GetId())}}}, nil
}

// ServiceStop stops a service of an extension.
func (s *Service) ServiceStop(_ context.Context, in *machineapi.ServiceStopRequest) (*machineapi.ServiceStopResponse, error) {
	if err := s.Machine.OperateService(in.GetId(), "stop"); err != nil {
		return nil, err
	}
	return &machineapi.ServiceStopResponse{Messages: []*machineapi.ServiceStop{{Resp: fmt.Sprintf("Service %q stopped", in.GetId())}}}, nil
}

// ServiceStart starts the kubelet or a service of an extension.
func (s *Service) ServiceStart(_ context.Context, in *machineapi.ServiceStartRequest) (*machineapi.ServiceStartResponse, error) {
	if err := s.Machine.OperateService(in.GetId(), "start"); err != nil {
		return nil, err
	}
	return &machineapi.ServiceStartResponse{Messages: []*machineapi.ServiceStart{{Resp: fmt.Sprintf("Service %q started", in.GetId())}}}, nil
}
