package setup

import (
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
)

// User is the agents' user: one for all hosts of a Proxmox VE cluster.
const User = "talos-agent@pve"

// TokenName is the name of a host's token: the host's own. A token's name begins
// with a letter and has two characters at least (pve-access-control,
// $token_subid_regex), which a host's name need not; what goes before it then has
// an underscore, which no host's name has, so that no two hosts have one token.
func TokenName(host string) string {
	letter := host != "" && (host[0]|0x20 >= 'a' && host[0]|0x20 <= 'z')
	if len(host) < 2 || !letter {
		return "host_" + host
	}
	return host
}

// Token is a host's token, with its user.
func Token(host string) cluster.TokenID { return cluster.NewTokenID(User, TokenName(host)) }

// Privilege is one privilege of Proxmox VE, and what the agent needs it for.
type Privilege struct {
	Name string
	For  string
	// Optional privileges make something visible; without them the agent reports
	// what it cannot see, and works.
	Optional bool
}

// Role is a named set of privileges that the agent's user and token get at some
// paths. The privileges are the same in Proxmox VE 8.4 and 9.
type Role struct {
	Name       string
	Privileges []Privilege
}

// The roles of the agent.
const (
	RoleVM      = "TalosAgentVM"
	RoleStorage = "TalosAgentStorage"
	RoleImages  = "TalosAgentImages"
	RoleBridge  = "TalosAgentBridge"
	RoleHost    = "TalosAgentHost"
)

// Roles returns the roles that the agent needs, each with its least privileges.
func Roles() []Role {
	return []Role{
		{RoleVM, []Privilege{
			{Name: "VM.Allocate", For: "create and delete VMs"},
			{Name: "VM.Audit", For: "see VMs and their configuration"},
			{Name: "VM.PowerMgmt", For: "start, stop and reboot VMs"},
			{Name: "VM.Config.CPU", For: "set cores and the type of processor"},
			{Name: "VM.Config.Memory", For: "set memory"},
			{Name: "VM.Config.Disk", For: "make, attach and grow disks"},
			{Name: "VM.Config.CDROM", For: "attach the cloud-init drive"},
			{Name: "VM.Config.Network", For: "attach VMs to bridges"},
			{Name: "VM.Config.HWType", For: "set machine type, UUID, serial console and watchdog"},
			{Name: "VM.Config.Options", For: "set name, description, tags and protection"},
			{Name: "VM.Config.Cloudinit", For: "give VMs their address"},
			{Name: "VM.Console", For: "show the console of a node that does not come up", Optional: true},
			{Name: "Pool.Audit", For: "see what is in the pool"},
		}},
		{RoleStorage, []Privilege{{Name: "Datastore.AllocateSpace", For: "make disks, and see the storage and its free space"}}},
		{RoleImages, []Privilege{
			{Name: "Datastore.AllocateTemplate", For: "upload Talos images"},
			{Name: "Datastore.Audit", For: "see the storage and the images on it"},
		}},
		{RoleBridge, []Privilege{{Name: "SDN.Use", For: "attach VMs to the bridge"}}},
		{RoleHost, []Privilege{{Name: "Sys.Audit", For: "see cores and memory of the host, and whether the Proxmox VE cluster has quorum", Optional: true}}},
	}
}

// mappingUser is a role that every Proxmox VE has. init gives it to no user: which devices of the host are passed to VMs is for
// its administrator to allow, one by one.
var mappingUser = Role{"PVEMappingUser", []Privilege{{Name: "Mapping.Use", For: "pass devices of the mapping to VMs"}}}

// haManager is the role with which the agent changes what Proxmox VE's HA manager holds of its VMs. init makes no such role: with
// Sys.Console on / one may change what is highly available of the whole Proxmox VE cluster, which is for its administrator to allow.
var haManager = Role{availability.Role, []Privilege{{Name: "Sys.Audit", For: "see what the HA manager holds"}, {Name: "Sys.Console", For: "have it keep VMs running"}}}

// Names returns the names of the role's privileges, in order.
func (r Role) Names() []string {
	var names []string
	for _, p := range r.Privileges {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// Scope is what the agent's token is let at.
type Scope struct {
	Pool       string   // of its VMs
	Datastores []string // for disks
	Images     string   // the storage that Talos images are uploaded to
	Bridges    []string
	Hosts      []string // the machines of the Proxmox VE cluster
	Mappings   []string // of devices that are passed to VMs: pci/gpu
	HA         bool     // VMs may be the HA manager's
}

// Grant is a role at a path. It is given to the user and to the token: a token
// with separated privileges has only what both have.
type Grant struct {
	Role      string
	Path      string
	Propagate bool // to everything below the path
	Why       string
	// Optional grants only make something visible.
	Optional bool
}

// Grants returns which roles are needed where, in the order in which people
// read them.
func Grants(s Scope) []Grant {
	out := []Grant{{Role: RoleVM, Path: "/pool/" + s.Pool, Propagate: true, Why: "make, start, stop, read and delete VMs, in this pool and nowhere else"}}
	for _, d := range s.Datastores {
		out = append(out, Grant{Role: RoleStorage, Path: "/storage/" + d, Propagate: true, Why: "put disks there"})
	}
	out = append(out, Grant{Role: RoleImages, Path: "/storage/" + s.Images, Propagate: true, Why: "upload Talos images there"})
	for _, b := range s.Bridges {
		out = append(out, Grant{Role: RoleBridge, Path: "/sdn/zones/localnetwork/" + b, Propagate: true, Why: "attach VMs to it"})
	}
	for _, m := range s.Mappings {
		out = append(out, Grant{Role: mappingUser.Name, Path: "/mapping/" + m, Propagate: true, Why: "pass its devices to VMs"})
	}
	if s.HA {
		out = append(out, Grant{Role: availability.Role, Path: "/", Why: "have Proxmox VE's HA manager keep VMs running"})
	}
	for _, h := range s.Hosts {
		out = append(out, Grant{Role: RoleHost, Path: "/nodes/" + h, Propagate: true, Why: "see how many cores it has", Optional: true})
	}
	return append(out, Grant{Role: RoleHost, Path: "/", Why: "see whether the Proxmox VE cluster has quorum", Optional: true})
}

// Needs returns the role that a grant gives; zero of one that is not known.
func (g Grant) Needs() Role {
	for _, r := range []Role{mappingUser, haManager} {
		if g.Role == r.Name {
			return r
		}
	}
	role, _ := RoleNamed(g.Role)
	return role
}

// RoleNamed returns the role of that name; false if it is none of the agent's.
func RoleNamed(name string) (Role, bool) {
	i := slices.IndexFunc(Roles(), func(r Role) bool { return r.Name == name })
	if i < 0 {
		return Role{}, false
	}
	return Roles()[i], true
}

// IsOurs reports whether an entry of the access control list, by its user or
// token, is the agent's.
func IsOurs(id string) bool { return id == User || cluster.TokenID(id).User() == User }
