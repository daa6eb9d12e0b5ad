// Package snapshottest makes what tests of snapshots take for one.
package snapshottest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// Sent makes a snapshot as a member of etcd sends it.
func Sent(t testing.TB) []byte {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, &bbolt.Options{NoFreelistSync: true, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = errors.Join(db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte("key"))
		meta, failed := tx.CreateBucket([]byte("meta"))
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		return meta.Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, 7))
	}), db.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(&out)
		return err
	}), db.Close())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(out.Bytes())
	return append(out.Bytes(), sum[:]...)
}
