package plan

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Action is one typed deed. Every action is an ensure: carried out twice, or
// after being cut off anywhere, it leads to the same world.
type Action interface {
	// Kind is the deed in words, "create vm".
	Kind() string
	// Subject is whom it concerns: a node, an addon, an image.
	Subject() string
	// Destructive reports whether something is lost that cannot be made again.
	Destructive() bool
	// String is the whole sentence for people.
	String() string

	sealed()
}

// The actions.
type (
	// RegisterSchematic asks the image factory for the id of what the images
	// must hold.
	RegisterSchematic struct {
		Cluster   string
		Schematic cluster.Schematic
	}

	// DownloadImage fetches the Talos image into the host's cache and verifies
	// it.
	DownloadImage struct{ Image cluster.Image }

	// UploadImage puts the cached image into a storage.
	UploadImage struct {
		Image     cluster.Image
		Host      string
		Datastore string
	}

	// CreateVM makes a node's VM up to the point where it can be started:
	// configured, its disk imported and grown, its mark complete. Finish says
	// that the VM is there already and was cut off on the way.
	CreateVM struct {
		Node   cluster.Node
		Image  cluster.Image
		Finish bool
	}

	// StartVM switches a node's VM on.
	StartVM struct{ Node cluster.Node }

	// ApplyConfig gives a machine in maintenance mode its first config.
	ApplyConfig struct {
		Node   cluster.Node
		Config cluster.Config
	}

	// Bootstrap founds the cluster's etcd on one control plane, once.
	Bootstrap struct{ Node cluster.Node }

	// FetchChart brings an addon's chart into the host's cache.
	FetchChart struct{ Addon cluster.Addon }

	// InstallAddon installs an addon's release, upgrades it to what the
	// inventory says, or recovers one that was left half done.
	InstallAddon struct {
		Addon  cluster.Addon
		Digest string // of chart and values
		Status string // of the release before, "" when there is none
	}

	// DeleteVM stops a VM of ours and deletes it with its disks.
	DeleteVM struct{ VM cluster.VM }
)

// Kind implements Action.
func (RegisterSchematic) Kind() string { return "register schematic" }

// Kind implements Action.
func (DownloadImage) Kind() string { return "download image" }

// Kind implements Action.
func (UploadImage) Kind() string { return "upload image" }

// Kind implements Action.
func (CreateVM) Kind() string { return "create vm" }

// Kind implements Action.
func (StartVM) Kind() string { return "start vm" }

// Kind implements Action.
func (ApplyConfig) Kind() string { return "apply config" }

// Kind implements Action.
func (Bootstrap) Kind() string { return "bootstrap etcd" }

// Kind implements Action.
func (FetchChart) Kind() string { return "fetch chart" }

// Kind implements Action.
func (InstallAddon) Kind() string { return "install addon" }

// Kind implements Action.
func (DeleteVM) Kind() string { return "delete vm" }

// Subject implements Action.
func (a RegisterSchematic) Subject() string { return a.Cluster }

// Subject implements Action.
func (a DownloadImage) Subject() string { return a.Image.Name }

// Subject implements Action.
func (a UploadImage) Subject() string { return a.Host + "/" + a.Datastore + ":" + a.Image.Name }

// Subject implements Action.
func (a CreateVM) Subject() string { return a.Node.Name }

// Subject implements Action.
func (a StartVM) Subject() string { return a.Node.Name }

// Subject implements Action.
func (a ApplyConfig) Subject() string { return a.Node.Name }

// Subject implements Action.
func (a Bootstrap) Subject() string { return a.Node.Name }

// Subject implements Action.
func (a FetchChart) Subject() string { return a.Addon.Name }

// Subject implements Action.
func (a InstallAddon) Subject() string { return a.Addon.Name }

// Subject implements Action.
func (a DeleteVM) Subject() string { return a.VM.Node }

// Destructive implements Action.
func (RegisterSchematic) Destructive() bool { return false }

// Destructive implements Action.
func (DownloadImage) Destructive() bool { return false }

// Destructive implements Action.
func (UploadImage) Destructive() bool { return false }

// Destructive implements Action.
func (CreateVM) Destructive() bool { return false }

// Destructive implements Action.
func (StartVM) Destructive() bool { return false }

// Destructive implements Action.
func (ApplyConfig) Destructive() bool { return false }

// Destructive implements Action.
func (Bootstrap) Destructive() bool { return false }

// Destructive implements Action.
func (FetchChart) Destructive() bool { return false }

// Destructive implements Action.
func (InstallAddon) Destructive() bool { return false }

// Destructive implements Action.
func (DeleteVM) Destructive() bool { return true }

func (a RegisterSchematic) String() string {
	return fmt.Sprintf("register the image schematic of %s with the factory", a.Cluster)
}

func (a DownloadImage) String() string { return "download image " + a.Image.Name }

func (a UploadImage) String() string {
	return fmt.Sprintf("upload image %s to %s on %s", a.Image.Name, a.Datastore, a.Host)
}

func (a CreateVM) String() string {
	if a.Finish {
		return fmt.Sprintf("finish vm %d (%s), which was cut off half made", a.Node.VMID, a.Node.Name)
	}
	return fmt.Sprintf("create vm %d (%s) on %s: %d cores, %d MiB, %s", a.Node.VMID, a.Node.Name, a.Node.Host,
		a.Node.Cores, a.Node.MemoryMiB, gib(a.Node.DiskBytes))
}

func (a StartVM) String() string { return fmt.Sprintf("start vm %d (%s)", a.Node.VMID, a.Node.Name) }

func (a ApplyConfig) String() string {
	return fmt.Sprintf("apply the first machine config to %s at %s", a.Node.Name, a.Node.IP)
}

func (a Bootstrap) String() string { return "bootstrap etcd on " + a.Node.Name }

func (a FetchChart) String() string {
	return fmt.Sprintf("fetch chart %s for addon %s", a.Addon.Chart.Ref(), a.Addon.Name)
}

func (a InstallAddon) String() string {
	switch a.Status {
	case "":
		return fmt.Sprintf("install addon %s into %s", a.Addon.Name, a.Addon.Namespace)
	case "deployed":
		return fmt.Sprintf("upgrade addon %s in %s", a.Addon.Name, a.Addon.Namespace)
	default:
		return fmt.Sprintf("recover addon %s in %s, which is %s", a.Addon.Name, a.Addon.Namespace, a.Status)
	}
}

func (a DeleteVM) String() string {
	return fmt.Sprintf("stop and delete vm %d (%s) with its disks", a.VM.VMID, a.VM.Node)
}

func (RegisterSchematic) sealed() {}
func (DownloadImage) sealed()     {}
func (UploadImage) sealed()       {}
func (CreateVM) sealed()          {}
func (StartVM) sealed()           {}
func (ApplyConfig) sealed()       {}
func (Bootstrap) sealed()         {}
func (FetchChart) sealed()        {}
func (InstallAddon) sealed()      {}
func (DeleteVM) sealed()          {}

// Storage names the storage an action allocates on or frees from, as
// "host/storage", or "" when it does neither. Proxmox VE takes a lock per
// storage for such work and gives up after seconds, so that it is done one at a
// time there.
func Storage(a Action) string {
	switch a := a.(type) {
	case CreateVM:
		return a.Node.Host + "/" + a.Node.Datastore
	case DeleteVM:
		return a.VM.Host + "/" + a.VM.Hardware.Value.System.Datastore
	default:
		return ""
	}
}

// Step prints an action for the socket, the CLI and the log.
func Step(a Action) cluster.Step {
	return cluster.Step{Action: a.Kind(), Subject: a.Subject(), Text: a.String(), Destructive: a.Destructive()}
}

func gib(b int64) string {
	if b%(1<<30) == 0 {
		return fmt.Sprintf("%d GiB", b>>30)
	}
	return fmt.Sprintf("%.1f GiB", float64(b)/(1<<30))
}
