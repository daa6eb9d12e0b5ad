// Package factory gets Talos disk images from an Image Factory: it asks for the
// id of a schematic, downloads the image of a version and schematic, makes sure
// that it is one, and keeps it in a cache directory on the host.
//
// It speaks plain HTTP and knows nothing of storages, VMs or when an image is
// needed. An image that somebody put into the cache directory by hand under its
// right name is as good as a downloaded one, so that a host without internet
// can be served.
package factory
