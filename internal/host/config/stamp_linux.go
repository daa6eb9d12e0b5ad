package config

import (
	"io/fs"
	"syscall"
)

func stampOf(info fs.FileInfo) stamp {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return stamp{size: info.Size(), changed: info.ModTime().UnixNano()}
	case info.IsDir():
		return stamp{dev: st.Dev, ino: st.Ino}
	}
	return stamp{dev: st.Dev, ino: st.Ino, mode: st.Mode, uid: st.Uid, gid: st.Gid, size: st.Size, changed: st.Ctim.Nano()}
}
