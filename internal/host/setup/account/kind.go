package account

import (
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/host/setup"
)

// Kind is a program that an account is for.
type Kind struct {
	Name    string // ccm, csi
	Program string // as people call it
	Addon   string // its addon, which is the name of the file too
	Patch   string // the patch that nodes need for it; "": none
	roles   []setup.Role
	grants  func(Wish) []setup.Grant
	// Storage reports that it is let at storages.
	Storage bool
}

// The roles, each with its least privileges.
var (
	// The manager finds the VM of a node in /cluster/resources by its name and UUID and
	// reads its config, and asks for the groups of high availability and for the
	// members of the cluster (proxmox-cloud-controller-manager v0.13, pkg/proxmoxpool).
	// Sys.Audit goes for / alone: of the hosts below it needs none. In the network
	// modes qemu and auto it asks the guest agent besides, which needs
	// VM.GuestAgent.Audit and which these nodes do not need.
	roleNodes   = setup.Role{Name: "TalosCCM", Privileges: []setup.Privilege{{Name: "VM.Audit", For: "see the VMs of the nodes"}}}
	roleCluster = setup.Role{Name: "TalosCCMCluster", Privileges: []setup.Privilege{{Name: "Sys.Audit", For: "see the members of the Proxmox VE cluster and its groups of high availability"}}}
	// The driver makes disks of a VMID that no VM has, attaches them to the VMs of nodes
	// and deletes them (proxmox-csi-plugin v0.19, docs/install.md). Disks that are no
	// VM's are for who has Datastore.Allocate (PVE 9.2 pve-storage: check_volume_access).
	roleAttach  = setup.Role{Name: "TalosCSI", Privileges: []setup.Privilege{{Name: "VM.Audit", For: "see the VMs of the nodes"}, {Name: "VM.Config.Disk", For: "attach disks to them"}}}
	roleVolumes = setup.Role{Name: "TalosCSIStorage", Privileges: []setup.Privilege{
		{Name: "Datastore.Allocate", For: "delete disks that are no VM's"},
		{Name: "Datastore.AllocateSpace", For: "make disks"},
		{Name: "Datastore.Audit", For: "see the storage, its free space and its disks"},
	}}
)

// CCM is Proxmox' cloud controller manager, and CSI its driver for volumes.
var (
	CCM = Kind{Name: "ccm", Program: "the cloud controller manager", Addon: "proxmox-cloud-controller-manager", Patch: "external-cloud-provider",
		roles: []setup.Role{roleNodes, roleCluster},
		grants: func(w Wish) []setup.Grant {
			return []setup.Grant{
				{Role: roleNodes.Name, Path: "/pool/" + w.Pool, Propagate: true, Why: "see the VMs of the nodes, in this pool and nowhere else"},
				{Role: roleCluster.Name, Path: "/", Why: "see the members of the Proxmox VE cluster and its groups of high availability"},
			}
		}}
	CSI = Kind{Name: "csi", Program: "the driver for volumes", Addon: "proxmox-csi-plugin", Storage: true,
		roles: []setup.Role{roleAttach, roleVolumes},
		grants: func(w Wish) []setup.Grant {
			out := []setup.Grant{{Role: roleAttach.Name, Path: "/pool/" + w.Pool, Propagate: true, Why: "attach disks to VMs, in this pool and nowhere else"}}
			for _, storage := range w.Datastores {
				out = append(out, setup.Grant{Role: roleVolumes.Name, Path: "/storage/" + storage, Propagate: true, Why: "make and delete disks there"})
			}
			return out
		}}
)

// Roles are the roles of the kind.
func (k Kind) Roles() []setup.Role { return k.roles }

// User is the user of a cluster's account.
func (k Kind) User(name string) string { return "talos-" + k.Name + "-" + name + "@pve" }

// Token is the token of a cluster's account, with its user.
func (k Kind) Token(name string) cluster.TokenID { return cluster.NewTokenID(k.User(name), k.Name) }

// IDValue and SecretValue are the names of the values that hold the token in the
// cluster's secrets, which the addon refers to.
func (k Kind) IDValue() string { return "proxmox_" + k.Name + "_token_id" }

// SecretValue is that of the secret; see IDValue.
func (k Kind) SecretValue() string { return "proxmox_" + k.Name + "_token_secret" }

// commentStart begins the comment of a user that was made here.
const commentStart = "made by talos-agent init "

// comment is the comment of a user: for which cluster, in which pool. Agents of two
// hosts may have clusters of one name in pools of their own.
func (k Kind) comment(w Wish) string {
	return strings.Join([]string{k.Program, "of the cluster", w.Cluster, "in the pool", w.Pool + ",", commentStart + k.Name}, " ")
}
