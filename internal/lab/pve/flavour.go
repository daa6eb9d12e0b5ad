package pve

import (
	"fmt"
	"strings"
)

// flavour is the version of Proxmox VE that is simulated. Where 9.2 and 8.4 were
// seen to differ, nine decides.
type flavour struct {
	name, version, qemu, machine string
	nine                         bool
}

func flavourOf(name string) (flavour, error) {
	switch name {
	case "", "9.2":
		return flavour{name: "9.2", version: "9.2.11", qemu: "10.0.13", machine: "pc-i440fx-10.0", nine: true}, nil
	case "8.4":
		return flavour{name: "8.4", version: "8.4.21", qemu: "7.2.22", machine: "pc-i440fx-7.2"}, nil
	}
	return flavour{}, fmt.Errorf("%q is neither 9.2 nor 8.4", name)
}

// The privileges Proxmox VE knows, as GET /access/roles listed them.
const (
	datastorePrivileges = "Datastore.Allocate,Datastore.AllocateSpace,Datastore.AllocateTemplate,Datastore.Audit"
	sdnPrivileges       = "SDN.Allocate,SDN.Audit,SDN.Use"
	vmConfigPrivileges  = "VM.Config.CDROM,VM.Config.CPU,VM.Config.Cloudinit,VM.Config.Disk,VM.Config.HWType,VM.Config.Memory,VM.Config.Network,VM.Config.Options"

	vmPrivileges8 = "VM.Allocate,VM.Audit,VM.Backup,VM.Clone," + vmConfigPrivileges +
		",VM.Console,VM.Migrate,VM.Monitor,VM.PowerMgmt,VM.Snapshot,VM.Snapshot.Rollback"
	vmPrivileges9 = "VM.Allocate,VM.Audit,VM.Backup,VM.Clone," + vmConfigPrivileges +
		",VM.Console,VM.GuestAgent.Audit,VM.GuestAgent.FileRead,VM.GuestAgent.FileSystemMgmt,VM.GuestAgent.FileWrite,VM.GuestAgent.Unrestricted," +
		"VM.Migrate,VM.PowerMgmt,VM.Replicate,VM.Snapshot,VM.Snapshot.Rollback"

	// adminPrivileges are PVEAdmin's besides those on VMs, rootPrivileges what
	// Administrator has more.
	adminPrivileges = datastorePrivileges + ",Group.Allocate,Mapping.Audit,Mapping.Use,Pool.Allocate,Pool.Audit,Realm.AllocateUser," +
		sdnPrivileges + ",Sys.Audit,Sys.Console,Sys.Syslog,User.Modify"
	rootPrivileges = "Mapping.Modify,Permissions.Modify,Realm.Allocate,Sys.AccessNetwork,Sys.Incoming,Sys.Modify,Sys.PowerMgmt"
)

// role is a named set of privileges.
type role struct {
	privileges set
	special    bool // built in
}

// builtinRoles returns the roles a fresh host has.
func (f flavour) builtinRoles() map[string]*role {
	vm, audit, user := vmPrivileges8, "", "VM.Console,VM.PowerMgmt"
	if f.nine {
		vm, audit = vmPrivileges9, ",VM.GuestAgent.Audit"
		user = "VM.Console,VM.GuestAgent.Audit,VM.GuestAgent.FileRead,VM.GuestAgent.FileSystemMgmt,VM.GuestAgent.FileWrite,VM.PowerMgmt"
	}
	roles := map[string]*role{}
	for name, privileges := range map[string]string{
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
	} {
		roles[name] = &role{privileges: setOf(strings.Split(privileges, ",")...), special: true}
	}
	return roles
}

// set is a set of texts.
type set map[string]bool

func setOf(words ...string) set {
	s := set{}
	for _, w := range words {
		if w != "" {
			s[w] = true
		}
	}
	return s
}

// agentPrivilege is what reading from the guest agent needs.
func (f flavour) agentPrivilege() string {
	if f.nine {
		return "VM.GuestAgent.Audit"
	}
	return "VM.Monitor"
}
