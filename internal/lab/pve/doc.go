// Package pve is a simulated Proxmox VE: its HTTPS API as a client sees it,
// the virtual machines, disks, images and tasks behind it, and the person at
// its console.
//
// It answers the way Proxmox VE 9.2 or 8.4 answered when it was recorded:
// parameters are checked against the API's own schema, privileges and pools
// wall tokens off, every error stands in the reason phrase, configurations come
// back in canonical form under the digest of the file they are kept in, and
// whatever takes time is a task that can fail after its call succeeded.
//
// It reports to the world what an agent must never do (see Config.Agent), and what
// time it took for what. The spans it spends, and what each comes after:
//
//	upload/<host>   download/<file name>
//	import/<vmid>   upload/<host>, delete/<vmid>, and the import before it on that storage
//	create/<vmid>   import/<vmid>, delete/<vmid>
//	resize/<vmid>   create/<vmid>
//	start/<vmid>    create/<vmid>, resize/<vmid>, stop/<vmid>
//	stop/<vmid>     start/<vmid>
//	delete/<vmid>   stop/<vmid>
//
// It must not know who asks or why, nor what runs inside a guest: that is
// world.Guests' business.
//
// Snapshots hold configurations and disks, not the memory of a running VM; a
// backup is a file that cannot be restored. Left out: containers, the firewall, SDN and HA beyond the list of what it manages and its states, consoles, QEMU's capabilities,
// decompressing downloads, what a loss of quorum does to tasks that run, lock timeouts of storages, and storage
// types other than directories and LVM-thin.
package pve
