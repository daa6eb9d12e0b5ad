package main

import (
	"errors"
	"os"
	"slices"
	"syscall"

	"github.com/talos-agent/talos-agent/internal/host/doctor"
)

// usedFile is a file, or with an empty kind a directory, that settings were made
// from, whether it was there or not.
type usedFile struct {
	path string
	kind doctor.FileKind
	// was is how it was just before it was read: what changes while it is read is
	// seen as a change.
	was stamp
}

// uses notes that the settings are made from a file, which is read next.
func (l *configLoader) uses(path string, kind doctor.FileKind) {
	if !slices.ContainsFunc(l.out.used, func(f usedFile) bool { return f.path == path }) {
		l.out.used = append(l.out.used, usedFile{path, kind, stampOf(path)})
	}
}

// stamp tells one state of a file from another without opening it: it differs
// after a write, a replacement, and another owner or mode, be it of the file or
// of what a link on the way to it leads to. Of a directory it tells only whether
// it is the same one.
type stamp struct {
	dev, ino uint64
	mode     uint32
	uid, gid uint32
	size     int64
	changed  int64         // ns since 1970, by the clock of the file system: of content or inode
	none     syscall.Errno // why there is nothing to be seen
}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		errno, _ := errors.AsType[syscall.Errno](err)
		return stamp{none: max(errno, 1)}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return stamp{size: info.Size(), changed: info.ModTime().UnixNano()}
	case info.IsDir():
		return stamp{dev: st.Dev, ino: st.Ino}
	}
	return stamp{dev: st.Dev, ino: st.Ino, mode: st.Mode, uid: st.Uid, gid: st.Gid, size: st.Size, changed: st.Ctim.Nano()}
}

// ownFiles are the files that the settings of a daemon were made from, or that
// were read last for new ones.
type ownFiles struct {
	used []usedFile
	seen []stamp // at the look before
}

// changed names the files that are not any more as they were when they were
// read.
func (o *ownFiles) changed() []string {
	var out []string
	for _, f := range o.used {
		if stampOf(f.path) != f.was {
			out = append(out, f.path)
		}
	}
	return out
}

// look reports whether files have changed, once they stay as they are from one
// look to the next: what is still being written is nobody's to read. The policy
// waits for itself only: a key that is written again and again does not keep a
// tightened one from being read.
func (o *ownFiles) look() bool {
	now := make([]stamp, len(o.used))
	changed, policy := false, false
	for i, f := range o.used {
		now[i] = stampOf(f.path)
		if now[i] == f.was {
			continue
		}
		changed = true
		policy = policy || f.kind == doctor.PolicyFile && i < len(o.seen) && o.seen[i] == now[i]
	}
	settled := slices.Equal(now, o.seen)
	o.seen = now
	return policy || settled && changed
}
