package hardware

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// descriptionOf is the description of a node's VM: the mark on the first line,
// and a word to people.
func descriptionOf(m cluster.Mark, clusterName string) string {
	return m.String() + fmt.Sprintf("\nNode %s of the Kubernetes cluster %s. talos-agent made this VM and looks after it; its first line is a mark that talos-agent reads.", m.Node, clusterName)
}

// mediumPattern matches a medium that the agent has put into a drive.
var mediumPattern = pattern.New(`^[^:]+:iso/talos-v[0-9A-Za-z.+-]+-[0-9a-f]{12}-nocloud-amd64(-secureboot)?\.iso$`)

// readMedium is the drive that holds an installation medium of ours, "" when none does. What else is in a drive is somebody's.
func readMedium(o pveconf.Options) string {
	for _, key := range slices.Sorted(maps.Keys(o)) {
		if p := pveconf.ParseProperties(string(o[key])); drivePattern.MatchString(key) && p["media"] == "cdrom" && mediumPattern.MatchString(p.First("file", "")) {
			return key
		}
	}
	return ""
}

// CreateParams are the parameters of the call that makes a VM for a node, checked.
// Every option is given explicitly: Proxmox VE's own defaults (kvm64, lsi, a
// random UUID) are none that Talos runs well with. The firmware has no keys
// (pre-enrolled-keys=0): an image that is signed has it take its own when it boots
// for the first time, which it does from no firmware that has those of others.
//
// Talos 1.14: sdboot, secure-boot-enroll if-safe. PVE 9.2 qemu-server: efitype=4m takes
// the firmware that verifies what it boots once it has keys.
func CreateParams(d cluster.Desired, n cluster.Node, pool string, img cluster.Image) (map[string]string, error) {
	var c Checks
	// disk is how every disk is attached: found by serial.
	disk := func(volume, serial string) string {
		return volume + c.Is("disk options", n.DiskProperties(serial), diskOptionsPattern) + ",serial=" + c.Is("serial", serial, serialPattern)
	}
	store := c.Is("datastore", n.Datastore, StoragePattern)
	seed := n.CloudInitDatastore
	if seed == "" {
		seed = n.Datastore
	}
	c.Must(slices.Contains(controllers, n.SCSIHardware), "scsi controller %q is none of %s", n.SCSIHardware, strings.Join(controllers, ", "))
	c.Must(n.Cores > 0 && n.Cores <= 8192, "%d cores cannot be", n.Cores)
	c.Must(n.MemoryMiB >= 16, "%d MiB of memory cannot be", n.MemoryMiB)
	c.Must(n.DiskBytes > 0 && n.DiskBytes%(1<<20) == 0, "system disk has %d bytes, which are not whole MiB", n.DiskBytes)
	c.Must(len(n.Disks) <= 30, "%d extra disks are more than the 30 a controller has room for", len(n.Disks))
	mark := cluster.Mark{Version: 1, Cluster: c.Is("cluster id", d.Spec.ID, UUIDPattern), Node: c.Is("node name", n.Name, NamePattern)}
	if n.Replace != "" {
		mark.Replace = c.Is("replace token", n.Replace, tokenPattern)
	}
	if mark.Cluster != "" {
		c.Must(n.UUID == cluster.NodeUUID(mark.Cluster, n.Name), "uuid %q is not the one that follows from cluster and node", n.UUID)
	}

	p := map[string]string{
		"vmid":        c.VMID(n.VMID),
		"name":        mark.Node,
		"description": descriptionOf(mark, c.Is("cluster name", d.Spec.Name, NamePattern)),
		"ostype":      "l26",
		"machine":     "q35",
		"bios":        "ovmf",
		"efidisk0":    store + ":1,efitype=4m,pre-enrolled-keys=0",
		"cpu":         c.Is("cpu type", n.CPUType, cpuPattern),
		"sockets":     "1",
		"cores":       strconv.Itoa(n.Cores),
		"numa":        "0",
		"memory":      strconv.FormatInt(n.MemoryMiB, 10),
		"balloon":     "0",
		"scsihw":      n.SCSIHardware,
		"ide2":        c.Is("cloud-init datastore", seed, StoragePattern) + ":cloudinit",
		"citype":      "nocloud",
		"net0":        fmt.Sprintf("%s=%s,bridge=%s,firewall=0", c.Is("network card", cmp.Or(n.NetworkCard, "virtio"), cardPattern), c.Is("mac", n.MAC, macPattern), c.Is("bridge", n.Bridge, bridgePattern)),
		"serial0":     "socket",
		"vga":         "std",
		"rng0":        "source=/dev/urandom",
		"agent":       encodeFlag(d.Spec.Schematic.GuestAgent()),
		"onboot":      "1",
		"smbios1":     "uuid=" + c.Is("uuid", n.UUID, UUIDPattern),
		"protection":  "0",
	}
	image := c.Is("image datastore", n.ImageDatastore, StoragePattern) + ":" + img.Content() + "/" + c.Is("image", img.Name, ImagePattern)
	c.Must(ContentOf(img.Name) == img.Content(), "image %q is of another kind", img.Name)
	p["scsi0"], p["boot"] = disk(store+":0,import-from="+image, cluster.SystemDiskSerial), "order=scsi0"
	if img.ISO {
		// An empty disk is passed over by the firmware. A medium that came before the disk would be booted for ever: Talos halts where it
		// finds itself installed on a disk that was not booted.
		p["scsi0"], p["boot"] = disk(fmt.Sprintf("%s:%d", store, max(1, n.DiskBytes>>30)), cluster.SystemDiskSerial), "order=scsi0;"+cluster.MediumDrive
		p[cluster.MediumDrive] = image + ",media=cdrom"
	}
	c.problems = append(c.problems, SetOptions(p, n)...)
	if d.Spec.SecureBoot {
		p["tpmstate0"] = store + ":1,version=" + cluster.TPMVersion
	}
	if pool != "" {
		p["pool"] = c.Is("pool", pool, poolPattern)
	}
	if v := d.Spec.Network.VLAN; v != 0 {
		c.Must(v > 0 && v < 4095, "vlan %d is not between 1 and 4094", v)
		p["net0"] += fmt.Sprintf(",tag=%d", v)
	}
	for i, dk := range n.Disks {
		where := c.Is("datastore of disk "+strconv.Quote(dk.Name), dk.Datastore, StoragePattern)
		c.Must(strings.HasPrefix(dk.Serial, SerialPrefix) && dk.Serial != cluster.SystemDiskSerial, "serial %q of an extra disk does not begin with %s, or is the system disk's", dk.Serial, SerialPrefix)
		p[fmt.Sprintf("scsi%d", i+1)] = disk(where+":"+c.gibibytes("disk "+strconv.Quote(dk.Name), dk.Bytes), dk.Serial)
	}
	if d.Spec.Network.ModeOf(n) == cluster.AddressStatic {
		c.seed(p, d.Spec.Network, n)
	}
	return p, c.Err()
}

// seed sets the static address the guest finds on its cloud-init drive.
func (c *Checks) seed(p map[string]string, net cluster.Network, n cluster.Node) {
	c.Must(net.CIDR.IsValid(), "the network of a static address is missing")
	p["ipconfig0"] = fmt.Sprintf("ip=%s/%d,gw=%s", c.address("ip", n.IP), net.CIDR.Bits(), c.address("gateway", net.Gateway))
	if six := net.IPv6; six.On() {
		p["ipconfig0"] += fmt.Sprintf(",ip6=%s/%d", c.address6("ip6", n.IP6), six.CIDR.Bits())
		if six.Gateway.IsValid() {
			p["ipconfig0"] += ",gw6=" + c.address6("gateway6", six.Gateway)
		}
	}
	var servers []string
	for _, a := range net.Nameservers {
		servers = append(servers, c.address("nameserver", a))
	}
	if len(servers) > 0 {
		p["nameserver"] = strings.Join(servers, " ")
	}
}

func encodeFlag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}
