package cluster

import (
	"slices"
	"strings"
	"time"
)

// What is seen of a node's machine: what its own API shows, and what it prints on its serial port.

// Machine is one Talos machine, as its own API shows it.
type Machine struct {
	Reach Reach
	Why   string
	Hint  string // what to do about it, where that is known
	// OtherAuthority: of one that is Unexpected, it is Talos with a config, and shows a certificate
	// that another authority than the cluster's has signed.
	OtherAuthority bool
	// Since is since when the agent has seen it reached as it is, and ready or not as it is.
	Since time.Time
	// ReadyAt is when a machine that is silent was last seen ready; zero: not since the agent looks at it.
	ReadyAt  time.Time
	UUID     string   // SMBIOS UUID, as read in maintenance mode
	MACs     []string // of its physical links, upper case
	Talos    string   // running version, v1.13.9
	Stage    string   // booting, installing, maintenance, running, rebooting, ...
	Ready    bool     // Talos' own readiness; not monotonic while booting
	Unmet    []string // what Talos itself waits for, "name: reason"
	Services map[string]Service
	// ConfigDigest is the digest of the config on the machine, "" when it could not be read.
	ConfigDigest string
	// ConfigSince is since when it runs that, by its own clock, at most since it was
	// started; zero: not known. Who gave it to it, Talos does not note.
	ConfigSince time.Time
	// Staged is the digest of a config that waits on its disk for the next boot, "" when none
	// does that differs from the one that runs. One on trial is none: it runs.
	Staged string
	// StagedSince is since when it waits, by the machine's clock.
	StagedSince time.Time
	// StagedAuthorities are those of the config that waits.
	StagedAuthorities Authorities
	// Summary is of the config that it runs.
	Summary   ConfigSummary
	Schematic string // id of the running image's schematic, "" when it reports none
	// SecureBoot is whether its firmware has verified what it booted: OptionOn or OptionOff; "" : not known.
	SecureBoot string
	// Installer is the installer image that the agent has had it pull since it booted, "" when none.
	Installer string
	// Unpulled are the images of its config at the end of a hop of Kubernetes that it runs not yet, and that the agent has not had it pull
	// lately, for people; "" : none.
	Unpulled string
	// BootID identifies the boot that it runs since, "" when it could not be read.
	BootID string
	// StaticPods are those that a control plane should run by its config, by name:
	// kube-apiserver, ...; nil: not known.
	StaticPods map[string]StaticPod
	// Change is what it takes to give it the config it should have, as it answered
	// itself; nil: it was not asked.
	Change *Change
}

// Service is one Talos service.
type Service struct {
	State   string // Starting, Waiting, Preparing, Running, Stopping, Finished, Failed
	Healthy bool
	Message string
}

// StaticPod is what a static pod is made of, as its machine has it or as the pod that stands for
// it in Kubernetes shows it. The zero value is none.
type StaticPod struct {
	Image string
	// Versions are Talos' annotations of it, which count how often its config has changed
	// since the machine booted.
	Versions string
}

// staticPodVersions are the annotations that count. Source: Talos 1.8 to 1.14, constants.
var staticPodVersions = []string{"talos.dev/config-file-version", "talos.dev/config-version", "talos.dev/secrets-version"}

// IsStaticPodVersion reports whether an annotation of a pod is one that NewStaticPod reads.
func IsStaticPodVersion(annotation string) bool {
	return slices.Contains(staticPodVersions, annotation)
}

// NewStaticPod is a static pod by its image and its annotations, of which no more is kept than
// Talos writes.
func NewStaticPod(image string, annotations map[string]string) StaticPod {
	var versions []string
	for _, name := range staticPodVersions {
		v := annotations[name]
		versions = append(versions, v[:min(len(v), 32)])
	}
	return StaticPod{Image: image[:min(len(image), 512)], Versions: strings.Join(versions, "/")}
}

// IsSame reports whether both are made of the same. An admission webhook may have rewritten the
// registry of an image in Kubernetes, or pinned its digest: only its name and tag count.
func (p StaticPod) IsSame(other StaticPod) bool {
	return p.Versions == other.Versions && nameAndTag(p.Image) == nameAndTag(other.Image)
}

func nameAndTag(image string) string {
	image, _, _ = strings.Cut(image, "@")
	return image[strings.LastIndex(image, "/")+1:]
}

// ConsoleTail is the end of what a VM printed on its serial port. It is the
// guest's word, cleaned of everything a terminal could obey, and not to be
// trusted.
type ConsoleTail struct {
	At    time.Time `json:"at"`
	Lines []string  `json:"lines"`
	// Note states why there are no lines, or how to see more.
	Note string `json:"note,omitempty"`
}
