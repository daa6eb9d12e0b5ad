package talos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
)

// service is one service of Talos as ServiceList shows it. The texts of the
// events are recorded ones.
type service struct {
	b       *boot
	id      string
	state   string // Starting, Waiting, Preparing, Running, Stopping, Finished, Failed
	events  []*machineapi.ServiceEvent
	unknown bool // nobody has looked at its health yet
	healthy bool
	message string // of the last health check
	changed time.Time
	ran     bool   // it has run, so that its health is known while it does not
	starts  int    // of the kubelet
	image   string // of the kubelet that was started
	args    string // and what it was started with
}

const (
	checkPassed = "Health check successful"
	newRunner   = "Creating service runner"
	notRunning  = "service not running"
	keptEvents  = 64 // of a service
)

// findService returns the service of that id, made when it is first mentioned.
func (b *boot) findService(id string) *service {
	s := b.services[id]
	if s == nil {
		s = &service{b: b, id: id, unknown: true}
		b.services[id] = s
	}
	return s
}

// moveTo moves the service to a state. The health of one that ran is unknown in the event,
// and known where it is listed, until it is about to run again (recorded).
func (s *service) moveTo(state, msg string) {
	if state != s.state {
		s.ran = s.ran || s.state == "Running"
		s.unknown, s.healthy, s.message, s.changed = true, false, "", time.Time{}
	}
	s.state = state
	s.record(msg)
	if s.ran && state != "Running" && msg != newRunner {
		s.unknown, s.message, s.changed = false, notRunning, time.Now()
	}
	s.b.writeService(s)
}

// record adds an event to those of the service, which keeps the last ones, and to those of
// the machine.
func (s *service) record(msg string) {
	s.events = append(s.events, &machineapi.ServiceEvent{Msg: msg, State: s.state, Ts: timestamppb.Now()})
	s.events = s.events[max(len(s.events)-keptEvents, 0):]
	s.b.publishService(s, msg)
}

// resume is the process of a service that ended by itself and runs once more: its health was
// not looked at meanwhile.
func (s *service) resume(msg string) {
	s.state = "Running"
	s.record(msg)
	s.b.writeService(s)
}

// runProcess starts the service's process; its health is unknown at first.
func (s *service) runProcess(msg string) {
	s.moveTo("Running", msg)
	s.message, s.changed = "Unknown", time.Now()
	s.b.writeService(s)
}

// passHealth and unwell are the results of health checks.
func (s *service) passHealth() {
	if s.state == "Running" && !s.healthy {
		s.setHealth(true, "", checkPassed)
	}
}

func (s *service) failHealth(reason string) {
	if s.state == "Running" && (s.unknown || s.healthy) {
		s.setHealth(false, reason, "Health check failed: "+reason)
	}
}

func (s *service) setHealth(healthy bool, message, event string) {
	s.unknown, s.healthy, s.message, s.changed = false, healthy, message, time.Now()
	s.record(event)
	s.b.writeService(s)
}

// hasEnded reports whether the service neither runs nor is about to.
func (s *service) hasEnded() bool { return s.state == "Finished" || s.state == "Failed" }

// goodbye is the event of a service that is stopped.
func (s *service) goodbye() string {
	if s.id == "cri" {
		return "Sending SIGTERM to " + system.CRIProcess
	}
	return fmt.Sprintf("Sending SIGTERM to task %s (PID %d, container %s)", s.id, s.pid(), s.id)
}

// info is the service as the API shows it.
func (s *service) info() *machineapi.ServiceInfo {
	health := &machineapi.ServiceHealth{Unknown: s.unknown, Healthy: s.healthy, LastMessage: s.message}
	if !s.changed.IsZero() {
		health.LastChange = timestamppb.New(s.changed)
	} else {
		health.LastChange = timestamppb.New(time.Time{})
	}
	return &machineapi.ServiceInfo{Id: s.id, State: s.state, Health: health, Events: &machineapi.ServiceEvents{Events: slices.Clone(s.events)}}
}

// listServices returns the services by id.
func (b *boot) listServices() []*service {
	var out []*service
	for _, id := range slices.Sorted(maps.Keys(b.services)) {
		out = append(out, b.services[id])
	}
	return out
}

// launchProcess takes the service from nothing to running.
func (s *service) launchProcess(process string, waits ...string) {
	s.moveTo("Starting", "Starting service")
	for _, w := range waits {
		s.moveTo("Waiting", w)
	}
	s.moveTo("Preparing", "Running pre state")
	s.moveTo("Preparing", newRunner)
	s.runProcess(process)
}

// startSystemServices starts what runs on every machine.
func (b *boot) startSystemServices() {
	b.findService("containerd").launchProcess(system.ContainerdStarts)
	b.findService("containerd").passHealth()
	b.findService("machined").launchProcess("Service started as goroutine")
	b.findService("machined").passHealth()
	apid := b.findService("apid")
	apid.launchProcess("Started task apid (PID 98) for container apid",
		`Waiting for service "containerd" to be "up", api certificates, config to be ready`,
		`Waiting for service "containerd" to be "up", config to be ready`)
	b.runAfter(appraise, apid.passHealth)
}

// startNodeServices starts what a configured machine runs, in the order and
// with the dependencies that were seen.
func (b *boot) startNodeServices() {
	c := b.findService("cri")
	c.launchProcess(system.CRIStarts, system.CRIWaits)
	if b.set.control {
		b.findService("trustd").launchProcess("Started task trustd (PID 180) for container trustd", system.TrustdWaits)
		b.findService("etcd").moveTo("Starting", "Starting service")
		b.findService("etcd").moveTo("Waiting", system.EtcdWaits)
	}
	b.findService("kubelet").moveTo("Starting", "Starting service")
	b.findService("kubelet").moveTo("Waiting", system.KubeletWaits)
	b.startExtensions()
	b.runAfter(b.f.step, func() {
		if b.stopping {
			return
		}
		c.passHealth()
		b.criUp = true
		if b.set.control {
			b.findService("trustd").passHealth()
			b.startEtcd()
		}
		b.startKubelet()
	})
}

// startEtcd goes on with the etcd of a control plane once CRI is up.
func (b *boot) startEtcd() {
	s := b.findService("etcd")
	if b.set.homeless {
		// The node never finds an address of its own, and etcd needs one.
		s.moveTo("Waiting", "Waiting for etcd spec")
		return
	}
	s.moveTo("Waiting", `Waiting for service "cri" to be "up"`)
	switch m := b.m.disk().member; {
	case b.m.disk().hasNoEtcd():
		s.moveTo("Preparing", "Running pre state")
		b.runAfter(joinWait, b.seekAgain)
		b.limitJoin(s)
	case m == nil || !slices.Contains(m.of.members, m):
		s.moveTo("Preparing", "Running pre state")
		b.runAfter(b.f.step*3/2, func() {
			s.moveTo("Preparing", newRunner)
			s.runProcess(etcdRuns)
			b.runAfter(etcdEnds, b.restartEtcd)
		})
	default:
		d := restart
		if m.learner {
			d = b.f.world.Latency.Learn
		}
		s.moveTo("Preparing", "Running pre state")
		b.runAfter(b.f.step*3/2, func() { b.runEtcd(m, d) })
	}
}

func (b *boot) startKubelet() {
	s := b.findService("kubelet")
	if b.set.homeless {
		s.moveTo("Waiting", "Waiting for nodeIPs")
		return
	}
	s.moveTo("Waiting", `Waiting for service "cri" to be "up"`)
	b.runKubelet()
}

// runKubelet runs the kubelet, once more if it ran before: then with another process, and with
// an image that may have to be pulled.
func (b *boot) runKubelet() {
	s := b.findService("kubelet")
	s.moveTo("Preparing", "Running pre state")
	s.starts++
	before := s.image
	s.image, s.args = b.kubeletImage(), b.kubeletArgs()
	start, wait := s.starts, b.f.step*7/10
	if before != "" && before != s.image && !system.HasImage(b.m.disk().images, s.image) {
		wait += b.f.world.Latency.ImagePull
	}
	if b.lacksKubelet() {
		b.runAfter(pullPatience, func() {
			if s.starts == start && s.state == "Preparing" && !b.stopping {
				s.moveTo("Failed", fmt.Sprintf("Failed to run pre stage: 1 error(s) occurred:\n\tfailed to pull image %[1]q: failed to resolve image: %[1]s: not found", s.image))
			}
		})
		return // until another config comes (recorded)
	}
	b.runAfter(wait, func() {
		if s.starts != start || b.stopping {
			return // it was restarted meanwhile, or is not wanted any more
		}
		s.moveTo("Preparing", newRunner)
		s.runProcess(fmt.Sprintf("Started task kubelet (PID %d) for container kubelet", s.pid()))
		b.runAfter(b.f.step*27/10, func() {
			if s.starts == start {
				s.passHealth()
			}
		})
	})
}

// pullPatience is for how long Talos asks a registry for an image that it does not have: six
// times, 0, 5, 15, 35 and 75 s apart.
// Source: talos v1.13.9, image.Pull; go-retry, ExponentialTicker.
const pullPatience = 130 * time.Second

// kubeletImage is the image of the active config.
func (b *boot) kubeletImage() string {
	if k := b.set.provider.K8sKubeletConfig(); k != nil {
		return k.Image()
	}
	return ""
}

// lacksKubelet reports whether no registry has the image of the kubelet, nor the machine.
func (b *boot) lacksKubelet() bool {
	image := b.kubeletImage()
	return image != "" && !system.IsPublished(image) && !system.HasImage(b.m.disk().images, image)
}

// kubeletArgs is what else of the active config a running kubelet does not take.
func (b *boot) kubeletArgs() string {
	k := b.set.provider.K8sKubeletConfig()
	if k == nil {
		return ""
	}
	return fmt.Sprint(k.ExtraArgs(), k.ExtraConfig(), k.ExtraMounts(), k.ClusterDNS())
}

// judgeKubelet starts a kubelet of another image, or with other arguments. The present one is
// stopped first, which takes a while (recorded).
func (b *boot) judgeKubelet() {
	s := b.services["kubelet"]
	if s == nil || s.image == "" || s.image == b.kubeletImage() && s.args == b.kubeletArgs() {
		return
	}
	restart := func() {
		if s.state != "Failed" {
			s.moveTo("Finished", "Service finished successfully")
		}
		s.moveTo("Starting", "Starting service")
		s.moveTo("Waiting", system.KubeletWaits)
		b.runKubelet()
	}
	switch s.state {
	case "Running":
		s.moveTo("Stopping", s.goodbye())
		if d := b.m.disk(); !system.HasImage(d.images, s.image) { // it stays on the machine
			d.images = append(d.images, system.Image{Ref: s.image, Namespace: common.ContainerdNamespace_NS_SYSTEM, Pulled: b.started})
		}
		b.runAfter(b.f.stop, func() {
			if s.state == "Stopping" && !b.stopping {
				restart()
			}
		})
	case "Preparing", "Failed":
		restart()
	}
}

// pid is the process of a kubelet, which each start makes another, or of an extension.
func (s *service) pid() int {
	if s.id != "kubelet" {
		return 400
	}
	return 239 + 90*(s.starts-1)
}

// isRunning reports whether a service runs.
func (b *boot) isRunning(id string) bool {
	s := b.services[id]
	return s != nil && s.state == "Running"
}

// OperateService starts, stops or restarts a service for a call. Talos lets its
// callers do so with the services of extensions, and start and restart the kubelet
// (from system.go and services/kubelet.go of v1.13.9, recorded as far as it
// refuses).
func (i inside) OperateService(id, operation string) error {
	b := i.b
	return b.alterFleet(func() error {
		s := b.services[id]
		if s == nil {
			return fmt.Errorf("service %q not defined", id)
		}
		active := !s.hasEnded()
		switch {
		case operation == "start" && active, operation == "stop" && !active:
			return nil // it is so already
		case operation == "restart" && !active:
			operation = "start"
		}
		kubelet := id == "kubelet" && operation != "stop"
		if !kubelet && !strings.HasPrefix(id, "ext-") {
			return fmt.Errorf("service %q doesn't support %s operation via API", id, operation)
		}
		if active {
			if s.state == "Running" {
				s.moveTo("Stopping", s.goodbye())
			}
			s.moveTo("Finished", "Service finished successfully")
		}
		if operation == "stop" {
			return nil
		}
		s.moveTo("Starting", "Starting service")
		if !kubelet {
			b.startExtensions()
			return nil
		}
		s.moveTo("Waiting", system.KubeletWaits)
		if b.criUp { // else the boot goes on with it
			b.startKubelet()
		}
		return nil
	})
}

// extensionServices are the services of extensions that wait for something
// the virtual machine or the machine config must bring. A service that waits
// keeps the boot sequence from finishing.
var extensionServices = map[string]struct {
	service string
	waits   string
	ready   func(*boot) bool
}{
	"siderolabs/qemu-guest-agent": {
		"ext-qemu-guest-agent", "Waiting for file \"/dev/virtio-ports/org.qemu.guest_agent.0\" to exist",
		func(b *boot) bool { return b.m.guest.Agent },
	},
	"siderolabs/tailscale": {
		"ext-tailscale", "Waiting for extension service config",
		func(b *boot) bool { return b.set.services["tailscale"] },
	},
}

// startExtensions starts the extensions' services, as far as they can.
func (b *boot) startExtensions() {
	for _, name := range b.image.Extensions {
		e, ok := extensionServices[name]
		if !ok {
			continue
		}
		s := b.findService(e.service)
		switch {
		case !e.ready(b):
			s.moveTo("Waiting", e.waits)
		case s.state != "Running":
			s.moveTo("Preparing", newRunner)
			s.runProcess("Started task " + e.service + " (PID 400) for container " + e.service)
		}
	}
}

// extensionsUp reports whether no extension's service waits.
func (b *boot) extensionsUp() bool {
	for _, name := range b.image.Extensions {
		if e, ok := extensionServices[name]; ok && b.findService(e.service).state != "Running" {
			return false
		}
	}
	return true
}
