//go:build !linux

package config

import "io/fs"

// stampOf is coarser than on Linux: only the daemon watches files.
func stampOf(info fs.FileInfo) stamp {
	return stamp{size: info.Size(), changed: info.ModTime().UnixNano()}
}
