// Package probe looks at the machine this program runs on: what its root sees of
// Proxmox VE (pvesh), of files and units before the host is set up, and what doctor
// wants to know of networks, clocks, modes of files and credentials. What it finds
// are facts for host/setup and host/doctor, which judge them.
//
// It must not judge, and it changes nothing: what could not be seen is unknown, with
// the reason.
package probe
