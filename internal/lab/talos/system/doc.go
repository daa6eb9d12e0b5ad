// Package system is what a simulated Talos machine shows of its inside: the
// numbers of its kernel, its processes, mounts, files, containers and images, the
// lines it has logged and its events. Each number is worked out from what the
// machine is (its memory and cores, how long it runs, what runs on it), so that
// two answers never contradict each other.
//
// The shapes are those of Talos v1.13.9, from recordings and from its source
// (internal/app/machined/internal/server/v1alpha1, internal/app/images).
//
// It must not know the fleet, its locks or the machine config: a machine hands it
// a Snapshot of itself whenever somebody asks.
package system
