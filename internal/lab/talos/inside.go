package talos

import (
	"context"
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/lab/talos/access"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/talos/manifests"
	"github.com/talos-agent/talos-agent/internal/lab/talos/services"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Look returns the machine as it is. Kubernetes is asked for the pods without the
// lock of the fleet, which it may be waiting for.
func (i inside) Look() (now system.Snapshot, err error) {
	b, ca := i.b, ""
	if err = b.readFleet(func() error {
		g, img := b.m.guest, b.image
		now = system.Snapshot{
			Talos: img.Version, Platform: img.Platform, Hostname: b.hostname(), BootID: b.id, Link: linkName, MAC: g.MAC,
			Cores: g.Cores, MemoryMiB: g.MemoryMiB, Booted: b.started, Now: b.f.world.GuestNow(), Disks: b.m.disks,
			Bare: b.bare, Configured: b.set != nil, CRI: b.isRunning("cri"), TimeServer: constants.DefaultNTPServer, Timeless: b.m.timeless,
			Images: slices.Concat(b.m.disk().images, b.pulled),
		}
		for _, s := range b.listServices() {
			now.Services = append(now.Services, s.Info())
		}
		if b.set == nil {
			return nil
		}
		now.Images = slices.Concat(manifests.OwnImages(b.set.provider, b.started, b.isRunning), now.Images)
		ca, now.Kubernetes = b.set.kubeCA, b.set.kubelet.Kubernetes
		if c := b.set.provider.NetworkTimeSyncConfig(); c != nil && len(c.Servers()) > 0 {
			now.TimeServer = c.Servers()[0]
		}
		return nil
	}); err != nil {
		return now, err
	}
	if pods, ok := b.f.kubernetes.(world.Containers); ok && now.CRI {
		now.Pods = pods.PodsOn(ca, b.set.kubelet.Node)
	}
	return now, nil
}

// Wait waits for a time of the world.
func (i inside) Wait(ctx context.Context, d time.Duration) error {
	return i.b.f.world.Sleep(ctx, d)
}

// Pull keeps an image: on the machine's disk, or until its next boot. That of an installer takes a
// while; other images are there at once.
func (i inside) Pull(ctx context.Context, image system.Image) error {
	if err := i.b.f.refusePull(image.Ref); err != nil {
		return err
	}
	if _, installs := installer.ParseReference(image.Ref); installs {
		if err := i.Wait(ctx, i.b.f.world.Latency.ImagePull); err != nil {
			return status.FromContextError(err).Err()
		}
	}
	return i.b.alterFleet(func() error {
		to := &i.b.m.disk().images
		if image.Inmem {
			to = &i.b.pulled
		}
		*to = append(*to, image)
		return nil
	})
}

// refusePull is why no registry gives an image.
func (f *Fleet) refusePull(ref string) error {
	_, installs := installer.ParseReference(ref)
	if _, found := installer.Find(f.world, ref); installs && !found || !system.IsPublished(ref) {
		return system.ErrNotPublished
	}
	if k, ok := f.kubernetes.(world.Containers); ok && !k.CanPull(ref) || installer.IsShort(ref) {
		return system.ErrNoRegistry
	}
	return nil
}

// ListCredentials implements access.Machine.
func (i inside) ListCredentials(call string) (c access.Credentials, err error) {
	err = i.b.readFleet(func() error {
		set := i.b.set
		if err := i.b.onControlPlane(call); err != nil {
			return err
		}
		c = access.Credentials{Now: i.b.f.world.GuestNow(), Config: set.provider, CACert: set.plane.CACert, CAKey: set.plane.CAKey,
			Authority: i.b.f.authorities[set.machineCA], Accepted: set.acceptedCA[0]}
		return nil
	})
	return c, err
}

// Events are those of this boot.
func (i inside) Events() *system.Events { return i.b.events }

// What the machine reports of itself while it runs.

func (b *boot) publishSequence(name string, action machineapi.SequenceEvent_Action) {
	b.events.Publish(b.f.world.GuestNow(), "", &machineapi.SequenceEvent{Sequence: name, Action: action})
}

// PublishService implements services.Watcher.
func (b *boot) PublishService(s *services.Service, msg string) {
	action := machineapi.ServiceStateEvent_Action(machineapi.ServiceStateEvent_Action_value[strings.ToUpper(s.State)])
	b.events.Publish(b.f.world.GuestNow(), "", &machineapi.ServiceStateEvent{Service: s.ID, Action: action, Message: msg, Health: s.Info().GetHealth()})
}

func (b *boot) publishStatus(unmet []runtime.UnmetCondition) {
	event := &machineapi.MachineStatusEvent{
		Stage:  machineapi.MachineStatusEvent_MachineStage(b.stage),
		Status: &machineapi.MachineStatusEvent_MachineStatus{Ready: b.ready},
	}
	for _, u := range unmet {
		event.Status.UnmetConditions = append(event.Status.UnmetConditions, &machineapi.MachineStatusEvent_MachineStatus_UnmetCondition{Name: u.Name, Reason: u.Reason})
	}
	b.events.Publish(b.f.world.GuestNow(), "", event)
}

// writeDisks shows the disks of the machine, and the volumes on the first.
func (b *boot) writeDisks() {
	for i, d := range b.m.disks {
		r := system.DescribeDisk(i, d)
		putResource(b, "block.DisksController", block.NewDisk(block.NamespaceName, r.Metadata().ID()), func(o *block.Disk) { *o.TypedSpec() = *r.TypedSpec() })
	}
	b.writeVolumes()
	if b.bare || len(b.m.disks) == 0 {
		return
	}
	r := system.DescribeSystemDisk()
	putResource(b, "block.SystemDiskController", block.NewSystemDisk(block.NamespaceName, r.Metadata().ID()), func(o *block.SystemDisk) { *o.TypedSpec() = *r.TypedSpec() })
}

// writeVolumes shows the volumes of the system disk.
func (b *boot) writeVolumes() {
	for _, r := range system.DescribeVolumes(b.m.disks, b.set != nil, !b.bare) {
		putResource(b, "block.VolumeManagerController", block.NewVolumeStatus(block.NamespaceName, r.Metadata().ID()), func(o *block.VolumeStatus) { *o.TypedSpec() = *r.TypedSpec() })
	}
}
