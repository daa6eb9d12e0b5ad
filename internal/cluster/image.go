package cluster

// BootMedium is what a VM boots from before Talos is on its disk.
type BootMedium string

// BootImage is a disk image of Talos that becomes the system disk. It is the
// only medium that is supported.
const BootImage BootMedium = "image"

// Boot is what a new VM of a node boots from.
type Boot struct {
	Medium BootMedium
	Image  Image // for BootImage
}

// ImageName names the disk image of a Talos version and an image factory's
// schematic. The same image has the same name in the host's cache and in every
// storage of Proxmox VE, so that it is found again; twelve digits of the
// schematic's id distinguish schematics and keep the name readable. Proxmox VE
// takes letters, digits and "-.+=_" in the name of an import image.
func ImageName(version, schematic string) string {
	if len(schematic) > 12 {
		schematic = schematic[:12]
	}
	return "talos-" + version + "-" + schematic + "-nocloud-amd64.qcow2"
}

// Installer is the image that installs the Talos version of a cluster with a schematic.
func (s Spec) Installer(schematic string) string {
	return s.InstallerRegistry + "/nocloud-installer/" + schematic + ":" + s.Versions.Talos
}
