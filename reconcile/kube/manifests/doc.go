// Package manifests holds the bootstrap manifests of Talos against the objects in Kubernetes, by a dry run of
// server-side apply, and applies those that differ, as `talosctl upgrade-k8s` does at its end:
// as the field manager of Talos, the objects that others need first, and no further after the first error.
//
// What Talos has made and nothing renders any longer is deleted, by the inventory in which Talos 1.13 and newer, and
// talosctl, list what they have made. This room reads and writes it as they do, so that each finds what the other has done.
//
// An object that a release of Helm has is left, and so is one of another inventory, and one of which somebody else has
// set a field that would change. Nothing is ever taken from another manager, and nothing is deleted
// that anybody else has a part in.
package manifests
