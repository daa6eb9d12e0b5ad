// Package inventory turns the files of one cluster (cluster.yaml, nodes.yaml,
// patches and addons) into a cluster.Snapshot, or into the list of everything
// that is wrong with them: each problem with file, line, column, field, what
// is wrong and what to write instead.
//
// It is strict and deterministic. Unknown keys, wrong types, duplicate keys,
// a second document, anchors and aliases are refused, and so is whatever is
// not supported yet. Identities (VMID, MAC, UUID, serials) follow from the owner
// and from what is written about a node, never from its position in a list.
//
// The room is pure: it reads a file system it is given and knows neither the
// network, the environment, the clock nor how secrets are decrypted. What a
// Talos version supports is not its business either; the room that renders
// machine configs knows that.
package inventory
