package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"
)

// writeSnapshot makes a snapshot as `talosctl etcd snapshot` writes it: a database of etcd
// with some keys, and its SHA-256. The directory is for files on the way.
func writeSnapshot(dir string) ([]byte, error) {
	db, err := bbolt.Open(filepath.Join(dir, "bbolt"), 0o600, &bbolt.Options{NoFreelistSync: true, NoSync: true, PageSize: 4096})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = errors.Join(db.Update(fillEtcd), db.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(&out)
		return err
	}), db.Close())
	sum := sha256.Sum256(out.Bytes())
	return append(out.Bytes(), sum[:]...), err
}

// fillEtcd writes what etcd has.
func fillEtcd(tx *bbolt.Tx) error {
	for _, name := range []string{"cluster", "key", "meta", "members"} {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	for n := range uint64(200) {
		revision := binary.BigEndian.AppendUint64(append(binary.BigEndian.AppendUint64(nil, n+2), '_'), 0)
		key := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), fmt.Sprint("/registry/configmaps/default/c", n%150))
		if err := tx.Bucket([]byte("key")).Put(revision, key); err != nil {
			return err
		}
	}
	return errors.Join(
		tx.Bucket([]byte("cluster")).Put([]byte("clusterVersion"), []byte("3.6.0")),
		tx.Bucket([]byte("meta")).Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, 812)),
		tx.Bucket([]byte("meta")).Put([]byte("term"), binary.BigEndian.AppendUint64(nil, 2)),
		tx.Bucket([]byte("members")).Put([]byte("8e9e05c52164694d"), []byte(`{"id":10276657743932975437,"peerURLs":["https://10.10.0.11:2380"],"name":"dev-cp-1"}`)))
}
