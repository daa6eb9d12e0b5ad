package proxmox

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
)

// The alphabets of everything that reaches Proxmox VE from an inventory. They
// are those of Proxmox VE or narrower, and none has a comma, an equals sign, a
// semicolon, a colon, a slash (pools apart) or a blank, with which a value
// could become another property, volume or path.
var (
	hostPattern        = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	storagePattern     = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{0,98}[A-Za-z0-9]$`)
	poolPattern        = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}$`)
	bridgePattern      = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{0,14}$`)
	tokenPattern       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	namePattern        = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	cpuPattern         = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	cardPattern        = regexp.MustCompile(`^(virtio|e1000|e1000e|vmxnet3)$`)
	macPattern         = regexp.MustCompile(`^[0-9A-F][02468ACE](:[0-9A-F]{2}){5}$`)
	uuidPattern        = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	serialPattern      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,20}$`)
	diskOptionsPattern = regexp.MustCompile(`^(,aio=(io_uring|native|threads)|,backup=0|,cache=(directsync|writethrough|writeback|unsafe)|,discard=on|,(ssd|iothread)=1)*$`)
	tagPattern         = regexp.MustCompile(`^[a-z0-9_][a-z0-9_+.-]{0,123}$`)
	imagePattern       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+=-]{0,199}\.(qcow2|raw)$`)
)

// controllers are the SCSI controllers a node may have.
var controllers = []string{cluster.SingleController, "virtio-scsi-pci"}

const maxVMID = 999999999

// checks collects everything that is wrong with some values.
type checks struct{ problems []error }

// is refuses a value that does not fit its alphabet.
func (c *checks) is(what, value string, p *regexp.Regexp) string {
	if !p.MatchString(value) {
		c.problems = append(c.problems, fmt.Errorf("%s %q has characters or a length that Proxmox VE is not given", what, value))
		return ""
	}
	return value
}

// must refuses what is not so.
func (c *checks) must(ok bool, format string, args ...any) {
	if !ok {
		c.problems = append(c.problems, fmt.Errorf(format, args...))
	}
}

func (c *checks) vmid(id int) string {
	c.must(id >= 100 && id <= maxVMID, "vmid %d is not between 100 and %d", id, maxVMID)
	return strconv.Itoa(id)
}

// address refuses an address that is not a plain IPv4 one.
func (c *checks) address(what string, a netip.Addr) string {
	c.must(a.Is4(), "%s %q is not an IPv4 address", what, a)
	return a.String()
}

func (c *checks) err() error { return errors.Join(c.problems...) }

// gibibytes spells the size of a new disk the way the syntax STORAGE:SIZE wants
// it: GiB, with as many decimals as it takes.
func (c *checks) gibibytes(what string, n int64) string {
	c.must(n > 0 && n%(1<<20) == 0, "%s has %d bytes, which are not whole MiB", what, n)
	s := big.NewRat(n, 1<<30).FloatString(10) // 1/1024 has ten decimals
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// tags joins tags to a list.
func (c *checks) tags(tags []string) string {
	for _, t := range tags {
		c.is("tag", t, tagPattern)
	}
	return strings.Join(tags, ";")
}

// descriptionOf is the description of a node's VM: the mark on the first line,
// and a word to people.
func descriptionOf(m cluster.Mark, clusterName string) string {
	return m.String() + fmt.Sprintf("\nNode %s of the Kubernetes cluster %s. talos-agent made this VM and looks after it; its first line is a mark that talos-agent reads.", m.Node, clusterName)
}

// createParams are the parameters of the call that makes a VM for a node, checked.
// Every option is given explicitly: Proxmox VE's own defaults (kvm64, lsi, a
// random UUID) are none that Talos runs well with.
func createParams(d cluster.Desired, n cluster.Node, pool string, img cluster.Image) (params, error) {
	var c checks
	// disk is how every disk is attached: found by serial.
	disk := func(volume, serial string) string {
		return volume + c.is("disk options", n.DiskProperties(serial), diskOptionsPattern) + ",serial=" + c.is("serial", serial, serialPattern)
	}
	store := c.is("datastore", n.Datastore, storagePattern)
	seed := n.CloudInitDatastore
	if seed == "" {
		seed = n.Datastore
	}
	c.must(slices.Contains(controllers, n.SCSIHardware), "scsi controller %q is none of %s", n.SCSIHardware, strings.Join(controllers, ", "))
	c.must(n.Cores > 0 && n.Cores <= 8192, "%d cores cannot be", n.Cores)
	c.must(n.MemoryMiB >= 16, "%d MiB of memory cannot be", n.MemoryMiB)
	c.must(n.DiskBytes > 0 && n.DiskBytes%(1<<20) == 0, "system disk has %d bytes, which are not whole MiB", n.DiskBytes)
	c.must(len(n.Disks) <= 30, "%d extra disks are more than the 30 a controller has room for", len(n.Disks))
	mark := cluster.Mark{Version: 1, Cluster: c.is("cluster id", d.Spec.ID, uuidPattern), Node: c.is("node name", n.Name, namePattern)}
	if n.Replace != "" {
		mark.Replace = c.is("replace token", n.Replace, tokenPattern)
	}
	if mark.Cluster != "" {
		c.must(n.UUID == cluster.NodeUUID(mark.Cluster, n.Name), "uuid %q is not the one that follows from cluster and node", n.UUID)
	}

	p := params{
		"vmid":        c.vmid(n.VMID),
		"name":        mark.Node,
		"description": descriptionOf(mark, c.is("cluster name", d.Spec.Name, namePattern)),
		"ostype":      "l26",
		"machine":     "q35",
		"bios":        "ovmf",
		"efidisk0":    store + ":1,efitype=4m,pre-enrolled-keys=0",
		"cpu":         c.is("cpu type", n.CPUType, cpuPattern),
		"sockets":     "1",
		"cores":       strconv.Itoa(n.Cores),
		"numa":        "0",
		"memory":      strconv.FormatInt(n.MemoryMiB, 10),
		"balloon":     "0",
		"scsihw":      n.SCSIHardware,
		"scsi0": disk(fmt.Sprintf("%s:0,import-from=%s:import/%s", store,
			c.is("image datastore", n.ImageDatastore, storagePattern), c.is("image", img.Name, imagePattern)), cluster.SystemDiskSerial),
		"ide2":       c.is("cloud-init datastore", seed, storagePattern) + ":cloudinit",
		"citype":     "nocloud",
		"net0":       fmt.Sprintf("%s=%s,bridge=%s,firewall=0", c.is("network card", cmp.Or(n.NetworkCard, "virtio"), cardPattern), c.is("mac", n.MAC, macPattern), c.is("bridge", n.Bridge, bridgePattern)),
		"boot":       "order=scsi0",
		"serial0":    "socket",
		"vga":        "std",
		"rng0":       "source=/dev/urandom",
		"agent":      encodeFlag(d.Spec.Schematic.GuestAgent()),
		"onboot":     "1",
		"smbios1":    "uuid=" + c.is("uuid", n.UUID, uuidPattern),
		"protection": "0",
	}
	c.problems = append(c.problems, hardware.SetOptions(p, n)...)
	if pool != "" {
		p["pool"] = c.is("pool", pool, poolPattern)
	}
	if v := d.Spec.Network.VLAN; v != 0 {
		c.must(v > 0 && v < 4095, "vlan %d is not between 1 and 4094", v)
		p["net0"] += fmt.Sprintf(",tag=%d", v)
	}
	for i, dk := range n.Disks {
		where := c.is("datastore of disk "+strconv.Quote(dk.Name), dk.Datastore, storagePattern)
		c.must(strings.HasPrefix(dk.Serial, hardware.SerialPrefix) && dk.Serial != cluster.SystemDiskSerial, "serial %q of an extra disk does not begin with %s, or is the system disk's", dk.Serial, hardware.SerialPrefix)
		p[fmt.Sprintf("scsi%d", i+1)] = disk(where+":"+c.gibibytes("disk "+strconv.Quote(dk.Name), dk.Bytes), dk.Serial)
	}
	if d.Spec.Network.Mode == cluster.AddressStatic {
		c.seed(p, d.Spec.Network, n)
	}
	return p, c.err()
}

// seed sets the static address the guest finds on its cloud-init drive.
func (c *checks) seed(p params, net cluster.Network, n cluster.Node) {
	c.must(net.CIDR.IsValid(), "the network of a static address is missing")
	p["ipconfig0"] = fmt.Sprintf("ip=%s/%d,gw=%s", c.address("ip", n.IP), net.CIDR.Bits(), c.address("gateway", net.Gateway))
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
