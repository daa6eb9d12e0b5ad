// Package snapshot keeps etcd snapshots at rest: it verifies what a member sends, encrypts
// it, stores it in a directory that may be on another storage, lists what is there, and
// removes what is no longer needed.
//
// A file is, in this order:
//
//   - a line with what it is and the version of its format;
//   - a line with the Header as JSON, for whoever has no key;
//   - an age file, whose content is the SHA-256 of those two lines, and the snapshot as the
//     member sent it, with the SHA-256 that etcd puts at its end.
//
// So age authenticates the snapshot, and the snapshot its header. The file stands for
// itself: any storage carries it, and any age opens it.
//
// It must not know which member is asked, nor which keys there are: it is handed a stream
// and recipients. No snapshot is ever on a disk in clear.
package snapshot
