// Package accesslog reads the access log of pveproxy, the server of Proxmox VE's API
// and web interface, on the host that this program runs on.
//
// It answers who has sent a request that changed a VM. Proxmox VE has tasks for most
// changes and none for a PUT of a config, which is what its web interface sends for most
// options: only this log has the name of who sent it. It has the requests that pveproxy on
// this host answered, from clients and from the other hosts of its cluster; `qm set` in a
// shell passes no pveproxy. So a request that is not found was not necessarily not sent.
//
// Whoever reaches port 8006 chooses parts of a line. Lines are therefore read whole or
// not at all, only those of requests that were authenticated and succeeded count, and no
// text of one is handed on that was not matched.
//
// It must not know which VMs are nodes, or what a change of one means.
//
// Format: PVE::APIServer::AnyEvent, log_request (pve-http-server 6.0.5). Place, modes and
// rotation: pve-manager 9, Makefile and configs/pve.logrotate.
package accesslog
