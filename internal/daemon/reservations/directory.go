package reservations

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/platform"
)

// Reservation is the address of a node.
type Reservation struct {
	Node string     // a DNS label
	MAC  string     // "": it is not known, and the file that the node has stays
	IP   netip.Addr // invalid: likewise
	// Kept is true of a node that runs: the file that it has stays, whatever address that has. With
	// another one the node would get that as soon as it renews its lease.
	Kept bool
}

// Directory is where the files are. Several agents may share it: each has its own owner, and touches
// the files of no other one. For one cluster one call at a time is made.
type Directory struct{ path, owner string }

// New returns the directory at a path, which is opened when it is needed: it may come later.
func New(path, owner string) *Directory { return &Directory{path: path, owner: owner} }

// mode lets everybody read a file: dnsmasq has a user of its own.
const mode = 0o644

// maxFile bounds what is read of a file that is there: ours have two short lines.
const maxFile = 4096

// Set makes the files of a cluster those of its reservations; whole has the others removed that it
// has. Files that are right already are not touched: dnsmasq reads each that is written. An error
// names the path that could not be changed, and what was changed before stays.
//
// There is one file a node because dnsmasq adds what it reads and drops nothing of it before it is
// reloaded: of a file with more it would refuse all lines that it has read before (dnsmasq 2.90,
// duplicate dhcp-host IP address).
func (d *Directory) Set(cluster string, all []Reservation, whole bool) (err error) {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return d.explain(err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	have, err := d.list(root, cluster)
	if err != nil {
		return d.explain(err)
	}
	changed := false
	for _, r := range all {
		name := d.prefix(cluster) + r.Node
		delete(have, name)
		if r.MAC == "" || !r.IP.IsValid() {
			continue
		}
		if have := readPublic(root, name); !r.isIn(have, cluster) {
			if err := d.write(root, name, r.file(cluster)); err != nil {
				return d.explain(fmt.Errorf("write the reservation of %s in %s: %w", r.Node, d.path, err))
			}
			changed = true
		}
	}
	for name := range have {
		if !whole && !strings.HasPrefix(name, partial) {
			continue
		}
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return d.explain(fmt.Errorf("remove %s in %s: %w", name, d.path, err))
		}
		changed = true
	}
	if !changed {
		return nil
	}
	return platform.SyncDir(root)
}

// prefix begins the names of a cluster's files. None of the three parts of a name has a dot.
func (d *Directory) prefix(cluster string) string { return d.owner + "." + cluster + "." }

// partial begins the name of a file that is being written: dnsmasq skips what begins with a dot.
const partial = "."

// list lists the files of a cluster, with those that a write has left that was interrupted.
func (d *Directory) list(root *os.Root, cluster string) (map[string]bool, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, name := range names {
		node, ours := strings.CutPrefix(strings.TrimPrefix(name, partial), d.prefix(cluster))
		if ours && node != "" && !strings.Contains(node, ".") {
			out[name] = true
		}
	}
	return out, nil
}

// comment is the first line of the file of a reservation.
func (r Reservation) comment(cluster string) string {
	return fmt.Sprintf("# node %s of cluster %s, written by talos-agent\n", r.Node, cluster)
}

// file is what the file of a reservation holds: a line as dnsmasq takes it behind dhcp-host=.
func (r Reservation) file(cluster string) []byte {
	return fmt.Appendf(nil, "%s%s,%s,%s\n", r.comment(cluster), strings.ToLower(r.MAC), r.IP, r.Node)
}

// isIn reports whether a file is right as it is.
func (r Reservation) isIn(file []byte, cluster string) bool {
	return bytes.Equal(file, r.file(cluster)) || r.Kept && bytes.HasPrefix(file, []byte(r.comment(cluster)))
}

// readPublic reads a file that everybody may read; nil where it is none.
func readPublic(root *os.Root, name string) []byte {
	f, err := root.OpenFile(name, os.O_RDONLY|platform.NoFollow|platform.NoWait, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != mode {
		return nil
	}
	have, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil
	}
	return have
}

// write puts a whole file in the place of the one before. The agent's umask lets nobody else read
// what it makes.
func (d *Directory) write(root *os.Root, name string, data []byte) error {
	temporary := partial + name
	if err := root.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL|platform.NoFollow, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = cmp.Or(err, f.Chmod(mode), f.Sync())
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(temporary))
	}
	return nil
}

// explain adds what to do about a directory that is not there or that the agent may not change.
func (d *Directory) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.WithHint(err, "make the directory, for the agent's user: install -d -m 0755 -o talos-agent -g talos-agent "+d.path)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fault.WithHint(err, "give it to the agent's user, with chown; and where the unit does not name it, add ReadWritePaths= in a drop-in")
	}
	return err
}
