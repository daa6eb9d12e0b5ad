// Package etcddb is what an etcd keeps on disk and sends as a snapshot: the database file of etcd
// 3.5 to 3.7, which is one of bbolt, with the buckets that etcd makes and the SHA-256 of the file
// behind it; and the calls of Talos that hand a snapshot out and take one.
//
// A file is made by bbolt itself, so that whatever opens snapshots opens these. It is read without
// bbolt, page by page: what is uploaded may be truncated or damaged, and bbolt maps the file into
// memory and dies of that, as it does in life with the first process of the machine.
//
// What differs from life: the values under /registry/ are objects as JSON, as the lab keeps them,
// where a kube-apiserver keeps its own kinds as protobuf after the prefix "k8s\x00" (it reads JSON
// as well). There is no history: of each key only the last revision is there, as after a
// compaction, and its first revision and its version are those of a key that was written once.
//
// It must not know a machine, nor who asks.
package etcddb
