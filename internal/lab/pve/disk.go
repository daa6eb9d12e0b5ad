package pve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/copying"
	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// newDisk matches what asks for a new disk: a storage and a size in GiB.
var newDisk = pattern.New(`^([^:\s]+):(\d+(?:\.\d+)?)$`)

// cloudInitDisk matches what asks for a cloud-init drive.
var cloudInitDisk = pattern.New(`^([^:\s]+):cloudinit$`)

// The sizes of what the firmware keeps, whatever was asked for.
const (
	efiBytes       = 528 << 10
	tpmBytes       = 4 << 20
	cloudInitBytes = 4 << 20
)

// mayUseDrives checks what the drives of a request need before anything is
// made: storages that exist and may be used, sources that can be imported from.
// s.mu is held.
func (s *Server) mayUseDrives(c *call, values map[string]string) error {
	for _, key := range options.DriveKeys(values) {
		d := options.ParseDrive(values[key])
		file := d["file"]
		if file == "none" || file == "cdrom" {
			continue
		}
		if m := newDisk.FindStringSubmatch(file); m != nil {
			if err := s.mayAllocate(c, m[1]); err != nil {
				return err
			}
			if from := d["import-from"]; from != "" {
				if m[2] != "0" {
					return invalidParam(key, "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>")
				}
				if err := s.mayImport(c, key, from); err != nil {
					return err
				}
			}
			continue
		}
		if m := cloudInitDisk.FindStringSubmatch(file); m != nil {
			if err := s.mayAllocate(c, m[1]); err != nil {
				return err
			}
			continue
		}
		if strings.HasPrefix(file, "/") {
			return s.rootPathsOnly()
		}
		name, _, _ := strings.Cut(file, ":")
		st := c.node.storage(name)
		if st == nil {
			return perlError("storage '%s' does not exist", name)
		}
		if err := s.mayReadVolume(c.who, st); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) rootPathsOnly() error {
	line := 581
	if s.flavour.nine {
		line = 651
	}
	return perlError("Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line %d.", line)
}

func (s *Server) mayAllocate(c *call, storage string) error {
	if err := s.needPrivileges(c.who, "/storage/"+storage, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	st := c.node.storage(storage)
	if st == nil {
		return perlError("storage '%s' does not exist", storage)
	}
	if !st.acceptsContent("images") {
		return invalidParam("storage", "storage '%s' does not support vm images", storage)
	}
	return nil
}

func (s *Server) mayImport(c *call, key, from string) error {
	if strings.HasPrefix(from, "/") {
		return s.rootPathsOnly()
	}
	name, rest, _ := strings.Cut(from, ":")
	st := c.node.storage(name)
	if st == nil {
		return perlError("storage '%s' does not exist", name)
	}
	if kind, _, _ := strings.Cut(rest, "/"); kind == "iso" || kind == "vztmpl" || kind == "snippets" || kind == "backup" {
		return invalidParam(key, "%s has wrong type '%s' - needs to be 'images' or 'import'", from, kind)
	}
	return s.mayReadVolume(c.who, st)
}

// placed is a drive of a request that has become one of a VM, and the volume
// that was made for it, if any.
type placed struct {
	text  string
	volid string
}

// placeDrive turns a drive of a request into one of a VM: makes, imports or finds
// its volume. A volume that was begun is returned with the error.
func (s *Server) placeDrive(t *task, h *host, id int, key, text string) (placed, error) {
	d := options.ParseDrive(text)
	file := d["file"]
	if m := newDisk.FindStringSubmatch(file); m != nil {
		if from := d["import-from"]; from != "" {
			return s.importDisk(t, h, id, key, m[1], d)
		}
		return s.makeDisk(t, h, id, key, m, d)
	}
	if m := cloudInitDisk.FindStringSubmatch(file); m != nil {
		return s.makeCloudInit(t, h, id, key, m[1], d)
	}
	if file == "none" || file == "cdrom" {
		return placed{text: d.String()}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, v := h.volume(file)
	if v == nil {
		return placed{}, perlError("volume '%s' does not exist", file)
	}
	d["size"] = options.FormatSize(roundUp(v.bytes, 512))
	return placed{text: d.String()}, nil
}

func (s *Server) makeDisk(t *task, h *host, id int, key string, m []string, d options.Properties) (placed, error) {
	gib, err := strconv.ParseFloat(m[2], 64)
	if err != nil {
		return placed{}, err
	}
	bytes := int64(gib * (1 << 30))
	switch key {
	case "efidisk0":
		bytes = efiBytes
	case "tpmstate0":
		bytes = tpmBytes
	}
	st, format := s.storageOf(h, m[1]), cmp.Or(d["format"], "raw")
	var v *volume
	err = s.allocate(t, st, 0, func() error {
		v = s.allocateDisk(st, st.diskName(id, "vm", format), format, id, bytes)
		if key == "efidisk0" {
			v.file = v.bytes
		}
		return nil
	})
	if err != nil {
		return placed{}, err
	}
	s.logFormatting(t, st, v)
	if key == "efidisk0" {
		s.logTransferred(t, v.bytes)
	}
	delete(d, "format")
	d["file"], d["size"] = st.volid(v), options.FormatSize(v.bytes)
	s.logLine(t, "%s: successfully created disk '%s'", key, d)
	return placed{text: d.String(), volid: d["file"]}, nil
}

func (s *Server) makeCloudInit(t *task, h *host, id int, key, storage string, d options.Properties) (placed, error) {
	st, format := s.storageOf(h, storage), cmp.Or(d["format"], "qcow2")
	name := st.imageName(id, fmt.Sprintf("vm-%d-cloudinit", id), format)
	var v *volume
	err := s.allocate(t, st, 0, func() error {
		switch {
		case st.volumes[name] != nil && st.kind == "lvmthin":
			return perlError("lvcreate 'pve/%s' error:   Logical Volume %q already exists in volume group \"pve\"", name, name)
		case st.volumes[name] != nil:
			return perlError("disk image '%s' already exists", st.file(name))
		}
		v = s.allocateDisk(st, name, format, id, cloudInitBytes)
		v.disk = nil // the host writes it, the guest keeps nothing on it
		return nil
	})
	if err != nil {
		return placed{}, err
	}
	s.logFormatting(t, st, v)
	delete(d, "format")
	delete(d, "size")
	d["file"], d["media"] = st.volid(v), "cdrom"
	s.logLine(t, "%s: successfully created disk '%s'", key, d)
	return placed{text: d.String(), volid: d["file"]}, nil
}

// importDisk copies an image onto a storage. Creations side by side wait for one another
// while a volume is allocated, and share the storage's speed while it is filled.
func (s *Server) importDisk(t *task, h *host, id int, key, storage string, d options.Properties) (placed, error) {
	from := d["import-from"]
	s.mu.Lock()
	st := h.storage(storage)
	srcStorage, src := h.volume(from)
	s.mu.Unlock()
	if src == nil {
		return placed{}, perlError("failed to stat '%s'", fileOf(h, from))
	}
	format := cmp.Or(d["format"], src.format)
	if st.kind == "lvmthin" {
		format = "raw"
	}
	s.logLine(t, "create full clone of drive (%s)", from)
	var v *volume
	subject, allocation := strconv.Itoa(id), s.world.Latency.Import/allocations
	err := s.allocate(t, st, allocation, func() error {
		v = s.allocateDisk(st, st.diskName(id, "vm", format), format, id, src.bytes)
		v.disk.Image = src.heldImage()
		return nil
	})
	if err != nil {
		return placed{}, err
	}
	s.world.Spend("allocate", subject, allocation, "upload/"+h.name, "delete/"+subject)
	volid := st.volid(v)
	s.logFormatting(t, st, v)
	if s.flavour.nine {
		s.logLine(t, "allocated target volume '%s'", volid)
	}
	if err := s.copyOnto(t, st, id, s.world.Latency.Import-allocation, "allocate/"+subject); err != nil {
		if errors.Is(err, errInterrupted) {
			err = perlError("cannot import from '%s' - copy failed: command '/usr/bin/qemu-img convert -p -n -f %s -O %s %s zeroinit:%s' failed: %s",
				from, src.format, format, srcStorage.file(src.name), st.file(v.name), err)
		}
		return placed{volid: volid}, err
	}
	s.logTransferred(t, v.bytes)
	delete(d, "import-from")
	delete(d, "format")
	d["file"], d["size"] = volid, options.FormatSize(v.bytes)
	s.logLine(t, "%s: successfully created disk '%s'", key, d)
	return placed{text: d.String(), volid: volid}, nil
}

// fileOf is where a volume would lie, for errors about one that is not there.
func fileOf(h *host, volid string) string {
	name, rest, _ := strings.Cut(volid, ":")
	if st := h.storage(name); st != nil {
		return st.file(rest)
	}
	return volid
}

// allocations is how many allocations take as long as filling one volume: a logical volume
// is there in a fifth of a second.
const allocations = 40

// copyOnto spends the time of a copy onto a storage: longer where others copy at once.
func (s *Server) copyOnto(t *task, st *storage, id int, d time.Duration, after ...string) error {
	if err := st.writes.Copy(t.ctx, s.world.Scale(d)); err != nil {
		return err
	}
	if _, err := s.passTime(t, 0); err != nil {
		return err
	}
	// It takes as long as one alone, and ends no sooner than the storage has written all that came before.
	own, all := "import/"+strconv.Itoa(id), "copies/"+st.owner+st.name
	s.world.Spend("import", strconv.Itoa(id), d, after...)
	s.world.Spend("copies", st.owner+st.name, d/copying.FullSpeed, append(after, all)...)
	s.world.Spend("import", strconv.Itoa(id), 0, own, all)
	return nil
}

// allocate makes or frees a volume under the lock of its storage. qemu-server 9.2.6 has given it back when one is filled.
func (s *Server) allocate(t *task, st *storage, took time.Duration, make func() error) error {
	switch err := st.writes.Take(t.ctx, s.world.Scale(fileLockWait), nil); {
	case errors.Is(err, copying.ErrLocked) && st.shared:
		return perlError("cfs-lock 'storage-%s' error: got lock request timeout", st.name)
	case errors.Is(err, copying.ErrLocked):
		return perlError("can't lock file '/var/lock/pve-manager/pve-storage-%s' - got timeout", st.name)
	case err != nil:
		return err
	}
	defer func() { <-st.writes.Lock }()
	if s.world.Sleep(t.ctx, took) != nil || t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return make()
}

// logFormatting is what making a volume leaves in a task's log.
func (s *Server) logFormatting(t *task, st *storage, v *volume) {
	switch {
	case st.kind == "lvmthin":
		s.logLine(t, "  Logical volume %q created.", v.name)
	case v.format == "qcow2":
		s.logLine(t, "Formatting '%s', fmt=qcow2 cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib size=%d lazy_refcounts=off refcount_bits=16",
			st.file(v.name), v.bytes)
	default:
		s.logLine(t, "Formatting '%s', fmt=%s size=%d preallocation=off", st.file(v.name), v.format, v.bytes)
	}
}

// logTransferred is what copying leaves in a task's log.
func (s *Server) logTransferred(t *task, bytes int64) {
	for _, line := range copying.Transferred(bytes) {
		s.logLine(t, "%s", line)
	}
}
