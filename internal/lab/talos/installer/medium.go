package installer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/types/block/blockhelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"

	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Order is what a machine config has a machine install that runs from an installation medium.
type Order struct {
	// Image is the reference of the installer.
	Image string
	// Unattended: a controller carries it out, which v1.14 brought, and tries again what fails. Else a sequence
	// does, which reboots whether or not it fails.
	Unattended bool
	// Reboots: the machine does when it is installed. Else it goes on as it is.
	Reboots bool

	disk  string
	match *cel.Expression
}

// plainSchematic is that of the Image Factory without any customization.
const plainSchematic = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

// ReadOrder reads a config for a machine that runs an image. An installer that the config does not name is the one of
// the version that runs: by a sequence the one that has no extensions and is not signed, which is official up to v1.13.
// Source: talos, v1alpha1_sequencer_tasks.go: Install; controllers/runtime/unattended_install.go; v1.9.6,
// images.DefaultInstallerImage.
func ReadOrder(cfg config.Provider, runs world.Image) (Order, error) {
	if u := cfg.UnattendedInstallConfig(); u != nil && MinorOf(runs.Version) >= 14 {
		match := u.VolumeSelector()
		o := Order{Image: u.InstallerImage(), Unattended: true, Reboots: u.InstallerImage() != "", match: &match}
		if reboots := u.RebootAfterInstall(); reboots != nil {
			o.Reboots = *reboots
		}
		if o.Image == "" {
			if runs.Schematic == "" {
				return o, errors.New("failed to determine installer image: failed to get image factory schematic")
			}
			o.Image = fmt.Sprintf("factory.talos.dev/%s-installer/%s:%s", runs.Platform, runs.Schematic, runs.Version)
		}
		return o, nil
	}
	in := cfg.Machine().Install()
	o := Order{Image: in.Image(), Reboots: true, disk: in.Disk()}
	switch {
	case o.Image != "":
	case MinorOf(runs.Version) >= 14:
		o.Image = "factory.talos.dev/metal-installer/" + plainSchematic + ":" + runs.Version
	default:
		o.Image = "ghcr.io/siderolabs/installer:" + runs.Version
	}
	match, err := in.DiskMatchExpression()
	if err != nil {
		return o, fmt.Errorf("failed to get disk match expression: %w", err)
	}
	o.match = match
	return o, nil
}

// ErrNoDisk is in the error of an order whose selector matches no disk.
var ErrNoDisk = errors.New("no disks matched the expression")

// noDisk is what becomes of an order that names no disk: a path, but none of a device.
const noDisk = "."

// FindDisk returns the path of the device that is installed on.
func (o Order) FindDisk(ctx context.Context, resources state.State) (path string, err error) {
	if o.match != nil {
		found, err := blockhelpers.MatchDisks(ctx, resources, o.match)
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("%w: %s", ErrNoDisk, o.match)
		}
		if err != nil {
			return "", err
		}
		return found[0].TypedSpec().DevPath, nil
	}
	if o.disk == "" {
		return noDisk, nil // filepath.EvalSymlinks makes this of it
	}
	disks, err := safe.StateListAll[*block.Disk](ctx, resources)
	if err != nil {
		return "", err
	}
	for d := range disks.All() {
		s := d.TypedSpec()
		if o.disk == s.DevPath || s.Serial != "" && strings.HasPrefix(o.disk, "/dev/disk/by-id/") && strings.HasSuffix(o.disk, "_"+s.Serial) {
			return s.DevPath, nil
		}
	}
	return "", fmt.Errorf("lstat %s: no such file or directory", o.disk)
}

// Blank is what an installation needs of the machine that runs from a medium.
type Blank interface {
	// RunAfter does something later, if the installation goes on then.
	RunAfter(time.Duration, func())
	// Durations are how long a pull and the installer take.
	Durations() (pull, install time.Duration)
	// Ask has a registry find an installer image. It fails with system.ErrNotPublished and system.ErrNoRegistry;
	// an image without a version holds no installer.
	Ask(ref string, answer func(world.Image, Flaw, error))
	// Partition wipes a disk and makes the partitions of Talos, META with them, before there is anything to boot.
	Partition(path string)
	// Write makes a disk bootable, with the config.
	Write(path string, image world.Image)
}

// Install carries an order out on a disk. No check comes before it, as one does before an upgrade.
// Source: talos, internal/pkg/install: RunInstallerContainer; cmd/installer/pkg/install: runPreflightChecks, and Install for
// the order in which a disk is written.
func (o Order) Install(m Blank, path string, over func(error)) {
	pullImage(m, o.Image, 0, 0, func(image world.Image, flaw Flaw, err error) {
		run := Plan("", image, flaw)
		switch {
		case err != nil:
			over(err)
			return
		case image.Version == "":
			over(errors.New("failed to create task: " + noProgram))
			return
		case path == noDisk:
			run.ExitCode = 1
		case flaw != LacksDependency:
			m.Partition(path)
		}
		_, install := m.Durations()
		m.RunAfter(install, func() {
			if run.ExitCode != 0 {
				over(fmt.Errorf("task %q failed: exit code %d", "upgrade", run.ExitCode))
				return
			}
			m.Write(path, image)
			over(nil)
		})
	})
}

// How long Talos tries to pull an image: twenty minutes, and six times one that the registry does not have.
// Source: talos, internal/pkg/containers/image; go-retry, ExponentialTicker.
const (
	pullUnit       = 5 * time.Second
	pullTimeout    = 20 * time.Minute
	maxNotFoundTry = 5
)

func pullImage(m Blank, ref string, try int, waited time.Duration, over func(world.Image, Flaw, error)) {
	m.Ask(ref, func(image world.Image, flaw Flaw, err error) {
		pause := pullUnit * (1<<try - 1)
		switch {
		case err == nil:
			pull, _ := m.Durations()
			m.RunAfter(pull, func() { over(image, flaw, nil) })
		case errors.Is(err, system.ErrNotPublished) && try == maxNotFoundTry:
			over(image, flaw, fmt.Errorf("failed to pull image %[1]q: failed to resolve image: %[1]s: not found", ref))
		case waited+pause > pullTimeout:
			over(image, flaw, fmt.Errorf("failed to pull image %q: %w", ref, err))
		default:
			m.RunAfter(pause, func() { pullImage(m, ref, try+1, waited+pause, over) })
		}
	})
}
