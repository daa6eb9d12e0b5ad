// Package talos is the Talos service of the lab: simulated machines that boot
// when their virtual machine is switched on, speak the real Talos API over
// real TLS, take real machine configs, found and join an etcd, and run the
// Kubernetes of the lab.
//
// What it answers is bound to what real nodes answered: codes, texts, orders
// and surprises come from recordings of Talos v1.13.9 and, where a recording
// is silent, from that version's source. Differences between versions that a
// client can see (the maintenance service up to v1.12, no reboots from v1.14
// on, documents a version does not know) follow the version in the slot of the
// disk that was booted. Of a config it refuses the documents that this version does
// not know, and the images of a Kubernetes that it does not run; what the linked library
// does not know it lets pass: a field that a later version brought, in a document that
// this one knows. A config that is there already is not judged again by the
// version that an upgrade brings, nor by its installer.
//
// It must not know who is asking or why: not the agent, its planner or its
// adapters, and not how the other services work inside. It knows the lab's world
// and the rules that a Talos cluster suffers from when they are broken.
//
// One lock guards the whole fleet, because machines meet in etcd. Whatever
// must happen outside of it (telling Kubernetes) is queued in order and
// carried out by whoever releases the lock last.
package talos
