package pve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// vm is a virtual machine. Everything in it belongs to Server.mu.
type vm struct {
	id    int
	host  *host
	conf  config
	maker string // who created it: a token or a user

	running   bool
	dead      bool // its guest does not come up, whatever it holds
	paused    bool
	ioError   bool // a full storage has paused it
	pid       int
	since     time.Time     // when it was started
	rebooting bool          // a start follows the stop that is under way
	stopped   chan struct{} // closed when a running VM has stopped

	stats row      // what the last round of statistics saw; nil before the first
	begun []string // volumes of a creation that the configuration does not name yet
}

var errChecksum = perlError("checksum mismatch (file change by other user?)")

// missingVM is what reading the configuration of a VM that is not there comes to.
func missingVM(h *host, id int) error {
	return perlError("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", h.name, id)
}

// notFound is what the other half of the API answers for a VM that is not there.
func notFound(h *host, id int) error {
	return perlError("unable to find configuration file for VM %d on node '%s'", id, h.name)
}

// vmAt returns a VM of a host. s.mu is held.
func (s *Server) vmAt(h *host, id int) (*vm, error) {
	if v := s.vms[id]; v != nil && v.host == h {
		return v, nil
	}
	return nil, missingVM(h, id)
}

// checkLock is what a configuration lock comes to; nil without one.
func (v *vm) checkLock() error {
	if lock := v.conf.base["lock"]; lock != "" {
		return perlError("VM is locked (%s)", lock)
	}
	return nil
}

func (v *vm) isTemplate() bool { return v.conf.base["template"] == "1" }

// name is the VM's name; one without has "VM 110".
func (v *vm) name() string { return cmp.Or(v.conf.base["name"], fmt.Sprintf("VM %d", v.id)) }

// statusRow is how the lists and status/current show a VM. s.mu is held.
func (s *Server) statusRow(v *vm) row {
	values, mem := v.conf.base, int64(0)
	r := row{
		"vmid": v.id, "name": v.name(), "status": "stopped", "cpus": options.CountCores(values), "maxmem": options.MemoryMiB(values) << 20,
		"maxdisk": options.ParseDrive(values[options.BootDisk(values)]).Bytes(), "disk": 0, "cpu": 0, "uptime": 0, "netin": 0, "netout": 0,
	}
	if v.running {
		mem = options.MemoryMiB(values) << 20 / 4
		r["status"], r["pid"], r["uptime"] = "running", v.pid, int64(time.Since(v.since).Seconds())
		r["netin"] = 110
		if s.flavour.nine {
			for _, k := range []string{"cpu", "io", "memory"} {
				r["pressure"+k+"some"], r["pressure"+k+"full"] = 0, 0
			}
		}
	}
	r["mem"] = mem
	if s.flavour.nine {
		r["memhost"] = mem
	}
	if v.conf.base["serial0"] != "" {
		r["serial"] = 1
	}
	for _, k := range []string{"tags", "lock"} {
		if t := v.conf.base[k]; t != "" {
			r[k] = t
		}
	}
	if v.isTemplate() {
		r["template"] = 1
	}
	return r
}

// hostTime turns time that passed in this process into the host's.
func (s *Server) hostTime(d time.Duration) time.Duration {
	unit := s.world.Scale(time.Second)
	return time.Duration(float64(d) / float64(unit) * float64(time.Second))
}

// currentRow is what status/current shows. s.mu is held.
func (s *Server) currentRow(v *vm) row {
	r := s.statusRow(v)
	r["ha"] = row{"managed": 0}
	if state, managed := s.ServiceState(sidOf(v.id)); managed {
		r["ha"] = row{"managed": 1, "state": state}
	}
	r["qmpstatus"] = r["status"]
	if v.paused {
		r["qmpstatus"] = "paused"
	}
	if v.ioError {
		r["qmpstatus"] = "io-error"
	}
	values := v.conf.base
	if options.HasAgent(values) {
		r["agent"] = 1
	}
	if values["vga"] != "" {
		r["clipboard"] = nil
	}
	if !v.running {
		return r
	}
	r["diskread"], r["diskwrite"] = 0, 0
	r["running-qemu"], r["running-machine"] = s.flavour.qemu, s.flavour.machine
	nics, blocks := row{}, row{}
	for k, text := range values {
		switch {
		case options.IsNet(k):
			nics[fmt.Sprintf("tap%di%s", v.id, k[3:])] = row{"netin": 110, "netout": 0}
		case options.IsDrive(k) && k != "tpmstate0" && options.ParseDrive(text)["file"] != "":
			blocks[k] = options.BlockStatistics(s.flavour.nine)
		}
	}
	if values["bios"] == "ovmf" {
		blocks["pflash0"] = options.BlockStatistics(s.flavour.nine)
	}
	if len(nics) > 0 {
		r["nics"] = nics
	}
	if len(blocks) > 0 {
		r["blockstat"] = blocks
	}
	return r
}

// describeGuest is what the VM presents to its operating system. s.mu is held.
func (s *Server) describeGuest(v *vm) world.Guest {
	values := v.conf.base
	net := options.ParseNet(values["net0"])
	g := world.Guest{
		VMID: v.id, Host: v.host.name, Name: v.name(), UUID: options.UUIDOf(values), MAC: strings.ToLower(net["macaddr"]), Bridge: net["bridge"],
		Cores: options.CountCores(values), MemoryMiB: options.MemoryMiB(values), Agent: options.HasAgent(values),
		Firmware: v.firmware(values), TPM: values["tpmstate0"] != "",
		Off: func() { s.guestOff(v) },
	}
	byKey := map[string]*world.Disk{}
	for _, k := range options.DriveKeys(values) {
		d := options.ParseDrive(values[k])
		if d.IsCloudInit() {
			g.Address, g.Address6, g.Gateway, g.Nameservers = options.ReadNetwork(values)
		}
		if _, vol := v.host.volume(d["file"]); vol != nil && vol.disk != nil && k != "efidisk0" && k != "tpmstate0" {
			vol.disk.Serial = d["serial"]
			byKey[k] = vol.disk
			g.Disks = append(g.Disks, vol.disk)
		}
	}
	disks := slices.DeleteFunc(options.BootDevices(values), func(k string) bool { return byKey[k] == nil })
	bootable := slices.IndexFunc(disks, func(k string) bool {
		d := byKey[k]
		return d.Image.Platform != "" && !d.Image.Medium || d.Contents != nil
	})
	if len(disks) > 0 {
		g.Boot = byKey[disks[max(bootable, 0)]] // what becomes of an empty one, an installation medium decides
	}
	g.Medium, g.MediumFirst = v.findMedium()
	return g
}

// findMedium returns the first installation medium in a drive that the VM boots from, and whether that comes before its
// disks. What else is in a drive boots nothing.
func (v *vm) findMedium() (medium *world.Image, first bool) {
	first = true
	for _, k := range options.BootDevices(v.conf.base) {
		d := options.ParseDrive(v.conf.base[k])
		_, vol := v.host.volume(d["file"])
		switch {
		case vol == nil:
		case !d.IsCDROM():
			first = false
		case vol.image.Medium:
			return &vol.image, first
		}
	}
	return nil, false
}

// firmware is what a VM boots with. Its variables are on the EFI disk; without one they last until it stops.
// Source: Proxmox VE 9.2, qemu-server, PVE::QemuServer::OVMF: of the types of EFI disks 4m is the one whose firmware
// verifies what it boots.
func (v *vm) firmware(values map[string]string) *world.Firmware {
	if values["bios"] != "ovmf" {
		return &world.Firmware{Legacy: true}
	}
	d := options.ParseDrive(values["efidisk0"])
	_, vol := v.host.volume(d["file"])
	switch {
	case vol == nil || vol.disk == nil:
		return &world.Firmware{}
	case d["efitype"] != "4m":
		return nil
	}
	f, written := vol.disk.Contents.(*world.Firmware)
	if !written {
		if f = (&world.Firmware{}); d["pre-enrolled-keys"] == "1" {
			f.Keys = world.MicrosoftKeys
		}
		vol.disk.Contents = f
	}
	return f
}

// listVMs answers GET /nodes/{node}/qemu. Without VM.Audit a VM is not there.
func listVMs(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	out := []row{}
	for _, id := range sortedKeys(c.s.vms) {
		v := c.s.vms[id]
		if v.host != c.node || !c.s.hasPrivileges(c.who, fmt.Sprintf("/vms/%d", id), false, "VM.Audit") {
			continue
		}
		r := c.s.statusRow(v)
		if c.flag("full") {
			r["qmpstatus"] = r["status"]
			if v.running {
				r["diskread"], r["diskwrite"] = 0, 0
			}
		}
		out = append(out, r)
	}
	return out, nil
}

func readCurrent(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	v, err := c.s.vmAt(c.node, c.vmid())
	if err != nil {
		return nil, err
	}
	return c.s.currentRow(v), nil
}

func readConfig(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	v, err := c.s.vmAt(c.node, c.vmid())
	if err != nil {
		return nil, err
	}
	if c.has("snapshot") {
		snap, err := v.findSnapshot(c.str("snapshot"))
		if err != nil {
			return nil, err
		}
		return renderOptions(snap.options, v.conf.digest()), nil
	}
	if c.flag("current") {
		return renderOptions(v.conf.base, v.conf.digest()), nil
	}
	return renderOptions(v.conf.merged(), v.conf.digest()), nil
}

// readPending lists every option with what it is and what it will be.
func readPending(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	v, err := c.s.vmAt(c.node, c.vmid())
	if err != nil {
		return nil, err
	}
	keys := setOf(slices.Collect(maps.Keys(v.conf.base))...)
	for k := range v.conf.pending {
		keys[k] = true
	}
	out := []row{{"key": "digest", "value": v.conf.digest()}}
	for _, k := range sortedKeys(keys) {
		r := row{"key": k}
		if text, ok := v.conf.base[k]; ok {
			r["value"] = renderValue(k, text)
		}
		if text, ok := v.conf.pending[k]; ok {
			r["pending"] = renderValue(k, text)
		}
		if v.conf.dropped[k] {
			r["delete"] = 1
		}
		out = append(out, r)
	}
	return out, nil
}

// readFeature reports whether a VM can be snapshotted, cloned or copied. All can but
// for snapshots.
func readFeature(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	v, err := c.s.vmAt(c.node, c.vmid())
	if err != nil {
		return nil, err
	}
	can := c.str("feature") != "snapshot" || v.canSnapshot()
	return row{"hasFeature": encodeBit(can), "nodes": []string{c.node.name}}, nil
}

// stillUsed refuses to delete a template that linked clones build upon. s.mu
// is held.
func (s *Server) stillUsed(v *vm) error {
	for _, st := range v.host.storages {
		for _, vol := range st.volumes {
			if _, base := v.host.volume(st.name + ":" + vol.parent); vol.parent != "" && base != nil && base.vmid == v.id {
				return perlError("base volume '%s:%s' is still in use by linked cloned", st.name, vol.parent)
			}
		}
	}
	return nil
}

// eraseVM removes a VM, its disks, its place in a pool and what the access
// control list has about it. Files that its configuration does not name stay,
// unless they are asked for. s.mu is held.
func (s *Server) eraseVM(v *vm, unreferenced bool) {
	for k, text := range v.conf.base {
		if options.IsDrive(k) || options.IsUnused(k) {
			s.discardVolume(v, options.ParseDrive(text)["file"])
		}
	}
	for _, st := range v.host.storages {
		for name, vol := range st.volumes {
			if unreferenced && vol.content == "images" && vol.vmid == v.id {
				delete(st.volumes, name)
			}
		}
	}
	delete(s.vms, v.id)
	s.joinPool(v.id, "")
	path := fmt.Sprintf("/vms/%d", v.id)
	s.granted = nil
	s.acls = slices.DeleteFunc(s.acls, func(a acl) bool { return a.path == path })
	s.world.Report(strconv.Itoa(v.id), "vm %d (%s) is gone", v.id, v.name())
}

// listCloudInit answers GET cloudinit: the options that the drive will carry.
func listCloudInit(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	v, err := c.s.vmAt(c.node, c.vmid())
	if err != nil {
		return nil, err
	}
	out := []row{}
	for _, k := range sortedKeys(v.conf.base) {
		if options.IsOfCloudInit(k) && !strings.HasPrefix(k, "ipconfig") && k != "citype" {
			out = append(out, row{"key": k, "value": renderValue(k, v.conf.base[k])})
		}
	}
	return out, nil
}

// dumpCloudInit answers GET cloudinit/dump: a file of the drive.
func dumpCloudInit(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	v, err := c.s.vmAt(c.node, c.vmid())
	if err != nil {
		return nil, err
	}
	values := v.conf.merged()
	switch c.str("type") {
	case "network":
		return options.NetworkData(values), nil
	case "user":
		return options.UserData(v.name(), values), nil
	}
	return options.MetaData(v.name(), values), nil
}
