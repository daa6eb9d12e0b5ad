package talos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"

	"github.com/talos-agent/talos-agent/internal/lab/talos/services"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
)

// findService returns the service of that id, made when it is first mentioned.
func (b *boot) findService(id string) *services.Service {
	s := b.services[id]
	if s == nil {
		s = services.New(id, b)
		b.services[id] = s
	}
	return s
}

// listServices returns the services by id.
func (b *boot) listServices() []*services.Service {
	var out []*services.Service
	for _, id := range slices.Sorted(maps.Keys(b.services)) {
		out = append(out, b.services[id])
	}
	return out
}

// startSystemServices starts what runs on every machine.
func (b *boot) startSystemServices() {
	b.findService("containerd").LaunchProcess(system.ContainerdStarts)
	b.findService("containerd").PassHealth()
	b.findService("machined").LaunchProcess("Service started as goroutine")
	b.findService("machined").PassHealth()
	apid := b.findService("apid")
	apid.LaunchProcess("Started task apid (PID 98) for container apid",
		`Waiting for service "containerd" to be "up", api certificates, config to be ready`,
		`Waiting for service "containerd" to be "up", config to be ready`)
	b.runAfter(appraise, apid.PassHealth)
}

// startNodeServices starts what a configured machine runs, in the order and
// with the dependencies that were seen.
func (b *boot) startNodeServices() {
	c := b.findService("cri")
	c.LaunchProcess(system.CRIStarts, system.CRIWaits)
	if b.set.control {
		b.findService("trustd").LaunchProcess("Started task trustd (PID 180) for container trustd", system.TrustdWaits)
		b.findService("etcd").MoveTo("Starting", "Starting service")
		b.findService("etcd").MoveTo("Waiting", system.EtcdWaits)
	}
	b.findService("kubelet").MoveTo("Starting", "Starting service")
	b.findService("kubelet").MoveTo("Waiting", system.KubeletWaits)
	b.startExtensions()
	b.runAfter(b.f.step, func() {
		if b.stopping {
			return
		}
		c.PassHealth()
		b.criUp = true
		if b.set.control {
			b.findService("trustd").PassHealth()
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
		s.MoveTo("Waiting", "Waiting for etcd spec")
		return
	}
	s.MoveTo("Waiting", `Waiting for service "cri" to be "up"`)
	switch m := b.m.disk().member; {
	case b.m.disk().hasNoEtcd():
		s.MoveTo("Preparing", "Running pre state")
		b.runAfter(joinWait, b.seekAgain)
		b.limitJoin(s)
	case m == nil || !slices.Contains(m.of.members, m):
		s.MoveTo("Preparing", "Running pre state")
		b.runAfter(b.f.step*3/2, func() {
			s.MoveTo("Preparing", services.NewRunner)
			s.RunProcess(etcdRuns)
			b.runAfter(etcdEnds, b.restartEtcd)
		})
	default:
		d := restart
		if m.learner {
			d = b.f.world.Latency.Learn
		}
		s.MoveTo("Preparing", "Running pre state")
		b.runAfter(b.f.step*3/2, func() { b.runEtcd(m, d) })
	}
}

func (b *boot) startKubelet() {
	s := b.findService("kubelet")
	if b.set.homeless {
		s.MoveTo("Waiting", "Waiting for nodeIPs")
		return
	}
	s.MoveTo("Waiting", `Waiting for service "cri" to be "up"`)
	b.runKubelet()
}

// runKubelet runs the kubelet, once more if it ran before: then with another process, and with
// an image that may have to be pulled.
func (b *boot) runKubelet() {
	s := b.findService("kubelet")
	s.MoveTo("Preparing", "Running pre state")
	s.Starts++
	before := s.Image
	s.Image, s.Args = b.kubeletImage(), b.kubeletArgs()
	start, wait := s.Starts, b.f.step*7/10
	if before != "" && before != s.Image && !system.HasImage(b.m.disk().images, s.Image) {
		wait += b.f.world.Latency.ImagePull
	}
	if b.lacksKubelet() {
		b.runAfter(pullPatience, func() {
			if s.Starts == start && s.State == "Preparing" && !b.stopping {
				s.MoveTo("Failed", fmt.Sprintf("Failed to run pre stage: 1 error(s) occurred:\n\tfailed to pull image %[1]q: failed to resolve image: %[1]s: not found", s.Image))
			}
		})
		return // until another config comes (recorded)
	}
	b.runAfter(wait, func() {
		if s.Starts != start || b.stopping {
			return // it was restarted meanwhile, or is not wanted any more
		}
		s.MoveTo("Preparing", services.NewRunner)
		s.RunProcess(fmt.Sprintf("Started task kubelet (PID %d) for container kubelet", s.PID()))
		b.runAfter(b.f.step*27/10, func() {
			if s.Starts == start {
				s.PassHealth()
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
	if s == nil || s.Image == "" || s.Image == b.kubeletImage() && s.Args == b.kubeletArgs() {
		return
	}
	restart := func() {
		if s.State != "Failed" {
			s.MoveTo("Finished", "Service finished successfully")
		}
		s.MoveTo("Starting", "Starting service")
		s.MoveTo("Waiting", system.KubeletWaits)
		b.runKubelet()
	}
	switch s.State {
	case "Running":
		s.MoveTo("Stopping", s.Goodbye())
		if d := b.m.disk(); !system.HasImage(d.images, s.Image) { // it stays on the machine
			d.images = append(d.images, system.Image{Ref: s.Image, Namespace: common.ContainerdNamespace_NS_SYSTEM, Pulled: b.started})
		}
		b.runAfter(b.f.stop, func() {
			if s.State == "Stopping" && !b.stopping {
				restart()
			}
		})
	case "Preparing", "Failed":
		restart()
	}
}

// isRunning reports whether a service runs.
func (b *boot) isRunning(id string) bool {
	s := b.services[id]
	return s != nil && s.State == "Running"
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
		active := !s.HasEnded()
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
			if s.State == "Running" {
				s.MoveTo("Stopping", s.Goodbye())
			}
			s.MoveTo("Finished", "Service finished successfully")
		}
		if operation == "stop" {
			return nil
		}
		s.MoveTo("Starting", "Starting service")
		if !kubelet {
			b.startExtensions()
			return nil
		}
		s.MoveTo("Waiting", system.KubeletWaits)
		if b.criUp { // else the boot goes on with it
			b.startKubelet()
		}
		return nil
	})
}

// startExtensions starts the extensions' services, as far as they can.
func (b *boot) startExtensions() {
	for _, name := range b.image.Extensions {
		if e, ok := services.Extensions[name]; ok {
			b.findService(e.Service).StartExtension(e, e.Ready(b.m.guest, b.set.services))
		}
	}
}

// extensionsUp reports whether no extension's service waits.
func (b *boot) extensionsUp() bool {
	for _, name := range b.image.Extensions {
		if e, ok := services.Extensions[name]; ok && b.findService(e.Service).State != "Running" {
			return false
		}
	}
	return true
}
