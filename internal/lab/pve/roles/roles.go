// Package roles is what roles a fresh Proxmox VE has, and of which privileges.
package roles

// The privileges Proxmox VE knows, as GET /access/roles listed them.
const (
	datastorePrivileges = "Datastore.Allocate,Datastore.AllocateSpace,Datastore.AllocateTemplate,Datastore.Audit"
	sdnPrivileges       = "SDN.Allocate,SDN.Audit,SDN.Use"
	// VMConfigPrivileges are those on the options of VMs.
	VMConfigPrivileges = "VM.Config.CDROM,VM.Config.CPU,VM.Config.Cloudinit,VM.Config.Disk,VM.Config.HWType,VM.Config.Memory,VM.Config.Network,VM.Config.Options"

	vmPrivileges8 = "VM.Allocate,VM.Audit,VM.Backup,VM.Clone," + VMConfigPrivileges +
		",VM.Console,VM.Migrate,VM.Monitor,VM.PowerMgmt,VM.Snapshot,VM.Snapshot.Rollback"
	vmPrivileges9 = "VM.Allocate,VM.Audit,VM.Backup,VM.Clone," + VMConfigPrivileges +
		",VM.Console,VM.GuestAgent.Audit,VM.GuestAgent.FileRead,VM.GuestAgent.FileSystemMgmt,VM.GuestAgent.FileWrite,VM.GuestAgent.Unrestricted," +
		"VM.Migrate,VM.PowerMgmt,VM.Replicate,VM.Snapshot,VM.Snapshot.Rollback"

	// adminPrivileges are PVEAdmin's besides those on VMs, rootPrivileges what
	// Administrator has more.
	adminPrivileges = datastorePrivileges + ",Group.Allocate,Mapping.Audit,Mapping.Use,Pool.Allocate,Pool.Audit,Realm.AllocateUser," +
		sdnPrivileges + ",Sys.Audit,Sys.Console,Sys.Syslog,User.Modify"
	rootPrivileges = "Mapping.Modify,Permissions.Modify,Realm.Allocate,Sys.AccessNetwork,Sys.Incoming,Sys.Modify,Sys.PowerMgmt"
)

// Builtin returns the privileges of the roles that a fresh host has, by name, with commas between them; of
// Proxmox VE 9 or of 8.
func Builtin(nine bool) map[string]string {
	vm, audit, user := vmPrivileges8, "", "VM.Console,VM.PowerMgmt"
	if nine {
		vm, audit = vmPrivileges9, ",VM.GuestAgent.Audit"
		user = "VM.Console,VM.GuestAgent.Audit,VM.GuestAgent.FileRead,VM.GuestAgent.FileSystemMgmt,VM.GuestAgent.FileWrite,VM.PowerMgmt"
	}
	return map[string]string{
		"Administrator":     adminPrivileges + "," + rootPrivileges + "," + vm,
		"NoAccess":          "",
		"PVEAdmin":          adminPrivileges + "," + vm,
		"PVEAuditor":        "Datastore.Audit,Mapping.Audit,Pool.Audit,SDN.Audit,Sys.Audit,VM.Audit" + audit,
		"PVEDatastoreAdmin": datastorePrivileges,
		"PVEDatastoreUser":  "Datastore.AllocateSpace,Datastore.Audit",
		"PVEMappingAdmin":   "Mapping.Audit,Mapping.Modify,Mapping.Use",
		"PVEMappingUser":    "Mapping.Audit,Mapping.Use",
		"PVEPoolAdmin":      "Pool.Allocate,Pool.Audit",
		"PVEPoolUser":       "Pool.Audit",
		"PVESDNAdmin":       sdnPrivileges,
		"PVESDNUser":        "SDN.Audit,SDN.Use",
		"PVESysAdmin":       "Sys.Audit,Sys.Console,Sys.Syslog",
		"PVETemplateUser":   "VM.Audit,VM.Clone",
		"PVEUserAdmin":      "Group.Allocate,Realm.AllocateUser,User.Modify",
		"PVEVMAdmin":        vm,
		"PVEVMUser":         "VM.Audit,VM.Backup,VM.Config.CDROM,VM.Config.Cloudinit," + user,
	}
}
