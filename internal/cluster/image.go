package cluster

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// HopKind is what a hop upgrades.
type HopKind string

// The two that a cluster runs.
const (
	HopTalos      HopKind = "Talos"
	HopKubernetes HopKind = "Kubernetes"
)

// Hop is one step of the way to the versions of an inventory: the whole cluster goes to a version
// of one of the two.
type Hop struct {
	Kind HopKind `json:"kind"`
	From string  `json:"from"`
	To   string  `json:"to"`
}

// String is the hop, for people.
func (h Hop) String() string { return string(h.Kind) + " " + h.To }

// Way is how a cluster comes to the versions that its inventory asks for.
type Way struct {
	// Hops are what is left of it; Spec.Versions are those that the first one leads to. None: they are
	// reached, or NoWay is why there is no way.
	Hops  []Hop
	NoWay string
	// Goal are the versions that the inventory asks for, and StageWaits is why those that the nodes are
	// to have now are not reached, where that is known, with the node that is waited for.
	Goal       Versions
	StageWaits Wait
	// Held is why the hops are not made: ApplyingOff or ChangeUnapproved; "": they are. HeldBy is the
	// switch, for people.
	Held   Reason
	HeldBy string
	// Back is what of the versions goes back now.
	Back Back
}

// Back is which versions of a cluster are set back to those that all nodes ran before, and now lead there. That
// waits for no window, and for no other node to be Ready: what is left may be what does harm.
type Back struct{ Talos, Kubernetes bool }

// IsHop reports whether the cluster makes a hop of a kind now.
func (w Way) IsHop(kind HopKind) bool {
	return w.Held == "" && len(w.Hops) > 0 && w.Hops[0].Kind == kind
}

// hopsForm is what an approval of a way begins with.
const hopsForm = "upgrade "

// ApprovableHops is the form in which an approval keeps a way.
func ApprovableHops(hops []Hop) string { return hopsForm + DescribeHops(hops) }

// DescribeHops is a way, for people.
func DescribeHops(hops []Hop) string {
	words := make([]string, len(hops))
	for i, h := range hops {
		words[i] = h.String()
	}
	return strings.Join(words, ", then ")
}

// Install is one time that a Talos was installed on the disk of a machine beside the one that it
// runs. It is written before that is asked for: a second one without a boot in between would be
// written over the version that runs, and one that is no good would be tried again.
type Install struct {
	Image    string    `json:"image"`    // the installer
	Boot     string    `json:"boot"`     // id of the boot during which it was asked for
	Revision Revision  `json:"revision"` // as of a Restart
	At       time.Time `json:"at"`
	// From is the version that the machine ran when it was asked for; "" : it is not known.
	From string `json:"from,omitempty"`
	// Back: the machine ran it, and went back to what it ran before by the command that Failed names.
	Back bool `json:"back,omitempty"`
	// Done: the installer is seen to have ended well, and the next boot runs it.
	Done bool `json:"done,omitempty"`
	// Failed is why it is not installed; "" : it is, or that is not known.
	Failed string `json:"failed,omitempty"`
	// Again: it was asked for in an earlier boot, and how that ended was never seen.
	Again bool `json:"again,omitempty"`
}

// Version is that of the Talos in its image.
func (in Install) Version() string { return in.Image[strings.LastIndexByte(in.Image, ':')+1:] }

// Unseen reports whether it is not known how it ended.
func (in Install) Unseen() bool { return !in.Done && in.Failed == "" }

// Follows reports whether it asks once more, in another boot, for what was asked for at the same revision,
// and is not known to have ended.
func (in Install) Follows(was Install) bool {
	return was.Unseen() && was.Image == in.Image && was.Revision == in.Revision && was.Boot != in.Boot
}

// InstallError is that an installer of Talos ran and failed, or that there is none in the image that it was
// to be in: the machine boots what it ran before.
type InstallError struct {
	// Code is that with which the installer ended; 0: it never ran. From Talos 1.14 on 2 is invalid
	// input, 3 not supported, 4 the environment, 5 a dependency, 6 input and output, 7 the installation;
	// 1 is unknown, and what every failure of an older one is (Talos 1.14.1: constants).
	Code int32
	// Output is the end of what it printed, or why there is none, in one line.
	Output string
}

// Error implements error.
func (e *InstallError) Error() string {
	if e.Code == 0 {
		return e.Output
	}
	return fmt.Sprintf("the installer ended with exit code %d: %s", e.Code, e.Output)
}

// MayPass reports whether the same installer may end well the next time: what failed was what is around it, or
// what it gets from elsewhere. With any other code the same would come of it again, for all that is known.
func (e *InstallError) MayPass() bool {
	return e.Code == exitEnvironment || e.Code == exitDependency
}

// Codes that an installer ends with.
const (
	exitEnvironment = 4
	exitDependency  = 5
)

// ErrNotBegun means that an installation, or a reset, was not begun, so that it may be asked for again.
var ErrNotBegun = errors.New("it was not begun")

// ErrNoWayBack means that a machine does not boot the other slot of its disk, whenever it is asked.
var ErrNoWayBack = errors.New("it cannot go back")

// NewImage is the image that new VMs of a cluster are made from, of a Talos version and an image factory's
// schematic.
func (s Spec) NewImage(version, schematic string) Image {
	i := Image{Version: version, Schematic: schematic, SecureBoot: s.SecureBoot, ISO: s.ISO}
	i.Name = i.FileName()
	return i
}

// FileName names an image by its Talos version and the image factory's schematic.
// The same image has the same name in the host's cache and in every
// storage of Proxmox VE, so that it is found again; twelve digits of the
// schematic's id distinguish schematics and keep the name readable. Proxmox VE
// takes letters, digits and "-.+=_" in the name of an import image.
func (i Image) FileName() string {
	return "talos-" + i.Version + "-" + i.Schematic[:min(len(i.Schematic), 12)] + "-" + i.Asset()
}

// Asset is what the image factory calls the image, of whatever version and schematic.
func (i Image) Asset() string {
	return "nocloud-amd64" + securely(i.SecureBoot) + map[bool]string{false: ".qcow2", true: ".iso"}[i.ISO]
}

// Boot is how a VM gets its system disk from the image, in the word of the inventory.
func (i Image) Boot() string {
	if i.ISO {
		return "iso"
	}
	return "image"
}

// Content is the type of content of a storage of Proxmox VE that holds the image.
func (i Image) Content() string {
	if i.ISO {
		return "iso"
	}
	return "import"
}

// ImageContent is the type of content of a storage that holds the image of the cluster's new VMs.
func (s Spec) ImageContent() string { return Image{ISO: s.ISO}.Content() }

// securely is in the names of what is signed for Secure Boot. (Image Factory: docs/api.md.)
func securely(secureBoot bool) string {
	if secureBoot {
		return "-secureboot"
	}
	return ""
}

// Installer is the image that installs the Talos version of a cluster with a schematic.
func (s Spec) Installer(schematic string) string {
	return s.InstallerOf(schematic, s.Versions.Talos)
}

// InstallerOf is that image of another version of Talos.
func (s Spec) InstallerOf(schematic, talos string) string {
	return s.InstallerRegistry + "/nocloud-installer" + securely(s.SecureBoot) + "/" + schematic + ":" + talos
}

// InstallerSeen is what is known of an installer image after its registry was asked for it. The zero value,
// but for its time: it is there.
type InstallerSeen struct {
	At time.Time // that it was asked for last
	// Missing is why it is not there; "" : it is, or Unchecked is why that cannot be seen from the host, for people.
	Missing, Unchecked string
}

// Components are the versions of the parts of Kubernetes that a node is to have, v1.36.1 for
// example; "" : what the cluster's Spec has. A worker has no other than the kubelet.
type Components struct{ APIServer, ControllerManager, Scheduler, Proxy, Kubelet string }
