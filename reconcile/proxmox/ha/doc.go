// Package ha asks Proxmox VE's HA manager what it holds of a cluster, and changes that, over requests that it is handed: the
// resources by which it keeps VMs started, and the rule of Proxmox VE 9 by which it keeps control planes on hosts of their own.
//
// It must not know whether a VM is the cluster's: that is proven before. What another made, which its comment shows, it leaves.
package ha
