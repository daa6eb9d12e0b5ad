package pve

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/copying"
	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// storage is one storage: a directory or a pool of thin volumes. Its fields below the line belong to Server.mu.
type storage struct {
	name, kind, path string
	content          []string
	total, used      int64
	shared, inactive bool
	// writes is what all that is written onto the storage shares.
	writes *copying.Storage

	volumes map[string]*volume // by name without the storage
	owner   string             // the host that it was first listed for
}

// volume is a file or a logical volume on a storage.
type volume struct {
	name    string // "import/x.qcow2", "410/vm-410-disk-0.raw", "vm-410-disk-0"
	content string // images, import, iso, ...
	format  string // raw, qcow2, iso
	vmid    int
	bytes   int64 // as the guest sees it
	file    int64 // as it lies there
	created time.Time
	parent  string // the volume a linked clone builds upon
	sha256  string // of an uploaded file
	image   world.Image
	disk    *world.Disk // of images
}

func newStorage(host string, c Storage) *storage {
	st := &storage{
		owner: host + "/", name: c.Name, kind: c.Type, path: c.Path, content: c.Content, total: c.TotalBytes, used: c.UsedBytes, shared: c.Shared,
		writes: copying.New(), volumes: map[string]*volume{},
	}
	if st.kind == "" {
		st.kind = "dir"
	}
	if st.total == 0 {
		st.total = 1 << 40
	}
	if st.path == "" {
		st.path = "/var/lib/" + st.name
		if st.name == "local" {
			st.path = "/var/lib/vz"
		}
	}
	return st
}

// storage returns a storage of the host; nil when there is none.
func (h *host) storage(name string) *storage {
	for _, st := range h.storages {
		if st.name == name {
			return st
		}
	}
	return nil
}

// storageOf is storage for who does not hold s.mu.
func (s *Server) storageOf(h *host, name string) *storage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.storage(name)
}

// LockStorage takes the lock of a storage of a host, as an allocation does that takes
// long: of a file whose blocks are all reserved, or of a volume of a slow cluster of storages.
func (s *Server) LockStorage(node, name string) (unlock func(), err error) {
	for _, h := range s.hosts {
		if st := s.storageOf(h, name); h.name == node && st != nil {
			return func() { <-st.writes.Lock }, st.writes.Take(s.ctx, s.world.Scale(fileLockWait), nil)
		}
	}
	return nil, fmt.Errorf("there is no storage %s on %s", name, node)
}

// volume finds a volume by its full name, "local:import/x.qcow2".
func (h *host) volume(volid string) (*storage, *volume) {
	name, rest, ok := strings.Cut(volid, ":")
	st := h.storage(name)
	if !ok || st == nil {
		return nil, nil
	}
	return st, st.volumes[ownName(rest)]
}

// ownName is a volume's name without that of the volume a linked clone builds
// upon, "104/base-104-disk-0.raw/111/vm-111-disk-0.raw".
func ownName(name string) string {
	if parts := strings.Split(name, "/"); len(parts) == 4 {
		return strings.Join(parts[2:], "/")
	}
	return name
}

// volid is a volume's full name.
func (st *storage) volid(v *volume) string {
	if v.parent != "" {
		return st.name + ":" + v.parent + "/" + v.name
	}
	return st.name + ":" + v.name
}

func (st *storage) acceptsContent(content string) bool { return slices.Contains(st.content, content) }

// usedBytes is how much of the storage is taken. s.mu is held.
func (st *storage) usedBytes() int64 {
	n := st.used
	for _, v := range st.volumes {
		n += v.file
	}
	return n
}

// file is where a volume lies, for logs.
func (st *storage) file(name string) string {
	if st.kind == "lvmthin" {
		return "/dev/pve/" + name
	}
	switch kind, rest, _ := strings.Cut(name, "/"); kind {
	case "iso", "vztmpl":
		return path.Join(st.path, "template", map[string]string{"iso": "iso", "vztmpl": "cache"}[kind], rest)
	case "backup":
		return path.Join(st.path, "dump", rest)
	case "import", "snippets":
		return path.Join(st.path, name)
	}
	return path.Join(st.path, "images", name)
}

// diskName makes the name of a new disk: the lowest number that is free.
func (st *storage) diskName(id int, stem, format string) string {
	for n := 0; ; n++ {
		if !st.hasDisk(id, n) {
			return st.imageName(id, fmt.Sprintf("%s-%d-disk-%d", stem, id, n), format)
		}
	}
}

// hasDisk reports whether a VM has a disk of that number, whatever its format, as template or not.
func (st *storage) hasDisk(id, n int) bool {
	for _, stem := range []string{"vm", "base"} {
		for _, format := range []string{"raw", "qcow2"} {
			if st.volumes[st.imageName(id, fmt.Sprintf("%s-%d-disk-%d", stem, id, n), format)] != nil {
				return true
			}
		}
	}
	return false
}

// imageName spells the name of an image the way the storage does.
func (st *storage) imageName(id int, stem, format string) string {
	if st.kind == "lvmthin" {
		return stem
	}
	return fmt.Sprintf("%d/%s.%s", id, stem, format)
}

// allocateDisk makes an empty disk. s.mu is held.
func (s *Server) allocateDisk(st *storage, name, format string, id int, bytes int64) *volume {
	if st.kind == "lvmthin" {
		format = "raw"
		const extent = 4 << 20
		bytes = (bytes + extent - 1) / extent * extent
	}
	v := &volume{name: name, content: "images", format: format, vmid: id, bytes: bytes, file: 4096, created: time.Now()}
	v.disk = &world.Disk{Volid: st.name + ":" + name, Bytes: bytes}
	st.volumes[name] = v
	return v
}

// heldImage is the image a file or a disk was made from; zero when it is none.
func (v *volume) heldImage() world.Image {
	if v.disk != nil {
		return v.disk.Image
	}
	return v.image
}

// freeVolume removes a volume. s.mu is held.
func (h *host) freeVolume(volid string) {
	if st, v := h.volume(volid); v != nil {
		delete(st.volumes, v.name)
	}
}

// contentRow is how the content list shows a volume.
func (v *volume) contentRow(st *storage) row {
	r := row{"volid": st.volid(v), "format": v.format, "ctime": v.created.Unix(), "size": v.file, "content": v.content}
	if v.content == "backup" {
		r["vmid"], r["subtype"] = v.vmid, "qemu"
	}
	if v.content == "images" {
		r["size"], r["used"], r["vmid"], r["parent"] = v.bytes, v.file, v.vmid, nil
		if v.parent != "" {
			r["parent"] = v.parent
		}
	}
	return r
}

// pathStorage returns the storage the path names.
func pathStorage(c *call) (*storage, error) {
	st := c.node.storage(c.str("storage"))
	if st == nil {
		return nil, perlError("storage '%s' does not exist", c.str("storage"))
	}
	return st, nil
}

func listContent(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	st, err := pathStorage(c)
	if err != nil {
		return nil, err
	}
	out := []row{}
	for name := range st.volumes { // in no order, as a real host lists them
		v := st.volumes[name]
		switch {
		case c.has("content") && c.str("content") != v.content,
			// Seen: with vmid, everything to import is listed too.
			c.has("vmid") && v.content != "import" && strconv.Itoa(v.vmid) != c.str("vmid"):
			continue
		case v.content == "images" && !c.s.hasPrivileges(c.who, "/storage/"+st.name, false, "Datastore.Allocate") &&
			!c.s.hasPrivileges(c.who, fmt.Sprintf("/vms/%d", v.vmid), false, "VM.Config.Disk"):
			continue
		case v.content == "backup" && !c.s.hasPrivileges(c.who, "/storage/"+st.name, false, "Datastore.Allocate") && c.s.mayHandleBackup(c.who, st, v) != nil:
			continue
		}
		out = append(out, v.contentRow(st))
	}
	return out, nil
}

// volumeID is the volume the path names; its storage may be left out.
func volumeID(c *call, st *storage) string {
	if volid := c.str("volume"); strings.Contains(volid, ":") {
		return volid
	}
	return st.name + ":" + c.str("volume")
}

func readContent(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	st, err := pathStorage(c)
	if err != nil {
		return nil, err
	}
	if err := c.s.mayReadVolume(c.who, st); err != nil {
		return nil, err
	}
	volid := volumeID(c, st)
	_, v := c.node.volume(volid)
	if v == nil {
		return nil, perlError("volume_size_info on '%s' failed - no format", volid)
	}
	format := v.format
	if format == "iso" {
		format = "raw"
	}
	return row{"path": st.file(v.name), "size": roundUp(v.bytes, 512), "used": roundUp(v.file, 4096), "format": format}, nil
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// mayReadVolume asks for what attaching or reading a volume needs. s.mu is held.
func (s *Server) mayReadVolume(who identity, st *storage) error {
	return s.needAny(who, "/storage/"+st.name, "Datastore.AllocateSpace", "Datastore.Audit")
}

// mayHandleBackup asks for what removing or seeing a VM's backup needs. s.mu is held.
func (s *Server) mayHandleBackup(who identity, st *storage, v *volume) error {
	if err := s.needPrivileges(who, "/storage/"+st.name, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	return s.needPrivileges(who, fmt.Sprintf("/vms/%d", v.vmid), "VM.Backup")
}

// deleteContent removes a volume in a task, which succeeds even if there is
// none.
func deleteContent(c *call) (any, error) {
	s := c.s
	s.mu.Lock()
	st, err := pathStorage(c)
	if err == nil {
		volid := volumeID(c, st)
		_, v := c.node.volume(volid)
		switch {
		case v != nil && v.content == "images":
			if err = s.needPrivileges(c.who, "/storage/"+st.name, "Datastore.Allocate"); err == nil && s.vms[v.vmid] != nil {
				err = perlError("Cannot remove image, a guest with VMID '%d' exists!\nYou can delete the image from the guest's hardware pane", v.vmid)
			}
		case v != nil && v.content == "backup":
			err = s.mayHandleBackup(c.who, st, v)
		default:
			err = s.needPrivileges(c.who, "/storage/"+st.name, "Datastore.Allocate")
		}
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	volid := volumeID(c, st)
	return s.forkTask(c.who, c.node, "imgdel", st.name, c.fault, func(t *task) error {
		if _, err := s.passTime(t, 0); err != nil {
			return err
		}
		s.mu.Lock()
		c.node.freeVolume(volid)
		s.mu.Unlock()
		s.logLine(t, "Removed volume '%s'", volid)
		return nil
	})
}

// statusRow is how the storage lists show a storage. s.mu is held.
func (st *storage) statusRow() row {
	used := st.usedBytes()
	if st.inactive {
		return row{"type": st.kind, "content": strings.Join(st.content, ","), "active": 0, "enabled": 1, "shared": encodeBit(st.shared), "total": 0, "used": 0, "avail": 0}
	}
	return row{
		"type": st.kind, "content": strings.Join(st.content, ","), "active": 1, "enabled": 1, "shared": encodeBit(st.shared),
		"total": st.total, "used": used, "avail": max(0, st.total-used),
	}
}

// listStorages answers GET /nodes/{node}/storage. Without privileges on a
// storage it is not there.
func listStorages(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	out := []row{}
	for _, st := range c.node.storages {
		if c.s.mayReadVolume(c.who, st) != nil || c.has("storage") && c.str("storage") != st.name {
			continue
		}
		if want := schema.SplitList(c.str("content")); len(want) > 0 && !slices.ContainsFunc(want, st.acceptsContent) {
			continue
		}
		r := st.statusRow()
		r["storage"] = st.name
		r["used_fraction"] = float64(st.usedBytes()) / float64(st.total)
		out = append(out, r)
	}
	return out, nil
}

// listThinPools shows the thin pools of a host, one for each of its storages of that
// type. Of the pools of LVM a hundredth is metadata, more or less.
func listThinPools(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	out := []row{}
	for _, st := range c.node.storages {
		if st.kind == "lvmthin" {
			out = append(out, row{"vg": "pve", "lv": st.name, "lv_size": st.total, "used": st.usedBytes(), "metadata_size": st.total / 100, "metadata_used": st.usedBytes() / 100})
		}
	}
	return out, nil
}

func readStorageStatus(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	st := c.node.storage(c.str("storage"))
	if st == nil {
		return nil, invalidParam("storage", "No such storage.")
	}
	return st.statusRow(), nil
}
