// Package pveconf reads and spells the values of Proxmox VE's configuration
// language: scalars of any JSON type, options, changes that wait for the next
// start, property strings such as "virtio=BC:24:11:00:00:11,bridge=vmbr0",
// sizes, and lists of tags and VMIDs.
//
// It answers what a value contains, whichever of its spellings Proxmox VE chose
// this time. What cannot be read is the zero value: configurations are written
// by people too, and one odd option must not hide the others.
//
// The package is pure. It must not know how Proxmox VE is asked, which VM a
// configuration belongs to, or what an option means for a node.
package pveconf
