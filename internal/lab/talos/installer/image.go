package installer

import (
	"fmt"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Flaw is what is wrong with a version of Talos, for tests.
type Flaw int

const (
	// Sound: nothing is.
	Sound Flaw = iota
	// FailsInstall: its installer finds no space on the disk.
	FailsInstall
	// LacksDependency: its installer does not get what it needs from elsewhere, which it may another time.
	LacksDependency
	// CrashesOnBoot: its machined ends with a fatal error as soon as it has started, which goes back
	// to the other slot.
	CrashesOnBoot
	// HangsOnBoot: nothing of Talos runs, and a power cycle boots the same again.
	HangsOnBoot
	// HangsOnReboot: nothing of Talos runs after a machine has booted it by itself, and it does after a
	// power cycle or a reset.
	HangsOnReboot
	// BootsSlowly: every boot takes minutes longer, in which nothing answers.
	BootsSlowly
)

// Delay is how much longer than another one a version with a flaw boots.
func (f Flaw) Delay() time.Duration {
	if f == BootsSlowly {
		return 6 * time.Minute
	}
	return 0
}

// Reference is what the reference of an installer image asks for.
type Reference struct {
	Version   string // v1.13.9
	Schematic string // id; "": the official image, which has none
	Signed    bool   // for Secure Boot
}

// references are those of the official installer and of the Image Factory's, whose name has
// the platform since v1.10; a mirror of either has another host.
var references = pattern.New(`^[^/]+/(?:.*/)?(?:(siderolabs/installer)|[a-z0-9-]*installer(-secureboot)?/([0-9a-f]{64})):(v\d+\.\d+\.\d+[0-9A-Za-z.-]*)(?:@sha256:[0-9a-f]{64})?$`)

// ParseReference reads a reference; false: it is not one of an installer.
func ParseReference(ref string) (Reference, bool) {
	m := references.FindStringSubmatch(ref)
	if m == nil {
		return Reference{}, false
	}
	return Reference{Version: m[4], Schematic: m[3], Signed: m[2] != ""}, true
}

// IsShort reports whether a full reference is that of an installer named without its registry.
// Docker Hub, which is asked then, gives no answer that Talos takes for one (recorded).
func IsShort(ref string) bool { return strings.HasPrefix(ref, "docker.io/library/installer:") }

// newestOfficial is the last minor that is published as ghcr.io/siderolabs/installer.
// Source: the documentation of v1.14, upgrading.
const newestOfficial = 13

// Find returns the Talos in an installer image; false: there is no such image.
func Find(w *world.World, ref string) (world.Image, bool) {
	r, ok := ParseReference(ref)
	if !ok {
		return world.Image{}, false
	}
	if r.Schematic != "" {
		image, ok := w.FindInstaller(r.Schematic, r.Version)
		image.Signed = r.Signed
		return image, ok
	}
	image := world.Image{Version: r.Version}
	return image, MinorOf(r.Version) >= 8 && MinorOf(r.Version) <= newestOfficial
}

// MinorOf is the minor of a version of Talos 1: 13 of v1.13.9; -1 of what is none.
func MinorOf(version string) int {
	minor := -1
	if _, err := fmt.Sscanf(version, "v1.%d.", &minor); err != nil {
		return -1
	}
	return minor
}

// Run is what the program in an installer image does: it prints lines, and ends.
type Run struct {
	Lines    []string
	ExitCode int32
}

// Plan works out what an installer does on a host of a version; "": it is the first on its disk, before which nothing is checked.
// Source: talos v1.13.9 and v1.14.1, cmd/installer.
func Plan(host string, image world.Image, flaw Flaw) Run {
	r := Run{Lines: []string{"running Talos installer " + image.Version}}
	fail := func(code int32, text string) Run {
		if MinorOf(image.Version) < 14 {
			code = constants.ExitUnknownError
		}
		r.Lines, r.ExitCode = append(r.Lines, text), code
		return r
	}
	if host != "" {
		r.Lines = append(r.Lines, "running pre-flight checks", "host Talos version: "+host)
		if err := refuseHop(host, image.Version); err != nil {
			return fail(constants.ExitEnvironment, "pre-flight checks failed: "+err.Error())
		}
		r.Lines = append(r.Lines, "all pre-flight checks successful")
	}
	switch flaw {
	case LacksDependency:
		return fail(constants.ExitDependency, "failed to verify the signature of the image: i/o timeout")
	case FailsInstall:
		return fail(constants.ExitInstall, "failed to install bootloader: write /boot/EFI/Linux/Talos-"+image.Version+".efi: no space left on device")
	}
	r.Lines = append(r.Lines, "updating EFI variables", "installation of "+image.Version+" complete")
	return r
}

// refuseHop is the rule of the version that is installed about the one that runs.
func refuseHop(from, to string) error {
	host, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: from})
	if err != nil {
		return fmt.Errorf("error parsing host Talos version: %w", err)
	}
	target, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: to})
	if err != nil {
		return fmt.Errorf("error parsing installer Talos version: %w", err)
	}
	return target.UpgradeableFrom(host)
}

// skipsEtcd reports whether a request is carried out whatever etcd is like. Preserve, which
// means nothing for data since v1.8, came to mean that in patches of v1.12 and later.
// Source: talos v1.12.9 and v1.13.9, v1alpha1_server.go, Upgrade.
func skipsEtcd(in *machineapi.UpgradeRequest, version string) bool {
	if in.GetForce() {
		return true
	}
	var minor, patch int
	_, err := fmt.Sscanf(strings.TrimSpace(version), "v1.%d.%d", &minor, &patch)
	return in.GetPreserve() && err == nil && (minor >= 13 || minor == 12 && patch >= 9)
}
