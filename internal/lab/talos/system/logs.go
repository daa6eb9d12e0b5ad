package system

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// kernelLines are what the kernel printed while it booted.
func (s Snapshot) kernelLines() (lines []string) {
	line := func(after time.Duration, priority, format string, args ...any) {
		lines = append(lines, fmt.Sprintf("kern: %7s: [%s]: %s\n", priority, s.Booted.Add(after).UTC().Format(time.RFC3339Nano), fmt.Sprintf(format, args...)))
	}
	line(0, "notice", "Linux version %s (@buildkitsandbox) #1 SMP PREEMPT_DYNAMIC", Kernel)
	line(0, "info", "Command line: %s", s.commandLine())
	line(0, "info", "DMI: QEMU Standard PC (Q35 + ICH9, 2009)")
	line(20*time.Millisecond, "info", "Memory: %dK/%dK available", s.memoryTotal()>>10, s.MemoryMiB<<10)
	line(40*time.Millisecond, "info", "smp: Brought up 1 node, %d CPUs", s.Cores)
	for i, d := range s.Disks {
		line(time.Duration(600+10*i)*time.Millisecond, "notice", "sd %d:0:0:0: [%s] %d 512-byte logical blocks", i+2, diskName(i), d.Bytes/512)
	}
	line(700*time.Millisecond, "info", "virtio_net virtio3 %s: renamed from eth0", s.Link)
	return lines
}

// eventLine is what machined prints when it reports an event; "" : nothing.
func eventLine(k event) string {
	text := ""
	switch p := k.payload.(type) {
	case *machineapi.ServiceStateEvent:
		state := p.GetAction().String()
		text = fmt.Sprintf("service[%s](%s): %s", p.GetService(), state[:1]+strings.ToLower(state[1:]), p.GetMessage())
	case *machineapi.SequenceEvent:
		switch {
		case p.GetError() != nil:
			text = fmt.Sprintf("%s sequence: failed: %s", p.GetSequence(), p.GetError().GetMessage())
		case p.GetAction() == machineapi.SequenceEvent_START:
			text = fmt.Sprintf("%s sequence: start", p.GetSequence())
		case p.GetAction() == machineapi.SequenceEvent_STOP:
			text = fmt.Sprintf("%s sequence: done", p.GetSequence())
		}
	case *machineapi.MachineStatusEvent:
		ready := map[bool]string{true: "ready", false: "not ready"}[p.GetStatus().GetReady()]
		text = fmt.Sprintf(`machine is running and %s {"component": "controller-runtime", "controller": "runtime.MachineStatusController", "stage": %q}`, ready, strings.ToLower(p.GetStage().String()))
	}
	if text == "" {
		return ""
	}
	return fmt.Sprintf("user: %7s: [%s]: [talos] %s\n", "warning", k.at.UTC().Format(time.RFC3339Nano), text)
}

// Dmesg sends the lines of the kernel's log, to which machined writes as well.
func (s *Service) Dmesg(in *machineapi.DmesgRequest, out grpc.ServerStreamingServer[common.Data]) error {
	now, err := s.Machine.Look()
	if err != nil {
		return err
	}
	send := func(line string) error {
		if line == "" {
			return nil
		}
		return out.Send(&common.Data{Bytes: []byte(line)})
	}
	batch, end, _ := s.Machine.Events().after(0)
	if !in.GetTail() {
		for _, line := range now.kernelLines() {
			if err := send(line); err != nil {
				return err
			}
		}
		for _, k := range batch {
			if err := send(eventLine(k)); err != nil {
				return err
			}
		}
	}
	if !in.GetFollow() {
		return nil
	}
	return s.Machine.Events().follow(out.Context(), end, func(k event) error { return send(eventLine(k)) })
}

// logged lists the logs of a machine: those of its services, of machined and of the
// controllers.
func (s Snapshot) logged() (ids []string) {
	for _, service := range s.Services {
		ids = append(ids, service.GetId())
	}
	return append(ids, "controller-runtime", "kernel")
}

// LogsContainers lists what has a log.
func (s *Service) LogsContainers(context.Context, *emptypb.Empty) (*machineapi.LogsContainersResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	return &machineapi.LogsContainersResponse{Messages: []*machineapi.LogsContainer{{Ids: now.logged()}}}, nil
}

// Logs sends what a service has logged since the boot, or a container of a pod. With
// follow it stays open, and nothing more comes.
func (s *Service) Logs(in *machineapi.LogsRequest, out grpc.ServerStreamingServer[common.Data]) error {
	now, err := s.Machine.Look()
	if err != nil {
		return err
	}
	lines, err := now.logOf(in)
	if err != nil {
		return err
	}
	if tail := int(in.GetTailLines()); tail >= 0 && tail < len(lines) {
		lines = lines[len(lines)-tail:]
	}
	for _, line := range lines {
		if err := out.Send(&common.Data{Bytes: []byte(line + "\n")}); err != nil {
			return err
		}
	}
	if !in.GetFollow() {
		return nil
	}
	_, end, _ := s.Machine.Events().after(0)
	return s.Machine.Events().follow(out.Context(), end, func(event) error { return nil })
}

func (s Snapshot) logOf(in *machineapi.LogsRequest) ([]string, error) {
	id := in.GetId()
	if in.GetNamespace() == constants.SystemContainerdNamespace || id == "kubelet" {
		for _, known := range s.logged() {
			if known == id {
				return s.serviceLog(id), nil
			}
		}
		return nil, fmt.Errorf("log %q was not registered", id)
	}
	list, err := s.containers(in.GetNamespace(), in.GetDriver())
	if err != nil {
		return nil, err
	}
	for _, c := range list {
		if full := c.info.GetId(); full == id || strings.HasPrefix(full, id+":") && id != c.info.GetPodId() {
			return []string{s.Now.UTC().Format(time.RFC3339Nano) + " stdout F " + path.Base(c.info.GetName()) + " of the lab logs nothing"}, nil
		}
	}
	return nil, fmt.Errorf("container %q not found", id)
}

// serviceLog is what a service has logged: when it began, and what it began.
func (s Snapshot) serviceLog(id string) (lines []string) {
	for _, service := range s.Services {
		if service.GetId() != id || servicePID(service) == 0 {
			continue
		}
		since, pid := runningSince(service).UTC(), servicePID(service)
		if id != "kubelet" {
			return []string{since.Format(time.RFC3339Nano) + " starting " + programs[id].args}
		}
		klog := func(after time.Duration, text string) string {
			return fmt.Sprintf("I%s %7d %s", since.Add(after).Format("0102 15:04:05.000000"), pid, text)
		}
		lines = []string{klog(0, fmt.Sprintf("server.go:532] \"Kubelet version\" kubeletVersion=%q", s.Kubernetes)),
			klog(200*time.Millisecond, "server.go:982] \"Client rotation is on, will bootstrap in background\"")}
		if len(s.Pods) > 0 {
			lines = append(lines, klog(time.Second, fmt.Sprintf("kubelet_node_status.go:78] \"Successfully registered node\" node=%q", s.Hostname)))
		}
	}
	return lines
}
