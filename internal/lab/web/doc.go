// Package web plays the services on the net that a cluster is built from: an
// Image Factory, a chart repository, an OCI registry, a git server (https and
// ssh) and a forge that takes commit statuses. Each speaks the protocol of the
// real one, over the world's network and with the world's latencies, faults
// and certificates, and keeps what it was asked for tests to look at.
//
// It must not know who asks: nothing in it knows the agent, its inventory or
// its plans, and no other face of the lab. What a face hands out that another
// face must recognise (a disk image) it makes known to the world.
//
// Every face answers one system of [world.Call]: factory, charts, registry,
// git, forge. The operation of a call is the method and the route, for example
// "GET /image/{schematic}/{version}/{path}". Git's are "GET info/refs SERVICE",
// "POST SERVICE" and, over ssh, "SSH SERVICE", where SERVICE is git-upload-pack
// for who fetches and git-receive-pack for who pushes.
//
// Spans recorded with [world.World.Spend]: "download/<image file>" for an
// image sent whole, "chart/<name>" for a chart archive, from the repository or
// the registry.
package web
