// Package installer asks a machine for another Talos: to pull its installer, to run it beside what it
// runs, or, where the machine cannot do that, to run it on its way down. What an answer means for what became
// of the request is decided here, and nothing else is asked for.
package installer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/internal/text"
)

const (
	// pullWithin bounds a pull, and pullStall the time between two words of its progress: a machine asks
	// a registry that does not answer for as long as it is asked itself.
	pullWithin = 10 * time.Minute
	pullStall  = 2 * time.Minute
	// installWithin bounds a run of the installer, and installStall the time between two lines of it. It
	// goes on when the connection has ended.
	installWithin = 12 * time.Minute
	installStall  = 5 * time.Minute
	// askWithin bounds the call of older versions, which answers when the image was tried and etcd was asked.
	askWithin = 2 * time.Minute
	// mostOutput is how much of the end of what an installer prints is kept, in bytes, and lastLines how
	// many lines.
	mostOutput = 600
	lastLines  = 3
)

// inmem is where an installer is pulled to and run from. The other instance of containerd is stopped
// early when a machine goes down, and its images are collected after an hour (Talos 1.14.1: talosctl's own
// choice since then).
func inmem() *common.ContainerdInstance {
	return &common.ContainerdInstance{Driver: common.ContainerDriver_CONTAINERD, Namespace: common.ContainerdNamespace_NS_SYSTEM}
}

// listen receives from a stream until it ends, which fails when nothing comes for the time of a stall.
func listen[T any](ctx context.Context, within, stall time.Duration, open func(context.Context) (grpc.ServerStreamingClient[T], error), take func(*T)) error {
	ctx, alive, stop := retry.Watch(ctx, within, stall)
	defer stop()
	stream, err := open(ctx)
	for err == nil {
		var m *T
		if m, err = stream.Recv(); err == nil {
			alive()
			take(m)
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// Pull has a machine pull an installer, which it does not where it has it. lifecycle: it is run with Install
// then, else with Upgrade.
func Pull(ctx context.Context, conn grpc.ClientConnInterface, image string, lifecycle bool, report func(string)) error {
	err := PullTo(ctx, conn, inmem(), image, lifecycle, pullWithin, pullStall, func() { report("pulls " + text.OneLine(image)) })
	if status.Code(err) == codes.NotFound || err != nil && strings.HasSuffix(status.Convert(err).Message(), ": not found") {
		return fault.WithHint(fmt.Errorf("there is no image %s: %w", image, err), "see whether the version and the extensions exist: `talos_version` and `talos.schematic` in cluster.yaml")
	}
	return err
}

// PullTo has a machine pull an image into an instance of containerd, which it does not where it is there.
// service: the machine has the service for images, which shows progress.
func PullTo(ctx context.Context, conn grpc.ClientConnInterface, to *common.ContainerdInstance, image string, service bool, within, stall time.Duration, progress func()) error {
	if !service {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		//lint:ignore SA1019 it is what versions up to v1.12 have
		_, err := machineapi.NewMachineServiceClient(conn).ImagePull(ctx, &machineapi.ImagePullRequest{Namespace: to.GetNamespace(), Reference: image})
		return err
	}
	return listen(ctx, within, stall, func(ctx context.Context) (grpc.ServerStreamingClient[machineapi.ImageServicePullResponse], error) {
		return machineapi.NewImageServiceClient(conn).Pull(ctx, &machineapi.ImageServicePullRequest{Containerd: to, ImageRef: image})
	}, func(*machineapi.ImageServicePullResponse) { progress() })
}

// Install has a machine run an installer that it has pulled, for its next boot. It fails with a
// cluster.InstallError where the installer did, with cluster.ErrNotBegun where it was not run; how it ended is
// not known where it fails otherwise, and it may go on.
func Install(ctx context.Context, conn grpc.ClientConnInterface, image string, report func(string)) error {
	var out output
	var code *int32
	received := false
	err := listen(ctx, installWithin, installStall, func(ctx context.Context) (grpc.ServerStreamingClient[machineapi.LifecycleServiceUpgradeResponse], error) {
		return machineapi.NewLifecycleServiceClient(conn).Upgrade(ctx, &machineapi.LifecycleServiceUpgradeRequest{
			Containerd: inmem(), Source: &machineapi.InstallArtifactsSource{ImageName: image}})
	}, func(m *machineapi.LifecycleServiceUpgradeResponse) {
		received = true
		switch p := m.GetProgress().GetResponse().(type) {
		case *machineapi.LifecycleServiceInstallProgress_Message:
			if out.take(p.Message); out.last() != "" {
				report("installs: " + out.last())
			}
		case *machineapi.LifecycleServiceInstallProgress_ExitCode:
			code = &p.ExitCode
		}
	})
	switch {
	case code != nil && *code == 0:
		return nil
	case code != nil:
		return &cluster.InstallError{Code: *code, Output: out.String()}
	case err == nil:
		return errors.New("the machine did not show how the installer ended")
	case !received && isRefused(err):
		return refuse(err)
	}
	return err
}

// Upgrade has a machine run an installer on its way down, and boot what that has installed. OK means that
// it was received. The errors are those of Install.
func Upgrade(ctx context.Context, conn grpc.ClientConnInterface, image string) (*machineapi.UpgradeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	//lint:ignore SA1019 it is what versions up to v1.12 have
	reply, err := machineapi.NewMachineServiceClient(conn).Upgrade(ctx, &machineapi.UpgradeRequest{Image: image})
	switch {
	case err == nil:
		return reply, nil
	case isRefused(err):
		return nil, refuse(err)
	}
	return nil, err
}

// refusals are what Talos answers before anything is installed: the first to a request to go down for it, the
// others to one to install beside what runs, whose code, Internal, is also that of what happens while an installer
// runs and after it (Talos 1.13.9 and 1.14.1: recorded, and their source).
var refusals = []string{
	"error validating installer image", "failed to create etcd client", "failed to acquire upgrade", "error validating etcd for upgrade",

	"failed to get system disk", "system disk not found", "invalid containerd", "failed to create lease", "not found in containerd store",
	"failed to generate container ID", "failed to create container:", "failed to serialize config", "failed to create task", "failed to start task",
}

// isRefused reports whether an error is an answer of Talos by which what was asked for was not begun. No other
// Internal is one: it also comes from a connection that breaks, and from an installer that has begun.
func isRefused(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied, codes.Unimplemented, codes.Unauthenticated:
		return true
	}
	message := status.Convert(err).Message()
	return slices.ContainsFunc(refusals, func(known string) bool { return strings.Contains(message, known) })
}

// noProgram is in what an image without an installer in it fails with, which it always does.
const noProgram = "stat /bin/installer: no such file or directory"

// refuse is the error for an answer that refuses.
func refuse(err error) error {
	message := status.Convert(err).Message()
	isMissing := strings.HasPrefix(message, "error validating installer image") && strings.HasSuffix(message, ": not found")
	if isMissing || strings.Contains(message, noProgram) {
		return &cluster.InstallError{Output: text.OneLine(text.Sanitize(message, mostOutput))}
	}
	return fmt.Errorf("%w: %w", cluster.ErrNotBegun, err)
}

// output is the end of what an installer prints. It comes in pieces, which may hold several lines, or a part
// of one.
type output struct{ text string }

func (o *output) take(piece string) {
	if o.text += piece; len(o.text) > 2*mostOutput {
		o.text = o.text[len(o.text)-mostOutput:]
	}
}

func (o *output) lines() []string {
	var out []string
	for line := range strings.Lines(o.text) {
		if line = text.Sanitize(strings.TrimSpace(line), mostOutput); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// last is the last line.
func (o *output) last() string {
	if lines := o.lines(); len(lines) > 0 {
		return lines[len(lines)-1]
	}
	return ""
}

// String is the last lines, in one.
func (o *output) String() string {
	lines := o.lines()
	if len(lines) > lastLines {
		lines = lines[len(lines)-lastLines:]
	}
	if len(lines) == 0 {
		return "it printed nothing"
	}
	return text.Sanitize(strings.Join(lines, "; "), mostOutput)
}
