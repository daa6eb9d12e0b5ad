package etcddb

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Recover reads an uploaded snapshot, nil where there is none, as Talos does when it makes an etcd of
// it: of each key what is left of it. An error is worded as the event of the service is; with
// ErrTruncated there is no event, for the process that reads dies of it.
// Source: talos v1.13.9, services.Etcd: recoverFromSnapshot; etcd v3.7.1, etcdutl/snapshot: Status,
// copyAndVerifyDB.
func Recover(upload []byte, skipHash bool) (Contents, error) {
	if upload == nil {
		return Contents{}, errors.New("error verifying snapshot: stat /var/lib/etcd.snapshot: no such file or directory")
	}
	c, err := Decode(upload)
	if err != nil {
		return c, fmt.Errorf("error verifying snapshot: %w", err)
	}
	body := len(upload) - sha256.Size
	sum := sha256.Sum256(upload[:body])
	switch hashed := len(upload)%512 == sha256.Size; {
	case skipHash:
	case !hashed:
		err = errors.New("snapshot missing hash but --skip-hash-check=false")
	case sum != [sha256.Size]byte(upload[body:]):
		err = fmt.Errorf("expected sha256 %v, got %v", upload[body:], sum[:])
	}
	if err != nil {
		return c, &copied{err}
	}
	c.Registry.Keys = keepLast(c.Registry.Keys)
	return c, nil
}

// copied is an error that is found when the file lies in the data directory already.
type copied struct{ err error }

func (c *copied) Error() string { return "error recovering from the snapshot: " + c.err.Error() }

// LeavesData reports whether the data directory is not empty after an error of Recover: nothing but
// emptying it helps then (recorded of a hash that is wrong; one that is missing is found later than
// the file is copied, too).
func LeavesData(err error) bool {
	var c *copied
	return errors.As(err, &c)
}

// keepLast drops the revisions of keys that came before others of them, and keys that were deleted.
func keepLast(all []world.RegistryKey) (keys []world.RegistryKey) {
	last := map[string]uint64{}
	for _, k := range all {
		last[k.Key] = k.Revision
	}
	for _, k := range all {
		if k.Value != nil && last[k.Key] == k.Revision {
			keys = append(keys, k)
		}
	}
	return keys
}
