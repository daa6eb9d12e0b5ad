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

// The machine types that GET /nodes/{node}/capabilities/qemu/machines listed, in its order, without the "pc-" of each.
const (
	machines9 = `i440fx-10.0+pve1 q35-10.0+pve1 i440fx-10.0 q35-10.0 i440fx-9.2+pve1 q35-9.2+pve1 i440fx-9.2 q35-9.2 i440fx-9.1 q35-9.1
		i440fx-9.0 q35-9.0 i440fx-8.2 q35-8.2 i440fx-8.1 q35-8.1 i440fx-8.0 q35-8.0 i440fx-7.2 q35-7.2 i440fx-7.1 q35-7.1
		i440fx-7.0 q35-7.0 i440fx-6.2 q35-6.2 i440fx-6.1 q35-6.1 i440fx-6.0 q35-6.0 i440fx-5.2 q35-5.2 i440fx-5.1 q35-5.1
		i440fx-5.0 q35-5.0 i440fx-4.2 q35-4.2 i440fx-4.1+pve2 q35-4.1+pve2 i440fx-4.1+pve1 q35-4.1+pve1 i440fx-4.1 q35-4.1
		i440fx-4.0 q35-4.0.1 q35-4.0 i440fx-3.1 q35-3.1 i440fx-3.0 q35-3.0 i440fx-2.12 q35-2.12 i440fx-2.11 q35-2.11 i440fx-2.10
		q35-2.10 i440fx-2.9 q35-2.9 i440fx-2.8 q35-2.8 i440fx-2.7 q35-2.7 i440fx-2.6 q35-2.6 i440fx-2.5 q35-2.5 i440fx-2.4
		q35-2.4`
	machines8 = `q35-7.2 q35-7.1 q35-7.0 q35-6.2 q35-6.1 q35-6.0 q35-5.2 q35-5.1 q35-5.0 q35-4.2 q35-4.1+pve2 q35-4.1+pve1 q35-4.1
		q35-4.0.1 q35-4.0 q35-3.1 q35-3.0 q35-2.9 q35-2.8 q35-2.7 q35-2.6 q35-2.5 q35-2.4 q35-2.12 q35-2.11 q35-2.10 i440fx-7.2
		i440fx-7.1 i440fx-7.0 i440fx-6.2 i440fx-6.1 i440fx-6.0 i440fx-5.2 i440fx-5.1 i440fx-5.0 i440fx-4.2 i440fx-4.1+pve2
		i440fx-4.1+pve1 i440fx-4.1 i440fx-4.0 i440fx-3.1 i440fx-3.0 i440fx-2.9 i440fx-2.8 i440fx-2.7 i440fx-2.6 i440fx-2.5
		i440fx-2.4 i440fx-2.3 i440fx-2.2 i440fx-2.12 i440fx-2.11 i440fx-2.10 i440fx-2.1 i440fx-2.0 i440fx-1.7 i440fx-1.6
		i440fx-1.5 i440fx-1.4`
)

// machineChanges are what versions of Proxmox VE's own changed.
var machineChanges = map[string]string{
	"10.0+pve1": "Set host_mtu vNIC option even with default value for migration compat.",
	"9.2+pve1":  "Disables S3/S4 power states by default.",
	"4.1+pve2":  "Increases the number of SCSI drives supported.",
	"4.1+pve1":  "Introduction of pveX versioning, no changes.",
}

// machineTypes are those of a version of Proxmox VE.
func (f flavour) machineTypes() []string {
	if f.nine {
		return strings.Fields(machines9)
	}
	return strings.Fields(machines8)
}
