// Package proxmox sees and changes the virtual machines of a Proxmox VE host:
// which of them carry nodes of a cluster, what hardware they have, which tasks
// run on them; and it makes, starts and deletes them and puts the Talos image
// into a storage.
//
// It answers four questions about a VMID: is it free, is a VM there, is it
// ours, and what is it like. A VM is ours when its VMID is the one the
// inventory gives, it lies in our pool and its SMBIOS UUID is the one derived
// from cluster and node; all three are read again before every change. What
// cannot be seen is unknown, never absent: Proxmox VE answers a token that lost
// a privilege with empty lists, and a missing VM like somebody else's.
//
// Every change is idempotent, looks first and can be interrupted anywhere. A
// reply that was lost is found by looking, never by asking twice; a task is
// judged by its own exit status alone.
//
// The package uses the API of Proxmox VE 8.4 and 9 with an API token over HTTPS
// and uses go-proxmox for requests and authentication only. Proxmox VE reports
// most things in prose: the one table that reads it is in texts.go. The
// options of VMs are spelled in the room hardware, where every string that came
// from an inventory passes an allow-list before it reaches a request.
//
// It must not know what the planner decides, what runs inside a VM, or that
// there is such a thing as a lab.
package proxmox
