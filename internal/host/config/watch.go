package config

import (
	"errors"
	"os"
	"slices"
	"syscall"

	"github.com/talos-agent/talos-agent/internal/host/doctor"
)

// UsedFile is a file, or with an empty kind a directory, that settings were made
// from, whether it was there or not.
type UsedFile struct {
	Path string
	Kind doctor.FileKind
	// was is how it was just before it was read: what changes while it is read is
	// seen as a change.
	was stamp
}

// recordUse notes that the settings are made from a file, which is read next.
func (l *loader) recordUse(path string, kind doctor.FileKind) {
	if !slices.ContainsFunc(l.out.Used, func(f UsedFile) bool { return f.Path == path }) {
		l.out.Used = append(l.out.Used, UsedFile{path, kind, readStamp(path)})
	}
}

// stamp distinguishes one state of a file from another without opening it: it differs
// after a write, a replacement, and another owner or mode, be it of the file or
// of what a link on the way to it leads to. Of a directory it shows only whether
// it is the same one.
type stamp struct {
	dev, ino uint64
	mode     uint32
	uid, gid uint32
	size     int64
	changed  int64         // ns since 1970, by the clock of the file system: of content or inode
	none     syscall.Errno // why there is nothing to be seen
}

func readStamp(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		errno, _ := errors.AsType[syscall.Errno](err)
		return stamp{none: max(errno, 1)}
	}
	return stampOf(info)
}

// Watch are the files that the settings of a daemon were made from, or that
// were read last for new ones.
type Watch struct {
	used []UsedFile
	seen []stamp // at the look before
}

// NewWatch begins to watch files that were just read.
func NewWatch(used []UsedFile) Watch { return Watch{used: used} }

// Changed names the files that are not any more as they were when they were
// read.
func (o *Watch) Changed() []string {
	var out []string
	for _, f := range o.used {
		if readStamp(f.Path) != f.was {
			out = append(out, f.Path)
		}
	}
	return out
}

// Poll reports whether files have changed, once they stay as they are from one
// look to the next: what is still being written is nobody's to read. The policy
// waits for itself only: a key that is written again and again does not keep a
// tightened one from being read.
func (o *Watch) Poll() bool {
	now := make([]stamp, len(o.used))
	changed, policy := false, false
	for i, f := range o.used {
		now[i] = readStamp(f.Path)
		if now[i] == f.was {
			continue
		}
		changed = true
		policy = policy || f.Kind == doctor.PolicyFile && i < len(o.seen) && o.seen[i] == now[i]
	}
	settled := slices.Equal(now, o.seen)
	o.seen = now
	return policy || settled && changed
}
