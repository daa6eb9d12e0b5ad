// Package manifests holds the bootstrap manifests of Talos against the objects in Kubernetes, by a dry run of
// server-side apply, and applies those that differ, as `talosctl upgrade-k8s` does at its end:
// as the field manager of Talos, the objects that others need first, and no further after the first error.
//
// An object that a release of Helm has is left, and so is one of which somebody else has set a field that
// would change. Nothing is ever taken from another manager, and nothing is deleted.
package manifests
