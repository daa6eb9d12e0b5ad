package services

import "github.com/talos-agent/talos-agent/internal/lab/world"

// Extension is the service of an extension that waits for something the virtual machine or the machine config must bring. A
// service that waits keeps the boot sequence from finishing.
type Extension struct {
	Service string
	waits   string
	// Ready reports whether that is there; configured are the services that have been given their config.
	Ready func(g world.Guest, configured map[string]bool) bool
}

// Extensions are those, by the name of the extension.
var Extensions = map[string]Extension{
	"siderolabs/qemu-guest-agent": {
		"ext-qemu-guest-agent", "Waiting for file \"/dev/virtio-ports/org.qemu.guest_agent.0\" to exist",
		func(g world.Guest, _ map[string]bool) bool { return g.Agent },
	},
	"siderolabs/tailscale": {
		"ext-tailscale", "Waiting for extension service config",
		func(_ world.Guest, configured map[string]bool) bool { return configured["tailscale"] },
	},
}

// StartExtension starts the service of an extension, as far as it can.
func (s *Service) StartExtension(e Extension, ready bool) {
	switch {
	case !ready:
		s.MoveTo("Waiting", e.waits)
	case s.State != "Running":
		s.MoveTo("Preparing", NewRunner)
		s.RunProcess("Started task " + e.Service + " (PID 400) for container " + e.Service)
	}
}

// ListUnmet lists what keeps a machine from being ready, of its services, with the text of Talos' own status controller.
func ListUnmet(find func(id string) *Service, all []*Service, control bool) (unmet []string) {
	for _, s := range all {
		if s.State == "Running" && !s.Unknown && !s.Healthy {
			unmet = append(unmet, s.ID+" not healthy")
		}
	}
	required := []string{"apid", "machined", "kubelet"}
	if control {
		required = append(required, "etcd", "trustd")
	}
	for _, id := range required {
		if find(id).State != "Running" {
			unmet = append(unmet, id+" not running")
		}
	}
	return unmet
}
