package hardware

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// The alphabets of everything that reaches Proxmox VE from an inventory. They
// are those of Proxmox VE or narrower, and none has a comma, an equals sign, a
// semicolon, a colon, a slash (pools apart) or a blank, with which a value
// could become another property, volume or path.
var (
	HostPattern        = pattern.New(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	StoragePattern     = pattern.New(`^[A-Za-z][A-Za-z0-9._-]{0,98}[A-Za-z0-9]$`)
	poolPattern        = pattern.New(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}$`)
	bridgePattern      = pattern.New(`^[A-Za-z][A-Za-z0-9._-]{0,14}$`)
	tokenPattern       = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	NamePattern        = pattern.New(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	cpuPattern         = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	cardPattern        = pattern.New(`^(virtio|e1000|e1000e|vmxnet3)$`)
	macPattern         = pattern.New(`^[0-9A-F][02468ACE](:[0-9A-F]{2}){5}$`)
	UUIDPattern        = pattern.New(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	serialPattern      = pattern.New(`^[A-Za-z0-9_-]{1,20}$`)
	diskOptionsPattern = pattern.New(`^(,aio=(io_uring|native|threads)|,backup=0|,cache=(directsync|writethrough|writeback|unsafe)|,discard=on|,(ssd|iothread)=1)*$`)
	tagPattern         = pattern.New(`^[a-z0-9_][a-z0-9_+.-]{0,123}$`)
	ImagePattern       = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._+=-]{0,199}\.(qcow2|raw|iso)$`)
)

// ContentOf is the type of content of a storage that an image is, by its name.
func ContentOf(image string) string {
	return cluster.Image{ISO: strings.HasSuffix(image, ".iso")}.Content()
}

// controllers are the SCSI controllers a node may have.
var controllers = []string{cluster.SingleController, "virtio-scsi-pci"}

const maxVMID = 999999999

// Checks collects everything that is wrong with some values.
type Checks struct{ problems []error }

// Is refuses a value that does not fit its alphabet.
func (c *Checks) Is(what, value string, p *pattern.Pattern) string {
	if !p.MatchString(value) {
		c.problems = append(c.problems, fmt.Errorf("%s %q has characters or a length that Proxmox VE is not given", what, value))
		return ""
	}
	return value
}

// Must refuses what is not so.
func (c *Checks) Must(ok bool, format string, args ...any) {
	if !ok {
		c.problems = append(c.problems, fmt.Errorf(format, args...))
	}
}

// VMID spells a VMID.
func (c *Checks) VMID(id int) string {
	c.Must(id >= 100 && id <= maxVMID, "vmid %d is not between 100 and %d", id, maxVMID)
	return strconv.Itoa(id)
}

// address refuses an address that is not a plain IPv4 one.
func (c *Checks) address(what string, a netip.Addr) string {
	c.Must(a.Is4(), "%s %q is not an IPv4 address", what, a)
	return a.String()
}

// address6 refuses an address that is not a plain IPv6 one.
func (c *Checks) address6(what string, a netip.Addr) string {
	c.Must(a.Is6() && !a.Is4In6() && a.Zone() == "", "%s %q is not an IPv6 address", what, a)
	return a.String()
}

// Err is what was refused, all of it; nil: nothing.
func (c *Checks) Err() error { return errors.Join(c.problems...) }

// gibibytes spells the size of a new disk the way the syntax STORAGE:SIZE wants
// it: GiB, with as many decimals as it takes.
func (c *Checks) gibibytes(what string, n int64) string {
	c.Must(n > 0 && n%(1<<20) == 0, "%s has %d bytes, which are not whole MiB", what, n)
	s := big.NewRat(n, 1<<30).FloatString(10) // 1/1024 has ten decimals
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// Tags joins tags to a list.
func (c *Checks) Tags(tags []string) string {
	for _, t := range tags {
		c.Is("tag", t, tagPattern)
	}
	return strings.Join(tags, ";")
}
