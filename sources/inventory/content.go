package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
)

// What is read at most to distinguish two states of a cluster's files. A folder that an inventory names may be the whole repository.
const (
	mostContentFiles = 10_000
	mostContentBytes = 256 << 20
)

var errMuchContent = errors.New("it is more than is compared")

// digestContent identifies the files that an inventory is made from: its own, the secrets as they are encrypted, and what else it names, of
// folders all that is in them. "" : not all of them can be read.
func (l *loader) digestContent() string {
	own := []string{path.Join(l.dir, ClusterFile), path.Join(l.dir, NodesFile), path.Join(l.dir, SecretsFile)}
	named := slices.Sorted(slices.Values(append(own, l.named...)))
	sum, files, left := sha256.New(), 0, int64(mostContentBytes)
	visit := func(name string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			fmt.Fprintf(sum, "%q is missing\n", name)
			return nil
		case err != nil:
			return err
		case entry.IsDir():
			return nil
		case files == mostContentFiles:
			return errMuchContent
		case !entry.Type().IsRegular(): // nothing of an inventory is read through a link
			fmt.Fprintf(sum, "%q is %v\n", name, entry.Type())
			return nil
		}
		files++
		digest, size, err := l.digestFile(name, left)
		if left -= size; err != nil {
			return err
		}
		fmt.Fprintf(sum, "%q %s\n", name, digest)
		return nil
	}
	for _, name := range slices.Compact(named) {
		if err := fs.WalkDir(l.fsys, name, visit); err != nil {
			return ""
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// digestFile identifies what a file has, of so many bytes at most, and returns how many it has.
func (l *loader) digestFile(name string, most int64) (digest string, size int64, err error) {
	f, err := l.fsys.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	sum := sha256.New()
	size, err = io.Copy(sum, io.LimitReader(f, most+1))
	if err == nil && size > most {
		err = errMuchContent
	}
	return hex.EncodeToString(sum.Sum(nil)), size, err
}
