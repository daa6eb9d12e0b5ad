package talos

import (
	"maps"
	"slices"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/types/known/timestamppb"
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
}

const (
	etcdWaits    = `Waiting for volumes /var/lib, ETCD to be mounted, service "cri" to be "up", time sync, network, etcd spec`
	criWaits     = `Waiting for volumes /var/lib, /var/lib/cni, /var/lib/containerd, /var/run, /var/run/lock to be mounted, network`
	trustdWaits  = `Waiting for service "containerd" to be "up", time sync, network`
	kubeletWaits = `Waiting for volumes /var/lib, /var/lib/kubelet, /var/log, /var/log/audit, /var/log/containers, /var/log/pods, ` +
		`/var/lib/kubelet/seccomp, /var/lib/kubelet/seccomp/profiles, /var/log/audit/kube, /var/mnt to be mounted, ` +
		`service "cri" to be "up", time sync, network`
	containerd = `Process Process(["/bin/containerd" "--address" "/system/run/containerd/containerd.sock" "--state" ` +
		`"/system/run/containerd" "--root" "/system/var/lib/containerd"]) started with PID 54`
	cri = `Process Process(["/bin/containerd" "--address" "/run/containerd/containerd.sock" "--config" ` +
		`"/etc/cri/containerd.toml"]) started with PID 124`
	checkPassed = "Health check successful"
)

// service returns the service of that id, made when it is first mentioned.
func (b *boot) service(id string) *service {
	s := b.services[id]
	if s == nil {
		s = &service{b: b, id: id, unknown: true}
		b.services[id] = s
	}
	return s
}

// to moves the service to a state.
func (s *service) to(state, msg string) {
	if state != s.state {
		s.unknown, s.healthy, s.message, s.changed = true, false, "", time.Time{}
	}
	s.state = state
	s.events = append(s.events, &machineapi.ServiceEvent{Msg: msg, State: state, Ts: timestamppb.Now()})
	s.b.writeService(s)
}

// run starts the service's process; its health is unknown at first.
func (s *service) run(msg string) {
	s.to("Running", msg)
	s.message, s.changed = "Unknown", time.Now()
	s.b.writeService(s)
}

// well and unwell are the results of health checks.
func (s *service) well() {
	if s.state == "Running" && !s.healthy {
		s.check(true, "", checkPassed)
	}
}

func (s *service) unwell(reason string) {
	if s.state == "Running" && (s.unknown || s.healthy) {
		s.check(false, reason, "Health check failed: "+reason)
	}
}

func (s *service) check(healthy bool, message, event string) {
	s.unknown, s.healthy, s.message, s.changed = false, healthy, message, time.Now()
	s.events = append(s.events, &machineapi.ServiceEvent{Msg: event, State: s.state, Ts: timestamppb.Now()})
	s.b.writeService(s)
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

// list returns the services by id.
func (b *boot) list() []*service {
	var out []*service
	for _, id := range slices.Sorted(maps.Keys(b.services)) {
		out = append(out, b.services[id])
	}
	return out
}

// launch takes the service from nothing to running.
func (s *service) launch(process string, waits ...string) {
	s.to("Starting", "Starting service")
	for _, w := range waits {
		s.to("Waiting", w)
	}
	s.to("Preparing", "Running pre state")
	s.to("Preparing", "Creating service runner")
	s.run(process)
}

// startSystemServices starts what runs on every machine.
func (b *boot) startSystemServices() {
	b.service("containerd").launch(containerd)
	b.service("containerd").well()
	b.service("machined").launch("Service started as goroutine")
	b.service("machined").well()
	apid := b.service("apid")
	apid.launch("Started task apid (PID 98) for container apid",
		`Waiting for service "containerd" to be "up", api certificates, config to be ready`,
		`Waiting for service "containerd" to be "up", config to be ready`)
	b.after(appraise, apid.well)
}

// startNodeServices starts what a configured machine runs, in the order and
// with the dependencies that were seen.
func (b *boot) startNodeServices() {
	c := b.service("cri")
	c.launch(cri, criWaits)
	if b.set.control {
		b.service("trustd").launch("Started task trustd (PID 180) for container trustd", trustdWaits)
		b.service("etcd").to("Starting", "Starting service")
		b.service("etcd").to("Waiting", etcdWaits)
	}
	b.service("kubelet").to("Starting", "Starting service")
	b.service("kubelet").to("Waiting", kubeletWaits)
	b.startExtensions()
	b.after(b.f.step, func() {
		c.well()
		b.criUp = true
		if b.set.control {
			b.service("trustd").well()
			b.startEtcd()
		}
		b.startKubelet()
	})
}

// startEtcd goes on with the etcd of a control plane once CRI is up.
func (b *boot) startEtcd() {
	s := b.service("etcd")
	if b.set.homeless {
		// The node never finds an address of its own, and etcd needs one.
		s.to("Waiting", "Waiting for etcd spec")
		return
	}
	s.to("Waiting", `Waiting for service "cri" to be "up"`)
	switch m := b.m.disk().member; {
	case m == nil:
		s.to("Preparing", "Running pre state")
		b.after(joinWait, func() { b.joinable = true })
	case !slices.Contains(m.of.members, m):
		s.to("Failed", "Failed to run: the member has been permanently removed from the cluster")
	case m.learner:
		b.runEtcd(m, b.f.world.Latency.Learn)
	default:
		b.runEtcd(m, restart)
	}
}

func (b *boot) startKubelet() {
	s := b.service("kubelet")
	if b.set.homeless {
		s.to("Waiting", "Waiting for nodeIPs")
		return
	}
	s.to("Waiting", `Waiting for service "cri" to be "up"`)
	s.to("Preparing", "Running pre state")
	b.after(b.f.step*7/10, func() {
		s.to("Preparing", "Creating service runner")
		s.run("Started task kubelet (PID 239) for container kubelet")
		b.after(b.f.step*27/10, s.well)
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
	for _, name := range b.m.image().Extensions {
		e, ok := extensionServices[name]
		if !ok {
			continue
		}
		s := b.service(e.service)
		switch {
		case !e.ready(b):
			s.to("Waiting", e.waits)
		case s.state != "Running":
			s.to("Preparing", "Creating service runner")
			s.run("Started task " + e.service + " (PID 400) for container " + e.service)
		}
	}
}

// extensionsUp reports whether no extension's service waits.
func (b *boot) extensionsUp() bool {
	for _, name := range b.m.image().Extensions {
		if e, ok := extensionServices[name]; ok && b.service(e.service).state != "Running" {
			return false
		}
	}
	return true
}
